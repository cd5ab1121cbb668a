"""Which files of the folder an import names. A hint, not the rules of any language: the file whose path
ends most like what is imported, the nearest one among equals.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Sequence

_WORD = re.compile(r"[\w\-]+")
_FOLDER_FILES = {"__init__", "index", "mod", "lib", "main"}
_MOST = 8  # files that one import may mean


class ImportFinder:
    """Resolves imports among the files given, by their paths."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._parts: list[tuple[str, ...]] = []
        self._by_last: dict[str, list[int]] = defaultdict(list)
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._known: dict[tuple[str, str], tuple[int, ...]] = {}
        for number, path in enumerate(paths):
            parts = tuple(posixpath.splitext(path)[0].split("/"))
            if parts[-1] in _FOLDER_FILES and len(parts) > 1:
                parts = parts[:-1]
            self._parts.append(parts)
            self._by_last[parts[-1]].append(number)
            self._exact["/".join(parts)].append(number)

    def resolve(self, imported: str, path: str) -> tuple[int, ...]:
        """The numbers of the files that `imported`, as written in `path`, may mean; none for what is
        elsewhere.
        """
        folder = posixpath.dirname(path)
        key = (imported, folder)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._resolve(imported, folder)
        return found

    def _resolve(self, imported: str, folder: str) -> tuple[int, ...]:
        relative = self._relative(imported, folder)
        if relative is not None and (exact := self._exact.get(relative)):
            return tuple(exact[:_MOST])
        stem = (
            posixpath.splitext(imported)[0]
            if "/" in imported or imported.endswith((".h", ".hpp"))
            else imported
        )
        words = _WORD.findall(stem)
        for end in range(len(words), max(0, len(words) - 3), -1):
            candidates = self._by_last.get(words[end - 1])
            if candidates:
                return self._best(candidates, words[:end], folder)
        return ()

    @staticmethod
    def _relative(imported: str, folder: str) -> str | None:
        """The path that a relative import means, without its ending."""
        if imported.startswith(("./", "../")):
            return posixpath.normpath(posixpath.join(folder, posixpath.splitext(imported)[0]))
        if imported.startswith("."):
            dots = len(imported) - len(imported.lstrip("."))
            up = [".."] * (dots - 1)
            return posixpath.normpath(posixpath.join(folder, *up, *imported[dots:].split(".")))
        if "/" in imported:
            return posixpath.normpath(posixpath.join(folder, posixpath.splitext(imported)[0]))
        return None

    def _best(self, candidates: Sequence[int], words: Sequence[str], folder: str) -> tuple[int, ...]:
        home = folder.split("/")

        def alike(number: int) -> tuple[int, int]:
            parts = self._parts[number]
            pairs = zip(reversed(parts), reversed(words), strict=False)
            same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(parts), len(words)))
            near = next((at for at, (a, b) in enumerate(zip(parts, home, strict=False)) if a != b), len(home))
            return same, near

        if len(candidates) > 400:  # a name as common as that says nothing
            return ()
        scores = [alike(number) for number in candidates]
        best = max(scores)
        if best[0] < len(words) and best[0] < 2 and len(words) > 1:
            return ()
        found = [number for number, score in zip(candidates, scores, strict=True) if score == best]
        return tuple(found) if len(found) <= _MOST else ()
