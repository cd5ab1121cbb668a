"""Symbols that can be renamed without a doubt: every place where the word stands in the package is a use."""

from __future__ import annotations

import ast
import builtins
import keyword
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from pilotfish.tasks.edits.sources import parsed
from pilotfish.tasks.edits.spans import Function

_WORD = re.compile(r"\b[A-Za-z_]\w*")
_TAKEN = frozenset([*dir(builtins), *keyword.kwlist, *keyword.softkwlist])
_LEAST = 4  # letters of a name that is renamed
_VERBS: tuple[str, ...] = (
    "load",
    "make",
    "fetch",
    "build",
    "take",
    "find",
    "collect",
    "resolve",
    "prepare",
    "handle",
    "render",
)
_NOUNS = (
    "entry",
    "item",
    "record",
    "source",
    "target",
    "state",
    "value",
    "piece",
    "chunk",
    "label",
    "detail",
)
_TAILS = ("impl", "helper", "core", "base", "info", "data", "spec", "part", "unit", "kind")
_ANY: tuple[str, ...] = _NOUNS + _TAILS


@dataclass(frozen=True)
class Symbol:
    """What can be renamed. kind: function, class, constant or method; owner: the class of a method."""

    name: str
    kind: str
    path: str
    line: int
    owner: str
    places: tuple[tuple[str, int], ...]
    """Each file with the word, and how often it is there."""

    @property
    def qualified(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


def renamable(files: Mapping[str, str]) -> list[Symbol]:
    """The symbols of a package that are defined once, used at least once, and whose word stands for nothing
    else anywhere in it, comments and strings included.
    """
    words = {path: Counter(_WORD.findall(text)) for path, text in files.items()}
    everywhere = Counter[str]()
    for counted in words.values():
        everywhere.update(counted)
    modules = {PurePosixPath(path).stem for path in files} | {
        PurePosixPath(path).parent.name for path in files
    }
    uses: Counter[str] = Counter()
    own: Counter[tuple[str, str, str]] = Counter()
    defined: dict[str, list[tuple[str, str, int, str]]] = {}
    for path, text in files.items():
        tree = parsed(text)
        for kind, name, line, owner in _definitions(tree):
            defined.setdefault(name, []).append((kind, path, line, owner))
        uses.update(_uses(tree, path.split("/")[0], modules))
        own.update((path, owner, name) for owner, name in _own_uses(tree))
    found = []
    for name, places in sorted(defined.items()):
        if len(places) != 1 or len(name) < _LEAST or name in _TAKEN or name in modules or "__" in name:
            continue
        kind, path, line, owner = places[0]
        known = own[path, owner, name] if owner else uses[name]
        if known and known + 1 == everywhere[name]:
            held = tuple((at, words[at][name]) for at in sorted(files) if words[at][name])
            found.append(Symbol(name, kind, path, line, owner, held))
    return found


def renamed(files: Mapping[str, str], symbol: Symbol, new: str) -> dict[str, str]:
    """The files that change when a symbol gets a new name."""
    word = re.compile(rf"\b{symbol.name}\b")
    return {path: word.sub(new, files[path]) for path, _ in symbol.places}


def new_name(symbol: Symbol, files: Mapping[str, str], draw: random.Random) -> str:
    """A name of the same style that is nowhere in the package."""
    for _ in range(1000):
        name = _varied(symbol, draw)
        if name not in _TAKEN and not any(name in text for text in files.values()):
            return name
    raise ValueError(f"no new name for {symbol.name} was found")


def _varied(symbol: Symbol, draw: random.Random) -> str:
    lead = "_" * (len(symbol.name) - len(symbol.name.lstrip("_")))
    core = symbol.name[len(lead) :]
    if symbol.kind == "class" or (core[:1].isupper() and not core.isupper()):
        parts = re.findall(r"[A-Z]+(?=[A-Z][a-z]|$)|[A-Z]?[a-z0-9]+|[A-Z]+|_", core) or [core]
        pool, style = _ANY, str.capitalize
        joined = ""
    else:
        parts = core.split("_")
        verb = symbol.kind in ("function", "method") and draw.random() < 0.5
        pool, style = (_VERBS if verb else _ANY), str.upper if core.isupper() else str.lower
        joined = "_"
    word = style(draw.choice(pool))
    roll = draw.random()
    if roll < 0.4 and len(parts) > 1:
        at = draw.randrange(len(parts))
        parts = [*parts[:at], word, *parts[at + 1 :]]
    elif roll < 0.7 and pool is _VERBS:
        parts = [word, *parts]
    else:
        parts = [*parts, word]
    return lead + joined.join(parts)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, str, int, str]]:
    """Kind, name, line and owner of what a module defines at its top, and of its classes' methods."""
    for node in tree.body:
        if isinstance(node, Function):
            yield "function", node.name, node.lineno, ""
        elif isinstance(node, ast.ClassDef):
            yield "class", node.name, node.lineno, ""
            for inner in node.body:
                if isinstance(inner, Function) and not inner.decorator_list:
                    yield "method", inner.name, inner.lineno, node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Name) and node.value is not None:
                yield "constant", targets[0].id, node.lineno, ""


def _uses(tree: ast.Module, package: str, modules: set[str]) -> Iterator[str]:
    """The names that a module uses as what some module of the package defines; the definition is none."""
    here = {name for kind, name, _, owner in _definitions(tree) if not owner}
    inside: set[str] = set()  # names that are bound to modules of the package
    stars = False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if not (node.level or (node.module or "").split(".")[0] == package):
                continue
            for alias in node.names:
                stars |= alias.name == "*"
                if alias.name in modules:
                    inside.add(alias.asname or alias.name)
                elif alias.name != "*":
                    here.add(alias.name)
                    yield alias.name
        elif isinstance(node, ast.Import):
            inside |= {one.asname for one in node.names if one.asname and one.name.split(".")[0] == package}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id in here or stars:
                yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if _is_called(node.value, *inside):
                yield node.attr
        elif isinstance(node, ast.Assign) and any(_is_called(one, "__all__") for one in node.targets):
            strings = (one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant))
            yield from (one for one in strings if isinstance(one, str))


def _own_uses(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Owner and name of each `self.name` and `cls.name` in a class at the top of a module."""
    for owner in tree.body:
        if not isinstance(owner, ast.ClassDef):
            continue
        for node in ast.walk(owner):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
                continue
            if _is_called(node.value, "self", "cls"):
                yield owner.name, node.attr


def _is_called(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names
