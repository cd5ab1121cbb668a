"""Two runs beside each other: which of their entries belong together, and where they part."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.agent.replay.entries import Entry
from pilotfish.agent.replay.story import Story

Row = tuple[int | None, int | None, str]
"""An entry of each run, counted over all its episodes, or None; and how they differ in a word, '' where they
do not: only one, action, result or screen.
"""


def beside(one: Story, other: Story) -> list[Row]:
    """The rows of a page that shows both: entries with the same episode and step number beside each other.

    What was undone, or a person did, has no counterpart, and is no difference.
    """
    rows: list[Row] = []
    firsts = [0, 0]
    for number in range(max(len(one.episodes), len(other.episodes))):
        pair = [_entries(story, number) for story in (one, other)]
        rows += _episode(pair[0], pair[1], firsts)
        firsts = [first + len(entries) for first, entries in zip(firsts, pair, strict=True)]
    return rows


def _entries(story: Story, number: int) -> Sequence[Entry]:
    return story.episodes[number].entries if number < len(story.episodes) else []


def parting(rows: Sequence[Row]) -> int | None:
    """The first row in which the runs differ."""
    return next((at for at, row in enumerate(rows) if row[2]), None)


def _episode(one: Sequence[Entry], other: Sequence[Entry], firsts: Sequence[int]) -> list[Row]:
    """The rows of one episode. Of both, entries are taken in order, up to the lower step number first."""
    rows: list[Row] = []
    i = j = 0
    while i < len(one) or j < len(other):
        a, b = one[i] if i < len(one) else None, other[j] if j < len(other) else None
        left, right = a is not None and _alone(a), b is not None and _alone(b)
        if a is not None and b is not None and not left and not right:
            left, right = _first(a, b)
        elif not left and not right:
            left, right = a is not None, b is not None
        elif left:
            right = False
        if left and right:
            assert a is not None
            assert b is not None
            differs = _difference(a, b)
        else:
            alone = a if left else b
            assert alone is not None
            differs = "" if _alone(alone) else "only one"
        rows.append((firsts[0] + i if left else None, firsts[1] + j if right else None, differs))
        i, j = i + left, j + right
    return rows


def _alone(entry: Entry) -> bool:
    return "undone" in entry.tags or entry.kind in ("person", "steering", "resumed")


def _first(a: Entry, b: Entry) -> tuple[bool, bool]:
    """Which of two goes into the next row; both if they belong together."""
    if _place(a) == _place(b):
        return True, True
    return (True, False) if _place(a) < _place(b) else (False, True)


_ORDER = ("start", "retry", "step", "said", "tests", "end")


def _place(entry: Entry) -> tuple[bool, float, int]:
    step = {"start": 0.0, "end": float("inf")}.get(entry.kind, float(entry.step or 0))
    return "subtask" in entry.tags, step, _ORDER.index(entry.kind)


def _difference(a: Entry, b: Entry) -> str:
    if a.call != b.call or (a.kind != "step" and a.title != b.title):
        return "action"
    if _result(a) != _result(b) or ("failed" in a.tags) != ("failed" in b.tags):
        return "result"
    return "screen" if a.frames[-1:] != b.frames[-1:] else ""


def _result(entry: Entry) -> list[str]:
    return [text for name, text in entry.notes if name in ("result", "answer", "instruction")]
