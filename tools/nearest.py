"""What to tell a model whose old text is not in the file: the nearest lines, white space made visible."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

_SHOWN_LINES = 20
_SHOWN_CHARACTERS = 300
# Comparing with every line of a long file, or with very long lines, takes too long to be worth it.
_FUZZY_LINES = 5_000
_FUZZY_CUTOFF = 0.6
_LOOKALIKES = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "−": "-", "\u00ad": ""}
)


def explain_miss(text: str, old: str) -> str:
    """Why `old` is not in `text` and what is near it; both with `\\n` line ends.

    The first sentence says how the two differ; the lines follow with their numbers, `·` for a blank at either
    end of a line, `→` for a tab, and the code of any other space.
    """
    lines, wanted = text.split("\n"), old.strip("\n").split("\n")
    start = _nearest(lines, wanted)
    if start is None:
        return "nothing in the file is like it; view the file and copy the text exactly."
    found = lines[start : start + len(wanted)]
    if found == wanted:
        return (
            f"lines {start + 1} to {start + len(wanted)} are the same except for line ends at the start or "
            "the end of `old_text`; leave those out."
        )
    differ = next((i for i, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), 0)
    shown = [f"{number:>6} {visible(line)}" for number, line in enumerate(found[:_SHOWN_LINES], start + 1)]
    if len(found) > _SHOWN_LINES:
        shown.append(f"       (and {len(found) - _SHOWN_LINES} more lines)")
    return "\n".join(
        [
            f"the nearest lines {_how(found, wanted)}; copy them exactly (· is a blank, → a tab):",
            *shown,
            f"where line {start + differ + 1} should be as above, `old_text` has:",
            f"       {visible(wanted[differ])}",
        ]
    )


def visible(line: str) -> str:
    """A line with the white space that cannot be seen: outer blanks, tabs, spaces that are not a blank."""
    line = line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"
    inner = line.strip(" ")
    head, tail = len(line) - len(line.lstrip(" ")), len(line) - len(line.rstrip(" "))
    line = "·" * head + inner + "·" * (tail if inner else 0)
    return "".join("→" if char == "\t" else _code(char) if _is_odd(char) else char for char in line)


def _is_odd(char: str) -> bool:
    return char not in " ·→" and unicodedata.category(char) in {"Zs", "Zl", "Zp", "Cc", "Cf"}


def _code(char: str) -> str:
    return f"<U+{ord(char):04X}>"


def _plain(line: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", line).translate(_LOOKALIKES).split())


def _how(found: Sequence[str], wanted: Sequence[str]) -> str:
    if [re.sub(r"[ \t]+", "", line) for line in found] == [re.sub(r"[ \t]+", "", line) for line in wanted]:
        return "differ only in blanks and tabs"
    if [_plain(line) for line in found] == [_plain(line) for line in wanted]:
        return "differ only in kinds of spaces, quotes or dashes"
    return "differ"


def _nearest(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Where the block that most resembles `wanted` starts, as an index of `lines`."""
    places: dict[str, list[int]] = defaultdict(list)
    for index, line in enumerate(lines):
        plain = _plain(line)
        if len(plain) > 1:
            places[plain].append(index)
    votes: Counter[int] = Counter()
    for offset, line in enumerate(wanted):
        # A line that is everywhere says nothing about the place.
        for index in places.get(_plain(line), ())[:50]:
            votes[index - offset] += 1
    if votes:
        return max(0, max(votes, key=lambda start: (votes[start], -start)))
    longest = max(range(len(wanted)), key=lambda offset: len(wanted[offset].strip()))
    candidates = [line for line in list(places)[:_FUZZY_LINES] if len(line) <= _SHOWN_CHARACTERS]
    line = _plain(wanted[longest])[:_SHOWN_CHARACTERS]
    near = difflib.get_close_matches(line, candidates, n=1, cutoff=_FUZZY_CUTOFF)
    return max(0, places[near[0]][0] - longest) if near else None
