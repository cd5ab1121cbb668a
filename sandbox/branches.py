"""Whether a repository of the user's can have a new branch, found out without git running in it."""

from __future__ import annotations

import os
from pathlib import Path

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.git import GitError, git
from pilotfish.sandbox.repository import Repository


def check_branch(repository: Repository, branch: str) -> None:
    """Raise `SandboxError` unless the repository can have a new branch of this name."""
    if repository.common is None:
        raise SandboxError(
            f"{str(repository.folder)!r} is no git repository, so there can be no branch {branch!r}; leave "
            "--branch out and take the patch."
        )
    try:
        git("check-ref-format", "--branch", branch)
    except GitError:
        raise SandboxError(f"{branch!r} is no name for a branch; give one such as fix-login.") from None
    common = Path(os.path.realpath(repository.common))
    for path in (common / "objects", common / "refs" / "heads" / branch):
        if Path(os.path.realpath(path)) != path:
            raise SandboxError(
                f"{str(path)!r} is reached by a link, through which nothing is written; leave --branch out "
                "and take the patch."
            )
    if (taken := _in_the_way(repository.common, branch)) is not None:
        beside = "" if taken == branch else f", beside which git keeps no {branch!r}"
        raise SandboxError(f"There is a branch {taken!r} already{beside}; give another name with --branch.")


def _in_the_way(common: Path, branch: str) -> str | None:
    """A branch because of which there can be no new one of this name: itself, or one that would be its
    folder, or lie in it.
    """
    heads, packed = common / "refs" / "heads", common / "packed-refs"
    parts = branch.split("/")
    folders = ["/".join(parts[:count]) for count in range(1, len(parts))]
    for name in (*folders, branch):
        if not os.path.lexists(heads / name) or (name in folders and (heads / name).is_dir()):
            continue
        below = (path for path in (heads / name).rglob("*") if not path.is_dir())
        if (found := next(below, None)) or not (heads / name).is_dir():  # git removes a folder of none
            return str((found or heads / name).relative_to(heads))
    for line in packed.read_bytes().splitlines() if packed.is_file() else ():
        name = os.fsdecode(line.partition(b" refs/heads/")[2])
        if name and (name == branch or name in folders or name.startswith(f"{branch}/")):
            return name
    return None
