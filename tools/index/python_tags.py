"""Python's definitions, imports and uses of names, read without a query in a fraction of its time.

Only statements are walked, as expressions define nothing that is kept, and uses are the words outside of
texts and comments. `queries/python.scm` says the same of all but broken code and what stands behind
`match` and `case`; a test holds both equal.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

_KEYWORDS = frozenset(
    b"False None True and as assert async await break class continue def del elif else except finally for"
    b" from global if import in is lambda nonlocal not or pass raise return try while with yield"
    b" __future__".split()
)
_DEFINING = ("function_definition", "class_definition")
_WITH_STATEMENTS = (
    *_DEFINING,
    "decorated_definition",
    "block",
    "if_statement",
    "elif_clause",
    "else_clause",
    "for_statement",
    "while_statement",
    "try_statement",
    "except_clause",
    "finally_clause",
    "with_statement",
    "match_statement",
    "case_clause",
    "ERROR",
)
_TAKEN = (
    *_DEFINING,
    "type_alias_statement",
    "import_statement",
    "import_from_statement",
    "expression_statement",
    "assignment",
)
# A comment or a text; what stands in a text before its quotes is a word that a quote follows.
_TEXTS = re.compile(
    rb'#[^\n]*|"(?:""(?:[^"\\]++|\\.|"(?!""))*+"""|(?:[^"\\\n]++|\\.)*+")'
    rb"|'(?:''(?:[^'\\]++|\\.|'(?!''))*+'''|(?:[^'\\\n]++|\\.)*+')",
    re.DOTALL,
)
_BOM = b"\xef\xbb\xbf"
_LITERAL = re.compile(rb"\{\{|\}\}|[{}]|\n|[^{}\n]+")
_INSIDE = re.compile(rb"[{}]|\n|\"[^\"\n]*\"|'[^'\n]*'|[^{}\n\"']+|[\"']")
_VALUE = re.compile(rb"(?:[^\[(:!]++|[\[(][^\])]*+[\])]|!=|[\[(])*+")
# A word with what follows it: a bracket, where it is called, or a quote, where it says what kind of text.
_WORDS = re.compile(rb"\n|[\w\x80-\xff]+(?:[\"'(]|[ \t]+\()?")


@cache
def _kinds() -> tuple[frozenset[int], dict[int, str]]:
    from tree_sitter_language_pack import get_language

    grammar = get_language("python")
    numbers = {kind: grammar.id_for_node_kind(kind, True) for kind in (*_WITH_STATEMENTS, *_TAKEN)}
    opened = frozenset(number for kind in _WITH_STATEMENTS if (number := numbers[kind]) is not None)
    return opened, {number: kind for kind in _TAKEN if (number := numbers[kind]) is not None}


def captures_of(root: Node) -> dict[str, list[Node]]:
    """What the query captures of definitions, their names and imports."""
    opened, taken = _kinds()
    found: dict[str, list[Node]] = defaultdict(list)
    coming = [(root, "variable")]
    while coming:
        node, assigned = coming.pop()
        for child in node.named_children:
            number = child.kind_id
            kind = taken.get(number)
            if kind is not None:
                _take(child, kind, assigned, found)
            if number in opened:
                inside = assigned == "in class" and child.type == "block"
                coming.append(
                    (child, "field" if inside else "in class" if kind == "class_definition" else "")
                )
    return found


def _take(node: Node, kind: str, assigned: str, found: dict[str, list[Node]]) -> None:
    if kind in _DEFINING:
        name = node.child_by_field_name("name")
        if name is not None:
            found[kind.partition("_")[0]].append(node)
            found["name"].append(name)
    elif kind == "import_from_statement":
        found["import"] += [name] if (name := node.child_by_field_name("module_name")) else []
    elif kind == "import_statement":
        for name in node.children_by_field_name("name"):
            whole = name.child_by_field_name("name") if name.type == "aliased_import" else name
            found["import"] += [whole] if whole else []
    elif kind == "type_alias_statement":
        left = node.child_by_field_name("left")
        if left is not None and (first := left.named_child(0)) is not None and first.type == "identifier":
            found["type"].append(node)
            found["name"].append(first)
    elif assigned in ("variable", "field"):
        value: Node | None = node if kind == "assignment" else node.named_child(0)
        while value is not None and value.type == "assignment":  # `a = b = 1` is one in the other
            left = value.child_by_field_name("left")
            if left is not None and left.type == "identifier":
                found[assigned].append(value)
                found["name"].append(left)
            value = value.child_by_field_name("right")


def uses_of(source: bytes, starts: list[int], named: Iterable[int]) -> dict[str, list[int]]:
    """The uses of names, see `Tags.uses`. starts: where lines start; named: where the names of definitions
    start.
    """
    if source.startswith(_BOM):
        source = b"   " + source[3:]
    written: defaultdict[bytes, list[int]] = defaultdict(list)
    place = 2
    for word in _WORDS.findall(_TEXTS.sub(_without, source)):
        if word == b"\n":
            place += 2
        else:
            written[word].append(place)
    for start in named:
        match = _WORDS.match(source, start)
        places = written.get(match[0], []) if match else []
        if (place := 2 * bisect_right(starts, start)) in places:
            places.remove(place)
    found: dict[bytes, list[int]] = {}
    for word, places in written.items():
        end = word[-1]
        name = word.rstrip(b" \t(") if end == 40 else word
        if not places or name in _KEYWORDS or len(name) > 200 or word[0] < 58 or end in b"\"'":
            continue
        if end == 40:
            places = [place + 1 for place in places]
        found[name] = sorted(found[name] + places) if name in found else places
    return {name.decode("utf-8", "replace"): places for name, places in found.items()}


def _without(match: re.Match[bytes]) -> bytes:
    """What stands for a text: its lines, and the names in its braces if it has any."""
    text, start = match[0], match.start()
    if text[0] != 35 and b"{" in text and b"f" in match.string[max(0, start - 2) : start].lower():
        return b'"' + _values(text) + b'"'
    return b'"' + b"\n" * text.count(b"\n") if b"\n" in text else b'"'


def _values(text: bytes) -> bytes:
    """The values that a formatted text shows, in their lines."""
    depth, format_depth, at, formatted = 0, 0, 0, False
    kept = [b" "]
    while match := (_INSIDE if depth else _LITERAL).match(text, at):
        at = match.end()
        token = match[0]
        if token == b"\n":
            kept.append(token)
        elif token == b"{":
            depth += 1
            kept.append(b";")
        elif token == b"}":
            depth = max(0, depth - 1)
            format_depth = min(format_depth, depth)
        elif depth and depth != format_depth:
            if token[0] in b"\"'":
                if kept[-1] == b" ":  # what stands before it says what kind of text it is
                    kept.pop()
                kept += [b'"', _values(token)] if formatted else [b'"']
            elif value := _VALUE.match(token):
                kept += [value[0], b" "]
                format_depth = depth if value.end() < len(token) else format_depth
            formatted = token[-2:].lower().strip(b"r\"'= (") == b"f"
    return b"".join(kept)
