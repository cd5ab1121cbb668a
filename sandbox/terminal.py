"""What a terminal would show of the bytes a program wrote, as plain text that is safe anywhere."""

from __future__ import annotations

import re

# ECMA-48: CSI with parameters; OSC, DCS, SOS, PM and APC up to their end or the end of the line; short
# escapes; and the same as single bytes in text, U+0080 to U+009F.
_ESCAPES = re.compile(
    "(?:\x1b\\[|\u009b)[0-?]*[ -/]*[@-~]?"
    "|(?:\x1b[]PX^_]|[\u0090\u0098\u009d-\u009f])[^\x07\x1b\n\u009c]*(?:\x07|\x1b\\\\|\u009c)?"
    "|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


# What Python makes of bytes in a file's name that are not UTF-8, and halves of characters out of JSON.
_HALVES = re.compile("[\ud800-\udfff]")

_ERASE = "\x1b"  # stands for "erase to the end of the line" once all escape sequences are gone


def encodable(text: str) -> str:
    """The same text, or one that UTF-8 can take: bytes that are none are spelt as in `\\xff`, halves of
    characters as in `\\ud83d`.
    """
    return text if text.isascii() else _HALVES.sub(_spelt_half, text)


def _spelt_half(half: re.Match[str]) -> str:
    code = ord(half[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def plain_text(data: bytes) -> str:
    """The bytes as text.

    Escape sequences are left out. Carriage returns, backspaces and erasures work within their line, so of a
    progress bar its last state is left. Any other control character, and a byte that is not UTF-8, is spelt
    as in `\\x00`.
    """
    text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    text = _ESCAPES.sub(_meaning, text)
    if any(char in text for char in "\r\b\x1b"):
        text = "\n".join(_overwritten(line) for line in text.split("\n"))
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _meaning(escape: re.Match[str]) -> str:
    return _ERASE if escape[0].lstrip("\x1b\x9b[") in ("K", "0K", "2K") else ""


def _overwritten(line: str) -> str:
    """What is left of one line after its carriage returns, backspaces and erasures."""
    line = line.rstrip("\r")
    if not any(char in line for char in "\r\b\x1b"):
        return line
    cells: list[str] = []
    column = 0
    for char in line:
        if char == "\r":
            column = 0
        elif char == "\b":
            column = max(0, column - 1)
        elif char == _ERASE:
            del cells[column:]
        else:
            cells[column : column + 1] = [char]
            column += 1
    return "".join(cells)
