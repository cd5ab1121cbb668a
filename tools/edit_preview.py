"""What an edit would make of its file, found out by the edit tool itself on files that take no change."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any, cast

from pilotfish.sandbox import Files, SandboxPathError
from pilotfish.tools.edit import EditTool
from pilotfish.tools.edit_args import EditArgs
from pilotfish.tools.textfile import NotText, TextFile

_MOST_LINES = 10_000
"""Of the part that changes; beyond, all of it is shown as taken out and put in: comparing takes long."""


class _Untouched:
    """The files of a workspace, of which each change is only noted: by path, what would be there then (None:
    nothing).
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.would_be: dict[str, bytes | None] = {}
        self.moved: tuple[str, str] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def write_bytes(self, path: str | os.PathLike[str], data: bytes) -> None:
        self.would_be[self._name(path)] = data

    def remove(self, path: str | os.PathLike[str]) -> None:
        self.would_be[self._name(path)] = None

    def move(self, path: str | os.PathLike[str], to: str | os.PathLike[str]) -> None:
        self.moved = (self._name(path), self._name(to))

    def _name(self, path: str | os.PathLike[str]) -> str:
        named = Path(path)
        root = self._files.root
        return str(named.relative_to(root) if named.is_relative_to(root) else named)


def edit_diff(tool: EditTool, args: EditArgs, files: Files) -> str:
    """What a call would change, as a unified diff; '' for one that looks only. One that would fail says why,
    as the tool does.
    """
    untouched = _Untouched(files)
    result = tool.rehearsal().do(args, cast(Files, untouched))
    if not result.ok:
        return f"(this would change nothing: {result.text})\n"
    if untouched.moved is not None:
        return "rename from {}\nrename to {}\n".format(*untouched.moved)
    return "".join(_diff(name, files, after, args.encoding) for name, after in untouched.would_be.items())


def _diff(name: str, files: Files, after: bytes | None, encoding: str | None) -> str:
    try:
        before: bytes | None = files.read_bytes(name)
    except SandboxPathError:
        before = None
    try:
        old, new = (_lines(data, encoding) for data in (before, after))
    except NotText:
        return f"Binary file {name} would {'go' if after is None else 'change'}\n"
    first, last = _same_ends(old, new)
    if len(old) + len(new) - 2 * (first + last) > _MOST_LINES:
        whole = [f"-{line}" for line in old[first : len(old) - last]]
        whole += [f"+{line}" for line in new[first : len(new) - last]]
        lines = [f"--- {name}\n", f"+++ {name}\n", f"@@ -{first + 1} +{first + 1} @@\n", *whole]
    else:
        was, will = ("/dev/null" if data is None else name for data in (before, after))
        lines = list(difflib.unified_diff(old, new, was, will))
    no_end = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + no_end for line in lines)


def _lines(data: bytes | None, encoding: str | None) -> list[str]:
    """With their ends, which are line feeds alone: a carriage return is part of what a line holds."""
    if not data:
        return []
    parts = TextFile.decode(data, encoding).text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _same_ends(old: list[str], new: list[str]) -> tuple[int, int]:
    """How many lines are the same at the beginning, and at the end."""
    most = min(len(old), len(new))
    first = next((n for n in range(most) if old[n] != new[n]), most)
    left = most - first
    last = next((n for n in range(left) if old[-1 - n] != new[-1 - n]), left)
    return first, last
