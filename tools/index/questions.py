"""Questions "which file and symbol does this change touch", built from packages that are installed.

A package's folder is copied as a tree, and some of its functions are asked for: by what their documentation
says (which is then taken out of the tree), by an error that they raise, or by a test of theirs (whose file is
not in the tree). The names of the function, its class and its file are masked in the question. Which
functions are asked depends on nothing but the packages' text.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = ("documentation", "error", "test", "commit")
_MASK = "…"
_WORD = re.compile(r"\w+")
_MOST_BYTES = 400_000  # the largest file that is asked about
_TEST_CHARACTERS = 1500

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Question:
    """kind: of KINDS. files: the paths that are right. symbols: (path, qualified name) that are
    right, perhaps none.
    """

    kind: str
    text: str
    files: tuple[str, ...]
    symbols: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Tree:
    """A tree's name, its texts by path, and what is asked about it."""

    name: str
    texts: dict[str, bytes]
    questions: tuple[Question, ...]

    def write(self, folder: Path) -> None:
        """Write the texts into a folder."""
        for path, data in self.texts.items():
            to = folder / path
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data)


@dataclass(frozen=True)
class _Asked:
    question: Question
    cut: tuple[str, int, int] | None = None  # a path and the lines that are taken out of it
    without: str = ""  # a path that is not in the tree


def tree_of_package(name: str, texts: dict[str, bytes], per_kind: int) -> Tree:
    """A tree of a package's texts by path, with at most so many questions of each kind."""
    parsed = {path: tree for path, data in sorted(texts.items()) if (tree := _parsed(path, data))}
    tests = {path for path in parsed if is_test(path)}
    sources = {path: parsed[path] for path in parsed.keys() - tests}
    found: list[_Asked] = []
    for kind, asked in (
        ("documentation", _by_documentation(sources)),
        ("error", _by_error(sources)),
        ("test", _by_test(sources, {path: parsed[path] for path in tests}, texts)),
    ):
        found += _chosen(name, kind, asked, per_kind)
    kept = dict(texts)
    cuts = [one.cut for one in found if one.cut is not None]
    for path, first, last in sorted(cuts, key=lambda cut: (cut[0], -cut[1])):
        lines = kept[path].split(b"\n")
        indent = lines[first - 1][: -len(lines[first - 1].lstrip()) or None]
        lines[first - 1 : last] = [indent + b'"."']
        kept[path] = b"\n".join(lines)
    for one in found:
        kept.pop(one.without, None)
    return Tree(name, kept, tuple(one.question for one in found))


def masked(text: str, names: Iterable[str]) -> str:
    """The text with every word that is or contains one of the names, in any case, replaced."""
    wanted = {name.lower().strip("_") for name in names} - {""}

    def instead(match: re.Match[str]) -> str:
        word = match[0].lower()
        parts = {word, word.strip("_"), *word.split("_")}
        hit = parts & wanted or any(len(name) > 4 and name in word for name in wanted)
        return _MASK if hit else match[0]

    return _WORD.sub(instead, text)


def _parsed(path: str, data: bytes) -> ast.Module | None:
    if not path.endswith(".py") or len(data) > _MOST_BYTES:
        return None
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        return None


def is_test(path: str) -> bool:
    """Whether a file is a test or lies among tests, by its name."""
    folders, _, name = path.rpartition("/")
    return name.startswith("test_") or bool({"test", "tests", "testing"} & set(folders.split("/")))


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Functions of a file and methods of its classes, with their qualified names; not those inside others."""
    coming: list[tuple[str, ast.stmt]] = [("", node) for node in tree.body]
    while coming:
        outer, node = coming.pop(0)
        if isinstance(node, Function):
            yield outer + node.name, node
        elif isinstance(node, ast.ClassDef):
            coming += [(f"{outer}{node.name}.", inner) for inner in node.body]
        elif isinstance(node, ast.If | ast.Try):
            coming += [(outer, inner) for inner in node.body]


def _names(path: str, qualified: str) -> list[str]:
    """What would give the answer away: the names of the symbol, of its file and of its folder."""
    *folders, name = path.split("/")
    return [*qualified.split("."), name.partition(".")[0], *folders[-1:]]


def _question(kind: str, text: str, path: str, qualified: str) -> Question:
    return Question(kind, masked(text, _names(path, qualified)), (path,), ((path, qualified),))


def _by_documentation(sources: dict[str, ast.Module]) -> Iterator[tuple[str, _Asked]]:
    """By the first paragraph of a function's documentation."""
    for path, tree in sources.items():
        for qualified, node in functions(tree):
            text = ast.get_docstring(node) or ""
            text = " ".join(text.split("\n\n")[0].split())
            if len(text.split()) < 8 or len(node.body) < 3:
                continue
            where = node.body[0]
            assert where.end_lineno is not None
            cut = path, where.lineno, where.end_lineno
            yield (
                f"{path}:{qualified}",
                _Asked(_question("documentation", f"Change this: {text}", path, qualified), cut),
            )


def _by_error(sources: dict[str, ast.Module]) -> Iterator[tuple[str, _Asked]]:
    """By an exception with a message of some words, the values in it made up."""
    for path, tree in sources.items():
        for qualified, node in functions(tree):
            for inner in ast.walk(node):
                if not isinstance(inner, ast.Raise) or not isinstance(inner.exc, ast.Call):
                    continue
                call = inner.exc
                message = _message(call.args[0]) if call.args else ""
                if len(message.split()) < 5:
                    continue
                text = f"This fails where it should not: {ast.unparse(call.func)}: {message}"
                yield f"{path}:{qualified}", _Asked(_question("error", text, path, qualified))
                break


def _message(node: ast.expr) -> str:
    """A message as it would be seen."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return " ".join(re.sub(r"%[\w.]|\{[^{}]*\}", "7", node.value).split())
    if isinstance(node, ast.JoinedStr):
        parts = (str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values)
        return " ".join("".join(parts).split())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
        return _message(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _message(node.func.value)
    return ""


def _by_test(
    sources: dict[str, ast.Module], tests: dict[str, ast.Module], texts: dict[str, bytes]
) -> Iterator[tuple[str, _Asked]]:
    """By a test named after a function that it calls."""
    defined: dict[str, list[tuple[str, str]]] = {}
    for path, tree in sources.items():
        for qualified, _ in functions(tree):
            defined.setdefault(qualified.rpartition(".")[2], []).append((path, qualified))
    for path, tree in tests.items():
        lines = texts[path].decode("utf-8", "replace").split("\n")
        for _, node in functions(tree):
            if not node.name.startswith("test_"):
                continue
            name = node.name[5:]
            called = {
                call.func.id if isinstance(call.func, ast.Name) else call.func.attr
                for call in ast.walk(node)
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute)
            }
            about = [one for one in sorted(called) if len(one) > 4 and (name + "_").startswith(one + "_")]
            found = defined.get(about[-1], []) if about else []
            if len(found) != 1:
                continue
            body = "\n".join(lines[node.lineno - 1 : node.end_lineno])[:_TEST_CHARACTERS]
            question = _question("test", f"Make this test pass:\n{body}", *found[0])
            yield ":".join(found[0]), _Asked(question, without=path)


def _chosen(name: str, kind: str, asked: Iterable[tuple[str, _Asked]], most: int) -> list[_Asked]:
    """The first by a digest of what is asked for, no two about one file."""
    found: list[_Asked] = []
    seen: set[str] = set()

    def order(item: tuple[str, _Asked]) -> bytes:
        return hashlib.blake2b(f"{name} {kind} {item[0]} {item[1].question.text}".encode()).digest()

    for _, one in sorted(asked, key=order):
        if len(found) == most:
            break
        if one.question.files[0] not in seen:
            seen.add(one.question.files[0])
            found.append(one)
    return found
