"""The ranked map of a repository: the definitions that matter most, by file, within a budget of tokens."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pilotfish.tools.index.graph import Graph, Ranks
from pilotfish.tools.index.paths import shown
from pilotfish.tools.index.results import RepositoryMap
from pilotfish.tools.index.store import Store
from pilotfish.tools.index.tags import Definition

Count = Callable[[str], int]
"""How many tokens a text has."""

_INNER = {"function", "method"}
# What a definition of a kind counts: fields and variables have names that much else has.
_BY_KIND = {"field": 0.1, "variable": 0.3, "constant": 0.5, "prototype": 0.5, "section": 0.3}
_USUAL_TOKENS = 40  # more than most lines of a map have


def about_four_bytes(text: str) -> int:
    """An estimate of tokens where no tokenizer is at hand: a quarter of the bytes, rounded up."""
    return (len(text.encode("utf-8", "replace")) + 3) // 4


@dataclass(frozen=True)
class _Candidate:
    file: int
    score: float
    definition: Definition
    above: tuple[Definition, ...]


def repository_map(store: Store, graph: Graph, ranks: Ranks, budget: int, count: Count) -> RepositoryMap:
    """As many of the best definitions as fit into `budget` tokens; never more by `count` than that.

    A definition comes with those it stands in. Files stand in the order of their rank, definitions in that
    of their lines. An empty text is what fits into a budget too small for anything.
    """
    total = store.definitions()
    place = _places(ranks)
    known: dict[str, int] = {}

    def counted(block: str) -> int:
        if block not in known:
            known[block] = count(block)
        return known[block]

    most = max(1, budget // _USUAL_TOKENS)
    while True:
        candidates = _candidates(store, graph, ranks, most)
        low, high = 0, len(candidates)
        while low < high:  # the most candidates whose blocks fit one by one
            middle = (low + high + 1) // 2
            if sum(map(counted, _blocks(graph, candidates[:middle], place))) <= budget:
                low = middle
            else:
                high = middle - 1
        if low < len(candidates) or most >= len(ranks.symbols):
            break
        most *= 4
    while low:  # together they may have other tokens than apart
        text = "".join(_blocks(graph, candidates[:low], place))
        tokens = count(text)
        if tokens <= budget:
            return RepositoryMap(text, tokens, _shown(candidates[:low]), total - _shown(candidates[:low]))
        low = min(low - 1, low * budget // tokens)
    return RepositoryMap("", 0, 0, total)


def _places(ranks: Ranks) -> dict[int, int]:
    return {int(file): place for place, file in enumerate(np.argsort(-ranks.files, kind="stable"))}


def _candidates(store: Store, graph: Graph, ranks: Ranks, most: int) -> list[_Candidate]:
    """The definitions of the best symbols, at most so many symbols, the best first."""
    scores: dict[int, dict[int, float]] = defaultdict(dict)
    for symbol in np.argsort(-ranks.symbols, kind="stable")[:most]:
        file, name = int(graph.symbol_file[symbol]), int(graph.symbol_id[symbol])
        scores[file][name] = float(ranks.symbols[symbol])
    found: list[_Candidate] = []
    for file in sorted(scores):
        found += _candidates_in(store, file, graph.paths[file], scores[file])
    found.sort(key=lambda one: (-one.score, one.file, one.definition.line))
    return found


def _candidates_in(store: Store, file: int, path: bytes, scores: dict[int, float]) -> list[_Candidate]:
    """The definitions of a file that have a score by their name, but for those inside functions."""
    definitions, names = store.defined(path)
    found: list[_Candidate] = []
    outer: list[list[Any]] = []
    for row, name in zip(json.loads(definitions), names, strict=True):
        line, end_line = row[3], row[4]
        while outer and not (outer[-1][3] <= line and end_line <= outer[-1][4]):
            outer.pop()
        if name in scores and not any(around[0] in _INNER for around in outer):
            score = scores[name] * _BY_KIND.get(row[0], 1.0)
            above = tuple(Definition(*around) for around in outer)
            found.append(_Candidate(file, score, Definition(*row), above))
        outer.append(row)
    return found


def _chosen(candidates: Sequence[_Candidate]) -> dict[int, dict[Definition, int]]:
    """For each file the definitions to show, and how deep each stands."""
    chosen: dict[int, dict[Definition, int]] = defaultdict(dict)
    for one in candidates:
        for depth, definition in enumerate((*one.above, one.definition)):
            chosen[one.file].setdefault(definition, depth)
    return chosen


def _shown(candidates: Sequence[_Candidate]) -> int:
    return sum(map(len, _chosen(candidates).values()))


def _blocks(graph: Graph, candidates: Sequence[_Candidate], place: dict[int, int]) -> list[str]:
    chosen = _chosen(candidates)
    blocks = []
    for file in sorted(chosen, key=place.__getitem__):
        lines = [f"{shown(graph.paths[file])}\n"]
        for one, depth in sorted(
            chosen[file].items(), key=lambda item: (item[0].line, item[1], item[0].name)
        ):
            lines.append(f"{one.line:5}  {'  ' * depth}{one.signature}\n")
        blocks.append("".join(lines))
    return blocks
