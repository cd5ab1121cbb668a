"""Pieces of the Lark dialect of llguidance: literals, and objects whose properties come in any order."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pilotfish.model.tokenizer import NAMESPACE

MAX_FREE_ORDER = 60
"""Properties up to which any order is allowed; more come in the schema's order."""


def object_lines(rule: str, elements: Sequence[tuple[str, bool]], least: int, most: int) -> list[str]:
    """The lines of an object's rule: (element's rule, whether it is required), each at most once."""
    if len(elements) > MAX_FREE_ORDER:
        return [f"{rule}: {' '.join(name if needed else f'{name}?' for name, needed in elements)}"]
    if not elements:
        return [f'{rule}::_: "" %if bit_clear(63)']
    elements = sorted(elements, key=lambda element: not element[1])
    bits, first = f"[0:{len(elements)}]", sum(required for _, required in elements)
    needed = [f"bit_set({n})" for n, (_, required) in enumerate(elements) if required]
    if least > len(needed):
        needed.append(f"bit_count_ge({bits}, {least})")
    ends = ""
    for condition in needed:
        ends = f"and({condition}, {ends})" if ends else condition
    lines = [f'{rule}::_: ""' + (f" %if {ends}" if ends else "")]
    for n, (name, required) in enumerate(elements):
        condition = f"bit_clear({n})"
        if most < len(elements) and not required:  # room is left for those that are
            condition = f"and({condition}, bit_count_lt([{first}:{len(elements)}], {most - first}))"
        lines.append(f"  | {name} {rule}::set_bit({n}) %if {condition}")
    return lines


def writable(text: str) -> bool:
    """Whether a text can stand in a call: the marker is never spelled in letters, nor half a character."""
    return NAMESPACE not in text and not re.search(r"[\ud800-\udfff]", text)


def written(value: Any) -> str:
    """A fixed value as M3 writes it."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else (("item", item) for item in value)
        return "".join(
            f"{NAMESPACE}<{name}>{written(item)}{NAMESPACE}</{name}>"
            for name, item in pairs
            if item is not None
        )
    return value if isinstance(value, str) else json.dumps(value)


def quoted(text: str) -> str:
    """A literal of the Lark dialect."""
    return json.dumps(text)
