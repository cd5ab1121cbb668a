"""Random text of many scripts, as the typing check sends it through the keyboard."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable

_LONGEST = 8


def _from(*ranges: tuple[int, int]) -> Callable[[random.Random], str]:
    points = [point for first, last in ranges for point in range(first, last + 1)]
    return lambda dice: chr(dice.choice(points))


def _emoji(dice: random.Random) -> str:
    """One picture of several characters: a skin colour, a family, a flag, a keycap, a variation."""
    match dice.randrange(5):
        case 0:
            return dice.choice("👋👍🤌🧑👩🏃💪") + chr(dice.randrange(0x1F3FB, 0x1F400))
        case 1:
            return "\u200d".join(dice.choices("👨👩👧👦🧑🚀💻🌈", k=dice.randrange(2, 5)))
        case 2:
            return "".join(chr(0x1F1E6 + dice.randrange(26)) for _ in range(2))
        case 3:
            return dice.choice("0123456789#*") + "\ufe0f\u20e3"
        case _:
            return chr(dice.randrange(0x1F300, 0x1F650)) + dice.choice(("", "\ufe0f", "\ufe0e"))


def _combining(dice: random.Random) -> str:
    """A letter with marks, kept apart: no program may compose them."""
    marks = "".join(chr(dice.randrange(0x300, 0x370)) for _ in range(dice.randrange(1, 4)))
    return dice.choice("aeiounçAÖkस가ကก") + marks


def _anything(dice: random.Random) -> str:
    """Any character of Unicode that is not a control character, assigned or not."""
    while unicodedata.category(char := chr(dice.randrange(0x110000))) in ("Cc", "Cs"):
        pass
    return char


KINDS: dict[str, Callable[[random.Random], str]] = {
    "ASCII": _from((0x20, 0x7E)),
    "symbols that are easily lost": lambda dice: dice.choice("<>/\\|\"'`~!@#$%^&*()_+-={}[]:;?,.§°ß€"),
    "Latin": _from((0xA0, 0x24F)),
    "Cyrillic and Greek": _from((0x370, 0x377), (0x391, 0x3A1), (0x3B1, 0x3C9), (0x400, 0x4FF)),
    "Chinese and Japanese": _from((0x4E00, 0x9FFF), (0x3041, 0x3096), (0x30A1, 0x30FA)),
    "Korean": _from((0xAC00, 0xD7A3), (0x1100, 0x1112), (0x1161, 0x1175)),
    "Indic, Thai and Khmer": _from(
        (0x901, 0x939), (0x93E, 0x94D), (0xE01, 0xE3A), (0xE40, 0xE4E), (0x1780, 0x17FF)
    ),
    "forms for compatibility": _from((0xFE50, 0xFEFF), (0xFF01, 0xFFEE)),
    "right to left": _from(
        (0x5D0, 0x5EA), (0x621, 0x652), (0x200E, 0x200F), (0x202A, 0x202E), (0x2066, 0x2069)
    ),
    "emoji": _emoji,
    "combining marks": _combining,
    "other planes": _from((0x10330, 0x1034A), (0x1D400, 0x1D454), (0x20000, 0x2A6DF), (0xE0020, 0xE007E)),
    "blank": lambda dice: dice.choice("\n\t  \u3000\u2003\u00a0"),
    "anything": _anything,
}
"""What strings are made of: each gives one character, or a few that belong together."""


def random_strings(seed: int, count: int) -> list[str]:
    """Texts of one kind of character or of three mixed, 1 to 8 pieces long."""
    dice = random.Random(seed)
    found = []
    for _ in range(count):
        kinds = dice.sample(list(KINDS.values()), k=dice.choice((1, 1, 3)))
        found.append("".join(dice.choice(kinds)(dice) for _ in range(dice.randrange(1, _LONGEST + 1))))
    return found
