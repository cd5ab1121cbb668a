"""What the index says of a small repository, and that a map keeps to its budget."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pilotfish.model.tokenizer import Tokenizer
from pilotfish.tools.index.graph import DAMPING, Graph
from pilotfish.tools.index.imports import ImportFinder
from pilotfish.tools.index.listing import IndexingError
from pilotfish.tools.index.repository import Count, Index, about_four_bytes

NANO = Path(__file__).resolve().parents[2] / "model" / "nano"
FILES = {
    "shop/__init__.py": "",
    "shop/prices.py": '''"""Prices."""

def total_price(items):
    """Sum of the items."""
    return sum(items)

class Price:
    amount = 0
    def rounded(self):
        return round(self.amount)
''',
    "shop/cart.py": """from shop.prices import total_price, Price

class Cart:
    def __init__(self):
        self.items = []
    def checkout(self):
        return total_price(self.items)
""",
    "shop/web.py": """from .cart import Cart
from shop.prices import total_price

def show():
    cart = Cart()
    total_price([])
    return cart.checkout()
""",
    "other/prices.py": """def total_price(items):
    return 0
""",
    "tests/test_cart.py": """from shop.cart import Cart

def test_cart():
    assert Cart().checkout() == 0
""",
    "web/app.js": "import { go } from './lib/go.js';\nexport function start() { return go(1); }\n",
    "web/lib/go.js": "export function go(x) { return x; }\n",
    "README.md": "# Shop\n\nSells.\n\n## Use of it\n\nRun.\n",
    "notes.txt": "Nothing to parse\nbut Text to search.\r\nand more text\n",
}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    for name, content in FILES.items():
        path = tmp_path / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    with Index(tmp_path / "shop", tmp_path / "i.sqlite") as index:
        index.update()
        yield index


def test_find(index: Index) -> None:
    assert [one.path for one in index.find("total_price").items] == ["other/prices.py", "shop/prices.py"]
    (found,) = index.find("Price.rounded").items
    assert (found.line, found.kind, found.signature) == (9, "method", "def rounded(self):")
    assert index.find("Cart::checkout").items == index.find("Cart.checkout").items
    assert [one.name for one in index.find("CHECK").items] == ["checkout"]
    assert index.find("Use of it").items[0].kind == "section"
    assert index.find("nowhere").lines() == [
        "[nothing is defined as 'nowhere'; nothing else is named so either]"
    ]
    assert index.find("total_price", 1).left_out == 1


def test_references_and_callers(index: Index) -> None:
    assert index.references("total_price").lines() == [
        "shop/cart.py:1: from shop.prices import total_price, Price",
        "shop/cart.py:7 in Cart.checkout: return total_price(self.items)",
        "shop/web.py:2: from shop.prices import total_price",
        "shop/web.py:6 in show: total_price([])",
    ]
    assert index.callers("Cart.checkout").lines()[:2] == [
        "shop/web.py:7 in show: return cart.checkout()",
        "tests/test_cart.py:4 in test_cart: assert Cart().checkout() == 0",
    ]
    assert index.callers("nobody").lines() == ["[nothing calls 'nobody']"]
    assert index.references("total_price", 1).lines()[-1].startswith("[3 more left out")


def test_outline_and_read(index: Index) -> None:
    assert [one.qualified for one in index.outline("./shop//prices.py").items] == [
        "total_price",
        "Price",
        "Price.amount",
        "Price.rounded",
    ]
    assert "no language" in index.outline("notes.txt").lines()[0]
    with pytest.raises(IndexingError, match=r"did you mean shop/cart\.py"):
        index.outline("cart.py")
    piece = index.read("notes.txt", 2, 2)
    assert (piece.text, piece.total) == ("but Text to search.", 3)
    assert index.read("notes.txt", limit=1).lines()[-1] == "[2 more lines; read from 2]"
    assert index.read("shop/__init__.py").lines() == ["[shop/__init__.py is empty]"]
    assert index.read("notes.txt", 9).lines() == ["[it has 3 lines]"]


def test_search(index: Index) -> None:
    def lines(pattern: str, **how: object) -> list[str]:
        return [f"{hit.path}:{hit.line}" for hit in index.search(pattern, **how).items]  # type: ignore[arg-type]

    assert lines("text") == ["notes.txt:3"]
    assert lines("text", ignore_case=True) == ["notes.txt:2", "notes.txt:3"]
    assert lines("^def .*price", regex=True) == ["other/prices.py:1", "shop/prices.py:3"]
    assert lines("total_price", within="shop/web") == ["shop/web.py:2", "shop/web.py:6"]
    assert lines("a.b") == []
    assert index.search("total_price", limit=2).left_out == 4
    assert lines("^", regex=True, within="notes.txt") == ["notes.txt:1", "notes.txt:2", "notes.txt:3"]
    for wrong in ("(", "", "a{99999999999}"):
        with pytest.raises(IndexingError):
            index.search(wrong, regex=True)


def test_a_catastrophic_pattern_does_not_hang(index: Index) -> None:
    (index.folder / "long.txt").write_text("a" * 60 + "\n")
    index.update()
    began = time.monotonic()
    found = index.search(r"^(a+)+$x", regex=True, seconds=4)
    assert time.monotonic() - began < 60
    assert any("took longer" in note or "stopped after" in note for note in found.notes)


def test_imports_lead_to_files() -> None:
    paths = ["a/b/__init__.py", "a/b/c.py", "a/x.py", "lib/x.py", "web/x.js", "web/sub/index.js", "inc/u/v.h"]
    finder = ImportFinder(paths)

    def meant(imported: str, path: str) -> list[str]:
        return [paths[number] for number in finder.resolve(imported, path)]

    assert meant("a.b.c", "q.py") == ["a/b/c.py"]
    assert meant("a.b", "q.py") == ["a/b/__init__.py"]
    assert meant(".c", "a/b/d.py") == ["a/b/c.py"]
    assert meant("..x", "a/b/d.py") == ["a/x.py"]
    assert meant("./x", "web/y.js") == ["web/x.js"]
    assert meant("./sub", "web/y.js") == ["web/sub/index.js"]
    assert meant("u/v.h", "src/m.c") == ["inc/u/v.h"]
    assert meant("crate::a::x::Thing", "a/m.rs") == ["a/x.py"]
    assert meant("numpy.linalg", "q.py") == []


def test_ranks_equal_those_of_a_naive_page_rank(index: Index) -> None:
    graph = Graph(index._store)
    count = len(graph.paths)
    matrix = np.zeros((count, count))
    for source, symbol, weight in zip(graph._source, graph._symbol, graph._weight, strict=True):
        matrix[source, graph.symbol_file[symbol]] += weight
    start = np.full(count, 1 / count)
    rank = start
    for _ in range(500):
        new = (1 - DAMPING) * start
        for file in range(count):
            out = matrix[file].sum()
            new = new + DAMPING * rank[file] * (matrix[file] / out if out else start)
        rank = new
    assert np.allclose(graph.ranks().files, rank, atol=1e-9)


def test_what_is_used_and_what_is_mentioned_comes_first(index: Index) -> None:
    ranked = [one.path for one in index.ranking()]
    assert ranked.index("shop/prices.py") < ranked.index("other/prices.py")
    assert ranked.index("web/lib/go.js") < ranked.index("web/app.js")
    files, names = index.mentioned("total_price in other/prices.py is wrong; see also app.js and gone.py")
    assert (files, names) == (["other/prices.py", "web/app.js"], ["total_price"])
    assert index.ranking(["web/app.js"])[0].path in ("web/app.js", "web/lib/go.js")
    assert "total_price" in index.map(25, names=["total_price"]).text


def _tokens() -> list[Count]:
    tokenizer = Tokenizer.from_folder(NANO)
    return [
        about_four_bytes,
        len,
        lambda text: len(text.encode()) * 3,
        lambda text: len(text.split()),
        lambda text: 5 + len(text) // 2 if text else 0,  # a whole is less than its parts
        lambda text: len(text) + len(text) ** 2 // 5000,  # and more
        lambda text: len(tokenizer.encode(text)),
    ]


@pytest.mark.parametrize("number", range(7))
def test_the_budget_is_never_exceeded(index: Index, number: int) -> None:
    count = _tokens()[number]
    everything = index.map(10**6, lambda text: 1)
    for budget in (0, 1, 5, 20, 37, 64, 200, 1000, 100_000):
        found = index.map(budget, count)
        assert count(found.text) <= budget or not found.text
        assert found.symbols + found.left_out == everything.symbols + everything.left_out
    assert found.text == everything.text


def test_a_map_shows_what_stands_around(index: Index) -> None:
    text = index.map(10**6, len).text
    assert text.index("class Cart:") < text.index("  def checkout(self):")
    block = next(part for part in text.split("shop/prices.py\n")[1:])
    assert block.startswith("    3  def total_price(items):\n    7  class Price:\n")


def test_answers_can_be_written_as_json(index: Index) -> None:
    from dataclasses import asdict

    for answer in (index.find("Cart"), index.references("Cart"), index.search("Cart"), index.map(500)):
        json.dumps(asdict(answer))


def test_what_cannot_be_looked_for_is_said(index: Index) -> None:
    with pytest.raises(IndexingError, match=r"pattern '\\udcff' is not UTF-8"):
        index.search("\udcff")
    for ask in (index.find, index.references, index.callers):
        with pytest.raises(IndexingError, match="the name is empty; give one"):
            ask(" ")
        with pytest.raises(IndexingError, match=r"name '\\udcff' is not UTF-8"):
            ask("\udcff")
