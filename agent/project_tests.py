"""A project's own tests: how they are run, found from its files, and what one run of them said."""

from __future__ import annotations

import configparser
import json
import re
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from pilotfish.agent.events import Tested
from pilotfish.agent.project_python import ENVIRONMENTS
from pilotfish.agent.show import tests_went
from pilotfish.sandbox import Files, Sandbox, SandboxPathError

_MAX_BYTES = 1 << 20
_SHOWN = 12_000
"""Characters of the output that are kept, from its end."""
_NAMED = 20
_FAILED = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?$",  # pytest
        r"^(?:FAIL|ERROR): (\S.*)$",  # unittest
        r"^test (\S+) \.\.\. FAILED$",  # cargo
        r"^\s*--- FAIL: (\S+)",  # go, one test
        r"^FAIL\s+(\S+)",  # go, a package; jest, a file
        r"^\s*not ok \d+ -? ?(.+)$",  # TAP
        r"^\s*✖ (.+?)(?: \([\d.]+m?s\))?$",  # node --test
    )
)
_NONE = re.compile(r"^(?:Ran 0 tests in|=*\s*no tests ran in) ", re.MULTILINE)
_SOME = re.compile(
    r"^(?:Ran [1-9]\d* tests? in|.*\b[1-9]\d* (?:passed|failed|skipped)\b.* in) ", re.MULTILINE
)
NO_TESTS = "No tests were found, so nothing could be checked; --test names a command that runs them."
"""What is told, to a person and the model, where a project has none."""
_ENV = {"CI": "1", "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}


@dataclass(frozen=True)
class TestCommand:
    """How tests are run. found: from what; needs: bash that succeeds where it can be run here. configured:
    whether a file of the project says so.
    """

    run: str
    found: str
    needs: str = "true"
    configured: bool = False


def find_commands(files: Files) -> list[TestCommand]:
    """How the tests of a project may be run, the likeliest first, by the files in its folder."""
    names = {entry.name for entry in files.list()}
    found: list[TestCommand] = []
    if source := _says_pytest(files, names):
        found += _pytest(names, source, configured=True)
    if "package.json" in names and (package := _npm(files, names)):
        found.append(package)
    if "Cargo.toml" in names:
        found.append(TestCommand("cargo test", "Cargo.toml", "command -v cargo"))
    if "go.mod" in names:
        found.append(TestCommand("go test ./...", "go.mod", "command -v go"))
    for name in ("Makefile", "makefile", "GNUmakefile"):
        if name in names and (target := re.search(r"^(test|check)\s*:(?!=)", _text(files, name), re.M)):
            found.append(TestCommand(f"make {target[1]}", name, "command -v make"))
            break
    known = {command.run for command in found}
    return [*found, *(command for command in _python_tests(files, names) if command.run not in known)]


def _says_pytest(files: Files, names: set[str]) -> str:
    """The file that says that pytest is used, if one does."""
    if names & {"pytest.ini", ".pytest.ini", "conftest.py"}:
        return min(names & {"pytest.ini", ".pytest.ini", "conftest.py"})
    if "pyproject.toml" in names:
        try:
            tools = tomllib.loads(_text(files, "pyproject.toml")).get("tool", {})
        except tomllib.TOMLDecodeError:
            tools = {}
        if "pytest" in tools:
            return "pyproject.toml"
    for name, section in (("setup.cfg", "tool:pytest"), ("tox.ini", "pytest")):
        if name in names:
            parser = configparser.ConfigParser(strict=False, interpolation=None)
            try:
                parser.read_string(_text(files, name))
            except configparser.Error:
                continue
            if parser.has_section(section):
                return name
    return ""


def _pytest(names: set[str], source: str, *, configured: bool = False) -> list[TestCommand]:
    """With the project's own environment if it has one, else with the machine's Python."""
    return [
        TestCommand(f"{python} -m pytest -q", source, f"{python} -c 'import pytest'", configured)
        for python in _pythons(names)
    ]


def _pythons(names: set[str]) -> list[str]:
    return [*(f"{name}/bin/python" for name in ENVIRONMENTS if name in names), "python3"]


def _python_tests(files: Files, names: set[str]) -> list[TestCommand]:
    """Python's own conventions, where nothing says how the tests are run."""
    places = [("", names)]
    for name in ("tests", "test"):
        if name in names:
            try:
                places.append((name, {entry.name for entry in files.list(name)}))
            except SandboxPathError:
                continue
    for place, inside in places:
        if any(re.fullmatch(r"test_.*\.py|.*_test\.py", name) for name in inside):
            source = f"the files in {place}/" if place else "its files"
            where = f" -s {place}" if place else ""
            return [
                *_pytest(names, source),
                *(
                    TestCommand(f"{python} -m unittest discover{where}", source, f"{python} -c ''")
                    for python in _pythons(names)
                ),
            ]
    return []


def _npm(files: Files, names: set[str]) -> TestCommand | None:
    try:
        script = json.loads(_text(files, "package.json"))["scripts"]["test"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if not isinstance(script, str) or "no test specified" in script:
        return None
    manager = next(
        (tool for lock, tool in (("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn")) if lock in names), "npm"
    )
    return TestCommand(f"{manager} test", "package.json", f"command -v {manager}")


def _text(files: Files, name: str) -> str:
    try:
        return files.read_bytes(name, _MAX_BYTES).decode("utf-8-sig", "replace")
    except SandboxPathError:
        return ""


async def choose(box: Sandbox, commands: Sequence[TestCommand]) -> tuple[TestCommand | None, str]:
    """The first that can be run in this sandbox, and a sentence if it is not the project's own Python though
    there is one, or not the pytest that it is set up for; or none, and a sentence that says why.
    """
    failed = ""
    for command in commands:
        status, said = await _bash(box, command.needs, 30.0)
        if status == 0:
            return command, failed and f"{failed} so the tests are run by {command.run}."
        if (command.run.startswith(ENVIRONMENTS) or command.configured) and not failed:
            failed = f"In the sandbox {command.needs} fails ({last_line(said)}),"
    if not commands:
        return None, NO_TESTS
    first = commands[0]
    return None, (
        f"The tests ({first.run}, by {first.found}) need what is not in the sandbox, so nothing could be "
        "checked; --test names another command."
    )


async def run_tests(box: Sandbox, command: str, seconds: float, attempt: int, tree: str = "") -> Tested:
    """Run tests in a fresh shell in the workspace, and end all that they started.

    seconds: after which they are ended. attempt: 0 before any change.
    """
    began_s = time.monotonic()
    status, output = await _bash(box, command, seconds)
    failed = failures_in(output)
    hit = await box.limits_hit()
    return Tested(
        attempt=attempt,
        command=command,
        status=status,
        failed=failed,
        output=output[-_SHOWN:],
        seconds=round(time.monotonic() - began_s, 3),
        tree=tree,
        note=" ".join(hit),
        ran_none=not failed and ran_none(output),
    )


async def _bash(box: Sandbox, text: str, seconds: float) -> tuple[int | None, str]:
    process = await box.run(["bash", "--noprofile", "--norc", "-c", text], env=_ENV)
    try:
        status: int | None = await process.wait(seconds)
    except TimeoutError:
        status = None
    finally:
        await process.kill()
    return status, process.output


def failures_in(output: str) -> list[str]:
    """The names of tests that failed, as the usual runners print them, in order, each once."""
    found = {match[1].strip(): None for pattern in _FAILED for match in pattern.finditer(_plain(output))}
    return list(found)


def ran_none(output: str) -> bool:
    """Whether unittest or pytest says that it found no test, and none of them says that it ran one."""
    plain = _plain(output)
    return bool(_NONE.search(plain)) and not _SOME.search(plain)


def _plain(output: str) -> str:
    """Without colours, and with lines that end as ours do."""
    return re.sub(r"\x1b\[[0-9;]*m", "", output).replace("\r\n", "\n")


@dataclass(frozen=True)
class Comparison:
    """What tests say after a change, against before it.

    known: whether they say anything: a command that fails both times and names no test may not work at all,
    and one may have run no test.
    good: none fails that did not fail before. passes: all pass. new, still: the names of those that fail, as
    far as they have names. words: a sentence.
    """

    good: bool
    passes: bool
    new: tuple[str, ...]
    still: tuple[str, ...]
    words: str
    known: bool = True


def compare(before: Tested, after: Tested) -> Comparison:
    """Tell what a change broke from what was broken before."""
    if after.ran_none:
        if before.failed or (before.status == 0 and not before.ran_none):
            words = f"The command runs no test any more; before the change: {tests_went(before)}."
            return Comparison(False, False, (), (), words)
        words = "The command ran no test, so nothing is known; --test names one that does."
        return Comparison(True, True, (), (), words, known=False)
    if after.status == 0:
        well = before.status == 0 and not before.ran_none
        told = "pass, as before the change" if well else f"pass; before: {tests_went(before)}"
        return Comparison(True, True, (), (), f"The tests {told}.")
    if after.status is None:
        words = f"The tests did not end within {after.seconds:.0f} s"
        if before.status is None:
            return Comparison(True, False, (), (), f"{words}, as before the change.")
        return Comparison(False, False, (), (), f"{words}; before the change: {tests_went(before)}.")
    if before.status and not (before.failed or after.failed):
        words = (
            f"The command failed before the change and after it and named no test, so nothing is known: "
            f"{last_line(after.output)}"
        )
        return Comparison(True, False, (), (), words, known=False)
    known = set(before.failed)
    new = tuple(name for name in after.failed if name not in known)
    still = tuple(name for name in after.failed if name in known)
    if before.status == 0 or new or (before.status is None and not still):
        names = f": {named(new or still)}" if new or still else ""
        more = f", and {len(still)} that failed before" if still and new else ""
        return Comparison(
            False, False, new, still, f"Tests fail that did not fail before the change{names}{more}."
        )
    names = f": {named(still)}" if still else ""
    return Comparison(
        True, False, new, still, f"The only tests that fail failed before the change too{names}."
    )


def last_line(output: str) -> str:
    """The last line of what a command printed that says something."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")


def named(names: Sequence[str]) -> str:
    """Names of tests for a sentence."""
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
