"""Real git repositories for tests, and a fingerprint of all that lies in a folder."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

GIT = ("git", "-c", "user.name=Someone", "-c", "user.email=someone@example.org", "-c", "gc.auto=0",
       "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always")  # fmt: skip
ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder: Path, *words: str | Path) -> str:
    """Run git as its user would; fails the test if it fails."""
    done = subprocess.run([*GIT, *words], cwd=folder, env=ENV, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8", "replace").strip()


def make(folder: Path, files: dict[str, str | bytes] | None = None, *words: str) -> Path:
    """A repository with one commit of these files."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", *words)
    write(folder, files or {"a.py": "one\ntwo\n", "sub/b.txt": "b\n"})
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)


def fingerprint(folder: Path) -> dict[str, str]:
    """Path, mode, time of change and content of everything below a folder, `.git` included.

    Objects of git go without the time: git freshens one that it finds there already instead of writing it.
    """
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        look = path.lstat()
        data = b""
        if stat.S_ISREG(look.st_mode):
            data = path.read_bytes()
        elif stat.S_ISLNK(look.st_mode):
            data = os.fsencode(path.readlink())
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        is_object = stat.S_ISREG(look.st_mode) and "objects" in path.relative_to(folder).parts
        changed = "" if is_object else look.st_mtime_ns
        found[str(path.relative_to(folder))] = f"{look.st_mode:o} {changed} {digest}"
    return found


def boobytrap(folder: Path, marker: Path) -> None:
    """Have the settings, hooks and attributes of a repository run a program that leaves a marker."""
    program = folder / ".git" / "trap"
    program.write_text(f"#!/bin/sh\necho ran >> {marker}\ncat\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "diff.external",
                 "diff.trap.textconv", "diff.trap.command", "filter.trap.clean", "filter.trap.smudge",
                 "filter.trap.process", "merge.trap.driver", "uploadpack.packObjectsHook", "gpg.program",
                 "core.alternateRefsCommand", "core.askPass", "credential.helper"):  # fmt: skip
        git(folder, "config", name, str(program))
    git(folder, "config", "core.hooksPath", str(folder / ".git" / "hooks"))
    for hook in ("reference-transaction", "post-checkout", "pre-commit", "post-index-change", "pre-auto-gc"):
        (folder / ".git" / "hooks").mkdir(exist_ok=True)
        (folder / ".git" / "hooks" / hook).write_text(program.read_text())
        (folder / ".git" / "hooks" / hook).chmod(0o755)
