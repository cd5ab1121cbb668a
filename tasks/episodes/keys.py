"""Key presses as DevTools events: characters, named keys and combinations such as `ctrl+a`."""

from __future__ import annotations

from typing import Any

# name (xdotool and common spellings) -> (DOM key, code, Windows virtual key)
NAMED: dict[str, tuple[str, str, int]] = {
    "return": ("Enter", "Enter", 13),
    "enter": ("Enter", "Enter", 13),
    "tab": ("Tab", "Tab", 9),
    "backspace": ("Backspace", "Backspace", 8),
    "delete": ("Delete", "Delete", 46),
    "escape": ("Escape", "Escape", 27),
    "space": (" ", "Space", 32),
    "up": ("ArrowUp", "ArrowUp", 38),
    "down": ("ArrowDown", "ArrowDown", 40),
    "left": ("ArrowLeft", "ArrowLeft", 37),
    "right": ("ArrowRight", "ArrowRight", 39),
    "home": ("Home", "Home", 36),
    "end": ("End", "End", 35),
    "page_up": ("PageUp", "PageUp", 33),
    "page_down": ("PageDown", "PageDown", 34),
    **{f"f{n}": (f"F{n}", f"F{n}", 111 + n) for n in range(1, 13)},
}
MODIFIERS = {
    "alt": (1, "Alt", "AltLeft", 18),
    "ctrl": (2, "Control", "ControlLeft", 17),
    "shift": (8, "Shift", "ShiftLeft", 16),
}
# What a combination does in a text field; a headless browser has no key bindings of its own.
COMMANDS = {"ctrl+a": "selectAll", "ctrl+c": "copy", "ctrl+v": "paste", "ctrl+x": "cut", "ctrl+z": "undo"}


def key_events(text: str) -> list[dict[str, Any]]:
    """The events of one key, character or combination; raises `ValueError` for an unknown name."""
    *held, name = text.split("+") if len(text) > 1 else [text]
    modifiers = 0
    before: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    for modifier in held:
        if modifier.lower() not in MODIFIERS:
            raise ValueError(f"The key {text!r} holds {modifier!r}; use ctrl, shift or alt before the '+'.")
        bit, key, code, number = MODIFIERS[modifier.lower()]
        modifiers |= bit
        event = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        before.append({"type": "rawKeyDown", "modifiers": modifiers, **event})
        after.insert(0, {"type": "keyUp", "modifiers": modifiers & ~bit, **event})
    if name == "\n":
        name = "Return"
    if name == "\t":
        name = "Tab"
    typed = ""
    if len(name) == 1:
        key, code, number = name, _code(name), ord(name.upper()) if name.isalnum() and name.isascii() else 0
        typed = name
    elif name.lower() in NAMED:
        key, code, number = NAMED[name.lower()]
        typed = {"Enter": "\r", " ": " "}.get(key, "")
    else:
        raise ValueError(f"There is no key {name!r}; use a character or one of {', '.join(sorted(NAMED))}.")
    down: dict[str, Any] = {
        "type": "keyDown" if typed and modifiers in (0, 8) else "rawKeyDown",
        "modifiers": modifiers,
        "key": key,
        "code": code,
        "windowsVirtualKeyCode": number,
    }
    if down["type"] == "keyDown":
        down["text"] = typed
    command = COMMANDS.get(text.lower())
    if command:
        down["commands"] = [command]
    up = {
        "type": "keyUp",
        "modifiers": modifiers,
        "key": key,
        "code": code,
        "windowsVirtualKeyCode": number,
    }
    return [*before, down, up, *after]


def _code(character: str) -> str:
    if character.isascii() and character.isalpha():
        return f"Key{character.upper()}"
    if character.isascii() and character.isdigit():
        return f"Digit{character}"
    return "Space" if character == " " else ""
