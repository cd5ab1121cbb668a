"""Giving a name in an open folder to something else: whatever has it, or only what was found there.

A person may save a file at any moment. Where that must not be lost, the new file and the old one change
places in one step of the kernel, and the old one is looked at before it goes: if it is not what was found
earlier, it gets its name back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Callable

from pilotfish.sandbox.entries import Entry
from pilotfish.sandbox.objects import digest_of_file
from pilotfish.sandbox.trees import FILE, TRIES, open_anyway, remove

_NOREPLACE, _EXCHANGE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)
_KINDS: dict[str, Callable[[int], bool]] = {
    "file": stat.S_ISREG,
    "linked": stat.S_ISREG,
    "link": stat.S_ISLNK,
    "folder": stat.S_ISDIR,
    "pipe": stat.S_ISFIFO,
}


class Meanwhile(Exception):
    """Something is not what it was found to be."""


def a_draft() -> str:
    """A name for what is not in its place yet."""
    return f".{secrets.token_hex(8)}.tmp"


def put(folder: int, draft: str, name: str) -> None:
    """Rename a draft, whatever has the name now."""
    for _ in range(TRIES):
        try:
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            return
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
                raise
            remove(folder, name)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def put_if(folder: int, draft: str, name: str, old: Entry | None) -> None:
    """Rename a draft if the name has what was found there, `old`. Raises `Meanwhile`, with the draft left."""
    if old is None:
        if not _rename(folder, draft, name, _NOREPLACE):
            if _look(folder, name) is not None:
                raise Meanwhile
            put(folder, draft, name)
        return
    if not is_still(folder, name, old):
        raise Meanwhile
    mine = _look(folder, draft)
    if not _rename(folder, draft, name, _EXCHANGE):
        put(folder, draft, name)
    elif is_still(folder, draft, old, renamed=True):
        remove(folder, draft)
    else:
        there = _look(folder, name)
        if mine is not None and there is not None and mine.st_ino == there.st_ino:
            _rename(folder, draft, name, _EXCHANGE)
        raise Meanwhile


def remove_if(folder: int, name: str, old: Entry) -> None:
    """Remove what is no folder if it is what was found there. Raises `Meanwhile`."""
    if _look(folder, name) is None:
        return
    if not is_still(folder, name, old):
        raise Meanwhile
    draft = a_draft()
    if not _rename(folder, name, draft, _NOREPLACE):
        remove(folder, name)
    elif is_still(folder, draft, old, renamed=True):
        remove(folder, draft)
    else:
        with contextlib.suppress(Meanwhile):  # they have made another one since
            _rename(folder, draft, name, _NOREPLACE)
        raise Meanwhile


def is_still(folder: int, name: str, old: Entry, *, renamed: bool = False) -> bool:
    """Whether something is what it was. renamed: since then it was renamed, which changes its ctime."""
    look = _look(folder, name)
    if look is None or not _KINDS[old.kind](look.st_mode) or look.st_ino != old.inode:
        return False
    if (look.st_mtime_ns, look.st_size) != (old.modified_ns, old.size):
        return False
    if old.changed_ns and (renamed or look.st_ctime_ns == old.changed_ns):
        return True
    if not old.is_file:
        return old.kind != "link" or os.readlink(name, dir_fd=folder) == old.data
    # Written when the clock had not ticked on, or given another mode since.
    try:
        fd = open_anyway(folder, name, FILE)
    except OSError:
        return False
    try:
        return digest_of_file(fd, old.size, old.size, lambda: None) == old.data
    finally:
        os.close(fd)


def _look(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _rename(folder: int, source: str, target: str, how: int) -> bool:
    """False where the file system cannot do it. Raises `Meanwhile` if the names are not as needed."""
    names = os.fsencode(source), os.fsencode(target)
    if _libc.renameat2(folder, names[0], folder, names[1], how) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS):
        return False
    if number in (errno.EEXIST, errno.ENOENT):
        raise Meanwhile
    raise OSError(number, os.strerror(number), source)
