"""What counts as the same edit: equal syntax trees, the same comments, and nothing else changed."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Mapping
from functools import lru_cache


def judge(before: Mapping[str, str], wanted: Mapping[str, str], found: Mapping[str, bytes]) -> str:
    """Why the files found are not those wanted, as a sentence; '' where they are.

    before: the files as they were given. All are {path: content}; how code is laid out does not count,
    nor do two ways to write the same comparison, sum or range.
    """
    if missing := sorted(wanted.keys() - found.keys()):
        return f"{missing[0]} is gone."
    if added := sorted(found.keys() - wanted.keys()):
        return f"{added[0]} is new, and nothing was to be added."
    for path, text in wanted.items():
        data = found[path]
        if data == text.encode():
            continue
        touched = before[path] != text
        if not touched and not path.endswith(".py"):
            return f"{path} was to stay as it is."
        if data == before[path].encode():
            return f"{path} was to be changed and is as it was."
        try:
            same = shape(data.decode()) == shape(text)
        except (SyntaxError, ValueError, RecursionError):
            return f"{path} is no Python any more."
        if not same:
            what = "is not what was asked for" if touched else "was to stay as it is"
            return f"{path} {what}."
    return ""


@lru_cache(maxsize=256)
def shape(text: str) -> tuple[str, tuple[str, ...]]:
    """A text's syntax tree in one way of writing, and its comments. Raises `SyntaxError` or `ValueError`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = _Plain().visit(ast.parse(text))
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except tokenize.TokenError as error:
        raise SyntaxError(str(error)) from None
    return ast.dump(tree), tuple(one.string.rstrip() for one in tokens if one.type == tokenize.COMMENT)


class _Plain(ast.NodeTransformer):
    """Writes in one way what can be written in two."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """`a > b` as `b < a`."""
        self.generic_visit(node)
        turned = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}
        if len(node.ops) == 1 and (kind := turned.get(type(node.ops[0]))) is not None:
            return ast.Compare(node.comparators[0], [kind()], [node.left])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """`1 + n` as `n + 1`."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Add) and _is_number(node.left) and not _is_number(node.right):
            return ast.BinOp(node.right, node.op, node.left)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`range(0, n)` as `range(n)`."""
        self.generic_visit(node)
        named = isinstance(node.func, ast.Name) and node.func.id == "range"
        if named and len(node.args) == 2 and _is_zero(node.args[0]):
            node.args = node.args[1:]
        return node

    def visit_Slice(self, node: ast.Slice) -> ast.AST:
        """`x[0:n]` as `x[:n]`."""
        self.generic_visit(node)
        if node.lower is not None and _is_zero(node.lower):
            node.lower = None
        return node


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == 0
