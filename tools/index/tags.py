"""What one file defines, uses and imports, read from its syntax tree."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pilotfish.tools.index.languages import LANGUAGES, Language, parser_of, query_of
from pilotfish.tools.index.python_tags import captures_of, uses_of

if TYPE_CHECKING:
    from tree_sitter import Node

SIGNATURE_CHARACTERS = 300
"""The longest signature that is kept."""
DOC_CHARACTERS = 120
"""The longest first line of a documentation that is kept."""

_MARKS = {"name", "owner", "call", "ref", "import"}
_FUNCTIONS = {"function", "method", "macro"}
_TYPES = {"class", "interface", "trait", "struct", "union", "enum", "scope"}
# Definitions of these kinds are nobody else's business inside a function.
_LOCAL = {"variable", "constant", "prototype", "field"}
_SEPARATORS = re.compile(r"::|[.:#\\]")
_BLANKS = re.compile(r"\s+")
_LOOK_ABOVE = 60  # lines, for the start of a comment


@dataclass(frozen=True)
class Definition:
    """One definition: lines count from 1. qualified: its name after those of what it stands in, with dots."""

    kind: str
    name: str
    qualified: str
    line: int
    end_line: int
    signature: str
    doc: str


@dataclass(frozen=True)
class Tags:
    """definitions: in the order of the file. uses: for each name, its places, as twice the line, plus 1 where
    it is called; in order. imports: what is imported, as written, each once.
    """

    definitions: list[Definition]
    uses: dict[str, list[int]]
    imports: list[str]


@dataclass
class _Span:
    start: int
    end: int
    kind: str
    node: Node
    name: str = ""
    owner: str = ""

    @cached_property
    def body(self) -> int:
        """Where its body starts; -1 if it has none."""
        body = self.node.child_by_field_name("body")
        return -1 if body is None else body.start_byte


def tags_of(source: bytes, language: str) -> Tags:
    """The tags of UTF-8 text in a language of `LANGUAGES`."""
    if language != "python":
        return tags_by_query(source, language)
    root = parser_of(language).parse(source).root_node
    return _tags(source, LANGUAGES[language], captures_of(root), uses_of)


def tags_by_query(source: bytes, language: str) -> Tags:
    """The same by the language's query alone."""
    from tree_sitter import QueryCursor

    root = parser_of(language).parse(source).root_node
    captures = QueryCursor(query_of(language)).captures(root)

    def uses(source: bytes, starts: list[int], named: dict[int, int]) -> dict[str, list[int]]:
        return _uses(captures, source, starts, named)

    return _tags(source, LANGUAGES[language], captures, uses)


def _tags(
    source: bytes,
    language: Language,
    captures: dict[str, list[Node]],
    uses: Callable[[bytes, list[int], dict[int, int]], dict[str, list[int]]],
) -> Tags:
    lines = source.split(b"\n")
    starts = list(itertools.accumulate(map(len, lines), lambda at, size: at + size + 1, initial=0))
    spans = _spans(captures)
    named = _name_all(spans, captures, source)
    shown = _Text(source, lines, starts, language)
    imported = sorted(captures.get("import", ()), key=lambda node: node.start_byte)
    imports = dict.fromkeys(_import(source, node) for node in imported)
    return Tags(_definitions(spans, shown), uses(source, starts, named), list(imports))


def _spans(captures: dict[str, list[Node]]) -> list[_Span]:
    """The marked definitions, outer before inner; what two patterns mark counts once."""
    found: dict[tuple[int, int], _Span] = {}
    for kind, nodes in captures.items():
        if kind in _MARKS or kind.startswith("_"):
            continue
        for node in nodes:
            start, end = node.start_byte, node.end_byte
            known = found.get((start, end))
            if known is None or _plainness(kind) < _plainness(known.kind):
                found[start, end] = _Span(start, end, kind, node)
    return sorted(found.values(), key=lambda span: (span.start, -span.end))


def _plainness(kind: str) -> tuple[bool, bool, str]:
    """Orders the kinds that one definition may be taken for: the least says most about it."""
    return kind in _LOCAL, kind == "type", kind


def _name_all(spans: list[_Span], captures: dict[str, list[Node]], source: bytes) -> dict[int, int]:
    """Give each definition the first name in it that no inner one has; returns where those names start and
    end.
    """
    marks = {(node.start_byte, node.end_byte, True) for node in captures.get("name", ())}
    marks |= {(node.start_byte, node.end_byte, False) for node in captures.get("owner", ())}
    taken: dict[int, int] = {}
    open_spans: list[_Span] = []
    extra: list[_Span] = []
    coming = iter(spans)
    span = next(coming, None)
    for start, end, is_name in sorted(marks):
        while span is not None and span.start <= start:
            open_spans = [one for one in open_spans if one.end > span.start]
            open_spans.append(span)
            span = next(coming, None)
        holders = [one for one in open_spans if one.end >= end]
        text = source[start:end].decode("utf-8", "replace").strip()
        if not is_name:
            if holders:
                holders[-1].owner = text
            continue
        unnamed = next((one for one in reversed(holders) if not one.name), None)
        if unnamed is not None:
            unnamed.name = text
        elif holders and holders[-1].kind in _LOCAL:  # `const a, b = 1, 2` is one node
            last = holders[-1]
            extra.append(_Span(last.start, last.end, last.kind, last.node, text))
        else:
            continue
        taken[start] = end
    spans[:] = sorted(
        (one for one in itertools.chain(spans, extra) if one.name), key=lambda one: (one.start, -one.end)
    )
    return taken


def _definitions(spans: list[_Span], shown: _Text) -> list[Definition]:
    found: list[Definition] = []
    documented = 0  # the last line with a definition: a comment above it is about the first one there
    outer: list[tuple[int, str, str]] = []  # end, kind, qualified name
    for span in spans:
        while outer and outer[-1][0] <= span.start:
            outer.pop()
        above = outer[-1] if outer else (0, "", "")
        if span.kind in _LOCAL and above[1] in _FUNCTIONS:
            continue
        if span.kind == above[1] and span.kind in _LOCAL:  # `a = b = 1` is one in the other
            above = (0, "", above[2].rpartition(".")[0])
        name = span.name
        if span.kind != "section":
            *owners, name = [part.strip() for part in _SEPARATORS.split(name) if part.strip()] or [name]
            name = name.strip("\"'") or span.name
        else:
            name, owners = _BLANKS.sub(" ", name), []
        kind = "method" if span.kind == "function" and (above[1] in _TYPES or span.owner) else span.kind
        parts = [above[2], span.owner, *owners, name]
        qualified = name if span.kind == "section" else ".".join(part for part in parts if part)
        if kind != "type":
            outer.append((span.end, kind, qualified))
        if kind != "scope":
            first, last = shown.line_at(span.start), shown.line_at(max(span.start, span.end - 1))
            doc = shown.doc(span) if first > documented or shown.inside else ""
            documented = max(first, documented)
            found.append(Definition(kind, name, qualified, first, last, shown.signature(span), doc))
    return found


def _uses(
    captures: dict[str, list[Node]], source: bytes, starts: list[int], named: dict[int, int]
) -> dict[str, list[int]]:
    """Where names are used that are not the names of definitions."""
    called = {node.start_byte for node in captures.get("call", ())}
    places = [(node.start_byte, node.end_byte) for node in captures.get("ref", ())]
    if not called <= {start for start, _ in places}:
        places += [(node.start_byte, node.end_byte) for node in captures["call"]]
    places.sort()
    found: dict[bytes, list[int]] = {}
    last, line, next_line = -1, 0, 0
    for start, end in places:
        if start == last or start in named:
            continue
        last = start
        if start >= next_line:
            line = bisect_right(starts, start)
            next_line = starts[line] if line < len(starts) else len(source) + 1
        place = 2 * line + (start in called)
        name = source[start:end]
        if name in found:
            found[name].append(place)
        else:
            found[name] = [place]
    return {name.decode("utf-8", "replace"): lines for name, lines in found.items() if len(name) <= 200}


def _import(source: bytes, node: Node) -> str:
    text = source[node.start_byte : node.end_byte].decode("utf-8", "replace")
    return _BLANKS.sub(" ", text).strip("\"'<>; ").removeprefix("import ")[:SIGNATURE_CHARACTERS]


class _Text:
    """The text around definitions, as it is shown."""

    def __init__(self, source: bytes, lines: list[bytes], starts: list[int], language: Language) -> None:
        self._source, self._lines, self._starts, self._language = source, lines, starts, language
        self.inside = language.docstrings

    def line_at(self, offset: int) -> int:
        """The line of a byte, from 1."""
        return bisect_right(self._starts, offset)

    def signature(self, span: _Span) -> str:
        """What is written before the body; of a definition without one, its first line."""
        if span.body > span.start:
            text = self._source[span.start : min(span.body, span.start + 4 * SIGNATURE_CHARACTERS)]
        else:
            text = self._source[span.start : min(span.end, span.start + 4 * SIGNATURE_CHARACTERS)]
            text = text.split(b"\n", 1)[0]
        shown = " ".join(text.decode("utf-8", "replace").split())
        shown = shown.removesuffix("{").rstrip()
        return shown if len(shown) <= SIGNATURE_CHARACTERS else shown[: SIGNATURE_CHARACTERS - 1] + "…"

    def doc(self, span: _Span) -> str:
        """The first line of a definition's documentation, or nothing."""
        if span.kind == "section":
            return ""
        if self.inside:
            return self._docstring(span)
        return self._comment_above(self.line_at(span.start) - 2)

    def _docstring(self, span: _Span) -> str:
        if span.body < 0 or self._source[span.body] not in b"rRuU\"'":
            return ""
        head = self._source[span.body : span.body + 400]
        quoted = _QUOTE.match(head)
        if quoted is None:
            return ""
        inside = head[quoted.end() :].split(quoted[1], 1)[0].strip()
        return _first_line(inside.split(b"\n", 1)[0])

    def _comment_above(self, row: int) -> str:
        """The first line that says something in the comment that ends right above, past attributes."""
        lines, marks = self._lines, self._language.comments
        for _ in range(5):
            if row >= 0 and lines[row].lstrip()[:2] not in (b"--",) and _ATTRIBUTE.match(lines[row]):
                row -= 1
        last = row
        inside = row >= 0 and lines[row].rstrip().endswith((b"*/", b"*)"))
        while row >= 0 and last - row < _LOOK_ABOVE:
            line = lines[row].strip()
            if inside:
                if line.startswith((b"/*", b"(*")):
                    row -= 1
                    break
            elif not line.decode("utf-8", "replace").startswith(marks or ("\0",)):
                break
            row -= 1
        said = (_first_line(_strip_marks(line)) for line in lines[row + 1 : last + 1])
        return next((text for text in said if text), "")


_QUOTE = re.compile(rb"[rRuU]?(\"\"\"|'''|\"|')")
_ATTRIBUTE = re.compile(rb"\s*(@\w|#\[|\[\w|template\s*<)")
_COMMENT_MARKS = re.compile(
    rb"^\s*(/\*+!?|\(\*+|//+[/!]*|#+:?|--+\s*\|?|;+|%+|!+|\*+(?!/))?\s*(.*?)\s*(\*+/|\*\))?\s*$"
)


def _strip_marks(line: bytes) -> bytes:
    found = _COMMENT_MARKS.match(line[:400])
    return found[2] if found else b""


def _first_line(text: bytes) -> str:
    shown = text.decode("utf-8", "replace").strip()
    if not any(char.isalnum() for char in shown):
        return ""
    return shown if len(shown) <= DOC_CHARACTERS else shown[: DOC_CHARACTERS - 1] + "…"


def enclosing(definitions: Sequence[Definition], line: int) -> Definition | None:
    """The innermost definition that a line stands in."""
    around = [one for one in definitions if one.line <= line <= one.end_line]
    return max(around, key=lambda one: (one.line, -one.end_line), default=None)
