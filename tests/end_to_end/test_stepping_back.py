"""A person has a run go back to before a step: files, screen, what the model was told, and what it used."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from pilotfish.agent import events as log
from pilotfish.agent.control.attending import attended
from pilotfish.agent.control.client import ControlError, RunClient
from pilotfish.agent.control.spawn import start_supervised
from pilotfish.agent.control.wire import Input, Pause, Question, Screen, State, StepBack, Stop, TakeOver
from pilotfish.agent.conversation import Conversation
from pilotfish.agent.loop import Outcome
from pilotfish.agent.models import open_model
from pilotfish.agent.player import Player
from pilotfish.agent.policy import Policy
from pilotfish.agent.resume import standing
from pilotfish.agent.returning import how_to_resume
from pilotfish.agent.run import DEMO_SEED, DEMO_TASK, Target, resolve
from pilotfish.agent.settings import Settings
from pilotfish.model.protocol import Clip, Message, Model
from pilotfish.model.scripted import ScriptedModel
from pilotfish.tasks.format import Task

from .conftest import call, shell, turn, without_words
from .test_going_back import PILOTFISH

Person = Callable[[RunClient], Awaitable[None]]


class Watcher:
    """What a client has been told of a run's state."""

    def __init__(self, client: RunClient) -> None:
        self.state = State(phase="starting")
        self.screens: list[Screen] = []
        self.questions: list[Question] = []
        self.notes: list[str] = []
        self._news = asyncio.Event()
        self._task = asyncio.ensure_future(self._listen(client))

    async def _listen(self, client: RunClient) -> None:
        async for message in client.messages():
            if isinstance(message, Screen):
                self.screens.append(message)
            if isinstance(message, Question):
                self.questions.append(message)
            if isinstance(message, State):
                self.state = message
                self.notes.append(message.note)
                self._news.set()

    async def until(self, holds: Callable[[State], bool]) -> State:
        async with asyncio.timeout(60):
            while not holds(self.state):
                self._news.clear()
                await self._news.wait()
        return self.state


async def supervised(
    target: Target, folder: Path, model: Model, person: Person, policy: Policy | None = None
) -> tuple[Outcome, log.RunLog]:
    """Play a target as `pilotfish run` does, with somebody connected who steers it."""
    settings = Settings()
    job_for, _ = resolve(target, settings)
    stop, policy = asyncio.Event(), policy or Policy()
    with log.EventLog(folder) as events:
        options = {"target": asdict(target), "settings": settings.model_dump(mode="json")}
        started = log.RunStarted(
            run=folder.name,
            pilotfish="0",
            command="run",
            model="scripted",
            options=json.loads(json.dumps(options)),
        )
        events.append(started)
        async with attended(events, policy, stop) as steering:
            client = await RunClient.connect(folder)
            acting = asyncio.ensure_future(person(client))
            acting.add_done_callback(lambda task: stop.set() if task.exception() else None)
            async with Player(settings, events, policy, stop, steering=steering) as player:
                outcome = await player.play(job_for(folder, None), model)
            await asyncio.wait_for(acting, 20)
            await client.close()
        events.append(log.RunEnded(status="finished"))
    return outcome, log.read_run(folder)


def by_step(answers: Sequence[Message], later: dict[int, Message] | None = None) -> ScriptedModel:
    """Answers by how many there are in the conversation; `later` ones where a step was answered before."""
    seen: set[int] = set()

    def answer(conversation: Sequence[Message], tools: object) -> Message:
        step = sum(message.role == "assistant" for message in conversation)
        again = step in seen
        seen.add(step)
        return (later or {}).get(step, answers[step]) if again else answers[step]

    return ScriptedModel(answer)


async def test_files_conversation_and_budget_are_as_before_the_step(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("first\n")
    answers = [
        shell("echo one >> a.txt; sleep 500 & X=1"),
        shell("echo two >> a.txt; rm -f b.txt"),
        shell("echo three > c.txt; mkdir d"),
        turn(text="Finished."),
    ]
    model = by_step(answers, {1: shell("echo other >> a.txt; echo X=$X; pgrep -c sleep")})
    notes: list[str] = []

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        await client.ask(Pause())
        for _ in range(3):
            step = watcher.state.step
            await client.ask(Pause(single=True))
            await watcher.until(lambda state: state.step > step and state.phase == "paused")  # noqa: B023
        state = await watcher.until(lambda state: state.step == 4 and state.phase == "paused")
        assert state.can_step_back
        assert not state.can_take_over
        with pytest.raises(ControlError, match="There is no step 9 to go back to: it has taken 3 steps"):
            await client.ask(StepBack(step=9))
        notes.append((await client.ask(StepBack(step=2))).note)
        state = await watcher.until(lambda state: state.step == 2 and state.phase == "paused")
        assert (project / "a.txt").read_text() == "first\none\n"
        assert sorted(path.name for path in project.iterdir()) == ["a.txt"]
        await client.ask(Pause(on=False))

    target = Target(instruction="Work.", workspace=str(project))
    outcome, run = await supervised(target, tmp_path / "run", model, person)
    assert (outcome.end, outcome.steps) == ("answered", 3)
    assert (project / "a.txt").read_text() == "first\none\nother\n"
    assert notes == ["Programs that the shell had started were ended, and its sessions begin anew."]
    back = [event for event in run.events if isinstance(event, log.SteppedBack)]
    assert [(one.step, one.to, one.over) for one in back] == [(4, 2, False), (4, 2, True)]
    before, after = model.requests[1][0], model.requests[3][0]
    assert after[: len(before)] == before, "the model's cached prefix stays"
    assert [message.role for message in after[len(before) :]] == ["user"]
    assert "Programs that you had started" in str(after[-1].parts[0])
    result = next(e for e in reversed(run.events) if isinstance(e, log.Resulted) and "X=" in e.text)
    assert result.text.splitlines()[:2] == ["X=", "0"]


YES = turn(call(action="left_click", coordinate=[500, 200], id="yes"))
NO = turn(call(action="left_click", coordinate=[500, 700], id="no"))
DONE = turn(call(action="done", id="d"))


async def test_a_screen_is_brought_back_by_doing_the_steps_again(web_task: Task, tmp_path: Path) -> None:
    without_words(web_task)
    model = by_step([NO, YES, NO, DONE], {1: turn(call(action="wait", duration=0.1, id="w")), 2: YES})
    notes: list[str] = []

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        await client.ask(Pause())
        for step in (2, 3, 4):
            await client.ask(Pause(single=True))
            await watcher.until(lambda state: state.step == step and state.phase == "paused")  # noqa: B023
        notes.append((await client.ask(StepBack(step=2))).note)
        await watcher.until(lambda state: state.step == 2 and state.phase == "paused")
        await client.ask(Pause(on=False))

    target = Target(task=str(web_task.folder / "task.yaml"))
    outcome, run = await supervised(target, tmp_path / "run", model, person)
    assert (outcome.end, outcome.steps, outcome.grade.passed) == ("done", 4, True)
    assert notes == ["The screen is equal to what it was."]
    (back,) = (event for event in run.events if isinstance(event, log.SteppedBack) and event.over)
    first = next(event for event in run.events if isinstance(event, log.Resulted))
    assert back.clip is not None
    assert first.clip is not None
    assert back.clip.frames[3] == first.clip.frames[3]
    before, after = model.requests[1][0], model.requests[3][0]
    assert len(before) == len(after), "an equal screen is not told"
    for one, other in zip(before, after, strict=True):
        for part, twin in zip(one.parts, other.parts, strict=True):
            if isinstance(part, Clip) and isinstance(twin, Clip):
                assert np.array_equal(part.frames, twin.frames)
            else:
                assert part == twin


async def test_files_and_programs_on_a_desktop_come_back_together(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_text("a\n")
    answers = [
        shell("xterm -geometry 60x10+50+50 & sleep 1; echo 1 >> a"),
        turn(call(action="left_click", coordinate=[200, 150])),
        turn(call(action="type", text="echo typed >> a\n")),
        shell("echo more >> a"),
        DONE,
    ]
    seen: list[str] = []

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        await client.ask(Pause())
        for step in (2, 3, 4, 5):
            await watcher.until(lambda state: state.phase == "paused" and state.step == step - 1)  # noqa: B023
            await client.ask(Pause(single=True))
        await watcher.until(lambda state: state.phase == "paused" and state.step == 5)
        for step in (4, 2):
            note = (await client.ask(StepBack(step=step))).note
            assert note.startswith("The screen is ")
            seen.append((project / "a").read_text())
        assert {f"going back: step {step} of 3 is done again" for step in (1, 2, 3)} <= {*watcher.notes}
        assert not watcher.state.note
        await client.ask(Pause(on=False))

    target = Target(instruction="Work.", workspace=str(project), desktop=True)
    outcome, _ = await supervised(target, tmp_path / "run", by_step(answers), person)
    assert (outcome.end, outcome.steps) == ("done", 5)
    assert seen == ["a\n1\ntyped\n", "a\n1\n"]
    assert (project / "a").read_text() == "a\n1\ntyped\nmore\n", "the xterm of after that was typed into"


async def test_stopped_on_the_way_back_it_goes_there_when_it_is_resumed(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "hold").touch()  # which comes back with the files of before the first step
    model = by_step([shell("while [ -e hold ]; do sleep 0.1; done"), shell("echo two"), DONE])

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        await client.ask(Pause())
        await client.ask(Pause(single=True))
        await watcher.until(lambda state: state.step == 1 and state.phase == "acting")
        (project / "hold").unlink()
        await watcher.until(lambda state: state.step == 2 and state.phase == "paused")
        going = asyncio.ensure_future(client.ask(StepBack(step=2)))
        await watcher.until(lambda state: state.note == "going back: step 1 of 1 is done again")
        await client.ask(Stop())
        with pytest.raises(ControlError, match="The run has ended meanwhile"):
            await going

    target = Target(instruction="Work.", workspace=str(project), desktop=True)
    outcome, run = await supervised(target, tmp_path / "run", model, person)
    assert outcome.end == "stopped"
    how = how_to_resume(run.episodes()[-1], keeps_files=True, own_files=True)
    assert how.note == "The run goes back to before step 2, which had been begun."


async def test_a_screen_that_differs_is_told(web_task: Task, tmp_path: Path) -> None:
    """What a person did by hand is not done again."""
    model = by_step([NO, NO, DONE], {1: DONE})
    notes: list[str] = []

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        await client.ask(Pause())
        await watcher.until(lambda state: state.phase == "paused" and state.can_take_over)
        await client.ask(TakeOver())
        await client.ask(Input(action="click", x=100, y=50))
        await client.ask(TakeOver(on=False))
        for step in (2, 3):
            await client.ask(Pause(single=True))
            await watcher.until(lambda state: state.step == step and state.phase == "paused")  # noqa: B023
        notes.append((await client.ask(StepBack(step=2))).note)
        await client.ask(Pause(on=False))

    target = Target(task=str(web_task.folder / "task.yaml"))
    outcome, run = await supervised(target, tmp_path / "run", model, person)
    assert (outcome.end, outcome.steps) == ("done", 2)
    assert notes[0].startswith("The screen is not quite what it was: ")
    assert "A person used mouse and keyboard here, which is not repeated." in notes[0]
    heard = model.requests[-1][0]
    assert heard[-1].role == "user"
    assert str(heard[-1].parts[0]).startswith("The user had the work go back to this point, and the screen")
    assert isinstance(heard[-1].parts[1], Clip)
    again = standing(run.episodes()[0], run.frames, Conversation()).conversation.messages
    assert [str(message.parts[0]) for message in again[: len(heard)] if message.role == "user"][1:] == [
        str(message.parts[0]) for message in heard if message.role == "user"
    ][1:]


async def test_a_sub_task_is_left_for_it(tmp_path: Path) -> None:
    def answer(conversation: Sequence[Message], tools: object) -> Message:
        if "one part of a larger task" in str(conversation[1].parts[0]):
            return shell("echo part >> steps; sleep 600")
        step = sum(message.role == "assistant" for message in conversation)
        asked.append(step)
        if asked.count(1) > 1:
            return turn(text="Done.")
        return turn(call("plan", subtask="Do a part.")) if step else shell("echo whole >> steps")

    asked: list[int] = []

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        await watcher.until(lambda state: state.step == 2 and state.phase == "acting")
        steps = tmp_path / "run" / "workspace" / "steps"
        async with asyncio.timeout(60):
            while "part" not in steps.read_text():  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.02)
        await client.ask(StepBack(step=2))
        await client.ask(Pause(on=False))

    target = Target(instruction="Work.", tools=("shell", "plan"))
    outcome, run = await supervised(target, tmp_path / "run", ScriptedModel(answer), person)
    assert (outcome.end, outcome.steps, asked) == ("answered", 1, [0, 1, 1])
    assert (tmp_path / "run" / "workspace" / "steps").read_text() == "whole\n"
    assert [event.call.name for event in log.live(run.episodes()[0]) if isinstance(event, log.Intended)] == [
        "shell"
    ]


async def test_it_does_not_wait_for_what_is_being_done(tmp_path: Path) -> None:
    """A call that runs for long, and the same for an answer that is never written."""

    async def answer(conversation: Sequence[Message], tools: object) -> Message:
        step = sum(message.role == "assistant" for message in conversation)
        asked.append(step)
        if asked.count(step) == 1 and step == 2:
            await asyncio.sleep(600)
        if asked.count(1) == 1 and step == 1:
            return shell("echo x > x; sleep 600")
        return turn(text="Done.") if asked.count(0) == 2 and step else shell(f"echo {step} >> steps")

    asked: list[int] = []

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        await watcher.until(lambda state: state.step == 2 and state.phase == "acting")
        await client.ask(StepBack(step=2))
        await watcher.until(lambda state: state.step == 2 and state.phase == "paused")
        await client.ask(Pause(on=False))
        await watcher.until(lambda state: state.step == 3 and state.phase == "thinking")
        await client.ask(StepBack(step=1))
        await client.ask(Pause(on=False))

    began_s = time.monotonic()
    outcome, run = await supervised(
        Target(instruction="Work."), tmp_path / "run", ScriptedModel(answer), person
    )
    assert (outcome.end, outcome.steps, outcome.answer) == ("answered", 1, "Done.")
    assert time.monotonic() - began_s < 120
    assert (tmp_path / "run" / "workspace" / "steps").read_text() == "0\n"
    assert not (tmp_path / "run" / "workspace" / "x").exists()
    assert asked == [0, 1, 1, 2, 0, 1]
    assert [event.to for event in run.events if isinstance(event, log.SteppedBack) and event.over] == [2, 1]


COUNTING = """
instruction: Count.
tools: [shell]
environment: {kind: shell}
limits: {steps: 40, seconds: 120}
graders: [{kind: file_equals, path: count.txt, text: "0\\n1\\n2\\n3\\n4\\n5\\n6\\n7\\n"}]
solution:
"""


async def test_killed_in_the_middle_it_goes_there_when_it_is_resumed(tmp_path: Path) -> None:
    task = tmp_path / "counting.yaml"
    task.write_text(COUNTING + "".join(f"  - echo {n} >> count.txt; sleep 0.2\n" for n in range(8)))
    moments = random.Random(os.environ.get("PYTEST_SEED", "seed"))
    folder = await start_supervised(["run", str(task), "--model", "solution"], tmp_path / "runs")
    client = await RunClient.connect(folder)
    watcher = Watcher(client)
    await client.ask(Pause())
    await watcher.until(lambda state: state.phase == "paused")
    while watcher.state.step < 5:
        step = watcher.state.step
        await client.ask(Pause(single=True))
        await watcher.until(lambda state: state.step > step and state.phase == "paused")  # noqa: B023
    going = asyncio.ensure_future(client.ask(StepBack(step=2)))
    await asyncio.sleep(moments.uniform(0, 0.3))
    os.kill(client.hello.pid, signal.SIGKILL)
    with suppress(ControlError):
        await going
    await client.close()
    done = await asyncio.to_thread(
        subprocess.run,
        [*PILOTFISH, "resume", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert json.loads(done.stdout)["passed"], done.stderr
    events = log.read_run(folder).events
    backs = [event.over for event in events if isinstance(event, log.SteppedBack)]
    assert backs in ([], [False, True]), "it had not begun, or it was finished"


async def test_the_model_that_ships_finds_what_it_had_computed(tmp_path: Path) -> None:
    target = Target(task=DEMO_TASK, seed=DEMO_SEED)
    _, task = resolve(target, Settings())
    model = open_model(Settings())(task)

    async def person(client: RunClient) -> None:
        watcher = Watcher(client)
        await client.ask(Pause())
        for step in (1, 2):
            await watcher.until(lambda state: state.phase == "paused" and state.step == step)  # noqa: B023
            await client.ask(Pause(single=True))
        await watcher.until(lambda state: state.phase == "paused" and state.step == 3)
        await client.ask(StepBack(step=2))
        await client.ask(Pause(single=True))
        await watcher.until(lambda state: state.phase == "paused" and state.step == 3)
        await client.ask(Stop())

    outcome, run = await supervised(target, tmp_path / "run", model, person)
    assert outcome.end == "stopped"
    first, again = (event for event in run.events if isinstance(event, log.Answered) and event.step == 2)
    assert [call.arguments for call in again.calls] == [call.arguments for call in first.calls]
    assert first.usage.cached_tokens is not None
    assert again.usage.cached_tokens is not None
    assert first.usage.input_tokens == again.usage.input_tokens
    computed_first = (first.usage.input_tokens or 0) - first.usage.cached_tokens
    computed_again = (again.usage.input_tokens or 0) - again.usage.cached_tokens
    assert computed_again < computed_first / 5
