"""How an expert does an edit task through the `index` and `edit` tools, now and then with a wrong turn.

A script is a generator of `Move`s that is sent each call's result. Nothing that is written is known from
elsewhere: names come from the task, paths and line numbers from what the index answers. What must be
copied exactly is short: a name, or the few words around what changes on one line.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pilotfish.tasks.edits.family import EditTask, Ground
from pilotfish.tools.base import ToolResult

_TOKEN = re.compile(r"\w+|[<>=!]+|[^\w\s]")
_WORD = re.compile(r"\w+")
_ANOTHER = (-2, -1, 1, 2)  # lines by which a wrong one differs


@dataclass(frozen=True)
class Move:
    """One call. right: whether it is to be imitated; a slip is not."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    right: bool = True


Script = Generator[Move, ToolResult, str]
"""Ends with the final message."""


def script(ground: Ground, task: EditTask, draw: random.Random, slips: float = 0.0) -> Script:
    """The moves of one task; the same draws give the same ones. slips: how likely each wrong turn is."""
    if task.kind == "rename":
        yield from _rename(ground, task, draw, slips)
    else:
        yield from _one_place(ground, task, draw, slips)
    return answer(task)


def answer(task: EditTask) -> str:
    """What is said at the end."""
    if task.kind == "rename":
        return f"`{task.old}` is `{task.new}` now."
    return f"`{task.symbol}` is changed in {task.path}."


def _rename(ground: Ground, task: EditTask, draw: random.Random, slips: float) -> Script:
    """One search, which shows the definition and all uses by path, then one edit for each file."""
    if draw.random() < slips:
        yield Move("index", {"command": "search", "pattern": _misspelt(task.old, draw)}, right=False)
    left = sorted(task.changes)
    while left:
        result = yield Move("index", {"command": "search", "pattern": task.old})
        seen = [path for path in left if f"{path}:" in result.text] or left
        for path in seen:
            renaming: dict[str, Any] = {"command": "replace", "path": path}
            renaming |= {"old_text": task.old, "new_text": task.new}
            renaming |= {"replace_all": True, "whole_word": True}
            if draw.random() < slips / 2:
                yield from _misread(renaming, draw)
            yield Move("edit", renaming)
            left.remove(path)
    return ""


def _one_place(ground: Ground, task: EditTask, draw: random.Random, slips: float) -> Script:
    """The definition is read, then a part of one line replaced."""
    reading = {"command": "read", "name": task.symbol} | ({"path": task.path} if task.path_told else {})
    if draw.random() < slips:
        yield Move("index", reading | {"name": _misspelt(task.symbol, draw)}, right=False)
    result = yield Move("index", reading)
    before, after = ground.files[task.path].split("\n"), task.changes[task.path].split("\n")
    changed = [at for at, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]
    if (span := _listed(result.text, task)) is not None:
        yield Move("index", {"command": "read", "path": task.path, "lines": span})
    for at in changed:
        old, new = shortest(before[at], after[at])
        place = {"command": "replace", "path": task.path, "line": at + 1}
        edit = place | {"old_text": old, "new_text": new}
        if draw.random() < slips:
            yield from _misread(edit, draw)
        if draw.random() < slips / 2:
            line = at + 1 + draw.choice(_ANOTHER)
            if 0 < line <= len(before) and old not in before[line - 1]:
                yield Move("edit", edit | {"line": line}, right=False)
        yield Move("edit", edit)
    return ""


def _listed(text: str, task: EditTask) -> list[int] | None:
    """The lines of the definition around the place, where an answer lists several definitions instead of
    showing one.
    """
    for first, last in re.findall(rf"^{re.escape(task.path)}:(\d+)(?:-(\d+))?: ", text, re.MULTILINE):
        if int(first) <= task.line <= int(last or first):
            return [int(first), int(last or first)]
    return None


def shortest(before: str, after: str) -> tuple[str, str]:
    """What of a line is replaced by what: what differs with a word before it and a word or sign behind it,
    and more of them until it stands there once.
    """
    old, new = ([match.span() for match in _TOKEN.finditer(text)] for text in (before, after))
    words, others = ([text[a:b] for a, b in spans] for text, spans in ((before, old), (after, new)))
    most = min(len(words), len(others))
    lead = next((n for n in range(most) if words[n] != others[n]), most)
    rest = most - lead
    tail = next((n for n in range(rest) if words[-1 - n] != others[-1 - n]), rest)
    begin, end = max(0, lead - 1), max(0, tail - 1)
    while True:
        # What begins with a word is mostly split into the same tokens as where it stands.
        while begin and not _WORD.fullmatch(words[begin]):
            begin -= 1
        start, stop = old[begin][0], old[len(old) - 1 - end][1]
        text = before[start:stop]
        if before.count(text) == 1 or not (begin or end):
            return text, after[new[begin][0] : new[len(new) - 1 - end][1]]
        begin, end = max(0, begin - 1), max(0, end - 1)


def _misread(edit: Mapping[str, Any], draw: random.Random) -> Script:
    """An edit whose old text is misspelt; where that happens to be there, it is taken back."""
    result = yield Move("edit", {**edit, "old_text": _misspelt(str(edit["old_text"]), draw)}, right=False)
    if result.ok:
        yield Move("edit", {"command": "undo", "path": edit["path"]})
    return ""


def _misspelt(text: str, draw: random.Random) -> str:
    """A text in which one letter is another, or gone."""
    places = [at for at, letter in enumerate(text) if letter.isalpha()] or [0]
    at = draw.choice(places)
    kept = draw.choice([letter for letter in "aeimnorst" if letter != text[at]])
    return text[:at] + (kept if len(text) < 4 or draw.random() < 0.5 else "") + text[at + 1 :]
