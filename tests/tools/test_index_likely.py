"""What a text is about, and the bench that asks for it: its questions and how answers are counted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.tools.index.listing import IndexingError
from pilotfish.tools.index.localise import measure, ours, share_among, table, text_search
from pilotfish.tools.index.questions import Tree, masked, tree_of_package
from pilotfish.tools.index.questions_history import trees_of_history
from pilotfish.tools.index.repository import Index

TEXTS = {
    "shop/__init__.py": b"",
    "shop/basket.py": b'''class Basket:
    def add_item(self, item, number):
        """Put so many of an article among those that the customer is going to pay for."""
        if number < 1:
            raise ValueError(f"cannot put {number} pieces of it in there")
        self.items[item] = number
''',
    "shop/money.py": b'''def rounded_price(amount):
    """Cut an amount to whole cents, half a cent upwards, as the tax office asks."""
    cents = int(amount * 100 + 0.5)
    return cents / 100


def plain(x):
    return x
''',
    "shop/tests/test_money.py": b"""from shop.money import rounded_price


def test_rounded_price():
    assert rounded_price(1.005) == 1.01
""",
    "shop/broken.py": b"def (:\n",
}


@pytest.fixture
def tree() -> Tree:
    return tree_of_package("shop", TEXTS, 2)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    for path, data in TEXTS.items():
        (tmp_path / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / path).write_bytes(data)
    with Index(tmp_path / "in", tmp_path / "i.sqlite", above=False) as index:
        index.update(workers=1)
        yield index


def test_questions_have_their_answers_but_do_not_name_them(tree: Tree) -> None:
    by_kind = {(one.kind, one.symbols[0][1]): one for one in tree.questions}
    assert set(by_kind) == {
        ("documentation", "Basket.add_item"),
        ("documentation", "rounded_price"),
        ("error", "Basket.add_item"),
        ("test", "rounded_price"),
    }
    error = by_kind["error", "Basket.add_item"]
    assert error.text.endswith("ValueError: cannot put 7 pieces of it in there")
    assert error.files == ("shop/basket.py",)
    assert "def …():\n    assert …(1.005) == 1.01" in by_kind["test", "rounded_price"].text
    for one in tree.questions:
        for path, name in one.symbols:
            assert Path(path).stem not in one.text
            assert name.rpartition(".")[2] not in one.text
    assert "shop/tests/test_money.py" not in tree.texts
    assert b"tax office" not in tree.texts["shop/money.py"]
    compile(tree.texts["shop/basket.py"], "basket.py", "exec")
    assert tree == tree_of_package("shop", dict(reversed(TEXTS.items())), 2)


def test_names_are_masked_in_other_words_too() -> None:
    assert masked("Basket basket_size mybasket bask", ["basket"]) == "… … … bask"


def test_recall_counts_what_is_right_among_the_first() -> None:
    assert share_among(["a", "b"], ["b", "x", "a"], 1) == 0.5
    assert share_among(["a", "b"], ["b", "x", "a"], 5) == 1.0
    assert share_among(["a"], [], 10) == 0.0


def test_all_is_measured(tree: Tree) -> None:
    results = measure([("reported", tree)], [ours, text_search])
    whole = {one.system: one for one in results if one.kind == "all"}
    assert set(whole) == {"index", "index, rank", "text search"}
    assert whole["index"].questions == 4
    assert whole["index"].files[2] == 1.0
    assert whole["index"].symbols[2] == 1.0
    assert all(0 <= share <= 1 for one in results for share in (*one.files, *one.symbols))
    assert table(results).count("\n") == len(results)


def test_commits_are_asked_of_the_tree_before(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *settings, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "one.py").write_text("def first():\n    return 1\n\n\ndef second():\n    return 2\n")
    (tmp_path / "other.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-qm", "begin")
    (tmp_path / "one.py").write_text("def first():\n    return 1\n\n\ndef second():\n    return 3\n")
    git("commit", "-qam", "Let one.py say more")
    (tree,) = trees_of_history(tmp_path, 5)
    (question,) = tree.questions
    assert question.text == "Let ….py say more"
    assert question.files == ("one.py",)
    assert question.symbols == (("one.py", "second"),)
    assert b"return 2" in tree.texts["one.py"]


def test_a_text_leads_to_what_it_is_about(index: Index) -> None:
    found = index.likely("Amounts have to be cut to whole cents")
    assert found.files[0].path == "shop/money.py"
    assert found.symbols[0].qualified == "rounded_price"
    assert found == index.likely("Amounts have to be cut to whole cents")
    assert index.likely("zzz", 5).lines() == ["[nothing is like that]"]
    with pytest.raises(IndexingError, match="the text is empty; say what is to be changed"):
        index.likely(" \n")
    assert index.likely("put \ud800 pieces", 1).symbols[0].qualified == "Basket.add_item"
    files, names = index.about("`rounded_price` puts pieces into the basket")
    assert names == ["rounded_price"]
    assert "shop/basket.py" in files


def test_thousands_of_words_are_one_question(index: Index) -> None:
    words = " ".join(f"word{number} Name{number}" for number in range(20_000))
    assert index.likely(f"{words} rounded price").files[0].path == "shop/money.py"
    files, names = index.about(f"{words} rounded_price")
    assert index.map(2000, files=[*files, *(f"no{n}.py" for n in range(5000))], names=names).text
    assert index.search("|".join(f"word{n}" for n in range(2000)), regex=True).items == []
