"""Bringing the work of a copy over to a folder that people went on working in."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.sandbox import SandboxError, Snapshots
from pilotfish.sandbox.review import Applied, bring_over, prepare
from pilotfish.sandbox.scan import Bounds


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    folder = tmp_path / "folder"
    for name in ("same", "ours", "theirs", "both", "equal", "gone", "gone there", "d/one", "d/two", "e/one"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    (folder / "mode").write_text("mode")
    (folder / "link").symlink_to("same")
    return folder, tmp_path / "run" / "workspace", tmp_path / "run" / "snapshots"


def content(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): (
            str(path.readlink())
            if path.is_symlink()
            else "folder"
            if path.is_dir()
            else (path.read_text(), path.stat().st_mode & 0o777)
        )
        for path in folder.rglob("*")
    }


def test_a_copy_is_the_same_and_apart(places: tuple[Path, Path, Path]) -> None:
    folder, copy, store = places
    before = content(folder)
    prepare(folder, copy, store)
    assert content(copy) == before
    (copy / "ours").write_text("changed")
    prepare(folder, copy, store)
    assert (copy / "ours").read_text() == "changed", "what is there is gone on with"
    assert content(folder) == before


def test_what_only_one_side_changed_is_merged(places: tuple[Path, Path, Path]) -> None:
    folder, copy, store = places
    prepare(folder, copy, store)
    (copy / "ours").write_text("ours, changed")
    (copy / "equal").write_text("equal, changed")
    (copy / "gone").unlink()
    (copy / "mode").chmod(0o755)
    (copy / "d" / "two").unlink()
    (copy / "new").mkdir()
    (copy / "new" / "file").write_text("new")
    (copy / "link").unlink()
    (copy / "link").mkdir()
    (copy / "link" / "in").write_text("in")
    (copy / "e" / "one").unlink()
    (copy / "e").rmdir()
    (folder / "theirs").write_text("theirs, changed")
    (folder / "equal").write_text("equal, changed")
    (folder / "gone there").unlink()
    (folder / "d" / "three").write_text("three")
    (folder / "e" / "more").write_text("more")
    done = bring_over(folder, copy, store)
    assert (done.conflicts, done.problems) == ((), ())
    found = content(folder)
    assert found["ours"] == ("ours, changed", 0o644)
    assert found["theirs"] == ("theirs, changed", 0o644)
    assert found["equal"] == ("equal, changed", 0o644)
    assert found["mode"] == ("mode", 0o755)
    assert found["new/file"] == ("new", 0o644)
    assert found["link/in"] == ("in", 0o644)
    assert found["d/three"] == ("three", 0o644)
    assert found["e/more"] == ("more", 0o644), "a folder that was removed stays for what is new in it"
    assert not {"gone", "gone there", "d/two", "e/one"} & found.keys()


CONFLICTS: list[tuple[Callable[[Path], object], Callable[[Path], object], str]] = [
    (lambda ours: (ours / "both").write_text("1"), lambda theirs: (theirs / "both").write_text("2"), "both"),
    (lambda ours: (ours / "both").unlink(), lambda theirs: (theirs / "both").write_text("2"), "both"),
    (lambda ours: (ours / "both").write_text("1"), lambda theirs: (theirs / "both").unlink(), "both"),
    (lambda ours: (ours / "n").write_text("1"), lambda theirs: (theirs / "n").write_text("2"), "n"),
    (lambda ours: (ours / "n").mkdir(), lambda theirs: (theirs / "n").write_text("2"), "n"),
    (
        lambda ours: (ours / "d" / "one").write_text("1"),
        lambda theirs: (theirs / "d" / "one").unlink(),
        "d/one",
    ),
    (lambda ours: (ours / "mode").chmod(0o755), lambda theirs: (theirs / "mode").chmod(0o700), "mode"),
]


@pytest.mark.parametrize(("ours", "theirs", "path"), CONFLICTS)
def test_what_both_changed_is_told_and_nothing_done(
    places: tuple[Path, Path, Path],
    ours: Callable[[Path], object],
    theirs: Callable[[Path], object],
    path: str,
) -> None:
    folder, copy, store = places
    prepare(folder, copy, store)
    ours(copy)
    (copy / "ours").write_text("not a conflict")
    theirs(folder)
    before = content(folder)
    assert bring_over(folder, copy, store).conflicts == (path,)
    assert content(folder) == before
    assert bring_over(folder, copy, store, overwrite=True).conflicts == (path,)
    after = content(folder)
    assert after.get(path) == content(copy).get(path)
    assert after["ours"] == ("not a conflict", 0o644)


def test_what_was_brought_over_is_the_next_beginning(places: tuple[Path, Path, Path]) -> None:
    folder, copy, store = places
    prepare(folder, copy, store)
    (copy / "ours").write_text("first")
    bring_over(folder, copy, store)
    (copy / "ours").write_text("second")
    (folder / "own").write_text("own")
    assert bring_over(folder, copy, store).conflicts == ()
    assert (folder / "ours").read_text() == "second"
    assert (folder / "own").read_text() == "own"
    (folder / "ours").write_text("mine")
    (copy / "ours").write_text("third")
    assert bring_over(folder, copy, store).conflicts == ("ours",)


def test_what_is_saved_meanwhile_stays_and_is_a_conflict_later(places: tuple[Path, Path, Path]) -> None:
    folder, copy, store = places
    prepare(folder, copy, store)
    for number in range(300):
        (copy / f"new {number}").write_text("new")
    for trial in range(20):
        (copy / "theirs").write_text(f"changed by the run {trial}")
        next_record = store / "records" / str(max(int(one.id) for one in Snapshots(folder, store).all()) + 2)
        saved = []

        def person(next_record: Path = next_record, trial: int = trial, saved: list[str] = saved) -> None:
            until = time.monotonic() + 20
            while not next_record.exists() and time.monotonic() < until:
                time.sleep(0.0005)
            (folder / ".saving").write_text(f"saved {trial}")
            (folder / ".saving").rename(folder / "theirs")
            saved.append(f"saved {trial}")

        thread = threading.Thread(target=person)
        thread.start()
        done = bring_over(folder, copy, store, overwrite=True)
        thread.join()
        assert [(folder / "theirs").read_text()] == saved
        assert (folder / "new 299").read_text() == "new"
        if done.problems:
            break
    assert done.problems == ("theirs was changed meanwhile and was left as it is",)
    assert bring_over(folder, copy, store).conflicts == ("theirs",)
    done = bring_over(folder, copy, store, overwrite=True)
    assert (done.conflicts, done.changed, done.problems) == (("theirs",), 1, ())
    assert (folder / "theirs").read_text().startswith("changed by the run")
    assert bring_over(folder, copy, store).conflicts == ()


def test_what_cannot_be_kept_is_no_change(places: tuple[Path, Path, Path]) -> None:
    folder, copy, store = places
    (folder / "tool").write_text("tool")
    (folder / "tool").chmod(0o4755)
    with (
        contextlib.closing(socket.socket(socket.AF_UNIX)) as theirs,
        contextlib.closing(socket.socket(socket.AF_UNIX)) as ours,
    ):
        theirs.bind(str(folder / "sock"))
        assert prepare(folder, copy, store) == "sock (a socket or device)"
        assert prepare(folder, copy, store) == "sock (a socket or device)"
        assert not (copy / "sock").exists()
        ours.bind(str(copy / "d" / "run.sock"))
        (copy / "ours").write_text("changed")
        done = bring_over(folder, copy, store)
        assert done.problems == ("d/run.sock was not brought over (a socket or device)",)
        assert (folder / "ours").read_text() == "changed"
        assert (folder / "sock").is_socket()
        assert (folder / "tool").stat().st_mode & 0o7777 == 0o4755
        assert bring_over(folder, copy, store) == Applied((), 0, ())


def test_a_folder_that_is_not_there_cannot_be_copied(tmp_path: Path) -> None:
    with pytest.raises(
        SandboxError, match=r"could not be copied \(No such file or directory\): check the path"
    ):
        prepare(tmp_path / "none", tmp_path / "run" / "workspace", tmp_path / "run" / "snapshots")
    assert not (tmp_path / "run" / "workspace").exists()


def test_full_store_brings_over_all_or_says_so(places: tuple[Path, Path, Path]) -> None:
    """What bringing over needs is not dropped to make room for what it adds."""
    folder, copy, store = places
    prepare(folder, copy, store)
    mine = Snapshots(copy, store, Bounds(store_bytes=200_000))
    for number in range(8):
        (copy / "big").write_bytes(os.urandom(40_000))
        mine.take(f"before step {number}")
    assert bring_over(folder, copy, store).problems == ()
    assert (folder / "big").read_bytes() == (copy / "big").read_bytes()
    small = Snapshots(folder, store, Bounds(store_bytes=90_000))
    needed = [one.id for one in small.all()][-2:]
    (folder / "big").write_bytes(os.urandom(80_000))
    known = [one.id for one in small.all()]
    with pytest.raises(SandboxError, match="could not be taken"):
        small.take(needed=needed)
    assert [one.id for one in small.all()] == known, "what would not have made room enough stays"
