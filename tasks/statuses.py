"""What a log of tests says of each test: pytest's summary (`-rA`) or lines (`-v`), and unittest's `-v`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SUMMARY = re.compile(r"(PASSED|FAILED|ERROR|XFAIL|XPASS|SKIPPED) (\S.*)")
_LINE = re.compile(r"(\S+::.*?) (PASSED|FAILED|ERROR|XFAIL|XPASS|SKIPPED)(?: +\[ *\d+%\])?(?: \(.*\))?")
_UNITTEST = re.compile(r"(.+?) \.\.\. (ok|FAIL|ERROR|skipped .*|expected failure|unexpected success)")
_GOOD = {"PASSED", "XFAIL", "ok", "expected failure"}


def statuses(log: str) -> dict[str, bool]:
    """Whether each test passed, {name: passed}. One that is told of twice passed if it did each time."""
    found: dict[str, bool] = {}

    def note(name: str, word: str) -> None:
        found[name] = found.get(name, True) and word in _GOOD

    for line in _COLOUR.sub("", log).splitlines():
        line = line.strip()
        if match := _SUMMARY.fullmatch(line):
            # A reason follows all but what has passed, whose parameters may look like one.
            name = match[2] if match[1] == "PASSED" else match[2].partition(" - ")[0]
            note(name.strip(), match[1])
        elif (match := _LINE.fullmatch(line)) or (match := _UNITTEST.fullmatch(line)):
            note(match[1], match[2])
    return found


def not_passed(wanted: Iterable[str], found: Mapping[str, bool]) -> list[str]:
    """Those of the wanted tests that did not pass or are not in the log.

    A name that was cut at its first space, as some collections of tasks do with parameters, stands for all
    tests that begin so.
    """
    cut: dict[str, bool] = {}
    for name, passed in found.items():
        first = name.partition(" ")[0]
        cut[first] = cut.get(first, True) and passed
    return [name for name in wanted if not found.get(name, cut.get(name, False))]
