"""Repositories made to lead elsewhere; files left in a copy that git does not take or waits for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.sandbox import SandboxError
from pilotfish.sandbox.branches import check_branch
from pilotfish.sandbox.repository import find_repository
from pilotfish.sandbox.worktree import WorkTree

from .repositories import git, make


def begun(place: Path, repo: Path) -> WorkTree:
    found = find_repository(repo)
    tree, _ = WorkTree.begin(place, found)
    tree.give_git(found, {path: str(path) for path in tree.objects(found)})
    return tree


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder of the user's that is none of the repository's business."""
    made = tmp_path / "secret"
    made.mkdir()
    (made / "key").write_text("the key\n")
    return made


def test_no_folder_but_one_of_objects_is_shown_to_programs_inside(tmp_path: Path, secret: Path) -> None:
    repo = make(tmp_path / "repo")
    lender = make(tmp_path / "lender")
    (secret / "pack").mkdir()
    listed = repo / ".git" / "objects" / "info" / "alternates"
    listed.parent.mkdir(exist_ok=True)
    listed.write_text(f"{secret}\n{tmp_path}\n{lender / '.git' / 'objects'}\n/root\n")
    assert find_repository(repo).objects == (repo / ".git" / "objects", lender / ".git" / "objects")
    objects = repo / ".git" / "objects"
    objects.rename(repo / ".git" / "other")
    objects.symlink_to(secret)
    with pytest.raises(SandboxError, match="cannot be read"):
        find_repository(repo)


@pytest.mark.parametrize("name", ["info/exclude", "shallow", "info"])
def test_files_of_gits_that_are_links_are_not_shown_to_programs_inside(
    tmp_path: Path, secret: Path, name: str
) -> None:
    repo = make(tmp_path / "repo")
    place = repo / ".git" / name
    if name == "info":
        place.rename(repo / ".git" / "other")
        (secret / "exclude").write_text("the key\n")
    elif name == "info/exclude":
        place.unlink(missing_ok=True)
        place.parent.mkdir(exist_ok=True)
    place.symlink_to(secret if name == "info" else secret / "key")
    tree = begun(tmp_path / "run", repo)
    inside = [path.read_bytes() for path in (tree.folder / ".git").rglob("*") if path.is_file()]
    assert inside
    assert not [data for data in inside if b"the key" in data]
    assert b"__pycache__/" in (tree.folder / ".git" / "info" / "exclude").read_bytes()


@pytest.mark.parametrize("name", ["../../../../out", "x/../../../../../out", "/out", "a.lock", "a b", ""])
def test_a_head_that_names_no_ref_is_refused(tmp_path: Path, name: str) -> None:
    repo = make(tmp_path / "repo")
    (repo / ".git" / "HEAD").write_text(f"ref: refs/heads/{name}\n")
    with pytest.raises(SandboxError, match="which is no ref; `git symbolic-ref"):
        find_repository(repo)


@pytest.mark.parametrize("name", ["refs", "refs/heads", "refs/heads/fix", "objects"])
def test_no_branch_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    repo = make(tmp_path / "repo")
    place = repo / ".git" / name
    away = tmp_path / "away" / ".git" / "objects" if name == "objects" else tmp_path / "away"
    away.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        place.rename(away)
        if name == "objects":
            (away.parent / "refs").mkdir()
            (away.parent / "HEAD").write_text("ref: refs/heads/main\n")
    else:
        away.mkdir()
    place.symlink_to(away)
    with pytest.raises(SandboxError, match="is reached by a link, through which nothing is written"):
        check_branch(find_repository(repo), "fix/a")


def deep(folder: Path, steps: int) -> None:
    """Make a file below so many folders, whose path may be longer than one call takes."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(steps):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


@pytest.fixture
def too_deep(tmp_path: Path) -> Iterator[Path]:
    """A place for folders that are too deep for what clears up after tests."""
    place = tmp_path / "deep"
    place.mkdir()
    try:
        yield place
    finally:
        subprocess.run(["rm", "-rf", "--", place], check=True)


def test_files_below_a_thousand_folders_are_no_trouble(too_deep: Path) -> None:
    repo = make(too_deep / "repo")
    deep(repo, 1100)
    git(repo, "add", "-A")
    git(repo, "commit", "--quiet", "-m", "deep")
    tree, notes = WorkTree.begin(too_deep / "run", find_repository(repo))
    assert "nested too deep" in notes[0]
    (tree.folder / "a.py").write_text("new\n")
    taken, _ = tree.take()
    assert [one.path for one in tree.changed(tree.base, taken)] == ["a.py"]


def test_pipes_that_git_would_wait_for_are_taken_out_of_the_copy(tmp_path: Path) -> None:
    tree = begun(tmp_path / "run", make(tmp_path / "repo"))
    for name in (".gitignore", ".gitattributes", "sub/.gitignore", "sub/.gitattributes", "pipe"):
        os.mkfifo(tree.folder / name)
    (tree.folder / "a.py").write_text("new\n")
    taken, _ = tree.take()
    assert [one.path for one in tree.changed(tree.base, taken)] == ["a.py"]
    assert (tree.folder / "pipe").is_fifo()
    assert not (tree.folder / ".gitignore").exists()


def test_new_files_of_names_that_git_does_not_keep_are_told(tmp_path: Path) -> None:
    tree = begun(tmp_path / "run", make(tmp_path / "repo"))
    for name in (".GIT", "git~1", "kept"):
        (tree.folder / name).write_text("x\n")
    (tree.folder / ".gitmodules").symlink_to("kept")
    taken, _ = tree.take()
    assert [one.path for one in tree.changed(tree.base, taken)] == ["kept"]
    assert tree.not_taken() == [
        "New files of names that git does not keep, such as .git in other letters, are not part of the "
        "result: .GIT, .gitmodules, git~1."
    ]


def test_a_result_that_was_handed_back_before_a_kill_is_the_same_again(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo")
    found = find_repository(repo)
    tree = begun(tmp_path / "run", repo)
    (tree.folder / "a.py").write_text("new\n")
    commits = set()
    for _ in range(2):
        taken, _ = tree.take()
        commits.add(tree.keep(taken, "Done\0.\n"))
        tree.bring_to(found, "fix")
    assert commits == {git(repo, "rev-parse", "fix")}
    (tree.folder / "a.py").write_text("newer\n")
    taken, _ = tree.take()
    assert tree.keep(taken, "Again.\n") not in commits
    with pytest.raises(SandboxError, match="There is a branch 'fix' already"):
        tree.bring_to(found, "fix")
