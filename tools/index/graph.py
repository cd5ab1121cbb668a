"""What matters most: PageRank over the files, which pass their weight on to the definitions they use.

A use is taken to mean the definitions of that name: in its own file, else in files it imports, else in its
folder, else anywhere, shared equally. Nothing here depends on the order in which files were indexed, nor on
hashes of the running Python: equal folders give equal ranks, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pilotfish.tools.index.facts import name_id
from pilotfish.tools.index.imports import ImportFinder
from pilotfish.tools.index.paths import shown
from pilotfish.tools.index.store import Store

DAMPING = 0.85
"""The part of a file's weight that goes along its uses."""
MAX_DEFINERS = 30
"""A name defined in more files than this says nothing about where it leads."""
_ROUNDS = 100
_CLOSE = 1e-10
_MENTIONED = 10.0  # how much more a name counts that the task mentions
_TELLING = np.array([0.02, 0.3, 1.0, 3.0])  # what a use counts by how telling its name is, see `name_id`
# What a use counts when it may mean any file, one in its folder, or one that is imported.
_NEAR = np.array([0.1, 0.5, 1.0])
_UNUSED = 0.02  # the part of a file's rank that its definitions have without being used

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ranks:
    """files: the rank of each path of `Graph.paths`, their sum 1. symbols: the score of each symbol, see
    `Graph`.
    """

    files: Floats
    symbols: Floats


class Graph:
    """paths: the parsed files, ascending. A symbol is a name in a file that defines it: symbol_file and
    symbol_id give the place in `paths` and the id of the name, ascending by file, then id.
    """

    def __init__(self, store: Store) -> None:
        self.paths: list[bytes] = []
        defined, used, counts, imports = [], [], [], []
        for path, defined_here, used_here, counts_here, imported in store.links():
            self.paths.append(path)
            defined.append(np.frombuffer(defined_here, "<u8"))
            used.append(np.frombuffer(used_here, "<u8"))
            counts.append(np.frombuffer(counts_here, "<u4"))
            imports.append(imported)
        self._symbols(defined)
        self._edges(used, counts, self._imported(imports))

    def _symbols(self, defined: list[npt.NDArray[np.uint64]]) -> None:
        files = np.repeat(np.arange(len(defined)), [len(ids) for ids in defined])
        ids = np.concatenate(defined) if defined else np.zeros(0, np.uint64)
        order = np.lexsort((ids, files))
        files, ids = files[order], ids[order]
        first = np.ones(len(ids), bool)
        first[1:] = (ids[1:] != ids[:-1]) | (files[1:] != files[:-1])
        self.symbol_file: Ints = files[first].astype(np.int64)
        self.symbol_id = ids[first]
        self._per_file = np.maximum(np.bincount(self.symbol_file, minlength=len(self.paths)), 1)

    def _imported(self, imports: list[bytes]) -> Ints:
        """Pairs of files, the first of which imports the second, as `first * files + second`, ascending."""
        names = [shown(path) for path in self.paths]
        finder, count = ImportFinder(names), len(names)
        pairs = {
            number * count + other
            for number, (path, imported) in enumerate(zip(names, imports, strict=True))
            if imported != b"[]"
            for text in json.loads(imported)
            for other in finder.resolve(text, path)
        }
        return np.array(sorted(pairs), np.int64)

    def _edges(
        self, used: list[npt.NDArray[np.uint64]], counts: list[npt.NDArray[np.uint32]], imported: Ints
    ) -> None:
        """From each file to the symbols its uses may mean, with weights that sum to the root of a name's
        uses.
        """
        files = np.repeat(np.arange(len(used)), [len(ids) for ids in used])
        ids = np.concatenate(used) if used else np.zeros(0, np.uint64)
        number = np.concatenate(counts).astype(np.float64) if counts else np.zeros(0)
        by_id = np.argsort(self.symbol_id, kind="stable")
        sorted_ids = self.symbol_id[by_id]
        low = np.searchsorted(sorted_ids, ids, "left")
        definers = np.searchsorted(sorted_ids, ids, "right") - low
        keep = (definers > 0) & (definers <= MAX_DEFINERS)
        files, number, low, definers = files[keep], number[keep], low[keep], definers[keep]
        use = np.repeat(np.arange(len(files)), definers)
        within = np.arange(len(use)) - np.repeat(np.cumsum(definers) - definers, definers)
        symbol = by_id[low[use] + within]
        source, target = files[use].astype(np.int64), self.symbol_file[symbol]
        folder = self._folders()
        near = np.zeros(len(use), np.int64)
        near[folder[source] == folder[target]] = 1
        near[np.isin(source * len(self.paths) + target, imported)] = 2
        near[source == target] = 3
        best = np.zeros(len(files), np.int64)
        np.maximum.at(best, use, near)
        chosen = (near == best[use]) & (near < 3)
        use, self._source, self._symbol = use[chosen], source[chosen], symbol[chosen]
        share = np.bincount(use, minlength=len(files)).astype(np.float64)
        telling = _TELLING[(self.symbol_id[self._symbol] & np.uint64(3)).astype(np.int64)]
        self._weight: Floats = np.sqrt(number[use]) / share[use] * telling * _NEAR[near[chosen]]

    def _folders(self) -> Ints:
        folders = [path.rpartition(b"/")[0] for path in self.paths]
        numbers = {folder: number for number, folder in enumerate(sorted(set(folders)))}
        return np.array([numbers[folder] for folder in folders], np.int64)

    def ranks(self, files: Collection[bytes] = (), names: Collection[str] = ()) -> Ranks:
        """PageRank. files and names: what the task mentions, which then matters most.

        A mentioned file is where walks begin, as is one that defines a mentioned name.
        """
        count = len(self.paths)
        if not count:
            return Ranks(np.zeros(0), np.zeros(0))
        weight, start = self._weight, np.ones(count)
        mentioned = np.array(sorted({name_id(name) for name in names}), np.uint64)
        named = np.isin(self.symbol_id, mentioned)
        if len(mentioned):
            weight = np.where(named[self._symbol], weight * _MENTIONED, weight)
            share = np.isin(self.symbol_id, mentioned).astype(np.float64)
            start += np.bincount(self.symbol_file, share, count) * count / max(1, int(named.sum()))
        wanted = set(files)
        if wanted:
            here = np.array([path in wanted for path in self.paths])
            start += here * (count / max(1, int(here.sum())))
        start /= start.sum()
        target = self.symbol_file[self._symbol]
        out: Floats = np.bincount(self._source, weight, count).astype(np.float64)
        passed = weight / out[self._source]
        idle = out == 0
        rank: Floats = start
        for _ in range(_ROUNDS):
            flow = np.bincount(target, rank[self._source] * passed, count)
            new = (1 - DAMPING) * start + DAMPING * (flow + rank[idle].sum() * start)
            change = float(np.abs(new - rank).sum())
            rank = new
            if change < _CLOSE:
                break
        flow = np.bincount(self._symbol, rank[self._source] * passed, len(self.symbol_id))
        symbols: Floats = flow + _UNUSED * rank[self.symbol_file] / self._per_file[self.symbol_file]
        if len(mentioned):
            symbols = np.where(named, symbols * _MENTIONED, symbols)
        return Ranks(rank / rank.sum(), symbols)
