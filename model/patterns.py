"""The patterns of JSON schemas as terminals of the Lark dialect of llguidance."""

from __future__ import annotations

import re
import warnings

_CLASS = re.compile(r"(?<!\\)((?:\\\\)*)\[\^?\]?((?:[^\]\\]|\\.)*)\]", re.DOTALL)
_SET = re.compile(r"(?<!\\)(?:\\\\)*\[|&&|--|~~")
_UNKNOWN = re.compile(r"(?<!\\)(?:\\\\)*[$]|(?<!\\)\^|\(\?[=!<>]|\\[bB1-9<>]|(?<!\\)[+*?}]\+")

_SHORT = re.compile(r"(?<!\\)((?:\\\\)*)\\([dDwW])")
_ASCII = {"d": "[0-9]", "D": "[^0-9]", "w": "[0-9A-Za-z_]", "W": "[^0-9A-Za-z_]"}
"""What JSON schemas mean by them (ECMA 262); other dialects would take the digits of every script."""


def searched(pattern: str) -> str | None:
    """A terminal for texts in which a JSON schema's pattern is found; None for a pattern that needs more.

    What two dialects of regular expressions read in two ways (`[a&&b]`, `a++`) is not taken either.
    """
    start = "" if pattern.startswith("^") else "(?s:.*)"
    end = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
    core = pattern.removeprefix("^")
    core = core if end else core[:-1]
    if any(_SET.search(found.group(2)) for found in _CLASS.finditer(core)):
        return None
    if _UNKNOWN.search(_CLASS.sub(r"\1[]", core)):
        return None
    core = _SHORT.sub(lambda found: found.group(1) + _ASCII[found.group(2)], core)
    return "/" + re.sub(r"(?<!\\)/", r"\\/", f"{start}(?:{core}){end}") + "/"


def finds_empty(pattern: str) -> bool:
    """Whether a pattern is found in the empty text."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return re.search(pattern, "") is not None
    except (re.error, RecursionError, OverflowError):
        return False
