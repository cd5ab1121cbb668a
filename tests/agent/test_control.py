"""The socket of a run: who may connect and steer, and that nobody there can hold it up or break it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import pty
import random
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.approval import Approval
from pilotfish.agent.control.client import ControlError, RunClient
from pilotfish.agent.control.server import MAX_REQUEST, serving
from pilotfish.agent.control.steering import TAKES_OVER, Answer, Steering
from pilotfish.agent.control.wire import (
    SOCKET,
    AddRule,
    Control,
    Decide,
    Delta,
    FromRun,
    Hello,
    Pause,
    Question,
    QuestionOver,
    Screen,
    State,
    Stop,
    Tell,
    call_digest,
)
from pilotfish.agent.events import CallData, EventLog
from pilotfish.agent.limits import Denied
from pilotfish.agent.policy import Policy, Rule
from pilotfish.agent.settings import load_settings
from pilotfish.agent.terminal_approval import ask_on_terminal
from pilotfish.model.protocol import ToolCall
from pilotfish.sandbox import Files, Sandbox, SandboxSpec

CALL = CallData(id="c", name="shell", arguments={"command": "ls"})


@pytest.fixture
async def steering(tmp_path: Path) -> AsyncIterator[Steering]:
    """Of a run that is served in `tmp_path`."""
    steering = Steering(asyncio.Event())
    async with serving(tmp_path, steering):
        yield steering


async def until(client: RunClient, kind: type[Any], **fields: Any) -> Any:
    """The next message of a kind with these fields."""
    async with asyncio.timeout(20):
        async for message in client.messages():
            if isinstance(message, kind) and all(getattr(message, k) == v for k, v in fields.items()):
                return message
    raise AssertionError(f"no {kind.__name__} with {fields}")


def test_a_digest_is_of_the_name_and_of_every_argument() -> None:
    one = call_digest("shell", {"command": "ls", "seconds": 1})
    assert one == call_digest("shell", {"seconds": 1, "command": "ls"})
    assert len({one, call_digest("edit", {"command": "ls", "seconds": 1}), call_digest("shell", {})}) == 3
    assert call_digest("shell", {"command": "a\ud800é"}) != call_digest("shell", {"command": "aé"})


async def test_the_socket_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30) / ("er" * 60)
    folder.mkdir(parents=True)
    stale = socket.socket(socket.AF_UNIX)
    there = os.open(folder, os.O_PATH)
    stale.bind(f"/proc/self/fd/{there}/{SOCKET}")
    os.close(there)
    stale.close()
    async with serving(folder, Steering()):
        assert stat.S_IMODE((folder / SOCKET).stat().st_mode) == 0o600
        client = await RunClient.connect(folder)
        assert (client.hello.pid, client.hello.folder) == (os.getpid(), str(folder))
    assert not (folder / SOCKET).exists()
    assert [message async for message in client.messages()][-1:] != [None]
    with pytest.raises(ControlError, match="There is no run in"):
        await RunClient.connect(folder)


async def test_programs_in_a_sandbox_are_not_let_in(steering: Steering, tmp_path: Path) -> None:
    (tmp_path / "connect.py").write_text(
        "import socket\n"
        "there = socket.socket(socket.AF_UNIX)\n"
        f"there.connect({SOCKET!r})\n"
        "try:\n"
        "    print(there.recv(1))\n"
        "except ConnectionResetError:\n"
        "    print(b'')\n"
    )
    async with Sandbox.open(SandboxSpec(desktop=False, workspace=tmp_path)) as box:
        found = await box.shell.run("python3 connect.py")
    assert found.output.strip() == "b''", "the socket is there, but nothing is said"
    client = await RunClient.connect(tmp_path)
    await client.close()


async def test_one_controls_and_many_watch(steering: Steering, tmp_path: Path) -> None:
    one, two = await RunClient.connect(tmp_path), await RunClient.connect(tmp_path)
    await one.ask(Tell(text="Hello."))
    assert (await until(two, State, messages=1)).controller == one.hello.client
    with pytest.raises(ControlError, match=f"Client {one.hello.client} controls this run"):
        await two.ask(Stop())
    with pytest.raises(ControlError, match="take it with force"):
        await two.ask(Control())
    await two.ask(Control(force=True))
    with pytest.raises(ControlError, match="controls this run"):
        await one.ask(Pause())
    await two.close()
    await until(one, State, controller=None, clients=1)
    await one.ask(Pause())
    await one.close()
    assert await steering_is(steering, clients=0, controller=None, paused=True)


async def steering_is(steering: Steering, **fields: Any) -> bool:
    """Wait until the state has these fields."""
    is_so = asyncio.Event()

    def look(_: FromRun | None = None) -> None:
        if all(getattr(steering.state, name) == value for name, value in fields.items()):
            is_so.set()

    steering.listeners.append(look)
    look()
    await asyncio.wait_for(is_so.wait(), 20)
    steering.listeners.remove(look)
    return True


async def test_a_run_holds_takes_single_steps_and_is_told(steering: Steering, tmp_path: Path) -> None:
    client = await RunClient.connect(tmp_path)
    await client.ask(Pause())
    step = asyncio.ensure_future(steering.before_step(3))
    await until(client, State, phase="paused", step=3)
    await client.ask(Tell(text="Use make."))
    assert not step.done()
    await client.ask(Pause(single=True))
    assert await step == ["Use make."]
    step = asyncio.ensure_future(steering.before_step(4))
    await until(client, State, phase="paused", step=4)
    await client.ask(Pause(on=False))
    assert await step == []
    with pytest.raises(ControlError, match="message is empty"):
        await client.ask(Tell(text=" "))
    await client.close()


async def test_the_first_answer_counts_and_late_ones_see_what_waits(
    steering: Steering, tmp_path: Path
) -> None:
    question = Question(question=0, step=1, call=CALL, why="the default")
    assert await steering.ask(question, lambda arguments: None) is None, "nobody is there"
    first = await RunClient.connect(tmp_path)
    asked = asyncio.ensure_future(steering.ask(question, lambda arguments: "`command` is missing."))
    number = (await until(first, Question)).question
    late = await RunClient.connect(tmp_path)
    assert (await until(late, Question)).call == CALL
    with pytest.raises(ControlError, match="digest differs"):
        await first.ask(Decide(question=number, verdict="once", digest=call_digest("shell", {})))
    digest = call_digest(CALL.name, CALL.arguments)
    with pytest.raises(ControlError, match="`command` is missing"):
        await first.ask(Decide(question=number, verdict="once", digest=digest, arguments={}))
    await first.ask(Decide(question=number, verdict="once", digest=digest))
    answer = await asked
    assert answer is not None
    assert (answer.verdict, answer.arguments) == ("once", None)
    await until(late, QuestionOver, question=number)
    with pytest.raises(ControlError, match="does not wait any more"):
        await first.ask(Decide(question=number, verdict="deny"))
    asked = asyncio.ensure_future(steering.ask(question, lambda arguments: None))
    await until(first, Question)
    await first.close()
    await late.close()
    assert await asked is None, "everybody has gone"


async def test_one_who_comes_late_is_told_what_was_written(steering: Steering, tmp_path: Path) -> None:
    steering.begin_answer()
    for piece in ("I ", "look."):
        steering.wrote("text", piece)
    client = await RunClient.connect(tmp_path)
    assert (await until(client, Delta, start=True)).text == "I look."
    steering.wrote("text", " \ud800")
    assert (await until(client, Delta)).text == " \\ud800"
    await client.close()


HOSTILE = [
    b"\n",
    b"{}\n",
    b"null\n",
    b"[" * 100_000 + b"\n",
    b'{"type": "rm"}\n',
    b'{"type": "pause", "id": "one"}\n',
    b'{"type": "decide", "id": 1e400}\n',
    b'{"type": "decide", "question": 1, "verdict": "once", "arguments": {"a": [NaN, 1e999]}}\n',
    b'{"type": "tell", "text": "\xff\xfe"}\n',
    b'{"type": "tell", "id": 7, "text": {"a": 1}}\n',
    b"\0" * 1000 + b"\n",
]


@pytest.mark.parametrize("line", HOSTILE)
async def test_nonsense_is_answered(steering: Steering, tmp_path: Path, line: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET))
    writer.write(line)
    async with asyncio.timeout(20):
        while (answer := json.loads(await reader.readline()))["type"] != "refused":
            assert answer["type"] in ("hello", "state")
    assert answer["sentence"].startswith("The request is not one of this protocol")
    writer.write(b'{"type": "tell", "id": 5, "text": "still there"}\n')
    async with asyncio.timeout(20):
        while (answer := json.loads(await reader.readline()))["type"] != "done":
            pass
    assert answer["id"] == 5
    writer.close()


async def test_any_bytes_are_borne(steering: Steering, tmp_path: Path) -> None:
    chance = random.Random(5)
    lines = [request.model_dump_json().encode() for request in (Tell(text="x"), Pause(), Control())]
    client = await RunClient.connect(tmp_path)
    _, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET))
    for _ in range(2000):
        line = bytearray(chance.choice(lines))
        for _ in range(chance.randrange(6)):
            at = chance.randrange(len(line))
            line[at : at + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
        writer.write(bytes(line) + b"\n")
    await writer.drain()
    writer.close()
    await steering_is(steering, clients=1)
    await client.ask(Tell(text="Still there?"))
    await client.close()


async def test_a_line_without_an_end_ends_the_connection(steering: Steering, tmp_path: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET))
    with contextlib.suppress(OSError):
        for _ in range(2 * MAX_REQUEST >> 20):
            writer.write(b"x" * (1 << 20))
            await writer.drain()
    async with asyncio.timeout(20):
        with contextlib.suppress(OSError):
            await reader.read()
    writer.close()
    assert await steering_is(steering, clients=0)


async def test_one_that_reads_nothing_is_let_go_and_holds_nobody_up(
    steering: Steering, tmp_path: Path
) -> None:
    deaf = socket.socket(socket.AF_UNIX)
    deaf.connect(str(tmp_path / SOCKET))
    client = await RunClient.connect(tmp_path)
    heard: list[FromRun] = []

    async def hear() -> None:
        async for message in client.messages():
            heard.append(message)

    hearing = asyncio.ensure_future(hear())
    await steering_is(steering, clients=2)
    for number in range(900):
        steering.change(step=number)
        steering.wrote("text" if number % 2 else "thinking", "x" * 60_000)
        await asyncio.sleep(0)
    assert await steering_is(steering, clients=1)
    await client.ask(Stop())
    await client.close()
    hearing.cancel()
    assert sum(len(message.text) for message in heard if isinstance(message, Delta)) == 900 * 60_000
    assert not any(isinstance(message, Hello) for message in heard)
    deaf.close()


async def test_states_that_gave_way_to_newer_ones_hold_no_room(
    steering: Steering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotfish.agent.control.server.MAX_UNREAD", 20_000)
    client = await RunClient.connect(tmp_path)
    await steering_is(steering, clients=1)
    for number in range(1000):  # all before anything can be sent
        steering.change(step=number)
    await client.ask(Tell(text="Still there?"))
    await client.close()


async def test_what_waits_for_one_that_reads_nothing_is_put_together(
    steering: Steering, tmp_path: Path
) -> None:
    deaf = socket.socket(socket.AF_UNIX)
    deaf.connect(str(tmp_path / SOCKET))
    await steering_is(steering, clients=1)
    for number in range(3000):
        steering.wrote("text", "word ")
        for listener in steering.listeners:
            listener(Screen(width=1, height=1, png="x" * 100_000, cursor=(number, 0)))
        await asyncio.sleep(0)
    found = gc.get_objects()
    assert sum(type(one) is Delta and one.text.startswith("word ") for one in found) < 20
    assert sum(type(one) is Screen and len(one.png) == 100_000 for one in found) < 20
    deaf.close()


async def test_a_question_asked_while_hands_are_wanted_is_over(steering: Steering) -> None:
    """Its call was meant for the screen before, and who wants them waits for its end."""
    steering.reach.no_hands = ""
    taking = asyncio.ensure_future(steering.take_over(True, ""))
    await asyncio.sleep(0.01)
    question = Question(question=0, step=1, call=CALL, why="")
    answer = await asyncio.wait_for(steering.ask(question, lambda arguments: None), 20)
    assert answer == Answer("deny", TAKES_OVER)
    taking.cancel()


async def test_rules_are_added_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    policy = Policy(default="ask")
    steering = Steering(policy=policy)
    async with serving(tmp_path, steering):
        client = await RunClient.connect(tmp_path)
        with pytest.raises(ControlError, match=r"verdict is missing; add it"):
            await client.ask(AddRule(rule={"tool": "shell"}))
        await client.ask(AddRule(rule={"verdict": "allow", "tool": "edit"}))
        assert not (tmp_path / ".config").exists()
        done = await client.ask(AddRule(rule={"verdict": "deny", "path": "x"}, save=True))
        assert str(tmp_path / ".config/pilotfish/config.toml") in done.note
        await client.close()
    assert policy.rules == (Rule(verdict="allow", tool="edit"), Rule(verdict="deny", path="x"))
    assert load_settings({}).rules == (Rule(verdict="deny", path="x"),)


async def test_a_terminal_that_goes_is_nobody() -> None:
    async def terminal(question: Question) -> Answer:
        raise OSError(5, "Input/output error")

    question = Question(question=0, step=1, call=CALL, why="")
    assert await Steering(terminal=terminal).ask(question, lambda arguments: None) is None


async def test_a_question_is_the_terminals_and_every_clients(tmp_path: Path) -> None:
    shown: list[Question] = []
    answers = [Answer("deny", "no"), None]

    async def terminal(question: Question) -> Answer:
        shown.append(question)
        answer = answers.pop(0)
        return answer if answer is not None else await asyncio.Future()

    steering = Steering(terminal=terminal)
    question = Question(question=0, step=1, call=CALL, why="")
    async with serving(tmp_path, steering):
        client = await RunClient.connect(tmp_path)
        assert await steering.ask(question, lambda arguments: None) == Answer("deny", "no")
        await until(client, QuestionOver, question=1)
        asked = asyncio.ensure_future(steering.ask(question, lambda arguments: None))
        number = (await until(client, Question)).question
        await client.ask(Decide(question=number, verdict="task", digest=call_digest("shell", CALL.arguments)))
        assert await asked == Answer("task")
        await client.close()
    assert [one.question for one in shown] == [1, 2]


async def test_a_deny_that_comes_while_a_call_waits_counts(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    policy = Policy([Rule(verdict="deny", path="secret")], default="ask")
    steering = Steering(policy=policy, supervised=True)
    call = ToolCall("c", "shell", {"command": "cat a"})

    async def decided(change: Callable[[], object]) -> None:
        approval = Approval(policy, steering, events, Files(tmp_path))
        deciding = asyncio.ensure_future(approval.decide(call, 1, lambda _: None, lambda: ("", None)))
        async with asyncio.timeout(20):
            while not steering.questions:  # noqa: ASYNC110 - nothing signals it here
                await asyncio.sleep(0.01)
        change()
        digest = call_digest("shell", call.arguments)
        steering.decide(Decide(question=steering.questions[0].question, verdict="task", digest=digest))
        with pytest.raises(Denied, match="denied by the user's rules"):
            await deciding

    with EventLog(tmp_path) as events:
        await decided(lambda: ((tmp_path / "a").unlink(), (tmp_path / "a").symlink_to("secret")))
        (tmp_path / "a").unlink()
        await decided(lambda: policy.add(Rule(verdict="deny", command="cat *")))
    assert {rule.verdict for rule in policy.rules} == {"deny"}


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("y", Answer("once")),
        ("YES ", Answer("once")),
        ("t", Answer("task")),
        ("", Answer("deny")),
        ("n", Answer("deny")),
        ("x", Answer("deny")),
        ("use make", Answer("deny", "use make")),
    ],
)
async def test_a_terminal_is_asked(
    typed: str, answer: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"y\n")  # typed before the question
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        call = CallData(id="c", name="shell", arguments={"command": "ls\x1b[2J"})
        question = Question(
            question=1, step=1, call=call, why="a rule", diff="-a\x1b\n+b\n", run_warning="W!"
        )
        asking = asyncio.ensure_future(ask_on_terminal(question))
        await asyncio.sleep(0)
        os.write(ours, typed.encode() + b"\n")
        assert await asyncio.wait_for(asking, 20) == answer
    os.close(ours)
    shown = capsys.readouterr().err
    assert shown.startswith("W!\nshell\n  command: ls\\x1b[2J\n")
    assert "\n-a\\x1b\n+b\n  (a rule)\nRun this? [y/N, t: for this run, or why not] " in shown
    assert "\x1b" not in shown
