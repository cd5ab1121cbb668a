"""Rules of Landlock (`man 7 landlock`): what programs may open where no namespace hides the rest.

A ruleset denies every use of files that it knows of except below what it allows, binding and connecting TCP,
and signals and abstract sockets across its border. It has no say in the names, sizes and modes of files, nor
in sockets that are files: what to do about those is the matter of the filter `apart` in `seccomp.py`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pilotfish.sandbox.errors import SandboxError

Access = Literal["read", "run", "use", "own"]

# linux/landlock.h; the numbers of the calls are the same on every machine.
_CREATE_RULESET, _ADD_RULE = 444, 445
_ASK_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_FOLDER, _REMOVE_FILE, _MAKE_CHAR, _MAKE_FOLDER, _MAKE_REG = 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8
_MAKE_SOCKET, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYMLINK = 1 << 9, 1 << 10, 1 << 11, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_ALL_FILES = (1 << 16) - 1
_ALL_TCP = 3
_ALL_SCOPES = 3  # abstract sockets, signals

_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_RIGHTS: Mapping[Access, int] = {
    "read": _READ_FILE | _READ_FOLDER,
    "run": _READ_FILE | _READ_FOLDER | _EXECUTE,
    "use": _READ_FILE | _WRITE_FILE | _IOCTL_DEVICE,  # a device
    "own": _ALL_FILES & ~(_MAKE_CHAR | _MAKE_BLOCK | _MAKE_SOCKET | _IOCTL_DEVICE),
}
"""What may be done below a path, by one word."""

NEEDED_VERSION = 6
"""The first one that keeps signals in (Linux 6.12)."""

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Landlock's version here, 0 when there is none."""
    return max(0, _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION))


def ruleset(allowed: Iterable[tuple[str | os.PathLike[str], Access]]) -> int:
    """A descriptor of a ruleset that allows these paths; those that do not exist are passed over.

    Raises `SandboxError` when the kernel refuses.
    """
    attributes = struct.pack("@3Q", _ALL_FILES, _ALL_TCP, _ALL_SCOPES)
    rules = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        raise _error("no ruleset could be made")
    try:
        for path, access in allowed:
            _allow(rules, Path(path), _RIGHTS[access])
    except BaseException:
        os.close(rules)
        raise
    return int(rules)


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights, fd)
        if _libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0) < 0:
            raise _error(f"{str(path)!r} could not be allowed")
    finally:
        os.close(fd)


def _error(what: str) -> SandboxError:
    number = ctypes.get_errno()
    return SandboxError(
        f"Landlock: {what} ({errno.errorcode.get(number, number)}), needs Linux 6.12 or newer."
    )
