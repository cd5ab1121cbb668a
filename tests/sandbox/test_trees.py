"""Removing folders that hostile programs have filled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from pilotfish.sandbox.trees import remove, remove_tree

from .host import open_fds


def test_removal_follows_no_link(tmp_path: Path) -> None:
    outside, source = tmp_path / "outside", tmp_path / "source"
    for folder in (outside, source):
        folder.mkdir()
    (outside / "precious").write_text("1")
    (source / "link").symlink_to(outside)
    os.mkfifo(source / "pipe")
    (source / "locked").mkdir()
    (source / "locked" / "file").write_text("2")
    (source / "locked").chmod(0)
    remove_tree(source)
    remove_tree(source)
    assert not source.exists()
    assert (outside / "precious").read_text() == "1"


def test_a_tree_deeper_than_descriptors_and_stack_reach(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    deepest = os.open(source, os.O_RDONLY)
    for level in range(5000):
        os.mkdir("d", dir_fd=deepest)
        if level % 500 == 0:
            os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=deepest))
        below = os.open("d", os.O_RDONLY, dir_fd=deepest)
        os.close(deepest)
        deepest = below
    os.close(deepest)
    before = open_fds()
    remove_tree(source)
    assert not source.exists()
    assert open_fds() == before


SWAP = """
import contextlib, os
while True:
    with contextlib.suppress(OSError):
        os.mkdir("name")
    with contextlib.suppress(OSError):
        os.rmdir("name")
    with contextlib.suppress(OSError):
        os.symlink("outside", "name")
    with contextlib.suppress(OSError):
        os.unlink("name")
"""


def test_what_becomes_something_else_meanwhile_is_removed_too(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("kept")
    swapper = subprocess.Popen([sys.executable, "-c", SWAP], cwd=tmp_path)
    parent = os.open(tmp_path, os.O_RDONLY)
    try:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            remove(parent, "name")
    finally:
        swapper.kill()
        swapper.wait()
        os.close(parent)
    assert (tmp_path / "outside" / "file").read_text() == "kept"
