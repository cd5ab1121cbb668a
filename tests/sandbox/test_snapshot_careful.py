"""Going back where people work: what they change after the last look is left as it is, and named."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.sandbox import Snapshots


def fill(work: Path) -> None:
    (work / "d" / "e").mkdir(parents=True)
    for name in ("a", "b", "gone", "d/c", "d/e/x", "to-folder"):
        (work / name).write_text(f"{name} at first")
    (work / "link").symlink_to("a")
    os.mkfifo(work / "pipe")


def change(work: Path) -> None:
    """What is to be taken back."""
    for name in ("a", "b", "d/c"):
        (work / name).write_text(f"{name} changed")
    (work / "gone").unlink()
    (work / "link").unlink()
    (work / "link").symlink_to("b")
    (work / "new").write_text("new")
    (work / "more" / "deep").mkdir(parents=True)
    (work / "more" / "deep" / "file").write_text("more")
    (work / "more" / "other").write_text("more")
    (work / "to-folder").unlink()
    (work / "to-folder").mkdir()
    (work / "to-folder" / "in").write_text("in")
    (work / "pipe").unlink()


def save(path: Path, text: str) -> None:
    """As editors do."""
    draft = path.with_name(f"{path.name}.saving")
    draft.write_text(text)
    draft.rename(path)


def same_size_and_time(path: Path) -> None:
    look = path.stat()
    path.write_text("A" + path.read_text()[1:])
    os.utime(path, ns=(look.st_mtime_ns, look.st_mtime_ns))


MEANWHILE: list[tuple[Callable[[Path], object], str]] = [
    (lambda work: (work / "a").write_text("mine"), "a"),
    (lambda work: save(work / "a", "mine"), "a"),
    (lambda work: same_size_and_time(work / "a"), "a"),
    (lambda work: (work / "a").unlink(), "a"),
    (lambda work: ((work / "a").unlink(), (work / "a").mkdir()), "a"),
    (lambda work: ((work / "a").unlink(), (work / "a").symlink_to("b")), "a"),
    (lambda work: ((work / "link").unlink(), (work / "link").symlink_to("d")), "link"),
    (lambda work: (work / "gone").write_text("mine"), "gone"),
    (lambda work: (work / "gone").mkdir(), "gone"),
    (lambda work: (work / "pipe").write_text("mine"), "pipe"),
    (lambda work: (work / "new").write_text("mine"), "new"),
    (lambda work: ((work / "new").unlink(), (work / "new").mkdir()), "new"),
    (lambda work: (work / "more" / "mine").write_text("mine"), "more"),
    (lambda work: (work / "more" / "other").write_text("mine"), "more/other"),
    (lambda work: (work / "more" / "deep" / "mine").mkdir(), "more/deep"),
    (lambda work: (work / "to-folder" / "mine").write_text("mine"), "to-folder"),
    (lambda work: (work / "d").rename(work / "moved"), "d/"),
    (lambda work: ((work / "d").rename(work / "moved"), (work / "d").symlink_to("moved")), "d/"),
    (lambda work: (work / "d" / "c").write_text("mine"), "d/c"),
]


def inside(work: Path) -> dict[str, object]:
    return {
        str(path.relative_to(work)): str(path.readlink())
        if path.is_symlink()
        else path.read_text()
        if path.is_file()
        else "folder"
        if path.is_dir()
        else "other"
        for path in sorted(work.rglob("*"))
    }


@pytest.mark.parametrize(("meanwhile", "path"), MEANWHILE)
@pytest.mark.parametrize("old", [True, False])
def test_what_was_changed_meanwhile_stays(
    work: Path, kept: Snapshots, meanwhile: Callable[[Path], object], path: str, old: bool
) -> None:
    fill(work)
    first = kept.take()
    wanted = inside(work)
    change(work)
    if old:
        time.sleep(0.03)  # or what was just written is read again in any case
    before = kept.take()
    meanwhile(work)
    theirs = inside(work)
    done = kept.restore(first, since=before)
    found = inside(work)
    mine = {name for name, what in theirs.items() if what == "mine" or name.endswith(("/mine", "moved"))}
    assert {name: found[name] for name in mine} == {name: theirs[name] for name in mine}
    assert [problem.partition(" was ")[0].partition(" could")[0] for problem in done.problems][:1] == [path]
    assert done.refused >= 1
    name = path.rstrip("/").split("/")[0]
    assert found.get(name) == theirs.get(name)
    others = {other for other in wanted.keys() | found.keys() if other.split("/")[0] not in (name, "moved")}
    assert {other: found.get(other) for other in others} == {other: wanted.get(other) for other in others}
    assert not [other for other in found if other.endswith(".tmp")]


def test_without_a_hand_in_it_all_comes_back(work: Path, kept: Snapshots) -> None:
    fill(work)
    first = kept.take()
    wanted = inside(work)
    change(work)
    done = kept.restore(first, since=kept.take())
    assert (done.problems, done.refused) == ((), 0)
    assert inside(work) == wanted
    assert ("more/", "removed") in done.done
    assert done.changed == len(done.done) == 10


def test_a_save_at_any_moment_is_not_lost(work: Path, kept: Snapshots) -> None:
    """Whoever comes first, what the person saved is there in the end."""
    noise = random.Random(3)
    for number in range(20):
        (work / f"{number}").write_text("at first")
    first = kept.take()
    refused = 0
    for trial in range(40):
        for number in range(20):
            (work / f"{number}").write_text("changed")
        before = kept.take()
        delay_s = noise.uniform(0, 0.004)

        def person(trial: int = trial, delay_s: float = delay_s) -> None:
            time.sleep(delay_s)
            save(work / "10", f"saved {trial}")

        thread = threading.Thread(target=person)
        thread.start()
        refused += kept.restore(first, since=before).refused
        thread.join()
        assert (work / "10").read_text() == f"saved {trial}"
        assert not list(work.glob(".*"))
    assert refused > 0, "some came in between"
