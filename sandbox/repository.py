"""What a folder of the user's is to git, found out by reading files: no git runs in it, nothing is obeyed.

Told apart are plain folders, repositories, linked worktrees, submodules and bare repositories. A `.git` that
leads elsewhere counts only if what it leads to leads back.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.git import GitDir, GitError, git, settings_in

Kind = Literal["plain", "repository", "worktree", "submodule", "bare"]
_SMALL = 1 << 16
_MOST_ALTERNATES = 16
_STORED = re.compile(r"[0-9a-f]{2}|pack|info|maintenance\.lock|(?:tmp_|tmp-|bulk-|incoming-).*")
"""What git keeps in a folder of objects."""


@dataclass(frozen=True)
class Repository:
    """A folder and the repository it belongs to.

    git_dir: its own part (HEAD), common: what linked worktrees share (objects, refs, settings); None for a
    plain folder. head: the commit that is checked out, '' before the first one. branch: what HEAD names, ''
    when it is detached. objects: its folder of objects and those that it borrows from. settings: of its
    own files, by lower-case names; read, never obeyed.
    """

    folder: Path
    kind: Kind
    git_dir: Path | None = None
    common: Path | None = None
    head: str = ""
    branch: str = ""
    objects: tuple[Path, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def sha256(self) -> bool:
        """Whether its objects are named by SHA-256."""
        return self.settings.get("extensions.objectformat") == "sha256"

    @property
    def is_shallow(self) -> bool:
        """Whether its history is cut off."""
        return self.common is not None and (self.common / "shallow").is_file()

    @property
    def is_sparse(self) -> bool:
        """Whether files of the commit are left out of the folder on purpose."""
        return self.settings.get("core.sparsecheckout") in ("true", "yes", "on", "1")


def find_repository(folder: Path) -> Repository:
    """What `folder` is. Raises `SandboxError`, one sentence, for what cannot be worked with safely."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise SandboxError(f"{str(folder)!r} {what}; give the folder of a repository.")
    folder = folder.resolve()
    own = folder / ".git"
    if own.is_symlink():
        raise SandboxError(
            f"{str(own)!r} is a link to {str(own.readlink())!r}; make a clone of that repository and give it."
        )
    if own.is_dir():
        return _read(folder, "repository", own, own)
    if own.is_file():
        return _elsewhere(folder, own)
    if _is_git_dir(folder):
        return _read(folder, "bare", folder, folder)
    for above in folder.parents:
        if (above / ".git").exists():
            raise SandboxError(
                f"{str(folder)!r} is a folder in the repository {str(above)!r}; give that, or make it a "
                "repository of its own with `git init`."
            )
    return Repository(folder, "plain")


def _elsewhere(folder: Path, own: Path) -> Repository:
    """A `.git` that is a file: of a linked worktree, of a submodule, or of neither."""
    first = _text(own).strip()
    if not first.startswith("gitdir:"):
        raise SandboxError(f"{str(own)!r} is no file of git's; remove it, or give a repository.")
    git_dir = Path(os.path.realpath(folder / first.removeprefix("gitdir:").strip()))
    if not git_dir.is_dir():
        raise SandboxError(
            f"{str(own)!r} leads to {str(git_dir)!r}, where nothing is; `git worktree repair` or `git "
            "submodule update --init` mends that."
        )
    if (git_dir / "commondir").is_file():
        back = Path(os.path.realpath(git_dir / _text(git_dir / "gitdir").strip()))
        common = Path(os.path.realpath(git_dir / _text(git_dir / "commondir").strip()))
        if back == own and git_dir.parent == common / "worktrees":
            return _read(folder, "worktree", git_dir, common)
    elif (tree := settings_in(git_dir / "config").get("core.worktree")) and Path(
        os.path.realpath(git_dir / tree)
    ) == folder:
        return _read(folder, "submodule", git_dir, git_dir)
    raise SandboxError(
        f"{str(own)!r} leads to {str(git_dir)!r}, which does not lead back to {str(folder)!r}; make a clone "
        "of that repository and give it."
    )


def _read(folder: Path, kind: Kind, git_dir: Path, common: Path) -> Repository:
    for name in ("refs", "objects", "info"):
        _refuse_what_blocks(common / name)
    if not _is_git_dir(common):
        raise SandboxError(
            f"{str(git_dir)!r} is not a repository of git's (no HEAD, objects or refs in it); remove it or "
            "`git init` there."
        )
    settings = settings_in(common / "config")
    if settings.get("extensions.worktreeconfig") == "true":
        settings |= settings_in(git_dir / "config.worktree")
    if settings.get("core.bare") == "true" and kind == "repository":
        raise SandboxError(f"{str(git_dir)!r} is set to be bare; give it itself, or unset core.bare.")
    if settings.get("extensions.refstorage", "files") != "files":
        raise SandboxError(
            f"{str(git_dir)!r} keeps its refs as {settings['extensions.refstorage']!r}, which is not read "
            "here; `git refs migrate --ref-format=files` in a clone changes that."
        )
    objects = _objects(common)
    for borrowed in objects[1:]:
        _refuse_what_blocks(borrowed)
    made = Repository(folder, kind, git_dir, common, "", "", objects, settings)
    head, branch = _head(made)
    return Repository(folder, kind, git_dir, common, head, branch, objects, settings)


def _refuse_what_blocks(place: Path) -> None:
    """Raise `SandboxError` for a pipe or a device among git's files, since git would wait for it."""
    open_ = [str(place)]
    while open_:
        try:
            with os.scandir(open_.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        open_.append(entry.path)
                    elif blocks(entry):
                        raise SandboxError(
                            f"{entry.path!r} is a pipe or a device, on which git would wait; remove it."
                        )
        except OSError:
            continue


def blocks(entry: os.DirEntry[str]) -> bool:
    """Whether whoever reads this may wait for ever: a pipe or a device, or a link to one."""
    if entry.is_file(follow_symlinks=False):
        return False
    try:
        mode = entry.stat().st_mode
    except OSError:
        return False  # a link that leads nowhere
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _head(repository: Repository) -> tuple[str, str]:
    """The commit of HEAD and the branch that HEAD names."""
    assert repository.git_dir is not None
    told = _text(repository.git_dir / "HEAD").strip()
    name = told.removeprefix("ref:").strip() if told.startswith("ref:") else ""
    branch = name.removeprefix("refs/heads/")
    if name and not (name.startswith("refs/") and _is_ref(name)):
        raise SandboxError(
            f"HEAD of {str(repository.git_dir)!r} names {name!r}, which is no ref; `git symbolic-ref HEAD "
            "refs/heads/main` there mends that."
        )
    wanted = name or told
    with tempfile.TemporaryDirectory(prefix="pilotfish-") as place:
        view = view_of(repository, Path(place) / "view")
        try:
            head = view.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{wanted}^{{commit}}")
            return head, branch
        except GitError:
            if name and not _has(repository, name):
                return "", branch
    raise SandboxError(
        f"the commit {wanted!r} that is checked out in {str(repository.folder)!r} cannot be read; `git fsck` "
        "there tells more."
    )


def _is_ref(name: str) -> bool:
    try:
        git("check-ref-format", name)
    except GitError:
        return False
    return True


def _has(repository: Repository, ref: str) -> bool:
    assert repository.common is not None
    packed = repository.common / "packed-refs"
    return (repository.common / ref).exists() or (
        packed.is_file() and f" {ref}\n".encode() in packed.read_bytes()
    )


def view_of(repository: Repository, path: Path) -> GitDir:
    """A new git folder with the refs and objects of a repository, and settings of ours.

    What is written to it, objects and refs, is written to the repository.
    """
    assert repository.common is not None
    assert not path.exists()
    view = GitDir.create(path, sha256=repository.sha256, settings=repository.settings)
    for name in ("refs", "objects"):
        (path / name).rename(path / f"{name}.empty")
        (path / name).symlink_to(repository.common / name)
    if (repository.common / "packed-refs").is_file():
        (path / "packed-refs").symlink_to(repository.common / "packed-refs")
    copy_shallow(repository, view)
    return view


def copy_shallow(repository: Repository, into: GitDir) -> None:
    """Tell a git folder where the history of a shallow repository is cut off."""
    if repository.common is not None and repository.is_shallow:
        lines = (repository.common / "shallow").read_bytes().split(b"\n")
        # Programs inside read it, so nothing else that a link may lead to.
        names = [line for line in lines if re.fullmatch(rb"[0-9a-f]{40}|[0-9a-f]{64}", line)]
        (into.path / "shallow").write_bytes(b"".join(name + b"\n" for name in names))


def is_own(git_dir: Path, name: str) -> bool:
    """Whether a path of git's is there and no link leads to it."""
    return Path(os.path.realpath(git_dir / name)) == Path(os.path.realpath(git_dir)) / name


def _objects(common: Path) -> tuple[Path, ...]:
    """The folder of objects and those borrowed from, as git follows them. Programs inside see them, so one
    that lies elsewhere counts only if it is what it is called.
    """
    found: list[Path] = []
    open_ = [Path(os.path.realpath(common / "objects"))]
    while open_ and len(found) < _MOST_ALTERNATES:
        folder = open_.pop(0)
        if folder in found or not folder.is_dir():
            continue
        if (found or not is_own(common, "objects")) and not _is_store(folder):
            continue
        found.append(folder)
        listed = folder / "info" / "alternates"
        for line in _text(listed).splitlines() if listed.is_file() else ():
            if line and not line.startswith("#"):
                open_.append(Path(os.path.realpath(folder / line)))
    return tuple(found)


def _is_store(folder: Path) -> bool:
    """Whether a folder is one of a repository's objects, and not somebody's files."""
    try:
        return _is_git_dir(folder.parent) and all(_STORED.fullmatch(path.name) for path in folder.iterdir())
    except OSError:
        return False


def _is_git_dir(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()


def _text(path: Path) -> str:
    """The start of a small file of git's. Raises `SandboxError`."""
    try:
        with path.open("rb") as file:
            return os.fsdecode(file.read(_SMALL))
    except OSError as error:
        raise SandboxError(
            f"{str(path)!r} cannot be read ({error.strerror}); check its permissions."
        ) from error
