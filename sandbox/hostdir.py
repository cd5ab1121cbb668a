"""The private folder of one sandbox on the host, its X display number, and the removal of both.

    /tmp/pilotfish-<uid>/<id>/    0700; `owner` in it is locked (flock) while the owning process lives
    /tmp/.X<N>-lock               claims display number N with our process id, as X servers do
    /tmp/.X11-unix/X<N>           symlink to the socket in the private folder, for plain X clients

A folder whose lock can be taken belongs to nobody any more: the next sandbox that is opened removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.trees import remove_tree

X_SOCKETS = Path("/tmp/.X11-unix")
_SWEEP_SECONDS = 0.5
_REMOVE = 'rm -rf -- "$1" || { chmod -R u+rwx -- "$1"; rm -rf -- "$1"; }'
_FIRST_DISPLAY, _LAST_DISPLAY = 100, 4999
_LONGEST_BASE = 70  # names of sockets below it have to fit in 107 bytes


def base_folder() -> Path:
    """The folder that holds this user's sandboxes; created, and refused when it is another user's."""
    base = Path(tempfile.gettempdir()) / f"pilotfish-{os.getuid()}"
    if len(str(base)) > _LONGEST_BASE:
        raise SandboxError(
            f"temporary folder {tempfile.gettempdir()!r} has too long a name, set TMPDIR to another."
        )
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SandboxError(f"{str(base)!r} is not a private folder of yours, remove it.")
    return base


@contextlib.contextmanager
def _locked(base: Path) -> Iterator[None]:
    """One process at a time creates or sweeps. Held for milliseconds."""
    fd = os.open(base / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def sweep(base: Path) -> None:
    """Remove what sandboxes of dead processes left. Call with the base folder locked.

    What takes longer than a moment goes on in the background: a sandbox may have left 100,000 files.
    """
    end_s = time.monotonic() + _SWEEP_SECONDS
    for folder in base.iterdir():
        if not folder.is_dir():
            continue
        try:
            fd = os.open(folder / "owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # its owner removes it just now
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            with contextlib.suppress(
                OSError
            ):  # its last programs may be dying just now: the next sweep gets it
                release_displays_of(folder)
                remove_groups_of(folder)
                _remove_apart(folder, fd, max(0.0, end_s - time.monotonic()))
        finally:
            os.close(fd)


def _remove_apart(folder: Path, lock: int, wait_s: float) -> None:
    """Have a process of its own remove the folder, which keeps its lock meanwhile; wait for it a moment."""
    remover = subprocess.Popen(
        ["/bin/sh", "-c", _REMOVE, "sh", folder],
        pass_fds=[lock],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        remover.wait(wait_s)


def remove_groups_of(folder: Path) -> None:
    """Remove the control groups that the sandbox of `folder` has noted there."""
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / "groups").read_text().splitlines():
            with contextlib.suppress(FileNotFoundError):
                Path(line).rmdir()


def release_displays_of(folder: Path) -> None:
    """Remove the X entries that point into `folder`, and no others."""
    if not X_SOCKETS.is_dir():
        return
    for entry in X_SOCKETS.iterdir():
        if entry.is_symlink() and entry.readlink().parent.parent == folder:
            _release(int(entry.name[1:]))


def _release(number: int) -> None:
    (X_SOCKETS / f"X{number}").unlink(missing_ok=True)
    _x_lock(number).unlink(missing_ok=True)


def _x_lock(number: int) -> Path:
    return Path(f"/tmp/.X{number}-lock")


class HostFolder:
    """A fresh private folder, locked by this process. `remove` takes everything away again."""

    def __init__(self) -> None:
        base = base_folder()
        with _locked(base):
            sweep(base)
            self.id = secrets.token_hex(6)
            self.path = base / self.id
            self.path.mkdir(mode=0o700)
            self._owner = os.open(self.path / "owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._owner, fcntl.LOCK_EX)
        self._display: int | None = None

    def folder(self, name: str) -> Path:
        """A sub-folder, created at the first request."""
        path = self.path / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def note_groups(self, groups: Iterable[Path]) -> None:
        """Have these control groups removed with the folder by whoever removes it when we cannot."""
        (self.path / "groups").write_text("".join(f"{group}\n" for group in groups))

    def claim_display(self) -> int:
        """Claim a free display number: its lock file and its socket name are ours until `remove`."""
        sockets = self.folder("x11")
        with contextlib.suppress(FileExistsError):
            X_SOCKETS.mkdir()
            X_SOCKETS.chmod(0o1777)
        pid_file = self.path / "pid"
        pid_file.write_text(f"{os.getpid():10d}\n")
        pid_file.chmod(0o444)
        for number in range(_FIRST_DISPLAY, _LAST_DISPLAY):
            try:
                os.link(pid_file, _x_lock(number))  # atomic: fails when the name is taken
            except FileExistsError:
                continue
            try:
                (X_SOCKETS / f"X{number}").symlink_to(sockets / f"X{number}")
            except FileExistsError:  # a server that runs without lock files
                _x_lock(number).unlink()
                continue
            self._display = number
            return number
        raise SandboxError(
            f"no X display number from :{_FIRST_DISPLAY} to :{_LAST_DISPLAY - 1} is free, end unused ones."
        )

    def remove(self) -> None:
        """Give the display back and remove the folder. Safe to call twice."""
        if self._owner < 0:
            return
        if self._display is not None:
            _release(self._display)
        try:
            remove_tree(self.path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):  # else the next sandbox removes it
                raise
        finally:
            os.close(self._owner)
            self._owner = -1
