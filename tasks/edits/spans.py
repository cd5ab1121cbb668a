"""Where a node of a syntax tree stands in its text, and changes of a text by such places."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Splice:
    """Characters [start, end) of a text, and what stands there instead."""

    start: int
    end: int
    text: str


class Places:
    """Offsets in characters of the nodes of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def offset(self, line: int, column: int) -> int:
        """The offset of a place as syntax trees give it: lines from 1, columns in bytes of UTF-8."""
        text = self._lines[line - 1]
        inside = column if text.isascii() else len(text.encode()[:column].decode())
        return self._starts[line - 1] + inside

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The characters [start, end) of a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.offset(node.lineno, node.col_offset)
        return start, self.offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.text[start:end]


def spliced(text: str, splices: Sequence[Splice]) -> str:
    """A text with splices made that do not overlap."""
    for one in sorted(splices, key=lambda splice: -splice.start):
        text = text[: one.start] + one.text + text[one.end :]
    return text


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> list[tuple[str, Function]]:
    """The functions of a module and of its classes by qualified name, those whose name is there once. What is
    in a function is part of it.
    """
    found = list(_functions(tree, ""))
    names = Counter(name for name, _ in found)
    return [(name, node) for name, node in found if names[name] == 1]


def _functions(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in node.body:
        if isinstance(child, Function):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
