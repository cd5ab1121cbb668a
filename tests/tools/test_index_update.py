"""An index that is brought up to date is the one that would be made anew, whatever happened in between."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotfish.tools.index.listing import IndexingError
from pilotfish.tools.index.repository import Index, Progress
from pilotfish.tools.index.store import cache_path

NAMES = ("a.py", "b.py", "sub/c.py", "sub/d.js", "e.txt", "vendor/f.py")
TEXTS = (
    "",
    "def one(): return two()\n",
    "import b\nclass Two:\n    def two(self): return one()\n",
    "function three() { return one(); }\n",
    "x = '\u00e9'\n",
    "\0binary",
)


def _change(folder: Path, name: str, content: str | None) -> None:
    path = folder / name
    if content is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)


def _all_answers(index: Index) -> str:
    answers = [
        index._store.dump(),
        index.map(2000).text,
        index.ranking(),
        index.ranking(["a.py"], ["two"]),
        index.tree(),
        index.notes(),
        [index.find(name).lines() for name in ("one", "two", "Two.two", "three")],
        [index.references(name).lines() for name in ("one", "two")],
    ]
    return repr(answers)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(NAMES), st.none() | st.sampled_from(TEXTS)), max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_bringing_up_to_date_equals_making_anew(edits: list[list[tuple[str, str | None]]]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "folder")
        folder.mkdir()
        with Index(folder, Path(temporary, "kept.sqlite")) as kept:
            for some in edits:
                for name, content in some:
                    _change(folder, name, content)
                kept.update(workers=1)
            with Index(folder, Path(temporary, "anew.sqlite")) as anew:
                anew.update(workers=1)
                assert _all_answers(kept) == _all_answers(anew)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for number in range(40):
        (folder / "sub" / f"m{number}.py").write_text(
            f"def f{number}():\n    return f{(number * 7) % 40}()\n"
        )
    (folder / "main.py").write_text("from sub.m3 import f3\nf3()\n")
    return folder


_PRINT = """
import sys
from pathlib import Path
from pilotfish.tools.index.repository import Index
with Index(sys.argv[1], Path(sys.argv[2])) as index:
    index.update()
    print(index.map(3000).text, index.ranking(), index._store.dump())
"""


def test_same_bytes_for_every_hash_seed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parent / "languages", folder / "samples")
    for path in (folder / "samples").iterdir():
        path.rename(path.with_suffix({"python": ".py", "go": ".go"}.get(path.stem, f".{path.stem}")))
    outputs = set()
    for seed in ("0", "1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _PRINT, folder, tmp_path / f"{seed}.sqlite"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_only_what_changed_is_read(folder: Path, tmp_path: Path) -> None:
    old = time.time() - 100
    for path in folder.rglob("*.py"):
        os.utime(path, (old, old))
    time.sleep(0.2)  # what changed a moment ago may change again unseen, and is read again
    with Index(folder, tmp_path / "i.sqlite") as index:
        assert index.update().read == 41
        assert index.update().read == 0
        (folder / "main.py").touch()
        done = index.update()
        assert (done.read, done.changed) == (1, 0)
        (folder / "main.py").write_text("def other(): pass\n")
        (folder / "sub" / "m0.py").unlink()
        done = index.update()
        assert (done.read, done.changed, done.removed) == (1, 1, 1)
        assert index.find("f0").notes


def test_the_same_size_and_time_hide_no_change(folder: Path, tmp_path: Path) -> None:
    main = folder / "main.py"
    with Index(folder, tmp_path / "i.sqlite") as index:
        index.update()
        state = main.stat()
        main.write_text("from sub.m4 import f4\nf4()\n")
        os.utime(main, ns=(state.st_atime_ns, state.st_mtime_ns))
        index.update()
        assert [one.path for one in index.callers("f4").items if one.path == "main.py"]


def test_a_cancelled_update_can_be_used_and_goes_on(folder: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    with Index(folder, tmp_path / "i.sqlite") as index:
        done = index.update(progress=seen.append, cancelled=lambda: True)
        assert not done.complete
        assert not index.complete()
        index.map(1000)
        index.find("f1")
        done = index.update(progress=seen.append)
        assert done.complete
        assert index.complete()
        assert (seen[0].total, seen[-1].done) == (41, seen[-1].total)


def test_a_killed_update_goes_on(folder: Path, tmp_path: Path) -> None:
    for number in range(400):
        (folder / f"more{number}.py").write_text(f"def g{number}(): pass\n" * 200)
    path = tmp_path / "i.sqlite"
    started = subprocess.Popen([sys.executable, "-c", _PRINT, folder, path], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.7)
    started.send_signal(signal.SIGKILL)
    started.wait()
    with Index(folder, path) as index, Index(folder, tmp_path / "anew.sqlite") as anew:
        index.map(500)
        assert index.update().complete
        anew.update()
        assert index._store.dump() == anew._store.dump()


def test_two_processes_at_once(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "i.sqlite"
    both = [
        subprocess.Popen([sys.executable, "-c", _PRINT, folder, path], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0] == outputs[1] != b""


@pytest.mark.parametrize("damage", ["start", "middle", "short", "text", "schema"])
def test_a_damaged_index_is_made_again(folder: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "i.sqlite"
    with Index(folder, path) as index:
        index.update()
        before = index._store.dump()
        index._store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if damage == "schema":
            index._store.set_meta("schema", "0")
    data = bytearray(path.read_bytes())
    if damage == "start":
        data[:100] = b"\xff" * 100
    elif damage == "middle":
        data[4096:] = b"\xaa" * (len(data) - 4096)
    elif damage == "short":
        data = data[: len(data) // 3]
    elif damage == "text":
        data = bytearray(b"hello")
    if damage != "schema":
        path.write_bytes(data)
    with Index(folder, path) as index:
        done = index.update()
        assert index._store.dump() == before
        assert any("made again" in note for note in done.notes)


def test_a_parser_that_dies_or_hangs_costs_one_file(folder: Path, tmp_path: Path) -> None:
    """A file that the worker stops at, and one that ends it, by a grammar replaced in the workers only."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys, os, time\n"
        "if any('index.worker' in word for word in sys.orig_argv):\n"
        "    import pilotfish.tools.index.tags as tags\n"
        "    real = tags.tags_of\n"
        "    def tags_of(source, language):\n"
        "        if b'HANG' in source: time.sleep(1000)\n"
        "        if b'DIE' in source: os.abort()\n"
        "        return real(source, language)\n"
        "    tags.tags_of = tags_of\n"
    )
    (folder / "hang.py").write_text("# HANG\n")
    (folder / "die.py").write_text("# DIE\n")
    code = (
        "import sys, json; from pathlib import Path; from pilotfish.tools.index.repository import Index\n"
        "with Index(sys.argv[1], Path(sys.argv[2])) as index:\n"
        "    done = index.update(file_seconds=3.0)\n"
        "    failed = [one.path for one in index.files(['failed'])]\n"
        "    print(json.dumps([done.complete, done.notes, failed, index.find('f7').lines()]))\n"
    )
    paths = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, folder, tmp_path / "i.sqlite"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    complete, notes, failed, found = json.loads(done.stdout)
    assert complete
    assert failed == ["die.py", "hang.py"]
    assert "hang.py cannot be parsed: it took longer than 3 s." in notes
    assert any(note.startswith("die.py cannot be parsed: it ended its parser (SIGABRT") for note in notes)
    assert len(found) == 1


def test_no_process_is_left(folder: Path, tmp_path: Path) -> None:
    with Index(folder, tmp_path / "i.sqlite") as index:
        index.update()
        index.search("f1", limit=3)
    listed = subprocess.run(["pgrep", "-f", f"index.worker {folder}"], capture_output=True, check=False)
    assert listed.stdout == b""


def test_the_cache_is_the_users_and_named_by_the_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    link = tmp_path / "link"
    link.symlink_to(folder)
    with Index(folder) as one, Index(link) as other:
        assert one.path == other.path == cache_path(os.fsencode(folder.resolve()))
        assert one.path.is_relative_to(tmp_path / "cache" / "pilotfish")
    with pytest.raises(IndexingError, match="move away what is there, or set XDG_CACHE_HOME"):
        Index(folder, Path("/proc/nothing/i.sqlite"))
