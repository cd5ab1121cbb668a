"""The `index` tool: what the workspace defines, where it is used, what matters most."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from pilotfish.tools.base import ToolArgs, ToolContext, ToolResult
from pilotfish.tools.edit_args import Lines
from pilotfish.tools.index.listing import IndexingError
from pilotfish.tools.index.mapping import Count, about_four_bytes
from pilotfish.tools.index.pool import Cancelled
from pilotfish.tools.index.repository import Index
from pilotfish.tools.index.results import Found, Symbol

Cancel = Callable[[], bool]

MAX_CHARACTERS = 30_000
"""The longest answer; what does not fit is counted."""
UPDATE_SECONDS = 120.0
"""How long a call may bring the index up to date; what is missing then is taken up by the next one."""
_MAP_TOKENS = 4_000
_LIKELY = 10  # files and definitions that are told for a task
_NEEDS = {
    "likely": "about",
    "find": "name",
    "references": "name",
    "callers": "name",
    "outline": "path",
    "search": "pattern",
}


class IndexArgs(ToolArgs):
    """One question about the workspace's code."""

    command: Literal["map", "likely", "find", "references", "callers", "outline", "search", "read"]
    name: str | None = Field(None, description="find, references, callers, read: a name or Class.method")
    path: str | None = Field(None, description="outline, read: a file; search: a folder or file")
    pattern: str | None = Field(None, description="search: a text in the files' lines")
    regex: bool = Field(False, description="search: pattern is a regular expression")
    ignore_case: bool = Field(False, description="search")
    lines: Lines | None = Field(None, description="read: [first,last]")
    about: str | None = Field(None, description="map, likely: the task in words")
    tokens: int = Field(_MAP_TOKENS, ge=100, le=100_000, description="map: at most so many")
    limit: int = Field(50, ge=1, le=1000, description="at most so many results")

    @model_validator(mode="after")
    def _require_what_the_command_needs(self) -> IndexArgs:
        need = _NEEDS.get(self.command)
        if need is not None and not getattr(self, need):
            raise ValueError(f"`{self.command}` needs `{need}`")
        if self.command == "read" and not (self.path or self.name):
            raise ValueError("`read` needs `path`, or the `name` of a definition")
        return self


class IndexTool:
    """Keeps an index of each sandbox's workspace, brought up to date with every question."""

    name = "index"
    description = "Look up code in the workspace: map, likely places for a task, definitions, uses, search."
    Args = IndexArgs

    def __init__(self, count: Count = about_four_bytes, workers: int | None = None) -> None:
        """count: how many tokens a text has, for the budget of a map. workers: as `Index.update` takes it."""
        self._count, self._workers = count, workers
        self._indexes: dict[Path, Index] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock = asyncio.Lock()

    async def run(self, args: IndexArgs, context: ToolContext) -> ToolResult:
        """Answer; what stands against it is a result."""
        if context.box is None:
            return ToolResult(False, "index: there is no sandbox here; use the other tools.")
        gone = False
        try:
            async with self._lock:
                work = asyncio.to_thread(self.do, args, context.box.files.root, lambda: gone)
                return await asyncio.shield(work)
        finally:
            gone = True  # a call that was cancelled ends its thread too

    def do(self, args: IndexArgs, workspace: Path, gone: Cancel = lambda: False) -> ToolResult:
        """The same at once, about this folder."""
        try:
            return self._answer(args, workspace, gone)
        except IndexingError as error:
            return ToolResult(False, f"index: {error}")

    async def close(self) -> None:
        """Remove the indexes."""
        for index in self._indexes.values():
            index.close()
        self._indexes.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _answer(self, args: IndexArgs, workspace: Path, gone: Cancel) -> ToolResult:
        index = self.index_of(workspace)
        ends = time.monotonic() + UPDATE_SECONDS
        try:
            done = index.update(cancelled=lambda: gone() or time.monotonic() > ends, workers=self._workers)
            text = "\n".join(_lines(args, index, self._count, gone))
        except Cancelled:
            raise IndexingError("the index is not ready yet; ask again, or use the shell.") from None
        notes = [] if done.complete else ["[the index is not complete yet: ask again for the rest]"]
        return ToolResult(True, "\n".join([_bounded(text), *notes]))

    def index_of(self, workspace: Path) -> Index:
        """The index of a folder, which may have to be brought up to date."""
        if workspace not in self._indexes:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="pilotfish-index-")
            path = Path(self._folder.name) / f"{len(self._indexes)}.sqlite"
            self._indexes[workspace] = Index(workspace, path, above=False)
        return self._indexes[workspace]


def _lines(args: IndexArgs, index: Index, count: Count, gone: Cancel) -> list[str]:
    name, path, pattern = args.name or "", _inside(args.path or ""), args.pattern or ""
    match args.command:
        case "map":
            files, names = index.about(args.about) if args.about else ([], [])
            found = index.map(args.tokens, count, files, names)
            return [found.text.rstrip("\n"), f"[{found.left_out} definitions left out]"]
        case "likely":
            return index.likely(args.about or "", min(args.limit, _LIKELY), cancelled=gone).lines()
        case "find":
            return index.find(name, args.limit).lines()
        case "references":
            return index.references(name, args.limit).lines()
        case "callers":
            return index.callers(name, args.limit).lines()
        case "outline":
            return index.outline(path).lines()
        case "read" if name and args.lines is None:
            return _definition(index, name, path, args.limit)
        case "read":
            first, last = args.lines or (1, -1)
            return index.read(path, first, None if last == -1 else last).lines()
        case "search":
            return index.search(
                pattern,
                regex=args.regex,
                ignore_case=args.ignore_case,
                within=path,
                limit=args.limit,
                cancelled=gone,
            ).lines()


def _definition(index: Index, name: str, path: str, limit: int) -> list[str]:
    """The lines of the only definition of a name, in paths that begin so; else what there is to choose
    from.
    """
    found = index.find(name, limit)
    fitting = [one for one in found.items if isinstance(one, Symbol) and one.path.startswith(path)]
    if found.notes or len(fitting) != 1:
        several = "none of them is meant alone; read one with `path` and `lines`"
        return Found(fitting or found.items, found.left_out, found.notes or [several]).lines()
    one = fitting[0]
    piece = index.read(one.path, one.line, one.end_line)
    return [f"{one.path}: {one.kind} {one.qualified}", *replace(piece, total=one.end_line).lines()]


def _inside(path: str) -> str:
    """A path as seen from inside the sandbox, relative to the workspace."""
    return path.removeprefix("/workspace").lstrip("/") if path.startswith("/workspace") else path


def _bounded(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    kept = text[:MAX_CHARACTERS].rpartition("\n")[0] or text[:MAX_CHARACTERS]
    left = text.count("\n") - kept.count("\n")
    return f"{kept}\n[{left} more lines left out; ask more narrowly]"
