# ruff: noqa: PTH101, PTH208
"""Opening and removing folders whose content is hostile: by descriptors, never following a link.

A program inside may swap a folder for a symlink between any two steps here, so no step uses a path of more
than one name: each entry is opened relative to the descriptor of its parent with O_NOFOLLOW.
"""

from __future__ import annotations

import errno
import os
import random
import secrets
import stat
import time
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
TRIES = 32
_MEANWHILE = frozenset((errno.ENOTEMPTY, errno.ENOTDIR, errno.ELOOP))
_DEEP = 64
"""Folders nested deeper are moved up before they are removed: neither descriptors nor the stack run out."""


def remove_tree(path: Path) -> None:
    """Remove a folder and everything below it; nothing happens when it is not there."""
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove(parent, path.name)
    finally:
        os.close(parent)


def remove(parent: int, name: str) -> None:
    """Remove what has this name in an open folder, whatever it is."""
    _Removal().remove(parent, name, 0)


def open_anyway(parent: int, name: str, flags: int) -> int:
    """Open a file or folder (`FILE` or `FOLDER`), also one of ours whose mode forbids us to read it.

    Its mode is given back at once.
    """
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        found = os.fstat(handle)
        if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        by_descriptor = f"/proc/self/fd/{handle}"  # the name may be a link by now
        mode = stat.S_IMODE(found.st_mode)
        os.chmod(by_descriptor, mode | (0o700 if stat.S_ISDIR(found.st_mode) else 0o400))
        try:
            return os.open(by_descriptor, flags & ~os.O_NOFOLLOW)
        finally:
            os.chmod(by_descriptor, mode)
    finally:
        os.close(handle)


class _Removal:
    def __init__(self) -> None:
        self._top = -1
        self._moved: list[str] = []

    def remove(self, parent: int, name: str, depth: int) -> None:
        for attempt in range(TRIES):
            try:
                self._remove_once(parent, name, depth)
                return
            except FileNotFoundError:
                return
            except OSError as error:
                # Someone puts new files into a folder that is being emptied, or something else in its place.
                if error.errno not in _MEANWHILE or attempt == TRIES - 1:
                    raise
                if attempt > 3:  # in step with whoever does that, every try would meet the same
                    time.sleep(random.random() / 500)

    def _remove_once(self, parent: int, name: str, depth: int) -> None:
        try:
            os.unlink(name, dir_fd=parent)
        except (IsADirectoryError, PermissionError):
            self._remove_folder(parent, name, depth)

    def _remove_folder(self, parent: int, name: str, depth: int) -> None:
        folder = open_anyway(parent, name, FOLDER)
        try:
            os.fchmod(folder, 0o700)
            if depth == 0:
                self._top = folder
            elif depth >= _DEEP:
                moved = secrets.token_hex(8)
                os.rename(name, moved, src_dir_fd=parent, dst_dir_fd=self._top)
                self._moved.append(moved)
                return
            for entry in os.listdir(folder):
                self.remove(folder, entry, depth + 1)
            while depth == 0 and self._moved:
                self.remove(folder, self._moved.pop(), 1)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=parent)
