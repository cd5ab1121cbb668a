"""Sub-tasks that go wrong: the whole task goes on, is told why, and nothing of theirs outlives its limits."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.changes import Changes
from pilotfish.agent.code import CodeTarget, resume_code, run_code
from pilotfish.agent.settings import SandboxLimits, Settings
from pilotfish.model.protocol import Message
from pilotfish.model.scripted import ScriptedModel

from ..sandbox.repositories import fingerprint, make
from .conftest import call, shell, turn

PLAN = [{"title": "Look"}]
DONE = turn(text="All is done.")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make(tmp_path / "repo", {"calc.py": "def add(a, b):\n    return a - b\n"})


def hand(text: str = "Do a part.") -> Message:
    return turn(call("plan", items=PLAN, subtask=text))


def indexes_in(folder: Path) -> list[Path]:
    return list(folder.glob("pilotfish-index-*"))


def commands() -> str:
    """What runs on this machine."""
    return subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True).stdout


async def played(
    repo: Path, script: Sequence[Message], **settings: Any
) -> tuple[dict[str, Any], log.RunLog, ScriptedModel]:
    model = ScriptedModel(script)
    chosen = Settings(record_dir=repo.parent / "runs", **settings)
    result = await run_code(CodeTarget(str(repo), "Work.", tests="true"), chosen, model=model)
    return result, log.read_run(Path(result["folder"])), model


def results(run: log.RunLog) -> list[log.Resulted]:
    """Of the whole task's own calls."""
    return [one for one in run.events if isinstance(one, log.Resulted) and not one.parent]


async def test_one_that_never_ends_is_ended_by_its_steps(repo: Path) -> None:
    result, run, _ = await played(repo, [hand(), *[shell("true")] * 40, shell("echo mine"), DONE])
    part, own = results(run)
    assert not part.ok
    assert "[the sub-task has ended: step_limit, 40 steps]" in part.text
    assert own.text.startswith("mine")
    assert (result["end"], result["steps"]) == ("answered", 2)


async def test_one_that_waits_for_ever_takes_the_time_of_the_whole_and_no_more(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.monotonic()
    mark = f"31{os.getpid()}"
    held = Path(tempfile.mkdtemp(prefix="pf-"))  # pytest's own are too long for sockets
    monkeypatch.setattr("tempfile.tempdir", str(held))
    look = turn(call("index", command="outline", path="calc.py"))
    script = [hand(), look, shell(f"sleep {mark} & sleep {mark}"), shell(f"sleep {mark}")]
    result, run, _ = await played(repo, script, max_seconds=12)
    assert time.monotonic() - began_s < 90
    assert result["end"] == "time_limit"
    assert any(isinstance(one, log.Resulted) and one.parent and one.ok for one in run.events)
    assert all("ended: time_limit" in one.text for one in results(run)[:1])
    assert indexes_in(held) == []
    shutil.rmtree(held)
    assert mark not in await asyncio.to_thread(commands)


async def test_one_that_fills_the_disk_is_told_and_the_rest_goes_on(repo: Path) -> None:
    fill = "head -c 400000000 /dev/zero > big; echo $?; rm -f big"
    result, run, _ = await played(
        repo,
        [hand(), shell(fill), turn(text="It was full."), shell("echo small > small"), DONE],
        limits=SandboxLimits(disk_mib=50),
    )
    inside = [one for one in run.events if isinstance(one, log.Resulted) and one.parent]
    assert "the workspace may grow by 50 MiB and has, so `head` was ended" in inside[0].text
    assert results(run)[0].text.endswith("[the sub-task has ended: answered, 1 step]\nIt was full.")
    labels = [kept.label for kept in Changes(run).all()]
    own = [label for label in labels if "step" in label]
    assert own == ["before step 1 of a sub-task, shell", "before step 2, shell"]
    assert [one["path"] for one in result["changed"]] == ["small"]


async def test_both_that_edit_one_file_are_told_of_each_other(repo: Path) -> None:
    view = turn(call("edit", command="view", path="calc.py"))

    def edit(old: str, new: str) -> Message:
        return turn(call("edit", command="replace", path="calc.py", old_text=old, new_text=new))

    script = [view, edit("a - b", "a * b"), hand(), view, edit("a * b", "a / b"), turn(text="Divides.")]
    result, run, model = await played(repo, [*script, edit("a * b", "a + b"), edit("a / b", "a + b"), DONE])
    told = results(run)
    assert not told[3].ok
    assert "has changed on disk since you last saw it" in told[3].text
    (changed,) = result["changed"]
    assert changed["path"] == "calc.py"
    seen = [str(part) for message in model.requests[3][0] for part in message.parts]
    assert not any("a - b" in text for text in seen), "the part knows nothing of what was done before it"


async def test_one_that_hands_over_again_or_answers_nonsense_is_refused(repo: Path) -> None:
    bad = [turn(call("plan", subtask="deeper")), turn(call("nonsense")), turn(call("shell", wrong=1))]
    result, run, _ = await played(repo, [hand(), *bad[:2], turn(text="I could not."), DONE])
    inside = [one for one in run.events if isinstance(one, log.Resulted) and one.parent]
    assert [one.executed for one in inside] == [False, False]
    assert "there is no tool" in inside[0].text.lower()
    assert results(run)[0].text.endswith("I could not.")
    assert result["end"] == "answered"
    result, run, _ = await played(repo, [hand(), *bad, DONE])
    assert "[the sub-task has ended: format_limit" in results(run)[0].text
    assert result["end"] == "answered"


async def test_a_huge_answer_and_a_huge_or_empty_part_are_bounded(repo: Path) -> None:
    script = [hand("é" * 1_000_000), hand(" "), hand(), turn(text="x" * 10_000_000), DONE]
    result, run, model = await played(repo, script)
    told = results(run)
    assert "`subtask` has 1000000 characters, but must have 1 to 20000" in told[0].text
    assert "`subtask` has 0 characters" in told[1].text
    assert told[2].text.endswith("\n[9992000 more characters]")
    assert sum(len(str(part)) for message in model.requests[-1][0] for part in message.parts) < 60_000
    assert result["end"] == "answered"


async def test_tokens_that_a_part_has_used_are_gone_for_the_whole(repo: Path) -> None:
    result, run, _ = await played(repo, [hand(), *[shell("true # " + "x" * 400)] * 9, DONE], max_tokens=6)
    assert "[the sub-task has ended: token_limit" in results(run)[0].text
    assert result["end"] == "token_limit"


RUN = """
import asyncio, sys
from pathlib import Path
from pilotfish.agent.code import CodeTarget, run_code
from pilotfish.agent.settings import Settings
from pilotfish.model.protocol import Message, ToolCall
from pilotfish.model.scripted import ScriptedModel

repo, runs = sys.argv[1:]
call = lambda name, **given: Message("assistant", (), None, (ToolCall("c", name, given),))
script = [call("plan", subtask="A part."), call("shell", command="touch started; sleep 78")]
target, model = CodeTarget(repo, "Work.", tests="true"), ScriptedModel(script)
work = run_code(target, Settings(record_dir=Path(runs)), model=model)
print(asyncio.run(work)["end"])
"""


def end_in_the_middle(repo: Path, runs: Path, how: int) -> str:
    """Start a run in a process of its own, end it while its sub-task works, and return what it printed."""
    command = [sys.executable, "-c", RUN, str(repo), str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not list(runs.glob("*/workspace/started")):
            time.sleep(0.02)
        process.send_signal(how)
        return process.communicate()[0]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_one_that_is_stopped_or_killed_in_the_middle_is_not_repeated(repo: Path, how: int) -> None:
    before, runs = fingerprint(repo), repo.parent / "runs"
    said = await asyncio.to_thread(end_in_the_middle, repo, runs, how)
    assert said == ("stopped\n" if how == signal.SIGINT else "")
    (folder,) = runs.iterdir()
    model = ScriptedModel([shell("ls"), DONE])
    result = await resume_code(log.read_run(folder), Settings(record_dir=runs), model=model)
    assert (result["end"], [one["path"] for one in result["changed"]]) == ("answered", ["started"])
    first = model.requests[0][0]
    assert [message.role for message in first if message.role == "user"] == ["user"]
    assert "A part." not in str(first[1].parts[0]), "the whole task goes on, not its part"
    run = log.read_run(folder)
    assert sum(isinstance(one, log.Intended) and one.call.name == "plan" for one in run.events) == 1
    assert fingerprint(repo) == before
