# ruff: noqa: PTH101, PTH115, PTH123
"""Changes modes and times of files for programs at level 2, where they may not do it themselves.

Landlock does not look at `chmod PATH` and its kin, so a program could take the user's own files apart with
them. The filter therefore stops such a call and asks here (`man 2 seccomp_unotify`): the file is looked up as
the program would, and the change is made if it turns out to lie in one of the sandbox's own folders. Loaded
by `guest.py`, with the standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct

_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_NOTICE = struct.Struct("@QIIiIQ6Q")  # struct seccomp_notif
_ANSWER = struct.Struct("@QqiI")  # struct seccomp_notif_resp
_AT_FDCWD, _AT_NOFOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000
_LONGEST_PATH = 4096

# The calls that the filter sends here, by number: asm/unistd_64.h and asm-generic/unistd.h.
_CALLS = {
    "x86_64": {90: "chmod", 268: "fchmodat", 452: "fchmodat2", 280: "utimensat"},
    "aarch64": {53: "fchmodat", 452: "fchmodat2", 88: "utimensat"},
}.get(platform.machine(), {})

_libc = ctypes.CDLL(None, use_errno=True)


class Clerk:
    """Answers for one program and all that it starts. folders: the sandbox's own, as real paths."""

    def __init__(self, listener: int, folders: list[str]) -> None:
        self.listener = listener
        self.folders = folders

    def serve(self) -> None:
        """Until nobody is left who could ask."""
        while True:
            notice = bytearray(_NOTICE.size)
            try:
                fcntl.ioctl(self.listener, _RECEIVE, notice)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):  # who asked was killed meanwhile
                    continue
                return
            number, pid, _, call, _, _, *arguments = _NOTICE.unpack(notice)
            try:
                self.change(number, pid, _CALLS.get(call, ""), arguments)
                wrong = 0
            except OSError as error:
                wrong = error.errno or errno.EPERM
            try:
                fcntl.ioctl(self.listener, _SEND, _ANSWER.pack(number, 0, -wrong, 0))
            except OSError:
                continue

    def change(self, number: int, pid: int, call: str, arguments: list[int]) -> None:
        """Make one change. Raises `OSError` with what the program is to be told."""
        if call == "chmod":
            arguments = [_AT_FDCWD, *arguments]
        folder = ctypes.c_int(arguments[0] & 0xFFFFFFFF).value
        flags = arguments[3] & 0xFFFFFFFF if call in ("fchmodat2", "utimensat") else 0
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            path = _string(memory.fileno(), arguments[1])
            times = (
                os.pread(memory.fileno(), 32, arguments[2]) if call == "utimensat" and arguments[2] else None
            )
        target = _look_up(pid, folder, path, flags)
        try:
            # A number that is not valid any more may by now be another process's.
            fcntl.ioctl(self.listener, _IS_VALID, struct.pack("@Q", number))
            real = os.readlink(f"/proc/self/fd/{target}")
            if not any(real == own or real.startswith(f"{own}/") for own in self.folders):
                raise PermissionError(errno.EPERM, "")
            if call == "utimensat":
                if _libc.utimensat(target, b"", times, _AT_EMPTY_PATH) < 0:
                    raise OSError(ctypes.get_errno(), "")
            else:
                os.chmod(f"/proc/self/fd/{target}", arguments[2] & 0o1777)
        finally:
            os.close(target)


def _look_up(pid: int, folder: int, path: bytes, flags: int) -> int:
    """A descriptor of the file, found from where the program is, that allows nothing but naming it."""
    start = f"/proc/{pid}/cwd" if folder == _AT_FDCWD else f"/proc/{pid}/fd/{folder}"
    if not path:
        if not flags & _AT_EMPTY_PATH:
            raise FileNotFoundError(errno.ENOENT, "")
        return os.open(start, os.O_PATH | os.O_CLOEXEC)
    path = path.replace(b"/proc/self/", b"/proc/%d/" % pid, 1) if path.startswith(b"/proc/self/") else path
    how = os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if flags & _AT_NOFOLLOW else 0)
    if path.startswith(b"/"):
        return os.open(path, how)
    base = os.open(start, os.O_PATH | os.O_CLOEXEC)
    try:
        return os.open(path, how, dir_fd=base)
    finally:
        os.close(base)


def _string(memory: int, address: int) -> bytes:
    """The string at an address, which may end a page that is the last one."""
    found = b""
    while len(found) < _LONGEST_PATH:
        to_the_end_of_the_page = 4096 - (address + len(found)) % 4096
        found += os.pread(memory, to_the_end_of_the_page, address + len(found))
        if b"\0" in found:
            return found[: found.index(b"\0")]
    raise OSError(errno.ENAMETOOLONG, "")
