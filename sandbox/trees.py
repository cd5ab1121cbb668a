# ruff: noqa: PTH101, PTH208
"""Copying and removing folders whose content is hostile: by descriptors, never following a link.

A program inside may swap a folder for a symlink between any two steps here, so no step uses a path of more
than one name: each entry is opened relative to the descriptor of its parent with O_NOFOLLOW.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_TRIES = 32


def remove_tree(path: Path) -> None:
    """Remove a folder and everything below it; nothing happens when it is not there."""
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _remove(parent, path.name)
    finally:
        os.close(parent)


def empty_folder(path: Path) -> None:
    """Remove everything in a folder; the folder itself stays."""
    folder = os.open(path, _FOLDER)
    try:
        for name in os.listdir(folder):
            _remove(folder, name)
    finally:
        os.close(folder)


def _remove(parent: int, name: str) -> None:
    for attempt in range(_TRIES):
        try:
            _remove_once(parent, name)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            # Someone puts new files into a folder that is being emptied.
            if error.errno != errno.ENOTEMPTY or attempt == _TRIES - 1:
                raise


def _remove_once(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except (IsADirectoryError, PermissionError):
        _remove_folder(parent, name)


def _remove_folder(parent: int, name: str) -> None:
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:  # a folder of mode 000 cannot be listed
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)  # by descriptor: the name may be a link by now
        finally:
            os.close(handle)
        folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        os.fchmod(folder, 0o700)
        for entry in os.listdir(folder):
            _remove(folder, entry)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def copy_tree(source: Path, target: Path) -> None:
    """Copy what is in `source` into the existing folder `target`: files, folders, symlinks, modes and times.

    Sockets, pipes and devices are left out. Set-user-id bits are dropped. Root keeps the owners too.
    """
    source_fd = os.open(source, _FOLDER)
    target_fd = os.open(target, _FOLDER)
    try:
        _copy_content(source_fd, target_fd)
    finally:
        os.close(source_fd)
        os.close(target_fd)


def _copy_content(source: int, target: int) -> None:
    for name in os.listdir(source):
        for attempt in range(_TRIES):
            try:
                _copy_entry(source, target, name)
                break
            except FileNotFoundError:
                break  # removed while we looked
            except FileExistsError:  # a program writes into the target: what is restored wins
                if attempt == _TRIES - 1:
                    raise
                _remove(target, name)


def _copy_entry(source: int, target: int, name: str) -> None:
    found = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        if os.geteuid() == 0:
            os.chown(name, found.st_uid, found.st_gid, dir_fd=target, follow_symlinks=False)
        times = (found.st_atime_ns, found.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)
    elif stat.S_ISDIR(found.st_mode):
        _copy_folder(source, target, name)
    elif stat.S_ISREG(found.st_mode):
        _copy_file(source, target, name)


def _give(copy: int, found: os.stat_result) -> None:
    if os.geteuid() == 0:
        os.fchown(copy, found.st_uid, found.st_gid)


def _copy_folder(source: int, target: int, name: str) -> None:
    inner = os.open(name, _FOLDER, dir_fd=source)
    try:
        found = os.fstat(inner)
        os.mkdir(name, 0o700, dir_fd=target)
        copy = os.open(name, _FOLDER, dir_fd=target)
        try:
            _copy_content(inner, copy)
            _give(copy, found)
            os.fchmod(copy, stat.S_IMODE(found.st_mode) & 0o777)
            os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(copy)
    finally:
        os.close(inner)


def _copy_file(source: int, target: int, name: str) -> None:
    inner = os.open(name, _FILE, dir_fd=source)
    try:
        found = os.fstat(inner)
        if not stat.S_ISREG(found.st_mode):
            return  # swapped for something else since the look
        copy = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
        try:
            left = found.st_size
            while left > 0 and (done := os.copy_file_range(inner, copy, left)):
                left -= done
            _give(copy, found)
            os.fchmod(copy, stat.S_IMODE(found.st_mode) & 0o777)
            os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(copy)
    finally:
        os.close(inner)
