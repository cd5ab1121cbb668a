"""Judge what a model left behind: its files, what commands say about them, the page, its final message.

Graders look only after the model has stopped, at state that it could not read before. They never raise for
what the model did: a grader that cannot look gives 0 and says why.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence

from playwright.async_api import Page
from pydantic import JsonValue

from pilotfish.sandbox import PAGE_ERRORS, Sandbox, SandboxError, SandboxPathError
from pilotfish.tasks import grader_fields as fields
from pilotfish.tasks.clean import run_clean
from pilotfish.tasks.environment import End, Grade, first_line
from pilotfish.tasks.work import Work

_MAX_FILE_BYTES = 4 << 20
_PAGE_S = 10.0
_PATTERN_S = 10
_SHOWN = 80

_FOUND = 42
_SEARCH = f"""
import json, re, signal, sys

signal.alarm(int(sys.argv[1]))
pattern, text = json.load(sys.stdin)
sys.exit({_FOUND} if re.search(pattern, text, re.MULTILINE) else 0)
"""


async def grade(
    graders: Sequence[fields.Grader],
    box: Sandbox,
    end: End,
    page: Page | None = None,
    work: Work | None = None,
) -> Grade:
    """The verdict of a task's graders: every one must pass, and the score is the lowest.

    page, work: the task's page and its repository, where it has one. A task without an `infeasible` grader
    can be done, so a model that said it cannot has failed.
    """
    infeasible = any(isinstance(grader, fields.Infeasible) for grader in graders)
    if end.status == "infeasible" and not infeasible:
        return _no("The model said that the task cannot be done, but it can.")
    return _all([await _grade_one(grader, box, end, page, work) for grader in graders])


async def _grade_one(
    grader: fields.Grader, box: Sandbox, end: End, page: Page | None, work: Work | None
) -> Grade:
    try:
        match grader:
            case fields.All():
                return _all([await _grade_one(part, box, end, page, work) for part in grader.of])
            case fields.Any_():
                return _any([await _grade_one(part, box, end, page, work) for part in grader.of])
            case fields.FileEquals():
                return _file_equals(grader, box)
            case fields.FileMatches():
                return await _file_matches(grader, box)
            case fields.FileAbsent():
                return _file_absent(grader, box)
            case fields.Command():
                return await _command(grader, box)
            case fields.Tests() | fields.Mutants():
                assert work is not None, "the format lets these stand in repository tasks only"
                return Grade(*await (work.tests(grader) if grader.kind == "tests" else work.mutants(grader)))
            case fields.PageState():
                return await _page_state(grader, page)
            case fields.Answer():
                return await _answer(grader, end)
            case fields.Infeasible():
                return _infeasible(end)
    except SandboxPathError as error:
        return _no(str(error))
    except (SandboxError, OSError) as error:
        return _no(f"The {grader.kind} grader could not look: {error}")


def _file_equals(grader: fields.FileEquals, box: Sandbox) -> Grade:
    """The file holds exactly this text, byte for byte in UTF-8."""
    text = box.files.read_text(grader.path, _MAX_FILE_BYTES)
    if text == grader.text:
        return _yes(f"{grader.path} is as expected.")
    return _no(f"{grader.path} holds {_short(text)} instead of {_short(grader.text)}.")


async def _file_matches(grader: fields.FileMatches, box: Sandbox) -> Grade:
    """The expression is found in the file; `^` and `$` match at every line."""
    text = box.files.read_text(grader.path, _MAX_FILE_BYTES)
    found = await _is_found(grader.pattern, text)
    if found is None:
        return _no(f"Looking for {_short(grader.pattern)} in {grader.path} took longer than {_PATTERN_S} s.")
    if found:
        return _yes(f"{grader.path} matches.")
    return _no(f"{grader.path} holds {_short(text)}, which does not match {_short(grader.pattern)}.")


def _file_absent(grader: fields.FileAbsent, box: Sandbox) -> Grade:
    """No file, folder or link of this name is left."""
    parent, _, name = grader.path.rstrip("/").rpartition("/")
    try:
        entries = box.files.list(parent or ".")
    except SandboxPathError as error:
        if error.reason == "missing":
            return _yes(f"{grader.path} is gone.")
        raise
    if any(entry.name == name for entry in entries):
        return _no(f"{grader.path} is still there.")
    return _yes(f"{grader.path} is gone.")


async def _command(grader: fields.Command, box: Sandbox) -> Grade:
    """A command in a clean shell ends with this status and prints this."""
    exit_code, stdout, stderr = await run_clean(box, grader.run, grader.timeout_s, grader.files)
    if exit_code is None:
        return _no(f"The check took longer than {grader.timeout_s:g} s.")
    if exit_code != grader.exit_code:
        said = _short((stderr or stdout).strip().rpartition("\n")[2])
        return _no(f"The check ended with status {exit_code} instead of {grader.exit_code}, saying {said}.")
    if grader.stdout is not None and stdout.strip() != grader.stdout.strip():
        return _no(f"The check printed {_short(stdout.strip())} instead of {_short(grader.stdout.strip())}.")
    return _yes("The check passed.")


async def _page_state(grader: fields.PageState, page: Page | None) -> Grade:
    """An expression on the page has this JSON value."""
    if page is None:
        return _no("The page is not open.")
    script = f"() => JSON.stringify(({grader.expression})) ?? 'null'"
    try:
        found = _canonical(json.loads(await asyncio.wait_for(page.evaluate(script), _PAGE_S)))
    except TimeoutError:
        return _no(f"The page did not answer within {_PAGE_S:g} s.")
    except PAGE_ERRORS as error:
        return _no(f"The page cannot answer {_short(grader.expression)}: {first_line(error)}")
    wanted = _canonical(grader.equals)
    if found == wanted:
        return _yes("The page is in the expected state.")
    return _no(f"The page says {_short(found)} instead of {_short(wanted)}.")


def _canonical(value: JsonValue) -> str:
    """One spelling per JSON value, so that true is not 1."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


async def _answer(grader: fields.Answer, end: End) -> Grade:
    """The final message equals this text or contains a match, blank space around it aside."""
    answer = end.answer.strip()
    right = (
        answer == grader.equals.strip()
        if grader.equals is not None
        else await _is_found(grader.matches or "", answer)
    )
    return _yes("The answer is right.") if right else _no(f"The answer was {_short(answer)}.")


async def _is_found(pattern: str, text: str) -> bool | None:
    """Whether an expression is found in a text (`^` and `$` match at lines); None if that takes too long.

    Some expressions take for ever on some texts, and the text is the model's. Nothing can stop a search in
    this process, so it runs in one of its own, which the kernel ends when its alarm goes off.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", _SEARCH, str(_PATTERN_S), stdin=asyncio.subprocess.PIPE
    )
    try:
        await process.communicate(json.dumps([pattern, text]).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return None if process.returncode == -signal.SIGALRM else process.returncode == _FOUND


def _infeasible(end: End) -> Grade:
    """The model said that the task cannot be done."""
    if end.status == "infeasible":
        return _yes("The model saw that the task cannot be done.")
    return _no("The task cannot be done, and the model did not say so.")


def _all(grades: Sequence[Grade]) -> Grade:
    """The worst of them."""
    return min(grades, key=lambda grade: (bool(grade.passed), grade.score))


def _any(grades: Sequence[Grade]) -> Grade:
    """The best of them."""
    return max(grades, key=lambda grade: (bool(grade.passed), grade.score))


def _yes(reason: str) -> Grade:
    return Grade(1.0, True, reason)


def _no(reason: str) -> Grade:
    return Grade(0.0, False, reason)


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
