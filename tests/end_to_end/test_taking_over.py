"""A person takes mouse and keyboard of a run's sandbox over, hands them back, and watches its screen."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from Xlib import display

from pilotfish.agent import events as log
from pilotfish.agent.control.client import ControlError, RunClient
from pilotfish.agent.control.hands import Hands
from pilotfish.agent.control.refusal import Refusal
from pilotfish.agent.control.screen import LiveScreen
from pilotfish.agent.control.wire import (
    Control,
    Decide,
    Input,
    Pause,
    Screen,
    TakeOver,
    WatchScreen,
    call_digest,
)
from pilotfish.agent.conversation import Conversation
from pilotfish.agent.policy import Policy
from pilotfish.agent.resume import standing
from pilotfish.agent.run import Target
from pilotfish.model.protocol import Clip, Message
from pilotfish.model.scripted import ScriptedModel
from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.tasks.format import Task
from pilotfish.tools.grid import Screen as Region

from ..waiting import until
from .conftest import call, shell, turn
from .test_stepping_back import Watcher, supervised

DONE = turn(call(action="done", id="d"))
WAIT = turn(call(action="wait", duration=0.05, id="w"))
GREEN = [0, 255, 0]


def pixels(screen: Screen) -> Any:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(screen.png))))


async def test_mouse_and_keyboard_go_to_a_person_and_come_back(web_task: Task, tmp_path: Path) -> None:
    model = ScriptedModel([WAIT, DONE])

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        await client.ask(Pause())
        await client.ask(Pause(single=True))
        await watcher.until(lambda state: state.step == 2 and state.can_take_over)
        await client.ask(WatchScreen(per_second=10))
        with pytest.raises(ControlError, match="Nobody has taken over"):
            await client.ask(Input(action="click", x=5, y=5))
        assert "until you hand them back" in (await client.ask(TakeOver())).note
        await watcher.until(lambda state: state.phase == "taken_over")
        other = await RunClient.connect(tmp_path / "run")
        with pytest.raises(ControlError, match="controls this run"):
            await other.ask(Input(action="click", x=5, y=5))
        await other.close()
        with pytest.raises(ControlError, match=r"\(9000, 5\) is not on the screen, which is 336x420"):
            await client.ask(Input(action="click", x=9000, y=5))
        await client.ask(Input(action="click", x=100, y=50))
        await until(lambda: bool(watcher.screens) and pixels(watcher.screens[-1])[210, 5].tolist() == GREEN)
        assert watcher.screens[-1].cursor == (100, 50)
        await client.ask(Input(action="press", x=200, y=212, button="middle"))
        await client.ask(TakeOver(on=False, note="I pressed Yes."))
        await watcher.until(lambda state: state.phase == "paused")
        await client.ask(Pause(on=False))

    target = Target(task=str(web_task.folder / "task.yaml"))
    outcome, run = await supervised(target, tmp_path / "run", model, person)
    assert (outcome.end, outcome.grade.passed) == ("done", True)
    took, gave = (e for e in run.events if isinstance(e, log.TookOver | log.GaveBack))
    assert isinstance(gave, log.GaveBack)
    assert (took.step, gave.step, gave.inputs) == (2, 2, 2)
    assert gave.did == ("clicked at (100, 50)", "held the middle button down at (200, 212)")
    heard = model.requests[1][0]
    said, clip = heard[-1].parts
    assert heard[-1].role == "user"
    assert str(said).startswith("The user used mouse and keyboard for ")
    assert " s (2 inputs). They say: I pressed Yes.\n" in str(said)
    assert isinstance(clip, Clip)
    assert clip.frames[3][210, 5].tolist() == GREEN
    again = standing(run.episodes()[0], run.frames, Conversation()).conversation.messages
    assert [(m.role, len(m.parts)) for m in again[:5]] == [(m.role, len(m.parts)) for m in heard]
    assert again[4].parts[0] == said


async def test_who_goes_while_he_holds_them_has_handed_them_back(web_task: Task, tmp_path: Path) -> None:
    model = ScriptedModel([WAIT, DONE])

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        holder = await RunClient.connect(tmp_path / "run")
        await holder.ask(Control())
        await holder.ask(Pause())
        await watcher.until(lambda state: state.phase == "paused" and state.can_take_over)
        await holder.ask(TakeOver())
        await holder.ask(Input(action="press", x=100, y=50))
        await holder.close()
        await watcher.until(lambda state: state.phase == "paused" and state.controller is None)
        await client.ask(Pause(on=False))

    target = Target(task=str(web_task.folder / "task.yaml"))
    outcome, run = await supervised(target, tmp_path / "run", model, person)
    assert outcome.end == "done"
    assert outcome.grade.passed, "the button was let go, which is a click"
    (gave,) = (e for e in run.events if isinstance(e, log.GaveBack))
    assert gave.inputs == 1
    assert gave.text.endswith(" s (1 input).")


async def test_who_is_forced_out_lets_go_and_what_waited_is_asked(web_task: Task, tmp_path: Path) -> None:
    click = call(action="left_click", coordinate=[500, 200], id="yes")
    model = ScriptedModel([turn(click), turn(click), DONE, DONE])

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        holder = await RunClient.connect(tmp_path / "run")
        await watcher.until(lambda state: state.phase == "asking")
        await holder.ask(TakeOver())
        await holder.ask(Input(action="press", x=100, y=50, button="middle"))
        for request in (Control(), Input(action="move", x=1, y=1), TakeOver(), Pause()):
            with pytest.raises(ControlError, match="controls this run"):
                await client.ask(request)
        await client.ask(Control(force=True))
        with pytest.raises(ControlError, match=f"Client {client.hello.client} controls this run"):
            await holder.ask(Input(action="release", x=100, y=50, button="middle"))
        for number in (2, 3):
            await until(lambda: len(watcher.questions) == number)  # noqa: B023
            asked = watcher.questions[-1]
            assert watcher.state.controller == client.hello.client
            digest = call_digest(asked.call.name, asked.call.arguments)
            await client.ask(Decide(question=asked.question, verdict="once", digest=digest))
        await holder.close()

    target = Target(task=str(web_task.folder / "task.yaml"))
    outcome, run = await supervised(target, tmp_path / "run", model, person, Policy(default="ask"))
    assert (outcome.end, outcome.grade.passed) == ("done", True)
    (gave,) = (e for e in run.events if isinstance(e, log.GaveBack))
    assert gave.inputs == 1


async def test_neither_an_answer_nor_a_question_is_waited_for(web_task: Task, tmp_path: Path) -> None:
    async def answer(conversation: Sequence[Message], tools: object) -> Message:
        asked.append(len(conversation))
        if len(asked) == 1:
            await asyncio.sleep(600)
        return turn(call(action="left_click", coordinate=[500, 200], id="yes")) if len(asked) == 2 else DONE

    asked: list[int] = []

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        for phase in ("thinking", "asking"):
            await watcher.until(lambda state: state.phase == phase)  # noqa: B023
            await client.ask(TakeOver())
            await client.ask(TakeOver(on=False))
        await watcher.until(lambda state: state.phase == "asking" and len(watcher.questions) == 2)
        digest = call_digest(watcher.questions[1].call.name, watcher.questions[1].call.arguments)
        await client.ask(Decide(question=watcher.questions[1].question, verdict="once", digest=digest))

    target = Target(task=str(web_task.folder / "task.yaml"))
    model = ScriptedModel(answer)
    outcome, run = await supervised(target, tmp_path / "run", model, person, Policy(default="ask"))
    assert outcome.end == "done"
    denied = next(e for e in run.events if isinstance(e, log.Resulted))
    assert not denied.executed
    assert denied.text.startswith(
        "The user denied this call of computer: The user took mouse and keyboard over"
    )
    assert "look at the screen when they have handed back" in denied.text
    heard = [message.role for message in model.requests[-1][0]]
    assert heard == ["developer", "user", "user", "assistant", "tool", "user"]


async def test_a_run_without_a_screen_has_nothing_to_take_over(tmp_path: Path) -> None:
    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        await client.ask(Pause())
        await watcher.until(lambda state: state.phase == "paused")
        for request in (TakeOver(), WatchScreen()):
            with pytest.raises(ControlError, match="has no screen"):
                await client.ask(request)
        await client.ask(Pause(on=False))

    target = Target(instruction="Work.")
    model = ScriptedModel([shell("true"), turn(text="Done.")])
    outcome, _ = await supervised(target, tmp_path / "run", model, person)
    assert outcome.end == "answered"


async def test_any_text_is_typed_and_nothing_stays_held() -> None:
    text = "echo 'Grüße, ¿qué? Здравствуй 你好 |~\\' > out.txt\n"
    async with Sandbox.open(SandboxSpec(width=640, height=480)) as box:
        await box.run(["xterm", "-u8", "-geometry", "80x24+0+0"])
        hands = Hands(Region(box.display.name, 0, 0, 640, 480))
        await asyncio.sleep(1)
        await hands.do(Input(action="click", x=200, y=200))
        await hands.do(Input(action="text", text=text))
        made = box.workspace / "out.txt"
        await until(lambda: made.exists() and bool(made.read_text()))
        assert box.files.read_text("out.txt") == "Grüße, ¿qué? Здравствуй 你好 |~\\\n"
        for button in ("left", "middle", "right"):
            await hands.do(Input(action="press", x=300, y=300, button=button))  # type: ignore[arg-type]
        connection = display.Display(box.display.name)
        root = connection.screen().root
        assert root.query_pointer().mask & 0x700 == 0x700
        await hands.do(Input(action="release", x=300, y=300, button="middle"))
        assert root.query_pointer().mask & 0x700 == 0x500
        with pytest.raises(Refusal, match="a scroll needs"):
            await hands.do(Input(action="scroll"))
        await hands.close()
        assert root.query_pointer().mask & 0x700 == 0
        assert not any(connection.query_keymap())
        with pytest.raises(Refusal, match="handed back"):
            await hands.do(Input(action="key", key="Return"))
        connection.close()


async def test_the_live_screen_costs_nothing_while_it_stands_still() -> None:
    async with Sandbox.open(SandboxSpec(width=1280, height=800)) as box:
        region = Region(box.display.name, 0, 0, 1280, 800)
        live, hands = LiveScreen(region, box.framebuffer), Hands(region)
        fast: list[tuple[float, Screen]] = []
        slow: list[tuple[float, Screen]] = []
        live.watch(lambda shown: fast.append((time.monotonic(), shown)), 20)
        live.watch(lambda shown: slow.append((time.monotonic(), shown)), 1)
        await until(lambda: bool(fast and slow))
        await asyncio.sleep(0.5)
        cpu_s, sent = time.process_time(), len(fast)
        await asyncio.sleep(2)
        assert time.process_time() - cpu_s < 0.02 * 5, "1 % of a core, and what a busy machine adds"
        assert len(fast) == sent
        await hands.do(Input(action="move", x=30, y=40))
        await box.run(["xterm", "-geometry", "40x10+300+300", "-e", "while :; do date +%N; sleep 0.02; done"])
        await asyncio.sleep(2.5)
        assert fast[-1][1].cursor == (30, 40)
        assert len(fast) > sent + 5
        for told, gap_s in ((fast, 1 / 20), (slow, 1.0)):
            times = [at_s for at_s, _ in told]
            assert min(b - a for a, b in itertools.pairwise(times)) > gap_s * 0.5
        assert 2 <= len(slow) <= 8
        await hands.close()
        await live.close()
