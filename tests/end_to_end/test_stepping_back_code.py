"""Step back in `pilotfish code`: conversation, files, tests and log agree afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.check_report import step_line
from pilotfish.agent.code import CodeTarget, resume_code, run_code
from pilotfish.agent.control.attending import People
from pilotfish.agent.control.client import ControlError, RunClient
from pilotfish.agent.control.wire import Pause, StepBack, Stop, Tell
from pilotfish.agent.conversation import Conversation
from pilotfish.agent.resume import standing
from pilotfish.agent.settings import Settings
from pilotfish.model.protocol import Message
from pilotfish.model.scripted import ScriptedModel

from ..sandbox.repositories import fingerprint, make
from ..waiting import until
from .conftest import shell, turn
from .test_checking import again
from .test_code import CALC, TESTS, mend
from .test_stepping_back import Watcher

Person = Callable[[RunClient, Watcher], Awaitable[None]]


async def code_with(
    repo: Path, model: ScriptedModel, person: Person, **options: Any
) -> tuple[dict[str, Any], log.RunLog]:
    """Play `pilotfish code` with somebody connected who steers it."""
    acting: list[asyncio.Future[None]] = []

    async def act(folder: Path) -> None:
        client = await RunClient.connect(folder)
        try:
            await person(client, Watcher(client))
        except BaseException:
            with suppress(ControlError):
                await client.ask(Stop())
            raise
        finally:
            await client.close()

    def opened(folder: Path) -> None:
        acting.append(asyncio.ensure_future(act(folder)))

    settings = Settings(record_dir=repo.parent / "runs")
    target = CodeTarget(str(repo), "Mend the failing test.", **options)
    result = await run_code(target, settings, people=People(supervised=True, on_open=opened), model=model)
    await asyncio.wait_for(acting[0], 20)
    return result, log.read_run(Path(result["folder"]))


def rebuilt(run: log.RunLog) -> tuple[Message, ...]:
    """The conversation as the log has it."""
    return standing(run.episodes()[0], run.frames, Conversation()).conversation.messages


async def walk(client: RunClient, watcher: Watcher, to: int) -> None:
    """Take single steps until the run holds before one."""
    await client.ask(Pause())
    await watcher.until(lambda state: state.phase == "paused")
    while watcher.state.step < to:
        step = watcher.state.step
        await client.ask(Pause(single=True))
        await watcher.until(lambda state: state.step > step and state.phase == "paused")  # noqa: B023


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make(tmp_path / "repo", {"calc.py": CALC, "test_calc.py": TESTS, "README.md": "# Calc\n"})


async def test_what_the_tests_have_said_is_undone_too(repo: Path) -> None:
    """Also where they are broken off: nothing of theirs is left behind."""
    tests = "touch left; while [ -e wait ]; do sleep 0.05; done; rm left; python3 -m unittest -q"

    def answer(conversation: Sequence[Message], tools: object) -> Message:
        said = sum(message.role == "assistant" for message in conversation)
        return [shell("echo looked"), turn(text="Done."), mend(), turn(text="Mended.")][said]

    async def person(client: RunClient, watcher: Watcher) -> None:
        folder = Path(client.hello.folder)
        wait, left = folder / "workspace" / "wait", folder / "workspace" / "left"
        await walk(client, watcher, 2)
        wait.touch()
        await client.ask(Pause(single=True))
        await until(left.exists)
        await client.ask(StepBack(step=2))
        assert watcher.state.step == 2
        assert not left.exists()
        wait.unlink()
        await client.ask(Pause(single=True))
        await until(lambda: bool(sent_back(log.read_run(folder))))
        await client.ask(StepBack(step=2))
        await client.ask(Pause(on=False))

    model = ScriptedModel(answer)
    result, run = await code_with(repo, model, person, tests=tests)
    assert result["passed"]
    assert all("It will be looked at 2 more times." in text for text in sent_back(run))
    assert [one.attempt for one in run.events if isinstance(one, log.Tested)] == [0, 1, 1, 2]
    assert result["tests"]["attempts"] == 2
    heard = model.requests[-1][0]
    assert rebuilt(run)[: len(heard)] == heard


async def test_a_run_that_stepped_back_is_resumed_and_checked(repo: Path) -> None:
    """What was undone is neither gone on with, nor handed back, nor executed again."""

    def answer(conversation: Sequence[Message], tools: object) -> Message:
        said = sum(message.role == "assistant" for message in conversation)
        told = any("stop here" in str(message.parts) for message in conversation)
        first = shell("echo one >> work.txt; cat work.txt; git status --short")
        undone = shell("echo wrong >> work.txt; echo wrong > wrong.txt; git add wrong.txt; cd /tmp")
        right = shell("echo two >> work.txt; pwd | wc -l; cat work.txt; git status --short; ls")
        last = shell("echo three >> work.txt; cat work.txt; ls")
        return [first, right if told else undone, last, turn(text="Finished.")][said]

    async def person(client: RunClient, watcher: Watcher) -> None:
        await walk(client, watcher, 3)
        workspace = Path(client.hello.folder) / "workspace"
        assert (workspace / "wrong.txt").exists()
        await client.ask(StepBack(step=2))
        assert not (workspace / "wrong.txt").exists()
        await client.ask(Tell(text="Do not write wrong.txt; stop here."))
        await client.ask(Pause(single=True))
        await watcher.until(lambda state: state.step == 3 and state.phase == "paused")
        await client.ask(Stop())

    before = fingerprint(repo)
    result, run = await code_with(repo, ScriptedModel(answer), person, tests="true")
    assert result["end"] == "stopped"
    assert (await again(run)).differences == []
    model = ScriptedModel(answer)
    result = await resume_code(run, Settings(record_dir=repo.parent / "runs"), model=model)
    assert (result["end"], [one["path"] for one in result["changed"]]) == ("answered", ["work.txt"])
    run = log.read_run(run.folder)
    assert (run.folder / "workspace" / "work.txt").read_text() == "one\ntwo\nthree\n"
    heard = model.requests[-1][0]
    assert rebuilt(run)[: len(heard)] == heard
    assert "wrong" not in str([message.parts for message in heard if message.role == "tool"])
    found = await again(run)
    assert ([step_line(one) for one in found.differences], len(found.compared)) == ([], 4)
    assert fingerprint(repo) == before


def sent_back(run: log.RunLog) -> list[str]:
    return [one.text for one in run.events if isinstance(one, log.SentBack)]
