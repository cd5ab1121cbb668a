"""Off-by-one faults, put where words can say which place is meant, and told as a colleague would."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from pilotfish.tasks.edits.sources import parsed
from pilotfish.tasks.edits.spans import Function, Places, Splice, functions

_LONGEST = 40  # characters of an expression that is quoted
_ORDINALS = {0: "first", 1: "second", 2: "third", -1: "last", -2: "last but one", -3: "last but two"}
_COMPARED = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}


@dataclass(frozen=True)
class Fault:
    """A fault in a text without faults. kind: compare, range, slice or index. told: what is wrong, as a
    sentence that lacks its subject, the function, and its full stop.
    """

    path: str
    name: str
    kind: str
    line: int
    wrong: Splice
    told: str


def possible(files: Mapping[str, str]) -> list[Fault]:
    """All faults that can be put in, in order; several of one function are among them."""
    found = []
    for path, text in files.items():
        places = Places(text)
        for name, node in functions(parsed(text)):
            for kind, at, wrong, told in _of_function(node, places):
                found.append(Fault(path, name, kind, at, wrong, told))
    return found


def chosen(faults: list[Fault], count: int, draw: random.Random) -> list[Fault]:
    """So many faults, no two in one function, of all kinds as evenly as there are."""
    by_kind: dict[str, list[Fault]] = {}
    for fault in draw.sample(faults, len(faults)):
        by_kind.setdefault(fault.kind, []).append(fault)
    taken: list[Fault] = []
    held: set[tuple[str, str]] = set()
    kinds = sorted(by_kind)
    while kinds and len(taken) < count:
        for kind in list(kinds):
            waiting = by_kind[kind]
            while waiting and (waiting[-1].path, waiting[-1].name) in held:
                waiting.pop()
            if not waiting:
                kinds.remove(kind)
            elif len(taken) < count:
                taken.append(waiting.pop())
                held.add((taken[-1].path, taken[-1].name))
    return sorted(taken, key=lambda fault: (fault.path, fault.wrong.start))


Made = tuple[str, int, Splice, str]


def _of_function(node: Function, places: Places) -> Iterator[Made]:
    inner = [one for statement in node.body for one in ast.walk(statement)]
    yield from _compares(inner, places)
    yield from _ranges(inner, places)
    yield from _subscripts(inner, places)


def _compares(nodes: list[ast.AST], places: Places) -> Iterator[Made]:
    """A comparison whose two sides are compared in no other way in the function."""
    pairs: list[frozenset[str]] = []
    compares = [one for one in nodes if isinstance(one, ast.Compare)]
    for one in compares:
        sides = [ast.unparse(side) for side in (one.left, *one.comparators)]
        pairs += [frozenset(pair) for pair in pairwise(sides)]
    for one in compares:
        if len(one.ops) != 1 or (signs := _COMPARED.get(type(one.ops[0]))) is None:
            continue
        right = one.comparators[0]
        left_text, right_text = places.of(one.left), places.of(right)
        pair = frozenset((ast.unparse(one.left), ast.unparse(right)))
        if pairs.count(pair) != 1 or len(pair) == 1 or not _quotable(left_text, right_text):
            continue
        start, end = places.span(one.left)[1], places.span(right)[0]
        between = places.text[start:end]
        if between.strip() != signs[0]:
            continue
        wrong = Splice(start, end, between.replace(signs[0], signs[1]))
        # What the right code says of two equal sides, and so what the wrong code fails to.
        ought = "pass" if "=" in signs[0] else "not pass"
        now = "fails" if "=" in signs[0] else "passes"
        told = f"is off by one: when `{left_text}` equals `{right_text}`, its comparison of the two {now}"
        yield "compare", one.lineno, wrong, f"{told}, but it must {ought}"


def _ranges(nodes: list[ast.AST], places: Places) -> Iterator[Made]:
    """The only range of a function."""
    calls = [
        one
        for one in nodes
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "range"
    ]
    if len(calls) != 1 or len(calls[0].args) not in (1, 2) or calls[0].keywords:
        return
    call = calls[0]
    if any(isinstance(one, ast.Starred) for one in call.args):
        return
    bound = call.args[-1]
    start, end = places.span(bound)
    text = places.text[start:end]
    if not _quotable(text):
        return
    simple = isinstance(bound, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    shorter, longer = "misses the last number of its range", "goes one number too far in its range"
    if simple:
        for wrong, told in ((f"{text} - 1", shorter), (f"{text} + 1", longer)):
            yield "range", call.lineno, Splice(start, end, wrong), f"{told}, which must end before `{text}`"
    elif isinstance(bound, ast.BinOp) and _number(bound.right) == 1 and _quotable(places.of(bound.left)):
        base, added = places.of(bound.left), isinstance(bound.op, ast.Add)
        if not isinstance(bound.left, ast.BinOp) and isinstance(bound.op, ast.Add | ast.Sub):
            told = shorter if added else longer
            reach = f"`{base}` must be the last one" if added else f"it must end before `{base} - 1`"
            yield "range", call.lineno, Splice(start, end, base), f"{told}: {reach}"
    if len(call.args) == 2 and (first := _number(call.args[0])) in (0, 1, 2):
        late = Splice(*places.span(call.args[0]), str(first + 1))
        yield "range", call.lineno, late, f"begins its range one too late: it must begin at {first}"
        if first:
            early = Splice(*places.span(call.args[0]), str(first - 1))
            yield "range", call.lineno, early, f"begins its range one too early, and must begin at {first}"


def _subscripts(nodes: list[ast.AST], places: Places) -> Iterator[Made]:
    """An index, or a bound of a slice, of what the function takes only one item or slice of."""
    found = [one for one in nodes if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Load)]
    values = [ast.unparse(one.value) for one in found]
    for one in found:
        text = places.of(one.value)
        if values.count(ast.unparse(one.value)) != 1 or not _quotable(text) or text[:1].isupper():
            continue
        if (index := _number(one.slice)) in _ORDINALS:
            assert index is not None
            other = index + 1 if index >= 0 else index - 1
            if other in _ORDINALS:
                wrong = Splice(*places.span(one.slice), str(other))
                told = f"takes the {_ORDINALS[other]} item of `{text}`, but it should take the "
                yield "index", one.lineno, wrong, told + f"{_ORDINALS[index]}"
        elif isinstance(one.slice, ast.Slice) and one.slice.step is None:
            yield from _bounds(one.slice, text, one.lineno, places)


def _bounds(part: ast.Slice, text: str, line: int, places: Places) -> Iterator[Made]:
    lower = None if part.lower is None else _number(part.lower)
    upper = None if part.upper is None else _number(part.upper)
    if part.lower is not None and lower is not None and 0 < lower <= 9:
        wrong = Splice(*places.span(part.lower), str(lower + 1))
        told = f"leaves out one item too many at the start of `{text}`: the slice must leave out {lower}"
        yield "slice", line, wrong, told
    if part.upper is not None and upper is not None and 0 < upper <= 99:
        wrong = Splice(*places.span(part.upper), str(upper + 1))
        told = f"takes one item too many of `{text}`: its slice must end before index {upper}"
        yield "slice", line, wrong, told
    if part.upper is not None and upper is not None and -9 <= upper < 0:
        wrong = Splice(*places.span(part.upper), str(upper - 1))
        told = f"leaves out one item too many at the end of `{text}`: the slice must leave out {-upper}"
        yield "slice", line, wrong, told


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _quotable(*texts: str) -> bool:
    return all(len(text) <= _LONGEST and "\n" not in text and "`" not in text for text in texts)
