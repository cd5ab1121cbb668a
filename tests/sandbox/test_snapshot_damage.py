"""Whatever becomes of a store or its disk: one sentence, and nothing is lost that is still there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.sandbox import SandboxError, Snapshots

from .created_user import created_user, run_python

pytestmark = pytest.mark.timeout(120)


def objects(work: Path) -> list[Path]:
    return [path for path in (work.parent / "store" / "objects").rglob("*") if path.is_file()]


def holding(work: Path, content: bytes) -> Path:
    """The object that has this in it."""
    return next(path for path in objects(work) if content in path.read_bytes())


def again(work: Path) -> Snapshots:
    """The store as another process finds it."""
    return Snapshots(work, work.parent / "store")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[Callable[[Path], object]] = [
    lambda path: os.truncate(path, path.stat().st_size // 2),
    lambda path: os.truncate(path, 0),
    flipped,
    Path.unlink,
    to_folder,
]
BIG = os.urandom(2 << 20)


@pytest.fixture
def first(work: Path, kept: Snapshots) -> str:
    """A snapshot; all of it has changed since."""
    (work / "a").write_text("content of a")
    (work / "big").write_bytes(BIG)
    (work / "d").mkdir()
    (work / "d" / "b").write_text("content of b")
    made = kept.take()
    (work / "a").write_text("now")
    (work / "big").write_text("now")
    (work / "d" / "b").write_text("now")
    return made


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("name", "content"), [("a", b"content of a"), ("big", BIG[:100])])
def test_a_damaged_file_is_named_and_the_others_come_back(
    work: Path, first: str, damage: Callable[[Path], object], name: str, content: bytes
) -> None:
    damage(holding(work, content))
    done = again(work).restore(first)
    assert done.problems == (f"{name} is damaged in the snapshot",)
    assert (work / name).read_text() == "now"
    assert (work / "d" / "b").read_text() == "content of b"
    assert not [path for path in work.iterdir() if path.name.startswith(".")]
    found = again(work).diff(first, text=True)
    assert [(change.path, change.how) for change in found.changes] == [(name, "changed")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_told_before_anything_is_changed(
    work: Path, first: str, damage: Callable[[Path], object]
) -> None:
    damage(holding(work, b'["b","file"'))
    for act in (again(work).restore, again(work).diff, again(work).entries):
        with pytest.raises(
            SandboxError, match=r"^snapshot '1' is damaged \(\w+\), nothing was changed: .*\.$"
        ):
            act(first)
    assert (work / "a").read_text() == "now"
    second = again(work).take()
    (work / "a").write_text("later")
    assert again(work).restore(second).problems == ()
    again(work).remove(second)
    assert holding(work, b"content of a"), "what is left of a damaged snapshot stays"


@pytest.mark.parametrize("damage", DAMAGES[:4])
def test_what_is_still_there_is_kept_again(
    work: Path, kept: Snapshots, damage: Callable[[Path], object]
) -> None:
    (work / "d").mkdir()
    (work / "d" / "file").write_text("content")
    (work / "big").write_bytes(BIG)
    first = kept.take()
    for content in (b"content", BIG[:100]):
        damage(holding(work, content))
    for name in ("d/file", "big"):  # looked at again, as by any editor that saves the same
        (work / name).write_bytes((work / name).read_bytes())
    again(work).take()
    for name in ("d/file", "big"):
        (work / name).unlink()
    assert again(work).restore(first).problems == ()
    assert (work / "d" / "file").read_text() == "content"
    assert (work / "big").read_bytes() == BIG


def test_a_lost_file_is_kept_again_by_the_next_process(work: Path, kept: Snapshots) -> None:
    (work / "d").mkdir()
    (work / "d" / "file").write_text("content")
    os.utime(work / "d" / "file", ns=(0, 0))
    kept.take()
    holding(work, b"content").unlink()
    second = again(work).take()
    (work / "d" / "file").unlink()
    assert again(work).restore(second).problems == ()
    assert (work / "d" / "file").read_text() == "content"


RECORDS = ["", "{", "[]", "null", '{"id": "1"}', '{"id": []}', "\\udc00", '"x"', "1" * 5000]


@pytest.mark.parametrize("record", RECORDS)
def test_a_damaged_record_hides_no_other(work: Path, first: str, record: str) -> None:
    kept = again(work)
    second = kept.take()
    (work.parent / "store" / "records" / first).write_text(record)
    assert [one.id for one in kept.all()] == [second]
    assert kept.damaged() == ["the record of snapshot '1' is damaged, choose another."]
    with pytest.raises(SandboxError, match="the record of snapshot '1' is damaged"):
        kept.restore(first)
    assert kept.take() == "3"
    kept.remove(first)
    assert kept.damaged() == []


def test_a_record_of_another_kind_is_damaged(work: Path, first: str) -> None:
    path = work.parent / "store" / "records" / first
    fields = json.loads(path.read_text())
    for change in (
        {"tree": None},
        {"files": "many"},
        {"time": "now"},
        {"id": "2"},
        {"left_out": [1]},
        {"x": 1},
    ):
        path.write_text(json.dumps(fields | change))
        assert len(again(work).damaged()) == 1, change


def test_what_is_not_ours_in_a_store_is_left_alone(work: Path, first: str) -> None:
    store = work.parent / "store"
    ours = {path for path in store.rglob("*") if path.is_file()}
    for name in ("records/notes", "records/²", "records/007", "objects/README", "objects/zz", "objects/cd/x"):
        (store / name).parent.mkdir(exist_ok=True)
        if not (store / name).exists():
            (store / name).write_text("not ours")
    (store / "records" / "9").mkdir()
    foreign = {path for path in store.rglob("*") if path.is_file()} - ours
    (store / "stamp").write_bytes(b"\xff\xfe")
    kept = again(work)
    second = kept.take()
    assert second == "10"
    assert kept.damaged() == ["the record of snapshot '9' is damaged (Is a directory), choose another."]
    assert kept.restore(first).problems == ()
    kept.remove(second)
    assert {path for path in store.rglob("*") if path.is_file()} >= foreign
    (store / "records" / "9").rmdir()
    kept.clear()
    assert {path for path in store.rglob("*") if path.is_file()} >= foreign


AS_USER = """
import json, os, sys, tempfile
from pathlib import Path
from pilotfish.sandbox import SandboxError, Snapshots
said = []
def told(work, *arguments):
    try:
        done = work(*arguments)
        said.append(list(getattr(done, "problems", ())))
    except SandboxError as error:
        said.append(str(error))
with tempfile.TemporaryDirectory() as folder:
    work, store = Path(folder, "work"), Path(folder, "store")
    work.mkdir()
    (work / "a").write_text("a")
    (work / "b").write_text("content of b")
    first = Snapshots(work, store).take()
    (work / "a").write_text("now")
    (work / "b").write_text("now")
    shut = next(p for p in (store / "objects").rglob("*") if p.is_file() and p.read_text() == "content of b")
    shut.chmod(0)
    told(Snapshots(work, store).restore, first)
    shut.chmod(0o600)
    (store / "records" / first).chmod(0)
    told(Snapshots(work, store).restore, first)
    (store / "records" / first).chmod(0o600)
    for name in ("lock", "records", "objects", ""):
        mode = (store / name).stat().st_mode
        (store / name).chmod(0)
        for act in ("take", "all", "damaged", ("restore", first), ("diff", first)):
            call, arguments = (act, ()) if isinstance(act, str) else (act[0], act[1:])
            told(getattr(Snapshots(work, store), call), *arguments)
        (store / name).chmod(mode)
    work.chmod(0o500)  # a folder of ours opens for us
    told(Snapshots(work, store).restore, first)
    said.append((work / "b").read_text())
    work.chmod(0o700)
print(json.dumps(said))
"""


def test_without_permission() -> None:
    if os.geteuid() == 0:
        with created_user() as name:
            done = run_python(name, "-c", AS_USER)
    else:
        done = subprocess.run([sys.executable, "-c", AS_USER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said[0] == ["b is damaged in the snapshot (Permission denied)"]
    assert said[1] == "the record of snapshot '1' is damaged (Permission denied), choose another."
    for sentence in said[2:22]:
        assert sentence == [] or ("(Permission denied)" in sentence and sentence.count("\n") == 0), sentence
    assert said[22:] == [[], "content of b"]


FULL = """
import json, os, sys
from pathlib import Path
from pilotfish.sandbox import SandboxError, Snapshots
work, store = Path(sys.argv[1]), Path(sys.argv[2])
kept = Snapshots(work, store)
(work / "small").write_text("small")
first = kept.take()
for number in range(40):
    (work / f"big{number}").write_bytes(os.urandom(100_000))
said = []
for _ in range(2):
    try:
        kept.take()
    except SandboxError as error:
        said.append(str(error))
left = sum(path.stat().st_size for path in (store / "objects").rglob("*") if path.is_file())
for number in range(40):
    (work / f"big{number}").unlink()
(work / "small").write_text("changed")
kept.restore(first)
print(json.dumps([said, left, (work / "small").read_text(), [one.id for one in kept.all()], kept.take()]))
"""
FULL_WORKSPACE = """
import json, os, sys
from pathlib import Path
from pilotfish.sandbox import SandboxError, Snapshots
store, work = Path(sys.argv[1]), Path(sys.argv[2])
kept = Snapshots(work, store)
(work / "d").mkdir()
(work / "d" / "big").write_bytes(os.urandom(1_200_000))
(work / "d").chmod(0o500)
first = kept.take()
(work / "d" / "big").write_bytes(b"x" * 1_200_000)
said = []
for since in (None, kept.take()):
    try:
        kept.restore(first, since=since)
    except SandboxError as error:
        said.append(str(error))
found = (work / "d" / "big").read_bytes() == b"x" * 1_200_000, f"{(work / 'd').stat().st_mode:o}"
(work / "d" / "big").write_bytes(b"")
print(json.dumps([said, found, sorted(os.listdir(work / "d")), kept.restore(first).problems]))
"""


def on_small_disk(script: str, tmp_path: Path, work: Path) -> list[object]:
    """What a script says that is given a folder and a disk of 2 MiB."""
    small = tmp_path / "small disk"
    small.mkdir()
    mounted = 'mount -t tmpfs -o size=2m small "$1" && exec "$2" -c "$3" "$4" "$1"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounted, "sh", small, sys.executable, script, work],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


def test_a_full_disk_loses_no_snapshot(work: Path, tmp_path: Path) -> None:
    said, left, small, ids, next_id = on_small_disk(FULL, tmp_path, work)
    sentence = (
        "the snapshot could not be taken (No space left on device): free some space, "
        "earlier snapshots are kept."
    )
    assert said == [sentence, sentence]
    assert isinstance(left, int)
    assert left < 10_000
    assert (small, ids, next_id) == ("small", ["1"], "2")


def test_a_disk_that_fills_while_going_back_loses_no_file(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    said, found, names, problems = on_small_disk(FULL_WORKSPACE, tmp_path, tmp_path / "store")
    sentence = (
        "not all files could be written (No space left on device): free some space, "
        "earlier snapshots are kept."
    )
    assert said == [sentence, sentence]
    assert found == [True, "40500"]
    assert names == ["big"]
    assert problems == []
