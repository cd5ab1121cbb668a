"""Text from models, tools, files and pages, made safe to show on a terminal.

Such text may carry escape sequences that recolour the screen or write the clipboard, and characters that
make a command read differently from what it is. Everything that does not show as itself is spelt out.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any

from pilotfish.sandbox.terminal import encodable

_KEPT = {"\n", "\t"}
_HIDDEN = frozenset(
    [
        *range(0x200B, 0x2010),  # zero-width characters and direction marks
        *range(0x2028, 0x202F),  # line and paragraph separators, direction embeddings and overrides
        *range(0x2060, 0x2070),  # word joiner, invisible operators, direction isolates
        *range(0xFE00, 0xFE10),  # variation selectors
        *range(0xE0000, 0xE0200),  # tags and more variation selectors
        0x034F,
        0x061C,
        0x115F,
        0x1160,
        0x17B4,
        0x17B5,
        *range(0x180B, 0x1810),
        0x2800,  # the Braille pattern without a dot
        0x3164,
        0xFEFF,
        0xFFA0,
    ]
)
_BEYOND_ASCII = re.compile(r"[^ -~]")
# Blanks or lines that push what follows out of sight.
_PADDING = re.compile(r"[^\S\n]{40,}\S|(?:[^\S\n]*\n){15,}[^\S\n]*\S")
_ORDINARY = re.compile(r"[ -~\n\t]*")  # told at once, as most of a long output is
_WORD = re.compile(r"[\w.-]+")
_LOOKALIKES = (
    "CYRILLIC",
    "GREEK",
    "ARMENIAN",
    "CHEROKEE",
    "COPTIC",
    "FULLWIDTH LATIN",
    "MATHEMATICAL",
    "LATIN LETTER SMALL CAPITAL",
    "CIRCLED LATIN",
)


def all_encodable(value: Any) -> Any:
    """A value of JSON in which every text is one that UTF-8 can take, as logs, models and pages need it."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {all_encodable(key): all_encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(all_encodable(item) for item in value)
    return value


def visible(text: str, *, one_line: bool = False) -> str:
    """`text` with every control, escape, direction and invisible character spelt out, as in `\\x1b`.

    Line feeds and tabs are kept unless `one_line` is set. Printable text, whatever its script, is unchanged.
    """
    if _ORDINARY.fullmatch(text) and not (one_line and ("\n" in text or "\t" in text)):
        return text
    return _BEYOND_ASCII.sub(lambda found: _spelt(found[0], one_line), text)


@lru_cache(1 << 14)
def _spelt(char: str, one_line: bool) -> str:
    if char.isprintable() and ord(char) not in _HIDDEN:
        return char
    if char in _KEPT and not one_line:
        return char
    # Spaces other than U+0020 are not "printable" to Python, but they do show as themselves.
    if unicodedata.category(char) == "Zs":
        return char
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def warnings(text: str) -> list[str]:
    """What a person who is to allow `text` could overlook, a sentence each."""
    found = []
    if visible(text) != text:
        found.append("it has characters that do not show; they are spelt out")
    if has_gap(text):
        found.append("it goes on after a long gap; read on to its end")
    for word in _WORD.findall(text):
        if any(char.isascii() and char.isalpha() for char in word) and any(map(_looks_latin, word)):
            found.append(
                f"{shortened(word, 80)} mixes alphabets whose letters look alike ({_punycode(word)})"
            )
    return list(dict.fromkeys(found))


def has_gap(text: str) -> bool:
    """Whether something stands behind so many blanks or empty lines that it can be out of sight."""
    return _PADDING.search(text) is not None


def _looks_latin(char: str) -> bool:
    return not char.isascii() and unicodedata.name(char, "").startswith(_LOOKALIKES)


def _punycode(word: str) -> str:
    """A host name as it is asked for; of another word, where the other letters are."""
    labels = [
        label if label.isascii() else "xn--" + label.encode("punycode").decode() for label in word.split(".")
    ]
    return shortened(".".join(labels), 80)


def shortened(text: str, limit: int) -> str:
    """`text` on one line, made visible and cut to at most `limit` characters with a mark where it was cut."""
    line = visible(text, one_line=True)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def counted(number: int, noun: str) -> str:
    """A number of things in words; the noun takes an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
