"""A repository laid out for a model: text that stays as it is while files change, within a budget of tokens.

First the tree of files, then the definitions that matter most, then whole files, the most important first.
What changes later is told behind that (`follow`), so that what a model has computed of the text stays valid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pilotfish.tools.index.listing import IndexingError
from pilotfish.tools.index.mapping import Count
from pilotfish.tools.index.repository import Index

_TREE_SHARE, _MAP_SHARE = 8, 4  # the tree has at most an eighth of the budget, the map a quarter
_MISSES = 50  # so many files in a row that do not fit: those behind them are not tried
_BYTES_PER_TOKEN = 16  # a file with more bytes than that for each token left is not read


@dataclass(frozen=True)
class Section:
    """A piece of the layout. kind: "tree", "map", "file", "end", or "change" for what came later. path: of
    the file, or nothing. tokens: of this text alone.
    """

    kind: str
    path: str
    text: str
    tokens: int


@dataclass(frozen=True)
class Layout:
    """The sections in their order, and the tokens of all together as the count function says.

    files: the texts of the files laid out whole, as they were told last; None for one that is gone.
    left_out: how many files are not laid out whole. symbols_left_out: how many definitions the map does not
    show. stale: files whose newest change is not told, for want of room.
    """

    sections: tuple[Section, ...]
    tokens: int
    files: dict[str, str | None]
    left_out: int
    symbols_left_out: int
    stale: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of it, as a model reads it."""
        return _joined(self.sections)


def lay_out(index: Index, budget: int, count: Count) -> Layout:
    """Lay out an index's folder in at most `budget` tokens, as `count` counts them.

    The bytes depend on nothing but the files, the budget and `count`. What does not fit is left out and
    counted in the last line; nothing at all is the layout of a budget too small for that line.
    """
    ranked = [one.path for one in index.ranking()]
    shown = {one.path: one.size for one in index.files()}
    order = [*ranked, *sorted(shown.keys() - set(ranked))]
    symbols = index.map(0, count).left_out
    if not order or (left := budget - count(_end(0, len(order), 0, symbols))) < 0:
        return Layout((), 0, {}, len(order), symbols)
    sections: list[Section] = []
    if (tree := _tree(index, budget // _TREE_SHARE, count)) is not None:
        sections.append(tree)
    heading = "=== the definitions that matter most, with their lines\n"
    mapped = index.map(budget // _MAP_SHARE - count(heading), count)
    if mapped.text:
        sections.append(_section("map", "", heading + mapped.text, count))
    left -= sum(section.tokens for section in sections)
    files: dict[str, str | None] = {}
    misses = 0
    for path in order:
        if misses == _MISSES or left <= 0:
            break
        misses += 1
        if shown[path] > left * _BYTES_PER_TOKEN or (text := _read(index, path)) is None:
            continue
        section = _section("file", path, _whole(path, text), count)
        if section.tokens <= left:
            sections.append(section)
            files[path] = text
            left -= section.tokens
            misses = 0
    while True:  # together they may have other tokens than apart
        have = {section.path for section in sections if section.kind == "file"}
        told = mapped.symbols if any(section.kind == "map" for section in sections) else 0
        end = _section("end", "", _end(len(have), len(order), told, symbols), count)
        tokens = count(_joined((*sections, end)))
        if tokens <= budget:
            kept = {path: text for path, text in files.items() if path in have}
            left_out, untold = len(order) - len(have), symbols - told
            return Layout((*sections, end), tokens, kept, left_out, untold)
        if not sections:
            return Layout((), 0, {}, len(order), symbols)
        _drop(sections, tokens - budget)


def follow(layout: Layout, index: Index, budget: int, count: Count) -> Layout:
    """The layout with what has changed in its files told behind it: the lines that differ, or the whole
    file where that is shorter. Its text begins with the earlier one, byte for byte.

    `index` has to be up to date. budget: tokens of all together; a change for which there is no room makes
    its file stale.
    """
    told: list[Section] = []
    now: dict[str, str | None] = {}
    stale: list[str] = []
    left = budget - layout.tokens
    for path in sorted(layout.files):
        text, before = _read(index, path), layout.files[path]
        if text == before:
            continue
        section = min(
            (_section("change", path, words, count) for words in _changes(path, before, text)),
            key=lambda one: one.tokens,
        )
        if section.tokens > left:
            stale.append(path)
            continue
        left -= section.tokens
        told.append(section)
        now[path] = text
    while told:
        sections = (*layout.sections, *told)
        tokens = count(_joined(sections))
        if tokens <= budget:
            files = {**layout.files, **{one.path: now[one.path] for one in told}}
            return replace(layout, sections=sections, tokens=tokens, files=files, stale=tuple(sorted(stale)))
        stale += [section.path for section in _drop(told, tokens - budget)]
    return replace(layout, stale=tuple(sorted(stale)))


def _drop(sections: list[Section], excess: int) -> list[Section]:
    """Take sections from the end, at least one, until `excess` tokens or half of all have gone with them."""
    enough = min(excess, sum(section.tokens for section in sections) // 2)
    dropped = [sections.pop()]
    while sections and sum(section.tokens for section in dropped) < enough:
        dropped.append(sections.pop())
    return dropped


def _joined(sections: tuple[Section, ...]) -> str:
    return "".join(section.text for section in sections)


def _section(kind: str, path: str, text: str, count: Count) -> Section:
    return Section(kind, path, text, count(text))


def _tree(index: Index, budget: int, count: Count) -> Section | None:
    """The tree with as many levels of folders opened as fit."""

    def opened(depth: int | None) -> Section:
        return _section("tree", "", f"=== the files\n{index.tree(depth)}", count)

    whole = opened(None)
    if whole.tokens <= budget:
        return whole
    best: Section | None = None
    low, high = 0, max(one.path.count("/") for one in index.files())
    while low <= high:
        middle = (low + high) // 2
        section = opened(middle)
        if section.tokens <= budget:
            best, low = section, middle + 1
        else:
            high = middle - 1
    return best


def _read(index: Index, path: str) -> str | None:
    try:
        return index.text(path)
    except IndexingError:
        return None


def _end(files: int, of_files: int, symbols: int, of_symbols: int) -> str:
    return (
        f"=== end: {files} of {of_files} files whole, {symbols} of {of_symbols} definitions listed; "
        "the rest is left out\n"
    )


def _whole(path: str, text: str) -> str:
    """A file under a line that says how many lines follow, so that no text can pose as another file's."""
    lines = _lines(text)
    bare = ", no newline at its end" if text and not text.endswith("\n") else ""
    return f"=== {path}: {len(lines)} lines{bare}\n{text}{chr(10) if bare else ''}"


def _changes(path: str, before: str | None, text: str | None) -> list[str]:
    """The ways to tell a change."""
    if text is None:
        return [f"=== {path} has changed: it is gone, or no text any more\n"]
    found = [_whole(path, text).replace(f"=== {path}:", f"=== {path} has changed:", 1)]
    if before is None or before.endswith("\n") is not text.endswith("\n"):
        return found
    old, new = _lines(before), _lines(text)
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    lines = "".join(new[head : len(new) - tail])
    lines += "" if not lines or lines.endswith("\n") else "\n"
    gone, come = len(old) - head - tail, len(new) - head - tail
    found.append(f"=== {path} has changed: {gone} lines from line {head + 1} on are now {come}\n{lines}")
    return found


def _lines(text: str) -> list[str]:
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])
