"""Copying and removing folders that hostile programs have filled."""

from __future__ import annotations

import os
from pathlib import Path

from pilotfish.sandbox.trees import copy_tree, remove_tree


def test_copy_and_removal_follow_no_link(tmp_path: Path) -> None:
    outside, source, target = tmp_path / "outside", tmp_path / "source", tmp_path / "target"
    for folder in (outside, source, target):
        folder.mkdir()
    (outside / "precious").write_text("1")
    (source / "link").symlink_to(outside)
    os.mkfifo(source / "pipe")
    (source / "locked").mkdir()
    (source / "locked" / "file").write_text("2")
    (source / "suid").write_text("3")
    (source / "suid").chmod(0o4755)
    copy_tree(source, target)
    assert (target / "link").readlink() == outside
    assert not (target / "pipe").exists()
    assert (target / "suid").stat().st_mode & 0o7777 == 0o755
    (source / "locked").chmod(0)
    remove_tree(source)
    remove_tree(source)
    assert not source.exists()
    assert (outside / "precious").read_text() == "1"
