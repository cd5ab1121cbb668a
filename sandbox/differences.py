# ruff: noqa: PTH123
"""What changed between two trees: which files, how, their lines on request, and what to look at first."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from pilotfish.sandbox.entries import EMPTY, Entry, Node
from pilotfish.sandbox.objects import Damaged, Objects
from pilotfish.sandbox.runs_later import who_runs
from pilotfish.sandbox.trees import FILE, FOLDER

TEXT_BYTES = 1 << 20
"""A bigger file is not shown line by line."""
_ALL_TEXT_BYTES = 16 << 20
_LINES = 3_000
"""So many lines, after those that begin and end alike, are compared; more would take too long."""
_SHOWN_LINES = 2_000
_ENDINGS_SHARE = 0.5

How = Literal["added", "removed", "changed", "mode"]


@dataclass(frozen=True)
class Change:
    """One path that differs. before, after: what it was and is (None: nothing).

    runs: who runs or obeys such a file by itself, '' for most. text: the lines that changed, as a unified
    diff; `note` says why there are none, or not all. endings: whether most changed lines differ only in how
    they end.
    """

    path: str
    how: How
    before: Entry | None
    after: Entry | None
    runs: str = ""
    text: str = ""
    note: str = ""
    endings: bool = False


@dataclass(frozen=True)
class Diff:
    """The changes by path. warnings: whole sentences."""

    changes: tuple[Change, ...] = ()
    warnings: tuple[str, ...] = field(default_factory=tuple)

    def count(self, how: How) -> int:
        """How many were added, removed, changed, or had nothing but their mode or owner changed."""
        return sum(change.how == how for change in self.changes)


def compare(old: Node, new: Node, objects: Objects | None, root: int | None) -> Diff:
    """What changed from one tree to the other.

    objects: the store; with it come the lines. root: an open descriptor of the workspace, when `new` is what
    is there now and not in the store. A later time alone is no change.
    """
    changes = list(_changes(old, new, ""))
    if objects is None:
        return Diff(tuple(changes))
    teller = _Teller(objects, root)
    told = [teller.tell(change) for change in changes]
    warnings = []
    if teller.changed and teller.only_endings > _ENDINGS_SHARE * teller.changed:
        warnings.append(
            f"{teller.only_endings} of {teller.changed} changed lines differ only in how they end."
        )
    return Diff(tuple(told), tuple(warnings))


def _changes(old: Node, new: Node, above: str) -> Iterator[Change]:
    for name in sorted(old.entries.keys() | new.entries.keys()):
        one, other = old.entries.get(name), new.entries.get(name)
        path = above + name
        below = (old.folders.get(name, EMPTY), new.folders.get(name, EMPTY))
        if one is None or other is None or _sort(one) != _sort(other):
            if one is not None and other is not None:
                yield Change(path, "changed", one, other, who_runs(path))
            elif other is not None:
                yield Change(path, "added", None, other, who_runs(path))
            else:
                yield Change(path, "removed", one, None)
            yield from _changes(*below, f"{path}/")
        elif one.kind == "folder":
            if _rights(one) != _rights(other):
                yield Change(path, "mode", one, other)
            if one.data != other.data:
                yield from _changes(*below, f"{path}/")
        elif one.data != other.data or (one.kind == "other" and not one.is_like(other)):
            yield Change(path, "changed", one, other, who_runs(path))
        elif _rights(one) != _rights(other):
            yield Change(path, "mode", one, other, who_runs(path))


def _sort(entry: Entry) -> str:
    return "file" if entry.is_file else entry.kind


def _rights(entry: Entry) -> tuple[int, int, int]:
    return entry.mode, entry.uid, entry.gid


class _Teller:
    """Adds lines to changes, up to a bound; counts those that differ only in their ends."""

    def __init__(self, objects: Objects, root: int | None) -> None:
        self._objects = objects
        self._root = root
        self._left = _ALL_TEXT_BYTES
        self.changed = self.only_endings = 0

    def tell(self, change: Change) -> Change:
        entries = [entry for entry in (change.before, change.after) if entry is not None]
        if change.how == "mode" or not any(entry.is_file or entry.kind == "link" for entry in entries):
            return change
        if any(entry.size > TEXT_BYTES for entry in entries):
            return replace(change, note="too big to show")
        if sum(entry.size for entry in entries) > self._left:
            return replace(change, note="not shown, as there is much before it")
        try:
            before = self._content(change.before, None)
            after = self._content(change.after, change.path if self._root is not None else None)
        except Damaged:
            return replace(change, note="its content in the snapshot is damaged")
        self._left -= len(before) + len(after)
        if b"\0" in before + after:
            return replace(change, note="binary")
        old, new = _lines(before), _lines(after)
        gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
        changed = max(gone.total(), come.total())
        alike = (_plain(gone) & _plain(come)).total()
        self.changed += changed
        self.only_endings += alike
        text, note = _unified(change, old, new)
        return replace(change, text=text, note=note, endings=alike > _ENDINGS_SHARE * changed)

    def _content(self, entry: Entry | None, now: str | None) -> bytes:
        if entry is None:
            return b""
        if entry.kind == "link":
            return os.fsencode(entry.data)
        if not entry.is_file:
            return b""
        return self._objects.get(entry.data) if now is None else self._read_now(now)

    def _read_now(self, path: str) -> bytes:
        """A file of the workspace, without following a link on the way."""
        assert self._root is not None
        *folders, name = path.split("/")
        here = os.dup(self._root)
        try:
            for folder in folders:
                below = os.open(folder, FOLDER, dir_fd=here)
                os.close(here)
                here = below
            with open(os.open(name, FILE, dir_fd=here), "rb") as file:
                return file.read(TEXT_BYTES)
        except OSError:  # it has just gone
            return b""
        finally:
            os.close(here)


def _lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "backslashreplace").splitlines(keepends=True)


def _plain(lines: Counter[str]) -> Counter[str]:
    plain: Counter[str] = Counter()
    for line, count in lines.items():
        plain[line.rstrip("\r\n")] += count
    return plain


def _unified(change: Change, old: list[str], new: list[str]) -> tuple[str, str]:
    """A unified diff, and what there is to say about it."""
    alike = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        alike += 1
    ends = 0
    for one, other in zip(reversed(old[alike:]), reversed(new[alike:]), strict=False):
        if one != other:
            break
        ends += 1
    if max(len(old), len(new)) - alike - ends > _LINES:
        return "", f"more than {_LINES} lines differ"
    first, last = max(0, alike - 3), max(0, ends - 3)
    path = change.path.replace("\n", "\\n").replace("\r", "\\r")  # or a name could forge lines
    former = "/dev/null" if change.before is None else f"a/{path}"
    now = "/dev/null" if change.after is None else f"b/{path}"
    found = difflib.unified_diff(old[first : len(old) - last], new[first : len(new) - last], former, now)
    lines = [_moved(line, first) for line in islice(found, _SHOWN_LINES + 1)]
    note = f"only the first {_SHOWN_LINES} lines are shown" if len(lines) > _SHOWN_LINES else ""
    shown = [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in lines[:_SHOWN_LINES]
    ]
    return "".join(shown), note


def _moved(line: str, by: int) -> str:
    """A header of lines that were counted from `by` on, counted from the file's beginning."""
    if not line.startswith("@@ "):
        return line
    _, old, new, _ = line.split(" ", 3)
    ranges = []
    for text in (old, new):
        start, comma, length = text[1:].partition(",")
        ranges.append(f"{text[0]}{int(start) + by}{comma}{length}")
    return f"@@ {ranges[0]} {ranges[1]} @@\n"
