"""Graders tell right from wrong, and are told nothing by a model that lies to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from pydantic import TypeAdapter

from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.tasks import graders
from pilotfish.tasks.environment import End, Grade
from pilotfish.tasks.grader_fields import Grader
from pilotfish.tasks.graders import grade, run_clean


@pytest_asyncio.fixture
async def box() -> AsyncIterator[Sandbox]:
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        yield box


async def verdict(box: Sandbox, *graders: dict[str, Any], end: End | None = None) -> Grade:
    parsed = [TypeAdapter[Grader](Grader).validate_python(grader) for grader in graders]
    return await grade(parsed, box, end or End())


async def test_file_equals(box: Sandbox) -> None:
    wanted = {"kind": "file_equals", "path": "a.txt", "text": "one\n"}
    assert (await verdict(box, wanted)).reason == "'a.txt' does not exist in the workspace."
    box.files.write_text("a.txt", "one")
    assert not (await verdict(box, wanted)).passed
    box.files.write_text("a.txt", "one\n")
    assert await verdict(box, wanted) == Grade(1.0, True, "a.txt is as expected.")


async def test_file_matches_looks_at_lines(box: Sandbox) -> None:
    box.files.write_text("a.txt", "first\nsecond 22\n")
    assert (await verdict(box, {"kind": "file_matches", "path": "a.txt", "pattern": r"^second \d+$"})).passed
    assert not (await verdict(box, {"kind": "file_matches", "path": "a.txt", "pattern": r"^22"})).passed


async def test_an_expression_that_never_ends_is_given_up(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graders, "_PATTERN_S", 1)
    box.files.write_text("a.txt", "a" * 60 + "!")
    endless = await verdict(box, {"kind": "file_matches", "path": "a.txt", "pattern": "(a+)+$"})
    assert endless.score == 0
    assert "took longer than 1 s" in endless.reason
    answered = {"kind": "answer", "matches": "(a+)+$"}
    assert not (await verdict(box, answered, end=End("done", "a" * 60 + "!"))).passed
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(verdict(box, answered, end=End("done", "a" * 60 + "!")), 0.3)
    assert asyncio.get_running_loop().time() - began_s < 0.9, "Ctrl-C does not wait for it"


async def test_file_absent(box: Sandbox) -> None:
    gone = {"kind": "file_absent", "path": "deep/a.txt"}
    assert (await verdict(box, gone)).passed
    await box.shell.run("mkdir deep; ln -s nowhere deep/a.txt")
    assert (await verdict(box, gone)).reason == "deep/a.txt is still there."
    box.files.remove("deep/a.txt")
    assert (await verdict(box, gone)).passed


@pytest.mark.parametrize(
    "lie",
    [
        "ln -s /etc/passwd a.txt",
        "ln -s ../../../../etc/passwd a.txt",
        "mkdir a.txt",
        "mkfifo a.txt",
        "head -c 200 /dev/urandom > a.txt",
        "truncate -s 1T a.txt || truncate -s 1G a.txt",
        "mkdir real; ln -s /etc real/way; ln -s real/way/passwd a.txt",
    ],
)
async def test_what_is_no_plain_text_file_scores_nothing(box: Sandbox, lie: str) -> None:
    await box.shell.run(lie)
    outcome = await verdict(box, {"kind": "file_matches", "path": "a.txt", "pattern": ""})
    assert outcome.score == 0
    assert not outcome.passed
    assert "\n" not in outcome.reason


async def test_command_looks_at_status_and_output(box: Sandbox) -> None:
    box.files.write_text("a.txt", "7\n")
    assert (await verdict(box, {"kind": "command", "run": "cat a.txt; echo noise >&2", "stdout": "7"})).passed
    assert (await verdict(box, {"kind": "command", "run": "exit 3", "exit_code": 3})).passed
    wrong = await verdict(box, {"kind": "command", "run": "echo 8", "stdout": "7"})
    assert wrong.reason == "The check printed '8' instead of '7'."
    failed = await verdict(box, {"kind": "command", "run": "echo first; echo why >&2; exit 4"})
    assert failed.reason == "The check ended with status 4 instead of 0, saying 'why'."


async def test_a_command_that_hangs_is_ended_with_all_it_started(box: Sandbox) -> None:
    late = await verdict(
        box, {"kind": "command", "run": "(sleep 2; touch late) & sleep 60", "timeout_s": 0.2}
    )
    assert late.reason == "The check took longer than 0.2 s."
    running = await run_clean(box, "pgrep -x sleep | wc -l", 10)
    assert running == (0, "0\n", "")


async def test_hidden_files_are_seen_by_their_command_only(box: Sandbox) -> None:
    files = {"check.sh": "echo hidden\n", "data/deep.txt": "x"}
    run = 'bash "$GRADER/check.sh"; cat "$GRADER/data/deep.txt"; ls -A; echo "$GRADER" > where'
    assert (await verdict(box, {"kind": "command", "run": run, "stdout": "hidden\nx", "files": files})).passed
    folder = box.files.read_text("where").strip()
    assert (await box.shell.run(f"ls {folder}")).exit_code == 2


async def test_the_clean_shell_owes_the_model_nothing(box: Sandbox) -> None:
    box.files.write_text("liar.sh", "#!/bin/bash\necho 7\n")
    await box.shell.run("chmod +x liar.sh; cp liar.sh python3; cp liar.sh cat; cp liar.sh grep")
    await box.shell.run("cat() { echo 7; }; export -f cat; alias grep='echo 7'; export PATH=/workspace:$PATH")
    await box.shell.run(
        "export BASH_ENV=/workspace/liar.sh PYTHONSTARTUP=/workspace/liar.sh LD_PRELOAD=/workspace/x.so"
    )
    await box.shell.run("echo 'echo 7' | tee ~/.bashrc ~/.bash_profile ~/.profile >/dev/null")
    await box.shell.run("mkdir -p ~/.local/lib/python3.11/site-packages")
    await box.shell.run("echo 'print(7)' > ~/.local/lib/python3.11/site-packages/sitecustomize.py")
    assert (await box.shell.run("cat x")).output == "7\n"
    assert await run_clean(
        box, "echo 1 | cat; echo 2 | grep 2; python3 -c 'print(3)'; echo $BASH_ENV", 10
    ) == (
        0,
        "1\n2\n3\n\n",
        "",
    )


async def test_stale_or_planted_bytecode_is_not_used(box: Sandbox) -> None:
    box.files.write_text("thing.py", "VALUE = 1\n")
    await box.shell.run("python3 -c 'import thing'; touch -r thing.py stamp")
    box.files.write_text("thing.py", "VALUE = 2\n")
    await box.shell.run("touch -r stamp thing.py")
    assert (await box.shell.run("python3 -c 'import thing; print(thing.VALUE)'")).output == "1\n"
    assert await run_clean(box, "python3 -c 'import thing; print(thing.VALUE)'", 10) == (0, "2\n", "")
    assert [entry.name for entry in box.files.list("__pycache__")] == [
        f"thing.cpython-3{minor}.pyc"
        for minor in range(99)
        if box.files.exists(f"__pycache__/thing.cpython-3{minor}.pyc")
    ]


async def test_answer(box: Sandbox) -> None:
    assert (await verdict(box, {"kind": "answer", "equals": "42"}, end=End("done", " 42\n"))).passed
    assert not (await verdict(box, {"kind": "answer", "equals": "42"}, end=End("done", "It is 42"))).passed
    assert (await verdict(box, {"kind": "answer", "matches": r"\b42\b"}, end=End("done", "It is 42."))).passed
    assert (await verdict(box, {"kind": "answer", "matches": "42"})).reason == "The answer was ''."


@pytest.mark.parametrize("status", ["done", "limit", "stopped", "error"])
async def test_an_infeasible_task_wants_to_be_called_so(box: Sandbox, status: Any) -> None:
    assert not (await verdict(box, {"kind": "infeasible"}, end=End(status))).passed
    assert (await verdict(box, {"kind": "infeasible"}, end=End("infeasible"))).passed


async def test_giving_up_a_task_that_can_be_done_fails(box: Sandbox) -> None:
    solved = {"kind": "file_absent", "path": "x"}
    assert (await verdict(box, solved)).passed
    assert not (await verdict(box, solved, end=End("infeasible"))).passed


async def test_all_and_any(box: Sandbox) -> None:
    yes, no = {"kind": "file_absent", "path": "x"}, {"kind": "file_equals", "path": "x", "text": ""}
    assert (await verdict(box, yes, yes)).passed
    assert not (await verdict(box, yes, no)).passed
    assert (await verdict(box, {"kind": "any", "of": [no, yes]})).passed
    assert not (await verdict(box, {"kind": "any", "of": [no, {"kind": "all", "of": [yes, no]}]})).passed


async def test_page_state_without_a_page(box: Sandbox) -> None:
    assert (
        await verdict(box, {"kind": "page_state", "expression": "1", "equals": 1})
    ).reason == "The page is not open."


async def test_a_closed_sandbox_scores_nothing() -> None:
    async with Sandbox.open(SandboxSpec(desktop=False)) as closed:
        pass
    for grader in ({"kind": "command", "run": "true"}, {"kind": "file_equals", "path": "x", "text": ""}):
        assert not (await verdict(closed, grader)).passed
