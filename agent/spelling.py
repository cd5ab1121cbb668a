"""How a person gave a setting: by a flag, a variable of the environment, or a line of a file."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pilotfish.agent.safetext import shortened

PREFIX = "PILOTFISH_"
OTHER_VARIABLES = ("PILOTFISH_CHROMIUM", "PILOTFISH_BOX")
"""Variables that are no settings."""
_SHOWN = 200
_FLAGS = {"network": "--allow-host"}


def as_given(name: str, flags: Collection[str], files: Iterable[Path]) -> str:
    """The words for a setting that tell where it was given: the first of its sources that has it.

    name: the setting, and after a dot a part of it. flags: the settings given as flags. files: those that may
    set it, the strongest first.
    """
    whole = name.partition(".")[0]
    if whole in flags:
        return _FLAGS.get(whole, f"--{name.replace('_', '-')}" if name == whole else name)
    variable = f"{PREFIX}{whole}".upper()
    if any(known.upper() == variable for known in os.environ):
        return variable if name == whole else f"{name} ({variable})"
    for file in files:
        if (number := _line(name, file)) is not None:
            return f"{name} ({file}, line {number})"
    return name


def _line(name: str, file: Path) -> int | None:
    """The line of a TOML file that sets `name`, or that opens its table; None if there is none."""
    try:
        lines = file.expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError):
        return None
    whole, _, part = name.partition(".")
    part = part.rpartition(".")[2]
    opens = rf"\s*(\[+\s*)?{re.escape(whole)}\s*(=|\.|\]).*"
    found = next((number for number, line in enumerate(lines, 1) if re.fullmatch(opens, line)), None)
    if found is None or not part:
        return found
    sets = rf"\s*({re.escape(whole)}\.)?{re.escape(part)}\s*=.*"
    below = (number for number, line in enumerate(lines, 1) if number >= found and re.fullmatch(sets, line))
    return next(below, found)


def wrong_value(name: str, error: Mapping[str, Any]) -> str:
    """A sentence on a value that pydantic refused, one of `ValidationError.errors()`."""
    if error["type"] == "missing":
        return f"{name} is missing; add it."
    return f"{name} is {_shown(error['input'])}, but must be {_expected(error)}."


def _shown(value: object) -> str:
    """A value as a settings file has it, cut short."""
    words = str(value).lower() if isinstance(value, bool) else str(value)
    words = repr(value) if isinstance(value, str | list | dict | tuple) else words
    return shortened(words, _SHOWN)


def _expected(error: Mapping[str, Any]) -> str:
    """What would have been right in the place of a value that pydantic refused."""
    context = error.get("ctx", {})
    match str(error["type"]).split("_"):
        case ["string", *_]:
            return "text" if error["input"] is None else "text in quotes"
        case ["path", *_]:
            return "a path" if error["input"] is None else "a path in quotes"
        case ["tuple", *_] | ["list", *_]:
            tables = ", each of its tables below a line [[rules]]" if error["loc"] == ("rules",) else ""
            return f"a list{tables}"
        case ["model", *_] | ["dict", *_]:
            return "a table of names and values"
        case ["int", *_]:
            return "a whole number"
        case ["float", *_] | ["finite", *_]:
            return "a number"
        case ["bool", *_]:
            return "true or false"
        case ["greater", "than", "equal"]:
            return f"{context['ge']:g} or more"
        case ["greater", "than"]:
            return f"more than {context['gt']:g}"
        case ["less", "than", "equal"]:
            return f"{context['le']:g} or less"
        case ["literal", "error"]:
            return str(context["expected"])
    message = str(error["msg"]).removeprefix("Input should be ")
    _, found, choices = message.partition(" is not one of ")
    return f"one of {choices.rstrip('.')}" if found else message


def unknown_variables(settings: Collection[str]) -> Iterator[str]:
    """A sentence for each variable of the environment that looks like one of ours and is none."""
    known = [*(f"{PREFIX}{name}".upper() for name in settings), *OTHER_VARIABLES]
    for name in sorted(os.environ):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            whole = name.upper().removeprefix(PREFIX)
            found = difflib.get_close_matches(whole, [one.removeprefix(PREFIX) for one in known], n=1)
            nearest = "".join(f"; the nearest is {PREFIX}{near}" for near in found)
            yield f"{name} is no setting and was ignored{nearest}."
