"""A copy of a repository's folder to work in, and what was changed in it, as git would say it.

    PLACE/workspace   the copy: what the user's folder holds, uncommitted and untracked files too
    PLACE/git         a git folder of ours (`GitDir`) that programs in the copy never see
    PLACE/git/kept    paths that stay as they are in the commit, whatever lies in the copy

The user's folder, index, refs and settings are only read. git looks at the copy with `GitDir`'s settings and
is told each path that it shall read, since left to itself it would run git in folders that look like
repositories, by their settings.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pilotfish.sandbox.branches import check_branch
from pilotfish.sandbox.copying import Copied, copy_folder
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.git import GitDir, GitError, git
from pilotfish.sandbox.patterns import copy_patterns, left_behind, remove_pipes
from pilotfish.sandbox.repository import Repository, copy_shallow, is_own, view_of
from pilotfish.sandbox.scan import Bounds
from pilotfish.sandbox.trees import remove_tree

_BASE, _HEAD, _RESULT = "refs/heads/base", "refs/heads/head", "refs/heads/result"
_DIRTY = "What was not committed when this work began"


@dataclass(frozen=True)
class Changed:
    """One path that was changed. how: A added, D removed, M changed, R renamed (then `before` is its old
    path), T another kind of file.
    """

    how: str
    path: str
    before: str = ""


class WorkTree:
    """Made by `begin`, or what `begin` made in the place before. Raises `SandboxError`, one sentence each."""

    def __init__(self, place: Path) -> None:
        place = place.absolute()  # git runs in another folder
        self.place = place
        self.folder = place / "workspace"
        self._git = GitDir(place / "git")
        kept = place / "git" / "kept"
        self._kept = frozenset(kept.read_bytes().split(b"\0")) if kept.is_file() else frozenset()

    @classmethod
    def begin(
        cls,
        place: Path,
        repository: Repository,
        goes_on: Callable[[], None] = lambda: None,
        bounds: Bounds | None = None,
    ) -> tuple[WorkTree, list[str]]:
        """Copy a repository into a new place. Returns it, and sentences on what a person has to know of it.

        goes_on: called often; raises to break off. A place that is not whole can be removed.
        """
        with _on_disk(place):
            return cls._begin(place.absolute(), repository, goes_on, bounds)

    @classmethod
    def _begin(
        cls, place: Path, repository: Repository, goes_on: Callable[[], None], bounds: Bounds | None
    ) -> tuple[WorkTree, list[str]]:
        place.mkdir(parents=True, exist_ok=True)
        own = GitDir.create(
            place / "git",
            sha256=repository.sha256,
            borrow=repository.objects,
            settings=repository.settings,
        )
        copy_shallow(repository, own)
        copy_patterns(repository, own)
        if repository.head:
            own.run("read-tree", repository.head)
            own.run("update-ref", _HEAD, repository.head)
        made = cls(place)
        notes = made._fill(repository, goes_on, bounds)
        made._take_base(repository)
        dirty = made.changed(_HEAD, _BASE) if repository.head else []
        if dirty and repository.kind != "bare":
            notes.append(
                f"{len(dirty)} file{' is' if len(dirty) == 1 else 's are'} not committed as "
                f"{'it is' if len(dirty) == 1 else 'they are'} in your folder; the work begins with what is "
                "there."
            )
        return made, notes

    @property
    def base(self) -> str:
        """The commit that the work began with. Raises `GitError` where the copy is not whole."""
        return self._git.line("rev-parse", "--verify", _BASE)

    def give_git(self, repository: Repository, seen_as: dict[Path, str] | None) -> None:
        """Give the copy a `.git` for the programs in it, which may do what they like there: it is never read
        from outside.

        seen_as: where the folders of objects (`objects`) are for these programs; None where they cannot be
        shown, which leaves them without history.
        """
        with _on_disk(self.place):
            self._give_git(repository, seen_as)

    def _give_git(self, repository: Repository, seen_as: dict[Path, str] | None) -> None:
        own = self.folder / ".git"
        git("init", "--quiet", "--template=", f"--object-format={self._kind}", str(own.parent))
        given = GitDir(own)
        branch = repository.branch or "work"
        given.run("symbolic-ref", "HEAD", f"refs/heads/{branch}")
        for name, value in {"user.name": "Pilotfish", "user.email": "pilotfish@localhost"}.items():
            given.run("config", name, value)
        if seen_as is None:
            pack = self._pack(f"--shallow {self.base}", self.base)
            given.run("unpack-objects", "-q", stdin=pack)
            (own / "shallow").write_text(f"{self.base}\n")
        else:
            copy_shallow(repository, given)
            lines = "".join(f"{seen_as[folder]}\n" for folder in self.objects(repository))
            (own / "objects" / "info").mkdir(exist_ok=True)
            (own / "objects" / "info" / "alternates").write_text(lines)
        ref = own / "refs" / "heads" / branch
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(f"{self.base}\n")
        (own / "info").mkdir(exist_ok=True)
        # What a link leads to may be any file of the user's, and is not for programs inside.
        known = repository.common is None or is_own(repository.common, "info/exclude")
        patterns = (self._git.path / "info" / "exclude").read_bytes() if known else left_behind()
        (own / "info" / "exclude").write_bytes(patterns)
        (own / "index").write_bytes((self._git.path / "index").read_bytes())

    def objects(self, repository: Repository) -> tuple[Path, ...]:
        """The folders of objects that the copy's commits are made of."""
        return (self._git.path / "objects", *repository.objects)

    def _pack(self, *revisions: str) -> bytes:
        listed = "".join(f"{revision}\n" for revision in revisions)
        return self._git.run("pack-objects", "--revs", "--stdout", "-q", stdin=listed.encode())

    @property
    def _kind(self) -> str:
        return "sha256" if len(self.base) == 64 else "sha1"

    def take(self) -> tuple[str, list[str]]:
        """The tree that the folder is now, and what of the folder is not in it though git lists it: folders
        that are repositories of their own. No program may be writing there. Pipes that git would wait for
        are removed.
        """
        remove_pipes(self.folder)
        cached = set(self._git.words("ls-files", "-z", "--cached", tree=self.folder))
        listed = self._git.words(
            "ls-files", "-z", "--others", "--exclude-standard", "--no-empty-directory", tree=self.folder
        )
        own = sorted(os.fsdecode(path) for path in listed if path.endswith(b"/"))
        others = {path for path in listed if not path.endswith(b"/")}
        others -= self._filtered(others)
        present = self._present(cached) - self._kept
        gone = cached - present - self._kept
        self._update(gone, "--force-remove")
        self._update(present | others, "--add", "--replace")
        return self._git.line("write-tree", "--missing-ok", writes=True), own

    def not_taken(self) -> list[str]:
        """Sentences on new files that are not in what was taken: those that a filter would make, and those
        whose names git does not keep.
        """
        others = set(self._git.words("ls-files", "-z", "--others", "--exclude-standard", tree=self.folder))
        others = {path for path in others if not path.endswith(b"/")}
        filtered = self._filtered(others)
        told = {
            "New files that a filter makes, such as Git LFS, are": filtered,
            "New files of names that git does not keep, such as .git in other letters, are": others
            - filtered,
        }
        return [f"{what} not part of the result: {_few(paths)}." for what, paths in told.items() if paths]

    def keep(self, tree: str, message: str) -> str:
        """Make a tree that was taken a commit after the base; returns it, also if it was made before."""
        with contextlib.suppress(GitError):  # made by a process that was killed after it
            if self._git.line("rev-parse", "--verify", f"{_RESULT}^{{tree}}") == tree:
                return self._git.line("rev-parse", _RESULT)
        text = message.encode("utf-8", "replace").replace(b"\0", b"")  # git takes none
        commit = self._git.line("commit-tree", tree, "-p", self.base, stdin=text)
        self._git.run("update-ref", _RESULT, commit)
        return commit

    def patch(self, before: str, after: str) -> bytes:
        """What `git apply` takes to make one tree of the other, binary files and modes included."""
        return self._git.run(
            "diff-tree", "-r", "-p", "-M", "--binary", "--full-index", "--no-ext-diff", "--no-textconv",
            "--src-prefix=a/", "--dst-prefix=b/", before, after,
        )  # fmt: skip

    def changed(self, before: str, after: str) -> list[Changed]:
        """The paths that differ."""
        words = self._git.words("diff-tree", "-r", "-M", "-z", "--name-status", before, after)
        found = []
        told = iter(os.fsdecode(word) for word in words)
        for how in told:
            old = next(told)
            found.append(Changed(how[0], next(told), old) if how[0] in "RC" else Changed(how[0], old))
        return found

    def mostly_line_ends(self, before: str, after: str) -> bool:
        """Whether more than half of the changed lines differ in nothing but their ends."""
        every = self._lines(before, after)
        return every > 0 and self._lines(before, after, "--ignore-cr-at-eol") * 2 < every

    def bring_to(self, repository: Repository, branch: str) -> None:
        """Make the result a new branch of the user's repository, which is not checked out.

        Raises `SandboxError` when there is such a branch that is not this result, or it cannot be one.
        """
        commit = self._git.line("rev-parse", _RESULT)
        if repository.common is not None:
            with contextlib.suppress(OSError):
                if (repository.common / "refs" / "heads" / branch).read_bytes().strip() == commit.encode():
                    return  # made by a process that was killed after it
        check_branch(repository, branch)
        place = self.place / f"view-{os.getpid()}"
        try:
            view = view_of(repository, place)
            known = (f"^{repository.head}",) if repository.head else ()
            view.run("unpack-objects", "-q", stdin=self._pack(commit, *known))
            view.run("update-ref", f"refs/heads/{branch}", commit, "0" * len(commit))
        finally:
            _remove_view(place)

    def _fill(self, repository: Repository, goes_on: Callable[[], None], bounds: Bounds | None) -> list[str]:
        """Put the files into the folder, and find out which paths are not to be looked at."""
        tracked = dict[bytes, bytes]()
        for line in self._git.words("ls-files", "-z", "--stage"):
            about, _, path = line.partition(b"\t")
            tracked[path] = about.split()[0]
        links = {path for path, mode in tracked.items() if mode == b"160000"}
        if repository.kind == "bare":
            self.folder.mkdir()
            copied = Copied()
            self._git.run("checkout-index", "--all", "--quiet", tree=self.folder)
        else:
            without = frozenset({".git"} | {f"{os.fsdecode(path)}/.git" for path in links})
            copied = copy_folder(
                repository.folder, self.folder, without=without, bounds=bounds, goes_on=goes_on
            )
        filtered = self._filtered(tracked.keys())
        absent = set(tracked) - self._present(tracked) - links
        if not repository.is_sparse:
            missing = [os.fsencode(path) for path in copied.missing]
            folders = tuple(path for path in missing if path.endswith(b"/"))
            absent = {path for path in absent if path in missing or path.startswith(folders or b"\0")}
        self._kept = frozenset(links | filtered | absent)
        # What is as in the commit need not be read again, and is no object of ours.
        how = ("-q", "--ignore-submodules", "--ignore-missing", "--refresh")
        self._git.run("update-index", *how, tree=self.folder, writes=True)
        (self._git.path / "kept").write_bytes(b"\0".join(sorted(self._kept)))
        return _notes(copied, links, filtered)

    def _take_base(self, repository: Repository) -> None:
        tree, _ = self.take()
        if repository.head and self._git.line("rev-parse", f"{_HEAD}^{{tree}}") == tree:
            base = repository.head
        else:
            parent = ("-p", repository.head) if repository.head else ()
            base = self._git.line("commit-tree", tree, *parent, stdin=f"{_DIRTY}\n".encode())
        self._git.run("update-ref", _BASE, base)

    def _filtered(self, paths: Iterable[bytes]) -> set[bytes]:
        """Those that a filter makes, such as Git LFS: a program, which is not run."""
        paths = list(paths)
        told = self._git.run(
            "check-attr", "-z", "--stdin", "filter", tree=self.folder, stdin=b"\0".join([*paths, b""])
        ).split(b"\0")
        return {
            path
            for path, value in zip(told[::3], told[2::3], strict=False)
            if value not in (b"unspecified", b"unset", b"set", b"")
        }

    def _present(self, paths: Iterable[bytes]) -> set[bytes]:
        """Those that are files or links in the folder itself, and not somewhere that a link leads to."""
        root = os.fsencode(self.folder)
        real: dict[bytes, bool] = {b"": True}

        def is_folder(path: bytes) -> bool:
            above = []
            while path not in real:  # a path may have more steps than Python has frames
                above.append(path)
                path = path.rpartition(b"/")[0]
            for below in reversed(above):
                real[below] = real[path] and stat.S_ISDIR(_mode(root + b"/" + below))
                path = below
            return real[path]

        def is_there(path: bytes) -> bool:
            mode = _mode(root + b"/" + path) if is_folder(path.rpartition(b"/")[0]) else 0
            return stat.S_ISREG(mode) or stat.S_ISLNK(mode)

        return {path for path in paths if is_there(path)}

    def _update(self, paths: set[bytes], *how: str) -> None:
        if paths:
            listed = b"\0".join([*sorted(paths), b""])
            self._git.run("update-index", *how, "-z", "--stdin", tree=self.folder, stdin=listed, writes=True)

    def _lines(self, before: str, after: str, *how: str) -> int:
        told = self._git.run("diff-tree", "-r", "--numstat", *how, before, after).split(b"\n")
        counts = [line.split(b"\t")[:2] for line in told if line]
        return sum(int(count) for pair in counts for count in pair if count.isdigit())


@contextlib.contextmanager
def _on_disk(place: Path) -> Iterator[None]:
    """A failure of the disk as one sentence."""
    try:
        yield
    except OSError as error:
        raise SandboxError(
            f"the copy in {str(place)!r} could not be made ({error.strerror}); free some space there or "
            "choose another place."
        ) from error


def _mode(path: bytes) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _remove_view(place: Path) -> None:
    """Remove a view; the links in it lead into the user's repository and are not followed."""
    if place.is_dir():
        remove_tree(place)


def _notes(copied: Copied, links: set[bytes], filtered: set[bytes]) -> list[str]:
    """What a person has to know of a copy."""
    notes = []
    if copied.missing:
        named = ", ".join(f"{path} ({why})" for path, why in list(copied.missing.items())[:5])
        more = f" and {len(copied.missing) - 5} more" if len(copied.missing) > 5 else ""
        notes.append(f"Not in the copy that is worked in, and so unchanged: {named}{more}.")
    if links:
        notes.append(f"Changes in submodules are not part of the result: {_few(links)}.")
    if filtered:
        notes.append(
            "Changes of files that a filter makes, such as Git LFS, are not part of the result: "
            f"{_few(filtered)}."
        )
    return notes


def _few(paths: set[bytes]) -> str:
    named = ", ".join(os.fsdecode(path) for path in sorted(paths)[:3])
    return f"{named} and {len(paths) - 3} more" if len(paths) > 3 else named
