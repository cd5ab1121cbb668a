"""No worktree of a user's is ever removed or written, and links for a project's settings lead nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.sandbox import Files, SandboxPathError
from pilotfish.sandbox.repository import find_repository
from pilotfish.sandbox.worktree import WorkTree

from .repositories import fingerprint, git, make, write


def test_worktrees_with_work_in_them_stay_as_they_are(tmp_path: Path) -> None:
    """One with commits that nothing else has, one with files that no git knows, a locked one and one whose
    folder is gone: none is removed, pruned, moved or written, whichever of them is worked in.
    """
    repo = make(tmp_path / "repo")
    for name in ("unmerged", "untracked", "locked", "gone"):
        git(repo, "worktree", "add", "--quiet", "-b", name, tmp_path / name)
    write(tmp_path / "unmerged", {"only.txt": "here\n"})
    git(tmp_path / "unmerged", "add", "-A")
    git(tmp_path / "unmerged", "commit", "--quiet", "-m", "only here")
    write(tmp_path / "untracked", {"notes.txt": "mine\n"})
    git(repo, "worktree", "lock", tmp_path / "locked")
    (tmp_path / "gone").rename(tmp_path / "away")
    folders = [tmp_path / name for name in ("repo", "unmerged", "untracked", "locked", "away")]
    before = {folder: fingerprint(folder) for folder in folders}
    for number, folder in enumerate(folders[:4]):
        whole = fingerprint(repo)
        repository = find_repository(folder)
        tree, _ = WorkTree.begin(tmp_path / f"run{number}", repository)
        tree.give_git(repository, {path: str(path) for path in tree.objects(repository)})
        # What a program in the copy asks of its git reaches none of them.
        git(tree.folder, "worktree", "prune", "--expire=now")
        git(tree.folder, "gc", "--quiet", "--prune=now")
        write(tree.folder, {"made.txt": "by the run\n"})
        taken, _ = tree.take()
        tree.keep(taken, "Made")
        assert fingerprint(repo) == whole
        tree.bring_to(repository, f"made{number}")
        listed = git(repo, "worktree", "list", "--porcelain")
        assert [f"worktree {tmp_path / name}" in listed for name in ("unmerged", "gone")] == [True, True]
        assert git(repo, "show", f"made{number}:made.txt") == "by the run"
        for path in folders[1:]:
            assert fingerprint(path) == before[path]
    assert git(tmp_path / "unmerged", "show", "HEAD:only.txt") == "here"


@pytest.mark.parametrize("name", [".pilotfish", ".git", ".claude", ".github", ".vscode"])
def test_a_folder_of_settings_that_is_a_link_is_not_written_through(tmp_path: Path, name: str) -> None:
    """A repository brings its settings' folder as a link to the user's own: nothing is written there."""
    home = tmp_path / "home"
    write(home, {"settings.json": "{}\n", "hooks/pre-commit": "true\n"})
    work = tmp_path / "work"
    work.mkdir()
    (work / name).symlink_to(home)
    before = fingerprint(home)
    files = Files(work)
    for path in (f"{name}/settings.json", f"{name}/new.json", f"{name}/hooks/pre-commit", f"{name}/new/a"):
        with pytest.raises(SandboxPathError):
            files.write_text(path, "owned\n")
    with pytest.raises(SandboxPathError):
        files.read_text(f"{name}/settings.json")
    assert fingerprint(home) == before
    assert (work / name).is_symlink()
