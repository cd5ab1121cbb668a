"""Values that can be changed: constants of modules and classes, defaults of parameters."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pilotfish.tasks.edits.sources import parsed
from pilotfish.tasks.edits.spans import Places, Splice, functions

_LONGEST = 24  # characters of a text that is changed
_STRINGS = ("auto", "strict", "default", "none", "plain", "utf-8", "first", "last", "always", "left", "main")

_NAMED = re.compile(r"^[ \t]*(?:(\w+)[ \t]*(?::[^=\n]+)?=(?!=)|(?:async )?def (\w+))", re.MULTILINE)


@dataclass(frozen=True)
class Value:
    """A literal and whose it is. name: qualified, of the constant or the function; parameter: '' for a
    constant; alone: whether no other value of the package is called so.
    """

    path: str
    name: str
    parameter: str
    line: int
    start: int
    end: int
    text: str
    alone: bool

    def changed(self, new: str) -> Splice:
        return Splice(self.start, self.end, new)


def changeable(files: Mapping[str, str]) -> list[Value]:
    """The values of a package that a name stands for without a doubt, in order."""
    found = {path: list(_values(text)) for path, text in files.items()}
    values = Counter((name, parameter) for some in found.values() for name, parameter, _ in some)
    named = Counter(name for text in files.values() for pair in _NAMED.findall(text) for name in pair if name)
    out = []
    for path, some in found.items():
        places = Places(files[path])
        for name, parameter, node in some:
            start, end = places.span(node)
            alone = values[name, parameter] == 1 and ("." in name or named[name] == 1)
            text = files[path][start:end]
            if _is_plain(node, text):
                out.append(Value(path, name, parameter, node.lineno, start, end, text, alone))
    return out


def another(value: Value, draw: random.Random) -> str:
    """Another literal of the same type."""
    old = ast.literal_eval(value.text)
    while True:
        new = _drawn(old, value.text, draw)
        if ast.literal_eval(new) != old:
            return new


def _drawn(old: object, text: str, draw: random.Random) -> str:
    if isinstance(old, bool):
        return str(not old)
    if isinstance(old, int):
        near = (old + draw.choice((1, 2, 5)), old * 2, old * 10, abs(old - draw.choice((1, 2))), old // 2)
        return str(draw.choice(near))
    if isinstance(old, float):
        return repr(draw.choice((old * 2, old / 2, old + 0.5, old + 1.0)))
    quote = text[0]
    return f"{quote}{draw.choice(_STRINGS)}{quote}"


def _is_plain(node: ast.Constant, text: str) -> bool:
    """Whether a literal can be told in words."""
    value = node.value
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return text.isdigit() and abs(value) < 10_000_000
    if isinstance(value, float):
        return "e" not in text.lower() and "_" not in text and abs(value) < 1e6 and value == value
    if not isinstance(value, str) or not value.isprintable() or not value.isascii():
        return False
    return 0 < len(value) <= _LONGEST and text in (f"'{value}'", f'"{value}"') and "`" not in value


def _values(text: str) -> Iterator[tuple[str, str, ast.Constant]]:
    """Name, parameter and literal."""
    tree = parsed(text)
    yield from _constants(tree, "")
    for name, node in functions(tree):
        arguments = node.args
        plain = [*arguments.posonlyargs, *arguments.args]
        pairs = list(zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True))
        pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d]
        for argument, default in pairs:
            if isinstance(default, ast.Constant):
                yield name, argument.arg, default


def _constants(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, str, ast.Constant]]:
    assigned: Counter[str] = Counter()
    for child in ast.walk(node) if isinstance(node, ast.Module) else node.body:
        if isinstance(child, ast.Assign):
            assigned.update(one.id for one in child.targets if isinstance(one, ast.Name))
        elif isinstance(child, ast.AnnAssign | ast.AugAssign) and isinstance(child.target, ast.Name):
            assigned[child.target.id] += 1
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _constants(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            target = targets[0]
            if len(targets) != 1 or not isinstance(target, ast.Name) or target.id.startswith("__"):
                continue
            if isinstance(child.value, ast.Constant) and assigned[target.id] == 1:
                yield prefix + target.id, "", child.value
