"""Every kind of repository is copied, worked in and handed back as a patch, and the user's is as it was."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from pilotfish.sandbox import SandboxError
from pilotfish.sandbox.branches import check_branch
from pilotfish.sandbox.repository import find_repository
from pilotfish.sandbox.scan import Bounds
from pilotfish.sandbox.worktree import WorkTree

from .repositories import boobytrap, fingerprint, git, make, write


def begin(folder: Path, place: Path) -> tuple[WorkTree, list[str]]:
    return WorkTree.begin(place, find_repository(folder))


def work_in(folder: Path, place: Path) -> tuple[bytes, list[str]]:
    """Copy a repository, change what there is in every way, and return the patch; the folder is untouched."""
    before = fingerprint(folder)
    tree, notes = begin(folder, place)
    assert tree.patch(tree.base, tree.take()[0]) == b""
    inside = tree.folder
    write(inside, {"a.py": "one\n2\n", "new/deep.txt": "deep\n", "data.bin": bytes(range(256)) * 5})
    (inside / "run.sh").write_text("#!/bin/sh\n")
    (inside / "run.sh").chmod(0o755)
    (inside / "link").symlink_to("/etc/passwd")
    patch = tree.patch(tree.base, tree.take()[0])
    assert fingerprint(folder) == before
    return patch, notes


def apply(folder: Path, patch: bytes) -> None:
    done = subprocess.run(["git", "apply"], cwd=folder, input=patch, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def applies(folder: Path, patch: bytes) -> None:
    """A person can put the patch on their own tree."""
    done = subprocess.run(
        ["git", "apply", "--binary"], cwd=folder, input=patch, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (folder / "a.py").read_text() == "one\n2\n"
    assert (folder / "data.bin").read_bytes() == bytes(range(256)) * 5
    assert os.access(folder / "run.sh", os.X_OK)
    assert str((folder / "link").readlink()) == "/etc/passwd"


def test_a_dirty_tree_is_where_the_work_begins(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", {"a.py": "one\n1\n", "b": "b\n", ".gitignore": "*.log\n"})
    write(repo, {"a.py": "one\ntwo\n", "mine.txt": "untracked\n", "x.log": "ignored\n"})
    (repo / "b").unlink()
    patch, notes = work_in(repo, tmp_path / "run")
    assert notes == [
        "3 files are not committed as they are in your folder; the work begins with what is there."
    ]
    assert b"mine.txt" not in patch
    assert b"-two\n+2\n" in patch
    assert (tmp_path / "run" / "workspace" / "x.log").read_text() == "ignored\n"
    applies(repo, patch)


def test_a_detached_head_a_linked_worktree_a_submodule_and_a_plain_folder(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo")
    git(repo, "worktree", "add", "--quiet", "-b", "side", tmp_path / "side")
    other = make(tmp_path / "other", {"c.txt": "c\n"})
    git(other, "submodule", "--quiet", "add", repo, "lib")
    git(other, "commit", "--quiet", "-m", "with a submodule")
    git(repo, "checkout", "--quiet", "--detach")
    write(tmp_path / "plain", {"a.py": "one\ntwo\n", ".gitignore": "*.log\n", "x.log": ""})
    kinds = {"repo": "repository", "side": "worktree", "other/lib": "submodule", "plain": "plain"}
    for number, (name, kind) in enumerate(kinds.items()):
        found = find_repository(tmp_path / name)
        assert found.kind == kind
        assert bool(found.head) == (kind != "plain")
        patch, notes = work_in(tmp_path / name, tmp_path / f"run{number}")
        assert notes == []
        applies(tmp_path / name, patch)
    assert find_repository(repo).branch == ""
    assert find_repository(tmp_path / "side").branch == "side"


def test_changes_in_a_submodule_are_told_and_left_out(tmp_path: Path) -> None:
    lib = make(tmp_path / "lib", {"c.txt": "c\n"})
    repo = make(tmp_path / "repo")
    git(repo, "submodule", "--quiet", "add", lib, "lib")
    git(repo, "commit", "--quiet", "-m", "with a submodule")
    tree, notes = begin(repo, tmp_path / "run")
    assert notes == ["Changes in submodules are not part of the result: lib."]
    assert not (tree.folder / "lib" / ".git").exists()
    # A program inside makes a repository of it, whose settings would run a program of its choice.
    marker = tmp_path / "marker"
    git(tree.folder / "lib", "init", "--quiet")
    boobytrap(tree.folder / "lib", marker)
    write(tree.folder, {"lib/c.txt": "changed\n", "a.py": "x\n"})
    git(
        make(tree.folder / "own", {"d": "d\n"}),
        "config",
        "core.fsmonitor",
        str(tree.folder / "lib/.git/trap"),
    )
    marker.unlink(missing_ok=True)
    taken, own = tree.take()
    assert [one.path for one in tree.changed(tree.base, taken)] == ["a.py"]
    assert own == ["own/"]
    assert not marker.exists()


def test_no_commits_yet_no_files_and_a_bare_repository(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "--quiet")
    tree, notes = begin(tmp_path / "empty", tmp_path / "run0")
    assert (find_repository(tmp_path / "empty").head, notes) == ("", [])
    write(tree.folder, {"a.py": "new\n"})
    assert b"+new" in tree.patch(tree.base, tree.take()[0])

    repo = make(tmp_path / "repo")
    git(tmp_path, "clone", "--quiet", "--bare", repo, "bare.git")
    patch, notes = work_in(tmp_path / "bare.git", tmp_path / "run1")
    assert notes == []
    applies(repo, patch)


def test_a_shallow_and_a_sparse_repository(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo")
    write(repo, {"a.py": "one\ntwo\n#\n"})
    git(repo, "commit", "--quiet", "-am", "second")
    write(repo, {"a.py": "one\ntwo\n"})
    git(repo, "commit", "--quiet", "-am", "third")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repo}", "shallow")
    shallow = tmp_path / "shallow"
    assert find_repository(shallow).is_shallow
    patch, notes = work_in(shallow, tmp_path / "run0")
    assert notes == []
    applies(shallow, patch)

    git(repo, "sparse-checkout", "set", "--no-cone", "/a.py")
    assert not (repo / "sub").exists()
    patch, notes = work_in(repo, tmp_path / "run1")
    assert (notes, b"sub/b.txt" in patch) == ([], False)
    applies(repo, patch)


def test_sha256_alternates_and_packed_refs(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", None, "--object-format=sha256")
    assert len(find_repository(repo).head) == 64
    applies(repo, work_in(repo, tmp_path / "run0")[0])
    first = make(tmp_path / "first")
    git(first, "pack-refs", "--all")
    git(tmp_path, "clone", "--quiet", "--shared", first, "second")
    assert len(find_repository(tmp_path / "second").objects) == 2
    applies(tmp_path / "second", work_in(tmp_path / "second", tmp_path / "run1")[0])
    applies(first, work_in(first, tmp_path / "run2")[0])


def test_lfs_files_and_those_of_other_filters_stay_as_in_the_commit(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5\n"
    repo = make(
        tmp_path / "repo", {"big.dat": pointer, "a.py": "one\ntwo\n", ".gitattributes": "*.dat filter=lfs\n"}
    )
    write(repo, {"big.dat": b"\0real"})  # as it is where Git LFS is installed
    tree, notes = begin(repo, tmp_path / "run")
    assert notes == [
        "Changes of files that a filter makes, such as Git LFS, are not part of the result: big.dat."
    ]
    write(tree.folder, {"big.dat": b"other", "a.py": "x\n", "new.dat": "new"})
    assert [one.path for one in tree.changed(tree.base, tree.take()[0])] == ["a.py"]


@pytest.mark.parametrize("setting", ["core.autocrlf=true", "attributes"])
def test_line_ends_that_git_converts_are_no_change(tmp_path: Path, setting: str) -> None:
    files: dict[str, str | bytes] = {"a.txt": "one\ntwo\n"}
    repo = make(
        tmp_path / "repo", files | ({".gitattributes": "*.txt eol=crlf\n"} if setting == "attributes" else {})
    )
    if setting != "attributes":
        git(repo, "config", *setting.split("="))
    write(repo, {"a.txt": "one\r\ntwo\r\n"})
    tree, notes = begin(repo, tmp_path / "run")
    assert (notes, tree.base) == ([], find_repository(repo).head)
    write(tree.folder, {"a.txt": "one\r\n2\r\n"})
    taken, _ = tree.take()
    patch = tree.patch(tree.base, taken)
    assert patch.count(b"\n-") == 2  # the name and one line
    assert not tree.mostly_line_ends(tree.base, taken)
    apply(repo, patch)
    assert (repo / "a.txt").read_bytes() == b"one\r\n2\r\n"


def test_a_change_of_nothing_but_line_ends_is_seen(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", {"a.txt": "one\ntwo\nthree\n"})
    tree, _ = begin(repo, tmp_path / "run")
    write(tree.folder, {"a.txt": "one\r\ntwo\r\n3\r\n"})
    taken, _ = tree.take()
    assert b"\n-one\n-two\n-three\n+one\r\n" in tree.patch(tree.base, taken)
    assert tree.mostly_line_ends(tree.base, taken)


def test_nothing_that_a_repository_says_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    repo = make(tmp_path / "repo")
    boobytrap(repo, marker)
    write(repo, {".gitattributes": "* filter=trap diff=trap merge=trap\n", "a.py": "one\n"})
    before = fingerprint(repo)
    git(repo, "status", "--short")
    assert marker.exists()  # git itself runs it
    marker.unlink()
    before = fingerprint(repo)
    tree, _ = begin(repo, tmp_path / "run")
    tree.give_git(find_repository(repo), None)
    write(tree.folder, {"a.py": "two\n", "c.txt": "c\n"})
    taken, _ = tree.take()
    tree.patch(tree.base, taken)
    tree.keep(taken, "change")
    assert fingerprint(repo) == before
    tree.bring_to(find_repository(repo), "mended")
    assert not marker.exists()


def test_a_branch_is_made_with_the_work_and_nothing_else_changes(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo")
    write(repo, {"mine.txt": "not committed\n"})
    found = find_repository(repo)
    tree, _ = begin(repo, tmp_path / "run")
    write(tree.folder, {"a.py": "changed\n"})
    commit = tree.keep(tree.take()[0], "Change a\n")
    before = fingerprint(repo)
    check_branch(found, "fix/a")
    tree.bring_to(found, "fix/a")
    after = fingerprint(repo)
    changed = {name for name in after if after.get(name) != before.get(name)}
    assert all(name.startswith((".git/objects", ".git/refs/heads")) for name in changed)
    assert before.keys() <= after.keys()
    assert git(repo, "rev-parse", "fix/a") == commit
    assert git(repo, "log", "--format=%s", "fix/a").splitlines() == [
        "Change a",
        "What was not committed when this work began",
        "first",
    ]
    assert git(repo, "status", "--short") == "?? mine.txt"
    git(repo, "fsck", "--strict")
    for name, said in (
        ("fix/a", "already"),
        ("bad..name", "no name"),
        ("-x", "no name"),
        ("main", "already"),
        ("main/x", r"There is a branch 'main' already, beside which git keeps no 'main/x'"),
        ("fix", "There is a branch 'fix/a' already, beside which git keeps no 'fix'"),
        ("fix/a/b/c", "'fix/a' already"),
    ):
        with pytest.raises(SandboxError, match=said):
            check_branch(found, name)
    check_branch(found, "fix/b")
    git(repo, "pack-refs", "--all")
    for name in ("fix/a", "fix", "fix/a/b", "main/x"):
        with pytest.raises(SandboxError, match="already"):
            check_branch(found, name)
    check_branch(found, "fix/b")
    with pytest.raises(SandboxError):
        tree.bring_to(found, "fix/a")
    assert not list((tmp_path / "run").glob("view-*"))
    (repo / ".git" / "refs" / "heads" / "left" / "empty").mkdir(parents=True)
    check_branch(found, "left")
    tree.bring_to(found, "left")
    assert git(repo, "rev-parse", "left") == commit
    plain = tmp_path / "plain"
    plain.mkdir()
    for call in (check_branch, tree.bring_to):
        with pytest.raises(SandboxError, match="no git repository"):
            call(find_repository(plain), "x")


def test_a_git_file_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo")
    for name, content in {
        "file": f"gitdir: {repo}/.git",
        "nowhere": "gitdir: /nonexistent",
        "nonsense": "what",
    }.items():
        write(tmp_path / name, {".git": content, "a.py": "x"})
        with pytest.raises(SandboxError, match=r"lead|no file of git's"):
            find_repository(tmp_path / name)
    # One that says it is a worktree, of a repository that knows no such worktree.
    git(repo, "worktree", "add", "--quiet", "-b", "side", tmp_path / "side")
    write(tmp_path / "thief", {".git": f"gitdir: {repo}/.git/worktrees/side"})
    with pytest.raises(SandboxError, match="does not lead back"):
        find_repository(tmp_path / "thief")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".git").symlink_to(repo / ".git")
    with pytest.raises(SandboxError, match="is a link"):
        find_repository(tmp_path / "linked")


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        ("rm -r .git/objects/??", "cannot be read"),
        ("echo ref: ../../etc/passwd > .git/HEAD", "no ref"),
        ("rm .git/HEAD", "not a repository"),
        ("git config extensions.refStorage reftable", "reftable"),
        ("git config core.bare true", "set to be bare"),
        ("echo 0000000000000000000000000000000000000001 > .git/HEAD", "cannot be read"),
    ],
)
def test_a_broken_repository_is_one_sentence(tmp_path: Path, break_it: str, said: str) -> None:
    repo = make(tmp_path / "repo")
    subprocess.run(["sh", "-c", break_it], cwd=repo, check=True)
    with pytest.raises(SandboxError, match=said) as told:
        find_repository(repo)
    assert str(told.value).count(". ") == 0


def test_what_is_no_repository(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo")
    with pytest.raises(SandboxError, match=f"is a folder in the repository '{repo}'"):
        find_repository(repo / "sub")
    with pytest.raises(SandboxError, match="does not exist"):
        find_repository(tmp_path / "none")
    with pytest.raises(SandboxError, match="is not a folder"):
        find_repository(repo / "a.py")


def test_odd_things_in_a_folder_are_named_and_copied_if_they_can_be(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", {"a.py": "one\ntwo\n", "sub/big": "b"})
    odd = os.fsdecode(b"new\nline \xff.txt")
    write(repo, {odd: "x\n"})
    os.mkfifo(repo / "pipe")
    (repo / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(repo)
        listening.bind("sock")
        os.chdir(here)
    write(repo, {"sub/big": b"y" * 5000})
    deep = repo
    for _ in range(300):
        deep = deep / "d"
    deep.mkdir(parents=True)
    before = fingerprint(repo)
    tree, notes = WorkTree.begin(tmp_path / "run", find_repository(repo), bounds=Bounds(file_bytes=4000))
    write(tree.folder, {"a.py": "x\n"})
    patch = tree.patch(tree.base, tree.take()[0])
    assert fingerprint(repo) == before
    assert "pipe (a socket, pipe or device)" in notes[0]
    assert "(nested too deep)" in notes[0]
    assert "sub/big (more than 0 MiB)" in notes[0]
    assert b"big" not in patch
    assert (tmp_path / "run" / "workspace" / odd).read_text() == "x\n"
    assert str((tmp_path / "run" / "workspace" / "loop").readlink()) == "loop"


def test_a_folder_of_too_many_files_or_bytes_is_refused(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo")
    before = fingerprint(repo)
    for name, bounds in {"more than 2 files": Bounds(entries=2), "holds more": Bounds(store_bytes=9)}.items():
        with pytest.raises(SandboxError, match=name):
            WorkTree.begin(tmp_path / name, find_repository(repo), bounds=bounds)
    assert fingerprint(repo) == before


def test_links_in_the_copy_lead_nothing_out_of_it(tmp_path: Path) -> None:
    """A tracked folder that was replaced by a link to another place: its files are gone, not those there."""
    secret = tmp_path / "secret"
    write(secret, {"b.txt": "secret\n"})
    repo = make(tmp_path / "repo")
    tree, _ = begin(repo, tmp_path / "run")
    (tree.folder / "sub" / "b.txt").unlink()
    (tree.folder / "sub").rmdir()
    (tree.folder / "sub").symlink_to(secret)
    taken, _ = tree.take()
    assert [(one.how, one.path) for one in tree.changed(tree.base, taken)] == [
        ("A", "sub"),
        ("D", "sub/b.txt"),
    ]
    assert b"secret\n" not in tree.patch(tree.base, taken).replace(os.fsencode(secret), b"")


def test_settings_that_are_a_pipe_are_not_waited_for(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo")
    (repo / ".git" / "config").unlink()
    os.mkfifo(repo / ".git" / "config")
    before = fingerprint(repo)
    tree, _ = begin(repo, tmp_path / "place")
    assert (tree.folder / "a.py").read_text() == "one\ntwo\n"
    assert fingerprint(repo) == before


@pytest.mark.parametrize(
    "name", ["refs/heads/other", "info/exclude", "objects/info/alternates", "objects/ab/cd"]
)
def test_pipes_among_gits_files_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    repo = make(tmp_path / "repo", {"a.txt": "a\n"})
    place = repo / ".git" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    # git's own monitor of files has a socket there, on which nothing waits.
    with socket.socket(socket.AF_UNIX) as monitor:
        monkeypatch.chdir(repo / ".git")
        monitor.bind("fsmonitor--daemon.ipc")
    assert find_repository(repo).branch == "main"
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    with pytest.raises(SandboxError, match="is a pipe or a device, on which git would wait"):
        find_repository(repo)


def test_names_that_other_systems_cannot_tell_apart_are_handed_back(tmp_path: Path) -> None:
    """Only another case, and names that Windows keeps for itself."""
    repo = make(tmp_path / "repo", {"readme.md": "one\ntwo\n", "a.py": "1\n", "Lib/x.py": "x\n"})
    tree, _ = begin(repo, tmp_path / "run")
    (tree.folder / "readme.md").rename(tree.folder / "README.md")
    (tree.folder / "Lib").rename(tree.folder / "lib")
    write(tree.folder, {"aux.py": "2\n", "CON": "3\n", "A.py": "another\n", "back\\slash": "4\n"})
    apply(repo, tree.patch(tree.base, tree.take()[0]))
    found = {str(p.relative_to(repo)) for p in repo.rglob("*") if p.is_file() and ".git" not in p.parts}
    assert found == {"README.md", "a.py", "A.py", "lib/x.py", "aux.py", "CON", "back\\slash"}
    assert (repo / "README.md").read_text() == "one\ntwo\n"


def test_a_repository_of_somebody_else_is_worked_with(tmp_path: Path) -> None:
    """git itself refuses one (`safe.directory`), lest its settings run something; here nothing of it runs."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    repo = make(tmp_path / "repo")
    for path in [repo, *repo.rglob("*")]:
        os.chown(path, 12345, 12345, follow_symlinks=False)
    patch, notes = work_in(repo, tmp_path / "run")
    assert notes == []
    assert b"+2\n" in patch
