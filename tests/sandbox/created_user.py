"""A user created for a test, and Python run as that user: what is promised to root is promised to others."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"


@contextlib.contextmanager
def created_user() -> Iterator[str]:
    """The name of a fresh user of this machine, who is removed at the end."""
    if os.geteuid() != 0:
        pytest.skip("only root can create a user")
    name = f"pilotfish-test-{os.getpid()}"
    subprocess.run(["/usr/sbin/useradd", "--no-create-home", "--shell", "/bin/sh", name], check=True)
    sandboxes = Path(tempfile.gettempdir()) / f"pilotfish-{pwd.getpwnam(name).pw_uid}"
    try:
        yield name
    finally:
        subprocess.run(["/usr/sbin/userdel", name], check=True, capture_output=True)
        shutil.rmtree(sandboxes, ignore_errors=True)


def run_python(user: str, *arguments: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run `BEFORE python ARGUMENTS` as a user, with the packages of this one."""
    found = pwd.getpwnam(user)
    # pip's packages are found beside pilotfish itself.
    packages = [str(SRC), *(path for path in sys.path if path.endswith("-packages"))]
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, found.pw_uid, found.pw_gid)
        return subprocess.run(
            [*before, _python(), *arguments],
            user=found.pw_uid,
            group=found.pw_gid,
            extra_groups=[],
            env={"PATH": "/usr/bin:/bin", "HOME": home, "PYTHONPATH": os.pathsep.join(packages)},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=170,
        )


def _python() -> str:
    """A Python of this version that others may run: this one may lie in root's home folder."""
    own = Path(sys.executable).resolve()
    if all(folder.stat().st_mode & 0o001 for folder in own.parents):
        return sys.executable
    return f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
