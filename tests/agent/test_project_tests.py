"""How a project's tests are found, what their output says, and what a change broke."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.project_tests import choose, compare, failures_in, find_commands, ran_none, run_tests
from pilotfish.sandbox import Files, Sandbox, SandboxSpec


def found(folder: Path, files: dict[str, str]) -> list[tuple[str, str]]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [(command.run, command.found) for command in find_commands(Files(folder))]


NPM = '{"scripts": {"test": "node --test"}}'


@pytest.mark.parametrize(
    ("files", "commands"),
    [
        ({}, []),
        ({"pyproject.toml": "[tool.pytest.ini_options]\n"}, [("python3 -m pytest -q", "pyproject.toml")]),
        ({"pyproject.toml": "[tool.black]\n"}, []),
        ({"pyproject.toml": "not [ toml"}, []),
        ({"setup.cfg": "[tool:pytest]\n"}, [("python3 -m pytest -q", "setup.cfg")]),
        (
            {"conftest.py": "", ".venv/bin/python": ""},
            [(".venv/bin/python -m pytest -q", "conftest.py"), ("python3 -m pytest -q", "conftest.py")],
        ),
        (
            {"tests/test_a.py": ""},
            [
                ("python3 -m pytest -q", "the files in tests/"),
                ("python3 -m unittest discover -s tests", "the files in tests/"),
            ],
        ),
        ({"package.json": NPM}, [("npm test", "package.json")]),
        ({"package.json": NPM, "yarn.lock": ""}, [("yarn test", "package.json")]),
        ({"package.json": '{"scripts": {"test": "echo \\"no test specified\\" && exit 1"}}'}, []),
        ({"package.json": "[" * 5000}, []),
        ({"Cargo.toml": "", "go.mod": ""}, [("cargo test", "Cargo.toml"), ("go test ./...", "go.mod")]),
        ({"Makefile": "all:\n\ncheck: all\n"}, [("make check", "Makefile")]),
        ({"Makefile": "test := 1\n"}, []),
        ({"Makefile": "\ufefftest:\r\n\ttrue\r\n"}, [("make test", "Makefile")]),
    ],
)
def test_commands_are_found_by_the_files(
    tmp_path: Path, files: dict[str, str], commands: list[tuple[str, str]]
) -> None:
    assert found(tmp_path, files) == commands


OUTPUT = """\
FAILED tests/test_a.py::test_one[x - y] - AssertionError: no
ERROR tests/test_b.py - ImportError
FAIL: test_two (test_c.T.test_two)
test parser::three ... FAILED
--- FAIL: TestFour (0.00s)
FAIL\tgithub.com/a/b\t0.01s
not ok 5 - five
\x1b[31m✖ six (1.2ms)\x1b[0m
FAILED (failures=1)
FAILED tests/test_a.py::test_one[x - y] - AssertionError: no
ok 7 - seven
"""


def test_names_of_failures_are_read_from_the_usual_runners() -> None:
    names = failures_in(OUTPUT)
    assert "tests/test_b.py" in names
    assert {
        "test_two (test_c.T.test_two)",
        "parser::three",
        "TestFour",
        "github.com/a/b",
        "five",
        "six",
    } <= set(names)
    assert len(names) == 8
    assert failures_in("") == []


def ran(status: int | None, *failed: str) -> log.Tested:
    return log.Tested(command="t", status=status, failed=list(failed), seconds=1)


@pytest.mark.parametrize(
    ("before", "after", "good", "words"),
    [
        (ran(0), ran(0), True, "The tests pass, as before the change."),
        (ran(1, "a"), ran(0), True, "The tests pass; before: 1 failed (1.0 s)."),
        (ran(0), ran(1, "a"), False, "Tests fail that did not fail before the change: a."),
        (ran(0), ran(2), False, "Tests fail that did not fail before the change."),
        (ran(1, "a"), ran(1, "a"), True, "The only tests that fail failed before the change too: a."),
        (
            ran(1, "a"),
            ran(1, "a", "b"),
            False,
            "Tests fail that did not fail before the change: b, and 1 that failed before.",
        ),
        (
            ran(2),
            ran(2),
            True,
            "The command failed before the change and after it and named no test, so nothing is known: "
            "no output",
        ),
        (ran(None), ran(None), True, "The tests did not end within 1 s, as before the change."),
        (
            ran(0),
            ran(None),
            False,
            "The tests did not end within 1 s; before the change: passed (1.0 s).",
        ),
    ],
)
def test_what_a_change_broke_is_told_from_what_was_broken(
    before: log.Tested, after: log.Tested, good: bool, words: str
) -> None:
    seen = compare(before, after)
    assert (seen.good, seen.words) == (good, words)
    assert seen.known == ("nothing is known" not in words)


async def test_the_first_command_that_can_be_run_here_is_chosen(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "Cargo.toml").write_text("")
    async with Sandbox.open(SandboxSpec(desktop=False, workspace=work)) as box:
        chosen, why = await choose(box, [])
        assert (chosen, why.startswith("No tests were found")) == (None, True)
        (work / "Makefile").write_text("test:\n\techo 'not ok 1 - first'; exit 3\n")
        commands = [one for one in find_commands(box.files) if "cargo" not in one.run]
        chosen, why = await choose(box, commands)
        assert chosen is not None
        run = await run_tests(box, chosen.run, 60, 0)
        assert (run.status, "first" in run.failed) == (2, True)
        run = await run_tests(box, "echo 'not ok 1 - a'; echo 'Ran 0 tests in 0.0s'; exit 1", 60, 1)
        assert (run.failed, run.ran_none) == (["a"], False)
        run = await run_tests(box, "read x; echo [$x] $CI; sleep 99 & disown; echo on", 60, 1)
        assert (run.status, run.output) == (0, "[] 1\non\n")


@pytest.mark.parametrize(
    ("output", "none"),
    [
        ("\n---\nRan 0 tests in 0.000s\n\nOK\n", True),
        ("\nno tests ran in 0.01s\n", True),
        ("===== no tests ran in 0.01s =====\n", True),
        ("Ran 0 tests in 0.0s\n\nOK\nRan 3 tests in 0.1s\n\nOK\n", False),
        ("no tests ran in 0.01s\n2 passed, 1 warning in 0.10s\n", False),
        ("Ran 1 test in 0.0s\n", False),
        ("\x1b[33mno tests ran\x1b[0m\x1b[33m in 0.01s\x1b[0m\r\n", True),
        ("Ran 0 tests in 0.0s\n\n\x1b[32m\x1b[1m5 passed\x1b[0m\x1b[32m in 0.01s\x1b[0m\n", False),
        ("", False),
    ],
)
def test_that_no_test_was_run_is_read_from_what_was_printed(output: str, none: bool) -> None:
    assert ran_none(output) is none


def test_a_command_that_ran_no_test_is_no_pass() -> None:
    none = log.Tested(command="t", status=0, seconds=1, ran_none=True)
    for before in (none, ran(5)):
        seen = compare(before, none)
        assert (seen.known, seen.good) == (False, True)
        assert seen.words.startswith("The command ran no test")
    for before in (ran(0), ran(1, "a")):
        assert compare(before, none).good is False
    assert compare(none, ran(0)).words == "The tests pass; before: ran no test (1.0 s)."
    assert compare(none, ran(1, "a")).good is False


async def test_a_pytest_that_is_asked_for_and_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_a.py").write_text("def test_a():\n    assert True\n")
    async with Sandbox.open(SandboxSpec(desktop=False, workspace=tmp_path)) as box:
        # Python's own folder alone, so that a machine with pytest has none either.
        commands = [
            replace(one, needs=one.needs.replace("python3 -c", "python3 -I -S -c"))
            for one in find_commands(box.files)
        ]
        chosen, why = await choose(box, commands)
        assert chosen is not None
        assert chosen.run == "python3 -m unittest discover"
        assert "No module named 'pytest'" in why
        run = await run_tests(box, chosen.run, 60, 0)
    assert run.ran_none
