"""The patterns by which git ignores files and keeps text: of a repository beside its files, and ours."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from pilotfish.sandbox.git import GitDir
from pilotfish.sandbox.repository import Repository

_BY_THEMSELVES = (
    "__pycache__/",
    "*.pyc",
    ".pytest_cache/",
    ".mypy_cache/",
    ".ruff_cache/",
    ".hypothesis/",
    ".tox/",
    ".nox/",
    "node_modules/",
)
"""What programs leave behind by themselves: not part of a change, unless it was part of the repository."""


def left_behind() -> bytes:
    """Patterns for what programs leave behind by themselves, a line each."""
    return "\n".join(_BY_THEMSELVES).encode()


def remove_pipes(folder: Path) -> None:
    """Remove what programs left in place of the files that git reads patterns from, and would wait for."""
    open_ = [str(folder)]
    while open_:
        with contextlib.suppress(OSError), os.scandir(open_.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    open_.append(entry.path)
                elif entry.name in (".gitignore", ".gitattributes") and stat.S_ISFIFO(
                    entry.stat(follow_symlinks=False).st_mode
                ):
                    Path(entry.path).unlink()


def copy_patterns(repository: Repository, into: GitDir) -> None:
    """What the user's repository says, beside its files, of what is ignored and how text is kept."""
    lines = [left_behind()]
    if repository.common is not None:
        own = repository.common / "info"
        if (own / "exclude").is_file():
            lines.append((own / "exclude").read_bytes())
        if (own / "attributes").is_file():
            (into.path / "info" / "attributes").write_bytes((own / "attributes").read_bytes())
    (into.path / "info" / "exclude").write_bytes(b"\n".join(lines) + b"\n")
