"""Lists of numbers as properties of an X window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from Xlib import X


def numbers(window: Any, name: str) -> list[int]:
    """The 32-bit numbers of a property; none when it is missing or not a list of such numbers."""
    found = window.get_full_property(window.display.get_atom(name), X.AnyPropertyType)
    if found is None or found.property_type == X.NONE or isinstance(found.value, bytes | str):
        return []
    return [int(value) for value in found.value]


def set_numbers(window: Any, name: str, values: Sequence[int]) -> None:
    """Write a property without waiting for the server; an empty list takes the property away."""
    atom = window.display.get_atom(name)
    if values:
        window.change_property(atom, window.display.get_atom("CARDINAL"), 32, list(values))
    else:
        window.delete_property(atom)
