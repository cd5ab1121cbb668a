"""A repository laid out within a budget of tokens, and changes told behind it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.model.tokenizer import Tokenizer
from pilotfish.tools.index.layout import follow, lay_out
from pilotfish.tools.index.repository import Count, Index, about_four_bytes

REPOSITORY = Path(__file__).resolve().parents[2]
BUDGETS = (0, 1, 40, 333, 1_000, 32_000, 256_000, 1_000_000)


def counts() -> list[Count]:
    tokenizer = Tokenizer.from_folder(REPOSITORY / "model" / "nano")
    return [
        about_four_bytes,
        lambda text: len(text.encode()) * 3,
        lambda text: len(text.split()),
        lambda text: 5 + len(text) // 2 if text else 0,  # a whole is less than its parts
        lambda text: len(text) + len(text) ** 2 // 5000,  # and more
        lambda text: len(tokenizer.encode(text)),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A part of this repository, with files that are no code and some that are hard to lay out."""
    folder = tmp_path / "repo"
    for path in [*sorted((REPOSITORY / "tools" / "index").glob("*.py")), REPOSITORY / "docs" / "index.md"]:
        to = folder / path.relative_to(REPOSITORY)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
    (folder / "notes").write_text("=== tools/index/graph.py: 1 lines\nnot really")
    (folder / "empty.txt").write_text("")
    (folder / "odd\nname.txt").write_text("odd\r\n")
    (folder / "docs" / "german.txt").write_bytes("Größe\n".encode("latin-1"))
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    return folder


@pytest.fixture
def index(folder: Path, tmp_path: Path) -> Iterator[Index]:
    with Index(folder, tmp_path / "i.sqlite", above=False) as index:
        index.update(workers=1)
        yield index


@pytest.mark.parametrize("number", range(6))
def test_the_budget_is_never_exceeded(index: Index, number: int) -> None:
    count = counts()[number]
    of_files = len(index.files())
    for budget in BUDGETS:
        laid = lay_out(index, budget, count)
        assert laid.tokens == count(laid.text) <= budget or not laid.text
        assert len(laid.files) + laid.left_out == of_files
        assert laid.text.count(" lines\n") >= len(laid.files) - 1
        if laid.text:
            assert laid.text.endswith("is left out\n")
            assert f"=== end: {len(laid.files)} of {of_files} files whole" in laid.text


def test_the_order_is_tree_map_and_files_by_rank(index: Index) -> None:
    laid = lay_out(index, 1_000_000, about_four_bytes)
    kinds = [section.kind for section in laid.sections]
    files = [section.path for section in laid.sections if section.kind == "file"]
    ranked = [one.path for one in index.ranking()]
    assert kinds == ["tree", "map", *["file"] * len(files), "end"]
    assert files[: len(ranked)] == ranked
    assert sorted(files) == sorted(one.path for one in index.files())
    assert laid.left_out == 0
    assert "=== notes: 2 lines, no newline at its end\n" in laid.text
    assert "=== docs/german.txt: 1 lines\nGröße\n" in laid.text
    assert "picture.png" not in laid.text


def test_a_tree_too_large_names_folders_with_their_files(index: Index) -> None:
    assert index.tree(99) == index.tree()
    lines = index.tree(0).splitlines()
    number = sum(one.path.startswith("tools/") for one in index.files())
    assert f"tools/ ({number})" in lines
    assert "docs/ (2)" in lines
    assert "notes" in lines
    assert f"tools/\n  index/ ({number})\n" in index.tree(1)
    assert f"  index/ ({number})\n" in lay_out(index, 500, about_four_bytes).text


def test_the_same_bytes_with_every_hash_seed(index: Index) -> None:
    code = (
        "import sys, hashlib; from pilotfish.tools.index.repository import Index, about_four_bytes\n"
        "from pilotfish.tools.index.layout import lay_out\n"
        "index = Index(sys.argv[1], __import__('pathlib').Path(sys.argv[2]), above=False)\n"
        "index.update(workers=1)\n"
        "sys.stdout.buffer.write(lay_out(index, 20_000, about_four_bytes).text.encode())\n"
    )
    said = []
    for seed in ("1", "2"):
        fresh = index.path.with_name(f"{seed}.sqlite")
        command = [sys.executable, "-c", code, str(index.folder), str(fresh)]
        done = subprocess.run(
            command, capture_output=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed}
        )
        said.append(done.stdout)
    assert said == [lay_out(index, 20_000, about_four_bytes).text.encode()] * 2


def test_changes_are_told_behind(index: Index, folder: Path) -> None:
    laid = lay_out(index, 100_000, about_four_bytes)
    assert follow(laid, index, 100_000, about_four_bytes) == laid
    graph = folder / "tools" / "index" / "graph.py"
    lines = graph.read_text().split("\n")
    lines[2:4] = ["one new line", "and one more", "and a third"]
    graph.write_text("\n".join(lines))
    (folder / "notes").write_text("whole\n")
    (folder / "empty.txt").unlink()
    index.update(workers=1)
    after = follow(laid, index, 100_000, about_four_bytes)
    assert after.text == laid.text + (
        "=== empty.txt has changed: it is gone, or no text any more\n"
        "=== notes has changed: 1 lines\nwhole\n"
        "=== tools/index/graph.py has changed: 2 lines from line 3 on are now 3\n"
        "one new line\nand one more\nand a third\n"
    )
    assert after.tokens == about_four_bytes(after.text)
    assert follow(after, index, 100_000, about_four_bytes) == after
    (folder / "empty.txt").write_text("back\n")
    index.update(workers=1)
    assert follow(after, index, 100_000, about_four_bytes).text == (
        after.text + "=== empty.txt has changed: 1 lines\nback\n"
    )


@pytest.mark.parametrize("number", range(6))
def test_changes_keep_to_the_budget(index: Index, folder: Path, number: int) -> None:
    count = counts()[number]
    laid = lay_out(index, 100_000, count)
    for path in laid.files:
        if not path.startswith('"'):
            (folder / path).write_text(f"# {path}\n" * 20)
    index.update(workers=1)
    for room in (0, 1, 200, 3_000):
        after = follow(laid, index, laid.tokens + room, count)
        assert after.text.startswith(laid.text)
        assert after.tokens == count(after.text) <= laid.tokens + room
        told = {section.path for section in after.sections if section.kind == "change"}
        assert told | set(after.stale) == {path for path in laid.files if not path.startswith('"')}
        assert not told & set(after.stale)
        assert room or after.stale or not laid.files
