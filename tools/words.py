"""Pieces of the sentences that tell a model what is wrong with a value."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


def short(value: object, limit: int = 60) -> str:
    """`value` as it may stand in an error sentence: its repr, cut to `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_of(wrong: object, valid: Iterable[str]) -> str:
    """The part of an error that says what is valid; the near misses first where there are any."""
    names = list(valid)
    near = difflib.get_close_matches(str(wrong), names, n=3, cutoff=0.7)
    if near:
        return f"did you mean {' or '.join(near)}? Valid: {', '.join(names)}"
    return f"use one of {', '.join(names)}"


def seconds(value: object) -> float:
    """A finite number of seconds from a number or a decimal string.

    Raises ValueError with the end of a sentence that starts with the argument's name.
    """
    wrong = ValueError(f"is {short(value)}, but must be a number of seconds")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise wrong from None
    if not math.isfinite(number):
        raise wrong
    return number
