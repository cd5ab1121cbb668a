"""The index of one folder: brought up to date, asked, and laid out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from pilotfish.tools.index import lookup, relevance
from pilotfish.tools.index.facts import SHOWN_STATES
from pilotfish.tools.index.graph import Graph, Ranks
from pilotfish.tools.index.listing import IndexingError, list_files, resolved
from pilotfish.tools.index.mapping import Count, about_four_bytes, repository_map
from pilotfish.tools.index.paths import given, shown, tree_of
from pilotfish.tools.index.pool import FILE_SECONDS
from pilotfish.tools.index.results import Found, IndexedFile, Likely, Piece, RankedFile, RepositoryMap
from pilotfish.tools.index.searching import SEARCH_SECONDS, search
from pilotfish.tools.index.store import DAMAGE, Store, cache_path, is_of_the_machine
from pilotfish.tools.index.update import Progress, Update, bring_up_to_date
from pilotfish.tools.words import short

__all__ = ["Count", "Index", "IndexingError", "Progress", "Update", "about_four_bytes"]

T = TypeVar("T")
_ABOUT = 5  # files that a task is taken to be about


class Index:
    """What a folder holds, kept in a file; a context manager.

    Every answer is in a fixed order that depends on nothing but the files. `update` has to be called first,
    and again after files changed. Methods raise IndexingError with one sentence where there is no answer.
    """

    def __init__(self, folder: Path | str, path: Path | None = None, *, above: bool = True) -> None:
        """path: the file of the index, by default one in the user's cache. above: the folder may be part of a
        repository above it.
        """
        self.folder = Path(folder)
        self._root = resolved(self.folder)
        self._above = above
        self._git_waits = False
        self._store = Store(path or cache_path(self._root), self._root)
        self._graph: tuple[str, Graph] | None = None
        self._ranks: dict[tuple[str, tuple[bytes, ...], tuple[str, ...]], Ranks] = {}

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the index stays for the next time."""
        self._store.close()

    @property
    def path(self) -> Path:
        """The file of the index."""
        return self._store.path

    def update(
        self,
        *,
        progress: Callable[[Progress], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
        workers: int | None = None,
        file_seconds: float = FILE_SECONDS,
    ) -> Update:
        """Take up what changed in the folder. workers: processes, by default one per core; 0 parses in this
        one, which nothing guards, so only what is trusted. file_seconds: what one file may take in a process.

        Ends soon after `cancelled` says so, and then is not complete; what was read by then can be used.
        """
        started = time.monotonic()
        with self._store.writing(cancelled):
            listing = list_files(self.folder, above=self._above, ask_git=not self._git_waits)
            self._git_waits |= listing.waited

            def bring() -> Update:
                return bring_up_to_date(
                    self._store,
                    self._root,
                    listing,
                    progress=progress,
                    cancelled=cancelled,
                    workers=workers,
                    file_seconds=file_seconds,
                )

            try:
                done = bring()
            except DAMAGE as error:
                if is_of_the_machine(error):
                    mend = "try again later" if "locked" in str(error) else "free space"
                    raise IndexingError(
                        f"The index {self.path} cannot be written ({error}); {mend}."
                    ) from None
                self._store.start_again()
                done = bring()
        done.seconds = time.monotonic() - started
        done.notes += self.notes()
        return done

    def notes(self) -> list[str]:
        """Sentences on what is not in the index or not as it should be."""
        listed = self._ask(lambda: json.loads(self._store.meta("notes") or "[]"))
        noted = self._ask(self._store.noted)
        notes = [*self._store.notes, *listed]
        for path, state, note in noted:
            verb = "cannot be parsed: it" if state == "failed" else ""
            verb = "cannot be read:" if state == "unreadable" else verb
            notes.append(f"{shown(path)} {verb} {note}.".replace("  ", " "))
        return notes

    def counted(self) -> dict[str, tuple[int, int]]:
        """For each state of files (see `facts.FileFacts`) how many there are, and their lines."""
        return self._ask(self._store.counted)

    def complete(self) -> bool:
        """Whether the last update came to its end."""
        return self._ask(lambda: self._store.meta("complete")) == "1"

    def files(self, states: Collection[str] = SHOWN_STATES) -> list[IndexedFile]:
        """The files of these states, by path."""
        return [
            IndexedFile(shown(one.path), one.size, one.lines, one.language, one.state, one.note)
            for one in self._ask(self._store.files)
            if one.state in states
        ]

    def ranking(self, files: Iterable[str] = (), names: Iterable[str] = ()) -> list[RankedFile]:
        """The parsed files from the most important on. files, names: paths and identifiers the task
        mentions.
        """
        graph, ranks = self._ranked(files, names)
        order = sorted(range(len(graph.paths)), key=lambda at: (-ranks.files[at], graph.paths[at]))
        return [RankedFile(shown(graph.paths[at]), float(ranks.files[at])) for at in order]

    def map(
        self,
        budget: int,
        count: Count = about_four_bytes,
        files: Iterable[str] = (),
        names: Iterable[str] = (),
    ) -> RepositoryMap:
        """The most important definitions as text of at most `budget` tokens, as `count` counts them."""
        graph, ranks = self._ranked(files, names)
        return self._ask(lambda: repository_map(self._store, graph, ranks, budget, count))

    def likely(self, text: str, limit: int = 10, *, cancelled: Callable[[], bool] = lambda: False) -> Likely:
        """The files and definitions that a change asked for by a text would likely touch, at most so many of
        each. Raises IndexingError for an empty text.
        """
        if not text.strip():
            raise IndexingError("the text is empty; say what is to be changed.")
        graph, ranks = self._ranked((), ())
        paths = [one.path for one in self._ask(self._store.files) if one.state in SHOWN_STATES]
        return self._ask(
            lambda: relevance.likely(self._store, self._root, paths, graph, ranks, text, limit, cancelled)
        )

    def about(self, text: str) -> tuple[list[str], list[str]]:
        """The files that a task's text is most likely about or mentions, and the defined names that it
        mentions, for `ranking` and `map`.
        """
        files, names = self.mentioned(text)
        likely = self.likely(text, _ABOUT).files if text.strip() else ()
        return [*files, *(one.path for one in likely)], names

    def mentioned(self, text: str) -> tuple[list[str], list[str]]:
        """The files and defined names that a task's text mentions, for `ranking` and `map`."""
        return self._ask(lambda: lookup.mentioned(self._store, text))

    def find(self, name: str, limit: int = 50) -> Found:
        """Definitions of a name, `Class.method`, or, where there is none, of names that contain it."""
        return self._ask(lambda: lookup.find(self._store, name, limit))

    def references(self, name: str, limit: int = 100) -> Found:
        """Where a name is used, by its last part: what it means is not resolved."""
        return self._ask(lambda: lookup.uses(self._store, self._root, name, limit, only_calls=False))

    def callers(self, name: str, limit: int = 100) -> Found:
        """Where a name is called, and in which definition."""
        return self._ask(lambda: lookup.uses(self._store, self._root, name, limit, only_calls=True))

    def outline(self, path: str) -> Found:
        """The definitions of one file."""
        return self._ask(lambda: lookup.outline(self._store, given(path)))

    def read(self, path: str, first: int = 1, last: int | None = None, limit: int = 2000) -> Piece:
        """Lines of an indexed file as it is now, at most `limit` of them."""
        if last is not None and last < first:
            raise IndexingError(f"the last line ({last}) is before the first ({first}); turn them round.")
        return self._ask(lambda: lookup.read(self._store, self._root, given(path), first, last, limit))

    def search(
        self,
        pattern: str,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        within: str = "",
        limit: int = 100,
        seconds: float = SEARCH_SECONDS,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Found:
        """Lines with a text or a regular expression, in the files as they are now, by path. within: only
        paths that begin with it. seconds: after that long what was found so far is the answer, and says so.
        """
        files = [one.path for one in self._ask(self._store.files) if one.state in SHOWN_STATES]
        chosen = [path for path in files if path.startswith(given(within))] if within else files
        if files and not chosen:
            raise IndexingError(
                f"no indexed path begins with {short(within)}; give it from the top folder on."
            )
        return search(self._root, chosen, pattern, regex, ignore_case, limit, seconds, cancelled)

    def text(self, path: str) -> str:
        """The whole text of an indexed file as it is now, with `\\n` ends."""
        return self._ask(lambda: lookup.whole(self._store, self._root, given(path)))

    def tree(self, depth: int | None = None) -> str:
        """The shown files as an indented tree, a line each, folders first named before what is in them.
        depth: how many levels of folders are opened; those below are named with the number of their files.
        """
        return tree_of([one.path for one in self.files()], depth)

    def _ranked(self, files: Iterable[str], names: Iterable[str]) -> tuple[Graph, Ranks]:
        generation = self._ask(lambda: self._store.meta("generation")) or ""
        if self._graph is None or self._graph[0] != generation:
            self._graph = generation, self._ask(lambda: Graph(self._store))
            self._ranks.clear()
        graph = self._graph[1]
        key = (generation, tuple(sorted({given(path) for path in files})), tuple(sorted(set(names))))
        if key not in self._ranks:
            self._ranks[key] = graph.ranks(key[1], key[2])
        return graph, self._ranks[key]

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer from the store, which is made again first where it turns out to be damaged."""
        try:
            return question()
        except DAMAGE as error:
            if is_of_the_machine(error):
                raise IndexingError(f"The index {self.path} cannot be read ({error}); try again.") from None
            with self._store.writing():
                self._store.start_again()
            self.update()
            return question()
