"""Snapshots of real folders: everything comes back, nothing outside is touched, whatever is in the way."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilotfish.sandbox import SandboxError, Snapshots
from pilotfish.sandbox.objects import Objects
from pilotfish.sandbox.scan import Bounds

from .created_user import created_user, run_python

pytestmark = pytest.mark.timeout(120)

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        [*GIT, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def state(root: Path) -> dict[bytes, object]:
    """All that is promised to come back, of everything below a folder."""
    found: dict[bytes, object] = {}
    links: dict[int, int] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)  # noqa: PTH118
            look = os.lstat(path)
            content: object = None
            if stat.S_ISREG(look.st_mode):
                content = Path(os.fsdecode(path)).read_bytes() if os.access(path, os.R_OK) else None
                content = content, links.setdefault(look.st_ino, len(links)) if look.st_nlink > 1 else None
            elif stat.S_ISLNK(look.st_mode):
                content = os.readlink(path)  # noqa: PTH115
            found[os.path.relpath(path, os.fsencode(root))] = (
                stat.S_IFMT(look.st_mode),
                look.st_mode & 0o7777,
                look.st_uid,
                look.st_gid,
                look.st_mtime_ns,
                content,
            )
    return dict(sorted(found.items()))


def fill(work: Path) -> None:
    """One of everything that people have in a folder."""
    git(work, "init", "-q")
    (work / ".gitignore").write_text("build/\n*.log\n")
    (work / ".gitattributes").write_text("*.txt text eol=crlf\n")
    (work / "build" / "deep").mkdir(parents=True)
    (work / "build" / "deep" / "out.o").write_bytes(bytes(range(256)))
    (work / "x.log").write_text("ignored\n")
    (work / "unix.txt").write_bytes(b"one\ntwo\n")
    (work / "dos.txt").write_bytes(b"one\r\ntwo\r\n")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "first")
    nested = work / "vendor" / "nested"
    nested.mkdir(parents=True)
    git(nested, "init", "-q")
    (nested / "a").write_text("1")
    git(nested, "add", "-A")
    git(nested, "commit", "-qm", "inner")
    git(nested, "init", "-q", "--bare", str(work / "bare"))
    git(work, "worktree", "add", "-q", str(work / "tree"))
    (work / "empty" / "er").mkdir(parents=True)
    (work / "modes").mkdir()
    for mode in (0o000, 0o200, 0o400, 0o444, 0o640, 0o755, 0o777, 0o1644):
        path = work / "modes" / f"{mode:o}"
        path.write_text(f"{mode:o}")
        path.chmod(mode)
    for mode in (0o000, 0o500, 0o1777, 0o2775, 0o700):
        path = work / f"folder-{mode:o}"
        path.mkdir()
        (path / "in").write_text("in")
        path.chmod(mode)
    (work / "link").symlink_to("empty/er")
    (work / "out").symlink_to("/etc/passwd")
    (work / "dangling").symlink_to("nowhere")
    os.mkfifo(work / "pipe", 0o620)
    (work / "one").write_text("shared")
    (work / "empty" / "two").hardlink_to(work / "one")
    Path(os.fsdecode(os.fsencode(work) + b"/odd\n\xff\xfe \\ \"'$name")).write_text("odd")
    (work / "é").write_text("composed")
    (work / "e\u0301").write_text("decomposed")
    (work / "sparse").touch()
    os.truncate(work / "sparse", 64 << 20)
    for number, path in enumerate(sorted(work.rglob("*"))):
        if not path.is_symlink() and os.access(path, os.W_OK):
            os.utime(path, ns=(number, 1_000_000_007 * number))


def wreck(work: Path) -> None:
    """Remove, replace and change what `fill` made."""
    (work / "folder-0").chmod(0o755)
    (work / "folder-0" / "more").write_text("more")
    (work / "modes" / "400").chmod(0o777)
    (work / "modes" / "0").unlink()
    for name in (".git", "build", "vendor", "tree", "empty"):
        subprocess.run(["rm", "-rf", work / name], check=True)
    (work / "one").write_text("not shared")
    (work / "link").unlink()
    (work / "link").mkdir()
    (work / "link" / "x").write_text("x")
    (work / "pipe").unlink()
    (work / "pipe").write_text("a file")
    (work / "out").unlink()
    (work / "out").write_text("no link")
    (work / "new").mkdir()
    (work / "unix.txt").write_bytes(b"one\r\ntwo\r\n")
    (work / "bare").rename(work / "renamed")


def test_everything_comes_back(work: Path, kept: Snapshots) -> None:
    fill(work)
    before = state(work)
    first = kept.take("filled")
    assert state(work) == before, "taking changes nothing"
    wreck(work)
    wrecked = state(work)
    second = kept.take("wrecked")
    assert kept.restore(first).problems == ()
    assert state(work) == before
    assert git(work, "status", "--porcelain", "--", "unix.txt", "vendor") == "?? vendor/"
    assert git(work / "vendor" / "nested", "log", "--format=%s") == "inner"
    assert kept.restore(second).problems == ()
    assert state(work) == wrecked
    assert kept.restore(first).problems == ()
    assert state(work) == before
    assert kept.restore(first).changed == 0
    assert (work / "sparse").stat().st_blocks == 0


def test_a_fresh_process_goes_back_too(work: Path, kept: Snapshots) -> None:
    fill(work)
    before = state(work)
    first = kept.take()
    wreck(work)
    assert Snapshots(work, work.parent / "store").restore(first).problems == ()
    assert state(work) == before


AS_USER = """
import os, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.sandbox.test_snapshot_store import fill, state, wreck
from pilotfish.sandbox import Snapshots
with tempfile.TemporaryDirectory() as folder:
    work = Path(folder, "work")
    work.mkdir()
    fill(work)
    before = state(work)
    kept = Snapshots(work, Path(folder, "store"))
    first = kept.take()
    assert state(work) == before
    wreck(work)
    assert kept.restore(first).problems == ()
    after = state(work)
    assert after == before, [name for name in before | after if before.get(name) != after.get(name)]
    (work / "shut").write_text("x")
    (work / "shut").chmod(0)
    assert kept.restore(first, since=kept.take()).problems == ()
    assert state(work) == before
    (work / "folder-0").chmod(0o700)
    print((work / "folder-0" / "in").read_text(), os.geteuid() != 0)
    (work / "folder-500").chmod(0o700)
"""


def test_as_a_user_without_powers() -> None:
    """The same, where modes forbid what they say."""
    arguments = ("-c", AS_USER, str(Path(__file__).parents[2]))
    if os.geteuid() == 0:
        with created_user() as name:
            done = run_python(name, *arguments)
    else:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["in", "True"], done.stderr


def test_content_is_stored_once_and_apart(work: Path, kept: Snapshots) -> None:
    (work / "a").write_bytes(b"x" * 100_000)
    (work / "b").write_bytes(b"x" * 100_000)
    kept.take()
    (work / "c").write_bytes(b"x" * 100_000)
    kept.take()
    objects = [path for path in (work.parent / "store" / "objects").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in objects) < 110_000
    assert {path.stat().st_nlink for path in objects} == {1}
    assert {found.stat().st_ino for found in work.iterdir()}.isdisjoint(p.stat().st_ino for p in objects)


def test_a_write_within_one_tick_of_the_clock_is_seen(work: Path, kept: Snapshots) -> None:
    """Same size, same inode, and times that the kernel may not tell apart."""
    file = work / "file"
    file.write_bytes(b"0000")
    taken = []
    for number in range(60):
        with file.open("r+b") as handle:
            handle.write(b"%04d" % number)
        taken.append(kept.take())
    for number, snapshot in enumerate(taken):
        kept.restore(snapshot)
        assert file.read_bytes() == b"%04d" % number


def test_times_set_back_hide_nothing(work: Path, kept: Snapshots) -> None:
    file = work / "file"
    file.write_bytes(b"good")
    os.utime(file, ns=(0, 0))
    time.sleep(0.05)
    first = kept.take()
    file.write_bytes(b"evil")
    os.utime(file, ns=(0, 0))
    assert [change.path for change in kept.diff(first).changes] == ["file"]
    kept.restore(first)
    assert file.read_bytes() == b"good"


@pytest.fixture
def meanwhile() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Runs something again and again, in threads, until the test is over."""
    ended = threading.Event()
    threads = []

    def start(work: Callable[[], object]) -> None:
        def again() -> None:
            while not ended.is_set():
                try:
                    work()
                except OSError:
                    continue

        threads.append(threading.Thread(target=again))
        threads[-1].start()

    yield start
    ended.set()
    for thread in threads:
        thread.join()


def test_a_folder_that_flips_to_a_link_leads_nowhere(
    work: Path, kept: Snapshots, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    """Case A7: neither read nor written outside, however the race goes."""
    outside = work.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("SECRET of the host")
    before = state(outside)
    (work / "d").mkdir()
    (work / "d" / "file").write_text("mine")
    first = kept.take()
    spare, folder = work / "spare", work / "d"

    def flip() -> None:
        folder.rename(spare)
        folder.symlink_to(outside)
        folder.unlink()
        spare.rename(folder)
        (folder / "file").write_text("changed")

    meanwhile(flip)
    until = time.monotonic() + 5
    while time.monotonic() < until:
        kept.take()
        with contextlib.suppress(SandboxError):  # what is taken away again and again
            kept.restore(first)
    assert state(outside) == before
    for path in (work.parent / "store" / "objects").rglob("*"):
        assert not path.is_file() or b"SECRET" not in path.read_bytes()


def test_a_file_that_never_stands_still(
    work: Path, kept: Snapshots, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    log = work / "log"

    def write() -> None:
        with log.open("ab") as file:
            file.write(b"line\n" * 20_000)
        if log.stat().st_size > 6 << 20:
            log.unlink()

    write()
    (work / "quiet").write_text("quiet")
    meanwhile(write)
    for _ in range(20):
        entries = kept.entries(kept.take())
        assert entries["quiet"].size == 5
        if "log" in entries:
            with (work.parent / "content").open("w+b") as file:
                objects = Objects(work.parent / "store" / "objects")
                objects.write_to(entries["log"].data, file.fileno(), entries["log"].size)
                data = file.read()
            assert data == (b"line\n" * (len(data) // 5 + 1))[: len(data)], "what was there at some moment"


def test_what_cannot_be_kept_is_told_and_left_alone(work: Path) -> None:
    kept = Snapshots(work, work.parent / "store", Bounds(file_bytes=1000))
    (work / "big").write_bytes(bytes(1001))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(work / "socket"))
        deep = work
        for _ in range(205):
            deep /= "d"
            deep.mkdir()
        (deep / "bottom").write_text("1")
        first = kept.take()
        assert kept.find(first).others == 3
        assert kept.find(first).left_out == (
            "big (more than 0 MiB)",
            f"{'d/' * 200}d"[-100:] + " (nested too deep)",
            "socket (a socket or device)",
        )
        assert kept.restore(first).problems == ()
        (work / "big").write_bytes(b"changed" * 500)
        (work / "bigger").write_bytes(bytes(5000))
        problems = kept.restore(first).problems
    assert len(problems) == 2, problems
    assert problems[0].startswith("bigger was left where it is (more than")
    assert problems[1].startswith("big was left as it is (more than")
    assert (work / "big").read_bytes() == b"changed" * 500
    assert (work / "bigger").exists()
    assert (deep / "bottom").exists()
    assert stat.S_ISSOCK((work / "socket").stat().st_mode)


def test_links_to_files_outside_are_cut_not_written_through(work: Path, kept: Snapshots) -> None:
    outside = work.parent / "outside"
    outside.write_text("before")
    (work / "name").hardlink_to(outside)
    first = kept.take()
    (work / "name").write_text("after")
    kept.restore(first)
    assert (outside.read_text(), (work / "name").read_text()) == ("after", "before")


def test_set_user_id_does_not_come_back(work: Path, kept: Snapshots) -> None:
    (work / "tool").write_text("x")
    (work / "tool").chmod(0o6755)
    first = kept.take()
    (work / "tool").unlink()
    kept.restore(first)
    assert (work / "tool").stat().st_mode & 0o7777 == 0o755


def test_set_user_id_is_seen_and_taken_back(work: Path, kept: Snapshots) -> None:
    (work / "tool").write_text("x")
    (work / "d").mkdir()
    first = kept.take()
    (work / "tool").chmod(0o4755)
    (work / "d").chmod(0o4755)
    found = [(change.path, change.how) for change in kept.diff(first).changes]
    assert found == [("d", "mode"), ("tool", "mode")]
    second = kept.take()
    assert kept.restore(second).changed == 0
    assert (work / "tool").stat().st_mode & 0o7777 == 0o4755, "what is already so is not touched"
    kept.restore(first)
    assert (work / "tool").stat().st_mode & 0o7777 == 0o644
    assert (work / "d").stat().st_mode & 0o7777 == 0o755


def test_many_hard_links_come_back_as_such(work: Path, kept: Snapshots) -> None:
    """More than a process may have files open."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    (work / "a").mkdir()
    for number in range(120):
        (work / "a" / f"{number}").write_text(f"{number}")
    subprocess.run(["cp", "-al", work / "a", work / "b"], check=True)
    first = kept.take()
    subprocess.run(["rm", "-r", work / "a", work / "b"], check=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, allowed[1]))  # noqa: PTH208
    try:
        assert kept.restore(first).problems == ()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
    for number in range(120):
        assert (work / "a" / f"{number}").samefile(work / "b" / f"{number}")
    assert kept.restore(first).changed == 0


def test_the_oldest_go_when_there_is_no_room_and_it_is_said(work: Path) -> None:
    kept = Snapshots(work, work.parent / "store", Bounds(store_bytes=100_000))
    for number in range(20):
        (work / "file").write_bytes(os.urandom(20_000))
        (work / "same").write_text("same")
        kept.take(f"step {number}")
    found = kept.all()
    assert found[0].id == "1", "what was there at first is kept longest"
    assert found[-1].id == "20"
    assert sum(one.dropped for one in found) > 0
    assert 3 <= len(found) <= 6
    size = sum(p.stat().st_size for p in (work.parent / "store" / "objects").rglob("*") if p.is_file())
    assert size <= 100_000
    newest = (work / "file").read_bytes()
    kept.restore(found[0].id)
    assert (work / "same").read_text() == "same"
    kept.restore(found[-1].id)
    assert (work / "file").read_bytes() == newest
    with pytest.raises(SandboxError, match="there is no snapshot '2', there are 1 to 20"):
        kept.restore("2")


def test_the_first_stays_when_the_next_does_not_fit_beside_it(work: Path) -> None:
    kept = Snapshots(work, work.parent / "store", Bounds(store_bytes=100_000))
    before = os.urandom(60_000)
    (work / "file").write_bytes(before)
    first = kept.take()
    (work / "file").write_bytes(os.urandom(60_000))
    with pytest.raises(SandboxError, match=r"could not be taken .*with the first one"):
        kept.take()
    assert [one.id for one in kept.all()] == [first]
    kept.restore(first)
    assert (work / "file").read_bytes() == before
    (work / "file").write_text("little")
    assert kept.take() in {one.id for one in kept.all()}


def test_what_is_too_much_is_refused_before_it_is_read(work: Path) -> None:
    for number in range(30):
        (work / f"{number}").write_bytes(os.urandom(10_000))
    small = Snapshots(work, work.parent / "store", Bounds(store_bytes=100_000))
    with pytest.raises(SandboxError, match="more than the 0 MiB that are kept"):
        small.take()
    few = Snapshots(work, work.parent / "store", Bounds(entries=20))
    with pytest.raises(SandboxError, match="more than 20 files"):
        few.take()
    assert few.all() == []
    assert not [path for path in (work.parent / "store" / "objects").rglob("*") if path.is_file()]


def test_a_store_in_the_workspace_is_refused(work: Path) -> None:
    with pytest.raises(SandboxError, match="choose a folder outside of it"):
        Snapshots(work, work / "runs" / "store")
    (work.parent / "link").symlink_to(work)
    with pytest.raises(SandboxError, match="choose a folder outside of it"):
        Snapshots(work, work.parent / "link" / "store")


def test_a_snapshot_is_forgotten_with_what_only_it_had(work: Path, kept: Snapshots) -> None:
    (work / "file").write_text("one")
    first = kept.take()
    (work / "file").write_text("two")
    second = kept.take()
    kept.remove(first)
    assert [one.id for one in kept.all()] == [second]
    contents = [p.read_bytes() for p in (work.parent / "store" / "objects").rglob("*") if p.is_file()]
    assert b"one" not in contents
    assert b"two" in contents
    (work / "file").write_text("one")
    third = kept.take()
    (work / "file").unlink()
    kept.restore(third)
    assert (work / "file").read_text() == "one"


def test_two_processes_share_a_store(work: Path) -> None:
    first, second = (Snapshots(work, work.parent / "store") for _ in range(2))
    (work / "file").write_text("one")
    one = first.take()
    (work / "file").write_text("two")
    two = second.take()
    first.remove(one)
    (work / "file").write_text("one")
    three = second.take()  # knew that the content of `one` was there
    (work / "file").unlink()
    first.restore(three)
    assert (work / "file").read_text() == "one"
    first.restore(two)
    assert (work / "file").read_text() == "two"
