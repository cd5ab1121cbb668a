"""How keys are written, the same everywhere: `Ctrl+S`, `Esc`, `Page Down`, `?`, `g`."""

from __future__ import annotations

import re

from textual.keys import format_key

_WORDS = {
    "escape": "Esc",
    "enter": "Enter",
    "tab": "Tab",
    "space": "Space",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
    "pageup": "Page Up",
    "pagedown": "Page Down",
    "home": "Home",
    "end": "End",
    "delete": "Delete",
    "backspace": "Backspace",
}


def written(key: str) -> str:
    """A key that Textual names, as a person reads it."""
    *modifiers, last = key.split("+")
    shown = _WORDS.get(last) or (last.upper() if re.fullmatch(r"f\d+", last) else format_key(last))
    shown = shown.upper() if modifiers and len(shown) == 1 else shown
    return "+".join([*(modifier.capitalize() for modifier in modifiers), shown])
