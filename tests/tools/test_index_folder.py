"""Which files the index takes up, from folders and repositories that mean it well and that do not."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from pilotfish.tools.index.listing import IndexingError, Listing, list_files
from pilotfish.tools.index.paths import given, shown
from pilotfish.tools.index.repository import Index


def git(folder: Path, *words: str) -> str:
    """Run git, free of what the machine is set to."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    done = subprocess.run(
        ["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "kept.py").write_text("def kept(): pass\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    (folder / "new.py").write_text("def new(): pass\n")
    (folder / "old.log").write_text("ignored")
    return folder


def names(listing: Listing) -> list[str]:
    return [shown(entry.path) for entry in listing.entries]


def test_git_says_what_belongs(repo: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "sub" / "c.py").write_text("")
    assert names(list_files(repo)) == [".gitignore", "kept.py", "new.py", "sub/c.py"]
    assert names(list_files(repo / "sub")) == ["c.py"]
    git(repo, "rm", "-q", "--cached", "kept.py")
    (repo / "new.py").unlink()
    git(repo, "checkout", "-q", "--detach")
    assert names(list_files(repo)) == [".gitignore", "kept.py", "sub/c.py"]


def test_an_ignored_folder_is_a_plain_one(repo: Path) -> None:
    (repo / "logs.log").mkdir()
    (repo / "logs.log" / "a.py").write_text("")
    listing = list_files(repo / "logs.log")
    assert (names(listing), listing.by_git) == (["a.py"], False)


def test_a_repository_without_commits_or_files(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert names(list_files(tmp_path)) == []
    with Index(tmp_path, tmp_path.parent / "i.sqlite") as index:
        assert index.update().complete
        assert index.map(1000).text == ""
        assert index.ranking() == []


def test_a_bare_repository_and_no_folder_are_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to("circle")
    for name, reason in (
        ("bare.git", "bare"),
        ("file", "is a file"),
        ("nothing", "exists"),
        ("circle", "circle"),
    ):
        with pytest.raises(IndexingError, match=reason):
            list_files(tmp_path / name)


def test_the_repositorys_configuration_runs_nothing(repo: Path, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.sh"
    bomb.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 0\n")
    bomb.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (hooks / hook).symlink_to(bomb)
    for key, value in {
        "core.fsmonitor": str(bomb),
        "core.hooksPath": str(hooks),
        "core.pager": str(bomb),
        "core.sshCommand": str(bomb),
        "core.alternateRefsCommand": str(bomb),
        "credential.helper": f"!{bomb}",
        "diff.external": str(bomb),
        "diff.x.textconv": str(bomb),
        "filter.x.clean": str(bomb),
        "filter.x.smudge": str(bomb),
        "filter.x.process": str(bomb),
        "alias.ls-files": f"!{bomb}",
        "core.worktree": "/etc",
        "pager.ls-files": str(bomb),
    }.items():
        git(repo, "config", key, value)
    (repo / ".gitattributes").write_text("* filter=x diff=x\n")
    assert "kept.py" in names(list_files(repo))
    assert not (tmp_path / "ran").exists()


def test_a_damaged_repository_is_told_and_all_files_taken(repo: Path) -> None:
    (repo / ".git" / "index").write_bytes(b"not an index")
    listing = list_files(repo)
    assert names(listing) == [".gitignore", "kept.py", "new.py", "old.log"]
    assert "repair the repository" in listing.notes[0]


@pytest.mark.parametrize("text", ["gitdir: /etc", "gitdir: ../other/.git", "nonsense", "gitdir: \0", ""])
def test_a_git_file_that_points_elsewhere_is_not_followed(repo: Path, tmp_path: Path, text: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / ".git").write_text(text)
    (folder / "a.py").write_text("")
    listing = list_files(folder)
    assert names(listing) == ["a.py"]
    assert "not followed" in listing.notes[0]


def test_worktrees_are_followed_and_repositories_inside_are_named(repo: Path, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", str(tmp_path / "tree"))
    listing = list_files(tmp_path / "tree")
    assert (names(listing), listing.by_git) == ([".gitignore", "kept.py"], True)
    assert not list_files(tmp_path / "tree", above=False).by_git  # its data lie outside
    git(repo, "init", "-q", "inner")
    (repo / "inner" / "x.py").write_text("")
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(repo), "module")
    listing = list_files(repo)
    assert "inner/x.py" not in names(listing)
    assert any("inner, module" in note for note in listing.notes)
    inside = list_files(repo / "module")
    assert (names(inside), inside.by_git) == ([".gitignore", "kept.py"], True)


@pytest.mark.parametrize("place", ["", "a/b/c/d"])
def test_a_fifo_as_ignore_file_does_not_hang(repo: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.tools.index.listing.IDLE_SECONDS", 1.0)
    (repo / place).mkdir(parents=True, exist_ok=True)
    (repo / place / ".gitignore").unlink(missing_ok=True)
    os.mkfifo(repo / place / ".gitignore")
    began_s = time.monotonic()
    listing = list_files(repo)
    assert time.monotonic() - began_s < 30  # and not GIT_SECONDS
    assert "kept.py" in names(listing)
    assert listing.waited
    assert "git waited for 1 s on a pipe or the like among the files, so all are indexed." in listing.notes
    assert any(f"{place}/.gitignore".lstrip("/") in note for note in listing.notes)


@pytest.mark.parametrize("name", ["index", "config", "info/exclude", "HEAD"])
def test_a_pipe_among_gits_files_is_not_waited_for(repo: Path, name: str) -> None:
    (repo / ".git" / name).unlink()
    os.mkfifo(repo / ".git" / name)
    listing = list_files(repo)
    assert names(listing) == [".gitignore", "kept.py", "new.py", "old.log"]
    assert f".git/{name} is a pipe or a device, on which git would wait" in listing.notes[0]
    assert not listing.waited


def test_git_is_waited_for_once(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.tools.index.listing.GIT_SECONDS", 1.0)
    (repo / "sub").mkdir()
    os.mkfifo(repo / "sub" / ".gitignore")
    with Index(repo, tmp_path / "i.sqlite") as index:
        assert any("did not list the files within 1 s" in note for note in index.update().notes)
        monkeypatch.setattr("pilotfish.tools.index.listing.GIT_SECONDS", 600.0)
        assert any("took too long to list the files before" in note for note in index.update().notes)
        assert index.find("kept").items


def test_strange_things_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "strange"
    folder.mkdir()
    (folder / "good.py").write_text("def good(): pass\n")
    (folder / "loop").symlink_to(folder)
    (folder / "secret.py").symlink_to("/etc/passwd")
    os.mkfifo(folder / "fifo.py")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket.py"))
    strange = [
        b"new\nline.py",
        b"\xff\xfe.py",
        b'quo"te\\.py',
        "naïve \u2028.py".encode(),
        b" .py",
        b"-rf.py",
    ]
    for number, name in enumerate(strange):
        (folder / os.fsdecode(name)).write_text(f"def strange{number}(): pass\n")
    huge = folder / "huge.py"
    huge.touch()
    os.truncate(huge, 1 << 30)
    big = folder / "big.txt"
    big.touch()
    os.truncate(big, 1 << 30)
    deep = folder
    for _ in range(1000):
        deep = deep / "d"
        deep.mkdir()
    (deep / "deep.py").write_text("def deep(): pass\n")
    with Index(folder, tmp_path / "i.sqlite") as index:
        done = index.update()
        assert done.complete
        for number, name in enumerate(strange):
            (found,) = index.find(f"strange{number}").items
            assert found.path == shown(name)
            assert given(found.path) == name
            assert "\n" not in found.path
            assert index.read(found.path).total == 1
        assert index.find("deep").items[0].path.endswith("d/deep.py")
        assert {one.path for one in index.files(["too large"])} == {"huge.py", "big.txt"}
        text = " ".join(done.notes)
        assert "loop, secret.py (a link" in text
        assert "fifo.py, socket.py (neither" in text
        assert index.search("root:").items == []
        assert index.map(10_000).text
        assert index.tree().count("\n") > 1000
    subprocess.run(["rm", "-rf", "--", folder], check=True)  # too deep for what clears up after tests


def test_folders_deeper_than_a_path_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "a.py").write_text("")
    here = os.open(folder, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 100, dir_fd=here)
        inner = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    listing = list_files(folder)
    assert names(listing) == ["a.py"]
    assert any("too long" in note for note in listing.notes)
    subprocess.run(["rm", "-rf", "--", folder], check=True)


@pytest.mark.parametrize(
    ("name", "content", "state"),
    [
        ("a.png", b"text", "binary"),
        ("a.txt", b"a\0b", "binary"),
        ("a.txt", "h\u00e9".encode("utf-16"), "text"),
        ("a.py", "x = 'h\u00e9'".encode("latin-1"), "parsed"),
        ("a.py", "x = 1".encode("utf-16"), "parsed"),
        ("a.py", b"\xef\xbb\xbfx = 1", "parsed"),
        ("a.js", b"var a=1;" * 2000, "minified"),
        ("a.min.js", b"a", "minified"),
        ("a_pb2.py", b"", "generated"),
        ("a.go", b"// Code generated by x. DO NOT EDIT.\n", "generated"),
        ("a.py", b"# This module generates code\n", "parsed"),
        ("a.lock", b"x", "text"),
        ("package-lock.json", b"{}", "generated"),
        ("a.bin.txt", b"version https://git-lfs.github.com/spec/v1\noid", "binary"),
        ("a.py", b"x = 1\n" * 200_000, "text"),
        ("empty.py", b"", "parsed"),
    ],
)
def test_rules(tmp_path: Path, name: str, content: bytes, state: str) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / name).write_bytes(content)
    with Index(folder, tmp_path / "i.sqlite") as index:
        index.update()
        assert list(index.counted()) == [state]


def test_vendored_folders_are_left_out_and_named(repo: Path) -> None:
    for folder in ("node_modules/x", "lib/_vendor", "vendor"):
        (repo / folder).mkdir(parents=True)
        (repo / folder / "v.py").write_text("")
    listing = list_files(repo)
    assert names(listing) == [".gitignore", "kept.py", "new.py"]
    assert any("lib/_vendor, node_modules, vendor (vendored)" in note for note in listing.notes)


def test_a_link_swapped_in_is_not_read(tmp_path: Path) -> None:
    folder, outside = tmp_path / "in", tmp_path / "out"
    (folder / "sub").mkdir(parents=True)
    outside.mkdir()
    (folder / "sub" / "a.py").write_text("def inside(): pass\n")
    (outside / "a.py").write_text("def outside(): pass\n")
    with Index(folder, tmp_path / "i.sqlite") as index:
        index.update()
        (folder / "sub" / "a.py").unlink()
        (folder / "sub").rmdir()
        (folder / "sub").symlink_to(outside)
        with pytest.raises(IndexingError, match=r"sub/a\.py"):
            index.read("sub/a.py")
        index.update()
        assert index.find("outside").items == []
        assert index.find("inside").items == []
