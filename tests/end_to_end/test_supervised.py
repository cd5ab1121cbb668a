"""Runs as processes of their own, steered over their sockets; whoever watches them may die at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.control.client import ControlError, RunClient
from pilotfish.agent.control.runs import runs_in
from pilotfish.agent.control.spawn import OUTPUT, StartError, start_supervised
from pilotfish.agent.control.wire import SOCKET, Decide, Question, Request, State, Stop, Tell, call_digest
from pilotfish.agent.events import Asked, Decided, EpisodeEnded, Resulted, Resumed, Spoken, read_run

from .conftest import Command

TASK = """
instruction: Write a line three times.
tools: [shell]
environment: {kind: shell}
limits: {steps: 40, seconds: 120}
graders: [{kind: file_equals, path: lines, text: "1\\n2\\n3\\n"}]
solution: ["echo 1 >> lines", "echo 2 >> lines", "echo 3 >> lines"]
"""
ASK = {"PILOTFISH_DEFAULT_VERDICT": "ask"}


@pytest.fixture
def task(tmp_path: Path) -> str:
    path = tmp_path / "three.yaml"
    path.write_text(TASK)
    return str(path)


@pytest.fixture
def asking(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run that asks about everything, in its own process, and waits; it is ended afterwards."""
    monkeypatch.setenv("PILOTFISH_DEFAULT_VERDICT", "ask")
    folder = asyncio.run(start_supervised(["run", task, "--model", "solution"], tmp_path / "runs"))
    yield folder
    asyncio.run(end(folder))


async def end(folder: Path) -> None:
    with contextlib.suppress(ControlError):
        client = await RunClient.connect(folder)
        os.kill(client.hello.pid, signal.SIGKILL)
        await client.close()


async def question_of(client: RunClient) -> Question:
    async with asyncio.timeout(60):
        async for message in client.messages():
            if isinstance(message, Question):
                return message
    raise AssertionError("the run has ended")


async def ended(folder: Path) -> EpisodeEnded:
    """The end of the run's episode, once its process has closed its socket."""
    async with asyncio.timeout(60):
        try:
            client = await RunClient.connect(folder)
            async for _ in client.messages():
                pass
            await client.close()
        except ControlError:
            pass
    found = [event for event in read_run(folder).events if isinstance(event, EpisodeEnded)]
    return found[-1]


def approve(question: Question, **fields: Any) -> Decide:
    digest = call_digest(question.call.name, question.call.arguments)
    return Decide(question=question.question, verdict="once", digest=digest, **fields)


async def question_in(folder: Path) -> Question:
    client = await RunClient.connect(folder)
    question = await question_of(client)
    await client.close()
    return question


async def holds(folder: Path) -> None:
    """Wait until the run holds."""
    client = await RunClient.connect(folder)
    async with asyncio.timeout(60):
        async for message in client.messages():
            if isinstance(message, State) and message.phase == "paused":
                break
    await client.close()


def test_a_supervised_run_waits_and_is_steered_from_the_command_line(
    asking: Path, command_here: Command
) -> None:
    def steer(*words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(command_here("steer", str(asking), *words, "--json").out)
        return found

    first = asyncio.run(question_in(asking))
    shown = steer("status")
    assert shown["question"]["call"]["arguments"] == {"command": "echo 1 >> lines"}
    assert shown["state"]["phase"] == "asking"
    assert shown["question"]["digest"] == call_digest("shell", {"command": "echo 1 >> lines"})
    assert "command: echo 1 >> lines" in command_here("steer", str(asking), "status").out
    listed = json.loads(command_here("runs", "--record-dir", str(asking.parent), "--json").out)["runs"]
    assert [(run["id"], run["playing"]) for run in listed] == [(asking.name, True)]
    assert f"{asking.name}  running " in command_here("runs", "--record-dir", str(asking.parent)).out
    assert "digest differs" in steer("allow", "--digest", "0" * 64)["error"]
    assert "ACTION is 'nod', but must be one of 'status', 'pause'," in steer("nod")["error"]
    assert steer("tell", "Hurry.")["done"]
    assert steer("allow")["done"] == "The call runs."
    assert asyncio.run(question_in(asking)).question > first.question
    steer("pause")
    steer("deny", "not this")
    asyncio.run(holds(asking))
    assert "No call waits" in steer("approve")["error"]
    steer("step")
    asyncio.run(question_in(asking))
    steer("allow", "--this-run")
    asyncio.run(holds(asking))
    steer("go-on")
    assert not asyncio.run(ended(asking)).passed
    assert "has finished; `pilotfish show" in steer("status")["error"]
    assert command_here("steer", str(asking), "tell").status == 2
    run = read_run(asking)
    assert [e.text for e in run.events if isinstance(e, Spoken)] == ["Hurry."]
    assert [e.verdict for e in run.events if isinstance(e, Decided)] == ["once", "deny", "task"]
    assert (asking / "workspace" / "lines").read_text() == "1\n3\n"
    assert "denied: not this" in (asking / OUTPUT).read_text()
    shown_text = command_here("show", str(asking)).out
    assert "allowed for this run" in shown_text
    assert "asks: no rule names it, and such calls are asked about" in shown_text
    assert "user  Hurry." in shown_text


async def test_a_killed_run_asks_again_what_had_waited(asking: Path) -> None:
    client = await RunClient.connect(asking)
    question = await question_of(client)
    await client.ask(approve(question))
    question = await question_of(client)
    await client.ask(Tell(text="Hurry."))
    os.kill(client.hello.pid, signal.SIGKILL)
    async for _ in client.messages():
        pass
    await client.close()
    waits: list[str] = []
    again = await start_supervised(["resume", str(asking)], on_wait=waits.append)
    assert again == asking
    assert waits == ["its process to start", "the model solution to be loaded"]
    client = await RunClient.connect(asking)
    repeated = await question_of(client)
    assert repeated.call == question.call
    await client.ask(approve(repeated, arguments={"command": "echo 2 >> lines # edited"}))
    await client.ask(approve(await question_of(client)))
    await client.close()
    assert (await ended(asking)).passed
    events = read_run(asking).events
    assert sum(isinstance(event, Resumed) for event in events) == 1
    assert len([event for event in events if isinstance(event, Asked)]) == 4
    assert [e.step for e in events if isinstance(e, Resulted)] == [1, 2, 3]
    assert [e.text for e in events if isinstance(e, Spoken)] == ["Hurry."], "it was accepted, and is told"


WATCHER = """
import socket, sys
there = socket.socket(socket.AF_UNIX)
there.connect(sys.argv[1])
there.send(b'{"type": "pause", "on": false, "id": 1}\n{"type": "watch_scr')
print("here", flush=True)
while there.recv(int(sys.argv[2])):
    pass
"""


async def test_clients_killed_at_any_moment_harm_no_run(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow.yaml"
    commands = [f"sleep 0.2; echo {number} >> lines" for number in range(20)]
    slow.write_text(
        TASK.partition("graders")[0]
        + f"""
graders: [{{kind: command, run: "test $(wc -l < lines) = 20"}}]
solution: {json.dumps(commands)}
"""
    )
    folder = await start_supervised(["run", str(slow), "--model", "solution"], tmp_path / "runs")
    chance = random.Random(7)
    for _ in range(20):
        watch = [sys.executable, "-I", "-S", "-c", WATCHER, folder / SOCKET, str(chance.choice([1, 9999]))]
        watcher = await asyncio.to_thread(subprocess.Popen, watch, stdout=subprocess.PIPE)
        try:
            assert watcher.stdout is not None
            await asyncio.to_thread(watcher.stdout.readline)
            await asyncio.sleep(chance.uniform(0, 0.2))
        finally:
            watcher.kill()
            watcher.communicate()
    over = await ended(folder)
    assert (over.end, over.passed, over.steps) == ("answered", True, 20)


STARTER = """
import asyncio, sys, time
from pathlib import Path
from pilotfish.agent.control.spawn import start_supervised

print(asyncio.run(start_supervised(sys.argv[2:], Path(sys.argv[1]))), flush=True)
time.sleep(60)
"""


def test_a_run_outlives_its_starter_and_costs_nothing_while_it_waits(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTFISH_DEFAULT_VERDICT", "ask")
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path / "runs"), "run", task, "--model", "solution"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert starter.stdout is not None
    folder = Path(starter.stdout.readline().strip())
    os.killpg(starter.pid, signal.SIGHUP)
    os.killpg(starter.pid, signal.SIGKILL)
    starter.communicate()
    assert asyncio.run(question_in(folder)).step == 1
    (run,) = runs_in(tmp_path / "runs")
    assert (run.folder, run.playing) == (folder, True)
    pid = asyncio.run(pid_of(folder))
    before = used_s(pid)
    time.sleep(3)
    assert used_s(pid) - before < 0.15
    asyncio.run(ask(folder, Stop()))
    assert asyncio.run(ended(folder)).end == "stopped"


async def ask(folder: Path, request: Request) -> None:
    client = await RunClient.connect(folder)
    await client.ask(request)
    await client.close()


async def pid_of(folder: Path) -> int:
    client = await RunClient.connect(folder)
    await client.close()
    return client.hello.pid


def used_s(pid: int) -> float:
    """Seconds of a processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="is neither suite/task nor a task file"):
        await start_supervised(["run", "no/such-task", "--model", "solution"], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


async def test_without_anybody_nothing_waits(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "pilotfish.agent.entry", "run", task, "--model", "solution", "--json"],
        env=os.environ | ASK | {"PILOTFISH_RECORD_DIR": str(tmp_path / "runs")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=100,
    )
    report = json.loads(done.stdout)
    assert (report["end"], report["passed"], report["steps"]) == ("answered", False, 3)
    (run,) = runs_in(tmp_path / "runs")
    assert (run.playing, run.status, run.what, run.id) == (False, "finished", task, report["run"])
    told = [event.text for event in read_run(run.folder).events if isinstance(event, Resulted)]
    assert all("has to be allowed by a person and nobody is there" in text for text in told)


def test_a_thousand_runs_are_listed_at_once(tmp_path: Path) -> None:
    for number in range(1000):
        folder = tmp_path / f"20261129-{number:06}-abcdef"
        folder.mkdir()
        started = {"v": 1, "n": 1, "t": number, "type": "run_started", "run": folder.name, "command": "run"}
        started |= {"model": "nano", "options": {"target": {"task": "a/b"}}, "pilotfish": "0"}
        middle = json.dumps({"v": 1, "type": "told", "text": "x" * 1000}) + "\n"
        ended = {
            "v": 1,
            "n": 3,
            "t": 9.0,
            "type": "episode_ended",
            "episode": 0,
            "end": "done",
            "passed": True,
        }
        end = json.dumps(ended) + "\n"
        end += json.dumps({"v": 1, "n": 4, "t": 9.0, "type": "run_ended", "status": "finished"})
        (folder / "events.jsonl").write_text(json.dumps(started) + "\n" + middle * 100 + end + "\n")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "events.jsonl").write_bytes(b"\xff[[[\n\0")
    began_s = time.monotonic()
    runs = runs_in(tmp_path)
    seconds = time.monotonic() - began_s
    assert len(runs) == 1001
    assert runs[0].id == "broken"
    assert (runs[1].id, runs[1].what, runs[1].status) == ("20261129-000999-abcdef", "a/b", "finished")
    assert {run.outcome for run in runs[1:]} == {"passed"}
    assert seconds < 2
