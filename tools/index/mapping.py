"""The ranked map of a repository: the definitions that matter most, by file, within a budget of tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pilotfish.tools.index.facts import name_id, unpack_definitions
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
_FEWEST_TOKENS = 3  # of a line of the map, by any tokenizer


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
    total = sum(len(ids) // 8 for _, ids, *_ in store.links())
    candidates = _candidates(store, graph, ranks, max(0, budget // _FEWEST_TOKENS))
    place = _places(ranks)
    known: dict[str, int] = {}

    def counted(block: str) -> int:
        if block not in known:
            known[block] = count(block)
        return known[block]

    low, high = 0, len(candidates)
    while low < high:  # the most candidates whose blocks fit one by one
        middle = (low + high + 1) // 2
        blocks = _blocks(graph, candidates[:middle], place)
        if sum(map(counted, blocks)) <= budget:
            low = middle
        else:
            high = middle - 1
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
    """Definitions from the best on, at most about `most`."""
    order = np.argsort(-ranks.symbols, kind="stable")[:most]
    by_file: dict[int, dict[int, list[tuple[Definition, tuple[Definition, ...]]]]] = {}
    found: list[_Candidate] = []
    for symbol in order:
        file = int(graph.symbol_file[symbol])
        if file not in by_file:
            by_file[file] = _by_name(store, graph.paths[file])
        found += [
            _Candidate(file, float(ranks.symbols[symbol]) * _BY_KIND.get(one.kind, 1.0), one, above)
            for one, above in by_file[file].get(int(graph.symbol_id[symbol]), ())
        ]
    found.sort(key=lambda one: (-one.score, one.file, one.definition.line))
    return found


def _by_name(store: Store, path: bytes) -> dict[int, list[tuple[Definition, tuple[Definition, ...]]]]:
    """The definitions of a file that others may care for, by the id of their name."""
    tags = store.tags(path)
    found: dict[int, list[tuple[Definition, tuple[Definition, ...]]]] = defaultdict(list)
    outer: list[Definition] = []
    for one in unpack_definitions(tags[0]) if tags else ():
        while outer and not (outer[-1].line <= one.line and one.end_line <= outer[-1].end_line):
            outer.pop()
        if not any(around.kind in _INNER for around in outer):
            found[name_id(one.name)].append((one, tuple(outer)))
        outer.append(one)
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
