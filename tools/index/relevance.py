"""What a text is about: the files and definitions that a change it asks for would likely touch.

Files are scored by the words that they share with the text (BM25), with their path as text, by the names they
define that the text mentions, and by their rank; the best are looked into, and score by their best
definition too. `_IN_PATH`, `_DEFINED`, `_INNER` and `_RANKED` were varied on the questions of
`python -m pilotfish.tools.index.localise --part tuning`; the other constants are first guesses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pilotfish.tools.index.facts import name_id, unpack_definitions
from pilotfish.tools.index.graph import Graph, Ranks
from pilotfish.tools.index.listing import IndexingError
from pilotfish.tools.index.lookup import symbol, whole
from pilotfish.tools.index.paths import shown
from pilotfish.tools.index.pool import Pool
from pilotfish.tools.index.results import Likely, RankedFile, Symbol
from pilotfish.tools.index.store import Store
from pilotfish.tools.index.tags import Definition
from pilotfish.tools.index.words import Counting, words_of

_SATURATION, _LENGTH = 1.2, 0.75  # of BM25
_IN_PATH = 3.0  # what a word in the path counts, in words of the text
_DEFINED = 0.3  # what a defined name that is mentioned counts, beside a word
_RANKED = 0.1  # what the rank counts
_INNER = 2.0  # what the best definition counts, beside the file
_TEST = 0.6  # what is left of a test's score
_NAMED = 3.0  # what a word in a definition's name counts, in words of its text
_LOOKED_INTO = 40
_USUAL_NAMES = 60  # in a definition
_MOST_WORDS = 400
FILE_SECONDS = 2.0

_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_TESTS = re.compile(
    r"(?:^|/)(?:tests?|testing|spec|__tests__)/|(?:^|/)(?:test_|conftest\.)[^/]*$|(?:_test|[._]spec|\.test)\.\w+$"
)
Floats = npt.NDArray[np.float64]


def likely(
    store: Store,
    root: bytes,
    paths: Sequence[bytes],
    graph: Graph,
    ranks: Ranks,
    text: str,
    limit: int,
    cancelled: Callable[[], bool],
) -> Likely:
    """The first files and definitions for a text, among files given by path."""
    asked = words_of(text.encode("utf-8", "replace"))
    words = sorted(asked, key=lambda word: (-len(word), word))[:_MOST_WORDS]
    if not words or not paths:
        return Likely([], [])
    sizes, counts = _counted(root, paths, words, cancelled)
    for number, path in enumerate(paths):
        inside = words_of(path.rpartition(b".")[0] or path)
        counts[number] += [_IN_PATH * inside[word] for word in words]
    spread = (counts > 0).sum(axis=0)
    telling = np.log(1 + (len(paths) - spread + 0.5) / (spread + 0.5))
    telling *= 1 + np.log([asked[word] for word in words])
    scores = _bm25(counts, sizes, float(sizes.sum() / max(1, (sizes > 0).sum()))) @ telling
    scores += _DEFINED * _names_defined(graph, paths, text)
    place = {path: number for number, path in enumerate(graph.paths)}
    rank = np.array([ranks.files[place[path]] if path in place else 0.0 for path in paths])
    scores *= 1 + _RANKED * np.log1p(rank * len(paths)) / np.log1p(len(paths))
    scores *= np.where([bool(_TESTS.search(shown(path))) for path in paths], _TEST, 1.0)
    best = np.argsort(-scores, kind="stable")[:_LOOKED_INTO]
    counting = Counting(words)
    inner: list[tuple[float, Symbol]] = []
    for number in best:
        path = paths[number]
        found = _inside(store, root, path, counting, telling)
        damped = _TEST if _TESTS.search(shown(path)) else 1.0
        scores[number] += _INNER * damped * max((score for score, _ in found), default=0.0)
        inner += [(score * damped + 0.5 * float(scores[number]), symbol(path, one)) for score, one in found]
    order = sorted(range(len(paths)), key=lambda number: (-scores[number], paths[number]))
    inner.sort(key=lambda one: (-one[0], one[1].path, one[1].line))
    files = [
        RankedFile(shown(paths[number]), float(scores[number])) for number in order if scores[number] > 0
    ]
    return Likely(files[:limit], [one for _, one in inner[:limit]])


def _bm25(counts: Floats, sizes: Floats, usual: float) -> Floats:
    room = _SATURATION * (1 - _LENGTH + _LENGTH * sizes / max(usual, 1.0))
    scored: Floats = counts * (_SATURATION + 1) / (counts + room[:, None])
    return scored


def _counted(
    root: bytes, paths: Sequence[bytes], words: list[bytes], cancelled: Callable[[], bool]
) -> tuple[Floats, Floats]:
    """How many names each file has, and how often each word; nothing for what cannot be read."""
    sizes, counts = np.zeros(len(paths)), np.zeros((len(paths), len(words)))
    places = {path: number for number, path in enumerate(paths)}
    first = [b"words", *words]
    with Pool(root, None if len(paths) > 200 else 1, first=first, file_seconds=FILE_SECONDS) as pool:
        for request, answer in pool.answers(([b"count", path] for path in paths), cancelled):
            if not isinstance(answer, str):
                sizes[places[request[1]]] = int(answer[0])
                counts[places[request[1]]] = np.frombuffer(answer[1], "<u4")
    return sizes, counts


def _names_defined(graph: Graph, paths: Sequence[bytes], text: str) -> Floats:
    """For each file what the names in the text count that it defines: the more, the fewer define them."""
    names = sorted({name_id(word) for word in _IDENTIFIER.findall(text) if len(word) > 2})
    here = np.isin(graph.symbol_id, np.array(names, np.uint64))
    ids, where, spread = np.unique(graph.symbol_id[here], return_inverse=True, return_counts=True)
    share = np.log(1 + len(graph.paths) / (1 + spread))
    sums = (
        np.bincount(graph.symbol_file[here], share[where], len(graph.paths))
        if len(ids)
        else np.zeros(len(graph.paths))
    )
    known = dict(zip(graph.paths, sums, strict=True))
    return np.array([known.get(path, 0.0) for path in paths])


def _inside(
    store: Store, root: bytes, path: bytes, counting: Counting, telling: Floats
) -> list[tuple[float, Definition]]:
    """The definitions of a file, but for those in functions, with their scores."""
    tags = store.tags(path)
    if tags is None:
        return []
    try:
        lines = whole(store, root, path).encode("utf-8", "replace").split(b"\n")
    except IndexingError:
        return []
    found, end = [], 0
    for one in unpack_definitions(tags[0]):
        if one.line <= end:
            continue
        if one.kind in ("function", "method"):
            end = one.end_line
        size, counts = counting.counts(b"\n".join(lines[one.line - 1 : one.end_line]))
        _, named = counting.counts(one.qualified.encode("utf-8", "replace"))
        total = np.array([counts]) + _NAMED * np.array([named])
        score = float((_bm25(total.astype(float), np.array([float(size)]), _USUAL_NAMES) @ telling)[0])
        if score:
            found.append((score, one))
    return found
