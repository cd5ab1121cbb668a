"""How an expert does an edit task through the `index` and `edit` tools, now and then with a wrong turn.

A script is a generator of `Move`s that is sent each call's result, so that it can go by what it is told.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pilotfish.tasks.edits.family import EditTask, Ground
from pilotfish.tools.base import ToolResult

_READ = 5  # lines before and behind a place that are read
_HEIGHT = 60  # lines of a function that are read at once


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
    if draw.random() < slips:
        yield Move("index", {"command": "find", "name": _misspelt(task.symbol, draw)}, right=False)
    yield Move("index", {"command": "find", "name": task.symbol})
    if task.kind == "rename":
        yield Move("index", {"command": "references", "name": task.old})
    else:
        first = max(1, task.line - _READ)
        lines = [first, first + 2 * _READ]
        if draw.random() < slips:
            wrong = [max(1, first - _HEIGHT), max(1, first - _HEIGHT) + _READ]
            yield Move("index", {"command": "read", "path": task.path, "lines": wrong}, right=False)
        yield Move("index", {"command": "read", "path": task.path, "lines": lines})
    for path in sorted(task.changes):
        edits = replacements(ground.files[path], task.changes[path])
        if task.kind == "rename" and (whole := _at_once(task, ground.files[path], task.changes[path])):
            edits = [whole]
        if draw.random() < slips:
            yield from _wrong_edit(path, edits[0], draw)
        yield Move("edit", {"command": "replace", "path": path, **_as_arguments(edits)})
    if task.kind == "rename" and draw.random() < 0.5:
        yield Move("index", {"command": "references", "name": task.old})
    return answer(task)


def answer(task: EditTask) -> str:
    """What is said at the end."""
    if task.kind == "rename":
        files = "1 file" if task.files == 1 else f"{task.files} files"
        return f"`{task.old}` is `{task.new}` now, in {task.places} places of {files}."
    return f"`{task.old}` is `{task.new}` now, in `{task.symbol}` of {task.path}."


def replacements(before: str, after: str) -> list[dict[str, Any]]:
    """The edits that make one text of another with as many lines: for each line that differs its text, with
    lines before it where that alone is not there once.
    """
    old, new = before.split("\n"), after.split("\n")
    if len(old) != len(new):
        raise ValueError(f"the texts have {len(old)} and {len(new)} lines, not as many")
    now, found = before, []
    for at, (was, becomes) in enumerate(zip(old, new, strict=True)):
        if was == becomes:
            continue
        lead = len(was) - len(was.lstrip())
        first, cut = at, lead
        while True:
            # Lines before the place are as they have become, those after it as they were.
            text = "\n".join([*new[first:at], was])[cut:]
            if now.count(text) == 1:
                break
            if cut:
                cut = 0
            elif first:
                first -= 1
            else:
                raise ValueError(f"line {at + 1} cannot be told from others")
        changed = "\n".join(new[first : at + 1])[cut:]
        found.append({"old_text": text, "new_text": changed})
        now = now.replace(text, changed)
    return found


def _at_once(task: EditTask, before: str, after: str) -> dict[str, Any] | None:
    """One replacement for all places, where no longer word holds the name."""
    if before.replace(task.old, task.new) != after:
        return None
    several = before.count(task.old) > 1
    return {"old_text": task.old, "new_text": task.new} | ({"replace_all": True} if several else {})


def _as_arguments(edits: list[dict[str, Any]]) -> Mapping[str, Any]:
    return edits[0] if len(edits) == 1 else {"edits": edits}


def _wrong_edit(path: str, right: Mapping[str, Any], draw: random.Random) -> Script:
    """An edit that is refused, or one that is taken back."""
    old, new = str(right["old_text"]), str(right["new_text"])
    if right.get("replace_all"):
        yield Move(
            "edit", {"command": "replace", "path": path, "old_text": old, "new_text": new}, right=False
        )
    elif draw.random() < 0.5:
        text = _misspelt(old, draw)
        result = yield Move(
            "edit", {"command": "replace", "path": path, "old_text": text, "new_text": new}, right=False
        )
        if result.ok:
            yield Move("edit", {"command": "undo", "path": path})
    else:
        yield Move(
            "edit",
            {"command": "replace", "path": path, "old_text": old, "new_text": _misspelt(new, draw)},
            right=False,
        )
        yield Move("edit", {"command": "undo", "path": path})
    return ""


def _misspelt(text: str, draw: random.Random) -> str:
    """A text in which one letter is another, or gone."""
    places = [at for at, letter in enumerate(text) if letter.isalpha()] or [0]
    at = draw.choice(places)
    kept = draw.choice([letter for letter in "aeimnorst" if letter != text[at]])
    return text[:at] + (kept if len(text) < 4 or draw.random() < 0.5 else "") + text[at + 1 :]
