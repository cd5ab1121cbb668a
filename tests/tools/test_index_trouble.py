"""An index whose disk fills, one that another process holds, and damage that SQLite does not notice."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pilotfish.tools.index.listing import IndexingError
from pilotfish.tools.index.repository import Index

_FILL = """
import os, subprocess, sys
from pathlib import Path
from pilotfish.tools.index.repository import Index, IndexingError
small, tree = Path(sys.argv[1]), Path(sys.argv[2])

def ask():
    with Index(tree, small / "i.sqlite", above=False) as index:
        try:
            complete = index.update(workers=1).complete
        except IndexingError as error:
            complete = str(error)
        print(complete, index.find("first").lines(), len(index.find("more", 1000).items))

tree.mkdir()
(tree / "first.py").write_text("def first(): pass\\n")
ask()
for number in range(200):
    (tree / f"more{number}.py").write_text("".join(f"def more{number}_{n}(): pass\\n" for n in range(200)))
ask()
ask()
subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
ask()
"""
_IN_A_SMALL_DISK = 'mount -t tmpfs -o size=2m small "$1" && exec "$2" -c "$3" "$1" "$4"'


def test_a_disk_that_fills_leaves_the_index_usable(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    done = subprocess.run(
        [
            "unshare",
            "-rm",
            "sh",
            "-c",
            _IN_A_SMALL_DISK,
            "sh",
            small,
            sys.executable,
            _FILL,
            tmp_path / "tree",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, full, still, after = done.stdout.splitlines()
    found = "['first.py:1: function first: def first():']"
    assert before == f"True {found} 0"
    for line in (full, still):
        assert line.startswith(f"The index {small}/i.sqlite cannot be written (")
        assert "; free space. " in line
        assert found in line
    assert after == f"True {found} 1000"


def test_a_process_that_stands_still_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = tmp_path / "in", tmp_path / "i.sqlite"
    folder.mkdir()
    (folder / "a.py").write_text("def a(): pass\n")
    with Index(folder, path) as index:
        index.update(workers=1)
        code = (
            "import sys, time; from pathlib import Path; from pilotfish.tools.index.store import Store\n"
            "with Store(Path(sys.argv[1]), sys.argv[2].encode()).writing():\n"
            "    print('held', flush=True); time.sleep(1000)\n"
        )
        command = [sys.executable, "-c", code, str(path), str(folder.resolve())]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
            try:
                assert holder.stdout is not None
                assert holder.stdout.readline() == b"held\n"
                monkeypatch.setattr("pilotfish.tools.index.store.LOCK_SECONDS", 0.3)
                with pytest.raises(IndexingError) as error:
                    index.update(workers=1)
                assert str(error.value) == (
                    f"Process {holder.pid} holds the index {path} and has written nothing for 0.3 s; "
                    "end it, or try again later."
                )
                assert index.find("a").items  # what was known can still be asked
            finally:
                holder.kill()
        assert index.update(workers=1).complete


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE tags",
        "ALTER TABLE files RENAME COLUMN size TO bytes",
        "UPDATE files SET state = CAST(x'ff' AS TEXT)",
        "UPDATE tags SET definitions = x'ff'",
        "UPDATE tags SET imports = '{'",
        "UPDATE used SET counts = x'01'",
        "UPDATE meta SET value = '?' WHERE key IN ('notes', 'generation')",
    ],
)
def test_damage_that_is_met_when_values_are_read_costs_a_new_index(tmp_path: Path, damage: str) -> None:
    folder, path = tmp_path / "folder", tmp_path / "i.sqlite"
    folder.mkdir()
    (folder / "a.py").write_text("import b\n\ndef first():\n    return b.other()\n")
    (folder / "b.py").write_text("def other():\n    return 1\n")

    def ask() -> tuple[object, ...]:
        with Index(folder, path, above=False) as index:
            index.update()
            found = index.find("first"), index.callers("other"), index.likely("other"), index.map(500)
            return *found, index.outline("a.py"), index.ranking()

    expected = ask()
    with sqlite3.connect(path) as store:
        store.execute(damage)
    store.close()
    assert ask() == expected
    assert ask() == expected


def test_an_index_that_cannot_be_opened_now_is_kept(tmp_path: Path) -> None:
    folder, path = tmp_path / "folder", tmp_path / "i.sqlite"
    folder.mkdir()
    with Index(folder, path, above=False) as index:
        index.update()
    before = path.read_bytes()
    Path(f"{path}-wal").mkdir()
    with pytest.raises(IndexingError, match="cannot be opened"):
        Index(folder, path, above=False)
    assert path.read_bytes() == before


def test_a_path_that_is_no_text_is_of_no_file_and_costs_no_index(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.py").write_text("x = 1\n")
    with Index(folder, tmp_path / "i.sqlite", above=False) as index:
        index.update()
        with sqlite3.connect(tmp_path / "i.sqlite") as store:
            store.execute("UPDATE files SET note = 'still this one', state = 'failed'")
        store.close()
        for ask in (index.outline, index.read, index.text):
            with pytest.raises(IndexingError, match="there is no file"):
                ask("\ud800")
        assert "still this one" in str(index.notes())
