"""Strings made to break a terminal interface: markup, control codes, hidden characters, sizes."""

from __future__ import annotations

import random

MARK = "\u2e2e"
"""Stands in every one of them, to be known again."""

_PIECES = [
    *("rm -rf build[a-z]*", "[/]", "[/red]", "[#zz]x[/]", "d['k'][/a]", "end\\", "\\[b", "[[", "]]", "["),
    *("[@click=app.quit]see[/]", "[@click=app.bell()]", "[bold red]", "[/bold]", "[link=http://evil]x", "$v"),
    *("[on #ff0000]", "[$primary]", "[b", "[b]]", "[not]", "{0}", "%s", "${x}", ":smile:", "&lt;b&gt;"),
    *("\x1b[31m", "\x1b]52;c;ZXZpbA==\x07", "\x1b]0;t\x1b\\", "\x1bP1;2|x\x1b\\", "\x1b_Gi=1;AAAA\x1b\\"),
    *("\x1b[2J", "\x1b[6n", "\x1bc", "\x1b]8;;http://evil\x1b\\", "\x1b]52;", "\x1b[?1049l", "\x1b[1;1H"),
    *("\x9b2J", "\x9d0;t\x9c", "\x90q#0;2;0;0;0\x9c", "\x84", "\x85", "\x8d", "\x80"),
    *("\u202e", "\u202a", "\u2066", "\u2069", "\u200f", "\u061c", "\u200b", "\u200d", "\u2060", "\ufeff"),
    *("\U000e0041", "\U000e007f", "\ufe0f", "\U000e0100", "\u3164", "\u115f", "\u034f", "\u2028", "\u2029"),
    *("\ud800", "\udfff", "\udce9", "\0", "\x07", "\x08", "\x7f", "\r", "\r\n", "\n", "\t", "\x0b", "\x0c"),
    *("字", "한", "e\u0301", "👩\u200d💻", "🇩🇪", "\u0300" * 40, "עברית", "العربية", "\U0010eeee", "\ue000"),
    *("p\u0430ypal.com", " " * 60 + ";x", "\n" * 40 + ";x", "\xa0", "\u2003", "\u3000", "\xad", "~", "`"),
    *("--", "'", '"', "plain words", "x" * 200, "C:\\dir\\", "😀" * 30, "\u2800", "\ufffd", "\uffff"),
]


def strings(count: int, seed: int = 7) -> list[str]:
    """So many strings, the same ones for the same seed; a few of them are huge."""
    chance = random.Random(seed)
    made = []
    for index in range(count):
        parts = chance.choices(_PIECES, k=chance.randint(1, 6))
        parts += [chr(chance.randrange(0x110000)) for _ in range(chance.randint(0, 3))]
        parts += [chr(chance.randrange(0xA0)) for _ in range(chance.randint(0, 2))]
        chance.shuffle(parts)
        text = MARK + "".join(parts)
        if index % 2000 == 1999:
            text = MARK + text * (20_000 // len(text) + 1)
        made.append(text)
    return made
