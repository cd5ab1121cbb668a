"""What logs of tests say of each test, in the forms that the benchmarks' repositories print."""

from __future__ import annotations

from pilotfish.tasks.fresh import touched
from pilotfish.tasks.statuses import not_passed, statuses

PYTEST = """
============ short test summary info ============
\x1b[32mPASSED\x1b[0m tests/test_a.py::\x1b[1mtest_one\x1b[0m
PASSED tests/test_a.py::test_two[a - b]
PASSED tests/test_a.py::test_three[x y]
PASSED tests/test_a.py::test_three[x z]
XFAIL tests/test_a.py::test_known - not yet
FAILED tests/test_a.py::test_four - AssertionError: assert 1 == 2
ERROR tests/test_b.py::test_five
SKIPPED [1] tests/test_b.py:3: needs a network
"""
VERBOSE = """
tests/test_a.py::test_one PASSED                                         [ 50%]
tests/test_a.py::test_two FAILED                                         [100%]
"""
UNITTEST = """
test_one (app.tests.Case) ... ok
test_two (app.tests.Case.test_two) ... FAIL
A line of a docstring stands for its test. ... ok
test_three (app.tests.Case) ... skipped 'no database'
test_four (app.tests.Case) ... expected failure
"""


def test_the_summary_of_pytest() -> None:
    found = statuses(PYTEST)
    assert found["tests/test_a.py::test_one"]
    assert found["tests/test_a.py::test_two[a - b]"]
    assert found["tests/test_a.py::test_known"]
    assert not found["tests/test_a.py::test_four"]
    assert not found["tests/test_b.py::test_five"]
    wanted = [
        "tests/test_a.py::test_one",
        "tests/test_a.py::test_three[x",
        "tests/test_a.py::test_four",
        "none",
    ]
    assert not_passed(wanted, found) == ["tests/test_a.py::test_four", "none"]


def test_lines_of_pytest_and_unittest() -> None:
    assert statuses(VERBOSE) == {"tests/test_a.py::test_one": True, "tests/test_a.py::test_two": False}
    assert statuses(UNITTEST) == {
        "test_one (app.tests.Case)": True,
        "test_two (app.tests.Case.test_two)": False,
        "A line of a docstring stands for its test.": True,
        "test_three (app.tests.Case)": False,
        "test_four (app.tests.Case)": True,
    }


def test_one_that_failed_once_has_not_passed() -> None:
    assert statuses("PASSED a::b\nERROR a::b - at the end\nPASSED a::b\n") == {"a::b": False}
    assert statuses("nothing of the kind\n... ok\nPASSED\n") == {}


def test_the_files_of_a_patch() -> None:
    patch = "--- a/old name.py\n+++ b/old name.py\n@@ -1 +1 @@\n--- a\n+++ b\n--- /dev/null\n+++ b/new.py\n"
    assert touched(patch) == ["old name.py", "new.py"]
