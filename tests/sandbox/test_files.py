"""The workspace's files from outside: nothing leaves it, nothing is lost, every refusal is one sentence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.sandbox import Files, SandboxError, SandboxPathError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    workspace = tmp_path / "repo"
    workspace.mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "repo-evil").mkdir()
    (tmp_path / "repo-evil" / "secret").write_text("secret")
    opened = Files(workspace)
    yield opened
    opened.close()


OUTSIDE = [
    "../secret",
    "../../../../etc/passwd",
    "/etc/passwd",
    "a/../../secret",
    "~/.ssh/id_rsa",
    "../repo-evil/secret",
    "/proc/self/root/etc/passwd",
    "/proc/self/cwd",
    "/dev/fd/0",
    "/workspace/../secret",
    "link/passwd",
    "file_link",
    "root_link/etc/passwd",
    "up/secret",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_outside_is_refused_for_every_use(files: Files, path: str) -> None:
    (files.root / "a").mkdir()
    (files.root / "link").symlink_to("/etc")
    (files.root / "file_link").symlink_to(files.root.parent / "secret")
    (files.root / "root_link").symlink_to("/proc/self/root")
    (files.root / "up").symlink_to("..")
    for use in (files.read_bytes, files.read_text, files.exists, files.resolve, files.list):
        with pytest.raises(SandboxPathError, match=r"give a path inside /workspace\.$") as refusal:
            use(path)
        assert refusal.value.reason == "outside"
        assert "secret" not in str(refusal.value).replace(path, "")
    if path != "file_link":
        with pytest.raises(SandboxPathError):
            files.write_text(path, "x")
    assert (files.root.parent / "secret").read_text() == "secret"
    assert Path("/etc/passwd").read_text() != "x"


def test_inside_works_by_every_name(files: Files) -> None:
    files.write_text("a/b/c.txt", "one\r\ntwo\n")
    for name in ("a/b/c.txt", "./a//b/../b/c.txt", "/workspace/a/b/c.txt", str(files.root / "a/b/c.txt")):
        assert files.read_text(name) == "one\r\ntwo\n"
        assert files.exists(name)
        assert files.resolve(name) == files.root / "a/b/c.txt"
    assert files.resolve("a/new/file") == files.root / "a/new/file"
    assert not files.exists("a/new/file")
    assert [(e.name, e.kind, e.size) for e in files.list("a/b")] == [("c.txt", "file", 9)]
    assert [(e.name, e.kind) for e in files.list()] == [("a", "folder")]


def test_links_within_the_workspace_can_be_read_but_not_written_through(files: Files) -> None:
    files.write_text("real/file", "content")
    (files.root / "link").symlink_to("real")
    (files.root / "file_link").symlink_to("real/file")
    assert files.read_text("link/file") == files.read_text("file_link") == "content"
    with pytest.raises(SandboxPathError, match="reached through a link"):
        files.write_text("link/file", "new")
    with pytest.raises(SandboxPathError, match="is a link or special file, remove it first"):
        files.write_text("file_link", "new")
    assert files.read_text("real/file") == "content"


def test_removing_a_link_spares_what_it_points_to(files: Files) -> None:
    files.write_text("real/file", "content")
    (files.root / "link").symlink_to("real")
    files.remove("link")
    with pytest.raises(SandboxPathError, match="empty it first"):
        files.remove("real")
    files.remove("real/file")
    files.remove("real")
    assert files.list() == []


def test_workspace_that_is_itself_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    files = Files(tmp_path / "link")
    files.write_text("a", "1")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("/etc")
    assert files.read_text("a") == "1"
    assert files.root == tmp_path / "real"
    files.close()


def test_what_is_not_a_regular_file(files: Files) -> None:
    os.mkfifo(files.root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(files.root / "socket"))
    (files.root / "folder").mkdir()
    for name, words in (
        ("pipe", "not a regular file"),
        ("socket", "cannot be used"),
        ("folder", "is a folder"),
    ):
        with pytest.raises(SandboxPathError, match=words):
            files.read_bytes(name)
    for name in ("pipe", "socket", "folder"):
        with pytest.raises(SandboxPathError):
            files.write_bytes(name, b"x")


def test_sizes_and_texts(files: Files) -> None:
    with open(files.root / "huge", "wb") as file:  # noqa: PTH123
        file.truncate(1 << 40)
    with pytest.raises(SandboxPathError, match="has 1099511627776 bytes, at most 67108864 can be read"):
        files.read_bytes("huge")
    files.write_bytes("binary", b"ab\xff")
    with pytest.raises(SandboxPathError, match=r"not UTF-8 text \(byte 2 is 0xff\), read it as bytes"):
        files.read_text("binary")
    assert files.read_bytes("binary") == b"ab\xff"


@pytest.mark.parametrize("path", ["", "a\0b", "a\ud800", ".", "..", "/workspace", "missing/"])
def test_names_that_are_no_file(files: Files, path: str) -> None:
    with pytest.raises(SandboxPathError):
        files.read_text(path)
    if path != "missing/":
        with pytest.raises(SandboxPathError):
            files.write_text(path, "x")


def test_replacing_keeps_the_mode_and_old_readers(files: Files) -> None:
    files.write_text("script", "old")
    (files.root / "script").chmod(0o750)
    with (files.root / "script").open() as reader:
        files.write_text("script", "new")
        assert reader.read() == "old"
    assert (files.root / "script").stat().st_mode & 0o777 == 0o750
    assert [entry.name for entry in files.list()] == ["script"]  # no draft is left


def test_hard_link_to_the_outside_is_not_written_through(files: Files) -> None:
    os.link(files.root.parent / "secret", files.root / "hard")
    files.write_text("hard", "mine now")
    assert (files.root.parent / "secret").read_text() == "secret"


def test_closed_files_say_so(files: Files) -> None:
    files.close()
    with pytest.raises(SandboxError, match="closed"):
        files.read_text("a")


FLIP = """
import ctypes, os, sys
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None)
while True:  # dir <-> link to the outside, exchanged in one step
    libc.renameat2(-100, b"dir", -100, b"link", 2)
"""


def test_race_of_a_folder_and_a_link_never_reaches_outside(files: Files) -> None:
    outside = files.root.parent / "repo-evil"
    files.write_text("dir/secret", "inside")
    (files.root / "link").symlink_to(outside)
    flipper = subprocess.Popen([sys.executable, "-c", FLIP, str(files.root)])
    try:
        seen = {"inside": 0, "refused": 0, "naive escapes": 0}
        end = time.monotonic() + 1.5
        while time.monotonic() < end or (not seen["naive escapes"] and time.monotonic() < end + 10):
            try:
                content = files.read_text("dir/secret")
                assert content in ("inside", "written")
                seen["inside"] += 1
                files.write_text("dir/secret", "written")
            except SandboxPathError:
                seen["refused"] += 1
            # The twin: the same race does fool an open by path.
            seen["naive escapes"] += (files.root / "dir/secret").read_text() == "secret"
        assert (outside / "secret").read_text() == "secret"
        assert sorted(os.listdir(outside)) == ["secret"]  # noqa: PTH208
        assert all(seen.values()), seen
    finally:
        flipper.kill()
        flipper.wait()
