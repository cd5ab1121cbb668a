# ruff: noqa: PTH102, PTH116
"""Becomes a user without powers before the sandbox is built, when real root asks for one.

To the host's kernel a program started by root is root, whatever namespace it is in: limits on processes do
not count for it, and a mistake in the sandbox is a mistake with root's powers. So this script stands in front
of the rest: `drop.py USER SHARE... -- COMMAND...`, where USER is a number and each SHARE is `rw:PATH` or
`ro:PATH`.

The shares are mounted at /tmp/0, /tmp/1 and so on, in a mount namespace that nothing else sees, and with
their owner shown as USER (an idmapped mount): the user may write there, and what it writes is the owner's on
disk. On failure it says `drop: WHAT: WHY` and ends with 1. It imports next to nothing, as every sandbox waits
for it.
"""

from __future__ import annotations

import os
import stat
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STAGE = "/tmp"
FAILED = "drop: "

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_CLONE_TREE, _CLOEXEC, _MOVE_EMPTY = 1, 0o2000000, 4
_NOSUID, _NODEV, _IDMAP = 0x2, 0x4, 0x100000
_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000
_MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV = 0x4000, 0x40000, 2, 4
_LAST_ID = 2**32 - 1

_SIGKILL = 9

# The module that lies beside this one, and what it makes of the C library.
_calls: Any
_libc: Any


def _fail(what: str, error: OSError) -> None:
    sys.stderr.write(f"{FAILED}{what}: {os.strerror(error.errno or 0)}\n")
    sys.exit(1)


def _call(number: int, *arguments: int | bytes) -> int:
    result = int(_libc.syscall(number, *arguments))
    _check(result)
    return result


def _check(result: int) -> None:
    if result < 0:
        raise OSError(_calls.get_errno(), "")


def _swapped(owner: int, user: int) -> str:
    """A map of ids that shows `owner` as `user` and the other way round, and leaves all others."""
    low, high = sorted((owner, user))
    lines = [(owner, user, 1), (user, owner, 1), (0, 0, low), (low + 1, low + 1, high - low - 1)]
    lines.append((high + 1, high + 1, _LAST_ID - high - 1))
    return "".join(f"{inner} {outer} {count}\n" for inner, outer, count in lines if count > 0)


def _namespace(owner: int, group: int, user: int) -> int:
    """A user namespace that is only a map of ids; its descriptor."""
    go_read, go_write = os.pipe()
    made_read, made_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _check(_libc.unshare(_NEW_USER))
            os.write(made_write, b"1")
            os.close(go_write)
            os.read(go_read, 1)
        finally:
            os._exit(0)
    try:
        os.close(made_write)
        if not os.read(made_read, 1):
            raise PermissionError(1, "")
        for name, number in (("uid_map", owner), ("gid_map", group)):
            _write_map(f"/proc/{child}/{name}", number, user)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, _SIGKILL)
        os.waitpid(child, 0)
        for fd in (go_read, go_write, made_read):
            os.close(fd)


def _write_map(path: str, owner: int, user: int) -> None:
    try:
        _write(path, _swapped(owner, user))
    except PermissionError:  # we ourselves are in a namespace that has not all ids
        _write(path, f"{owner} {user} 1\n")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _take(source: str, writable: bool, user: int, namespaces: dict[tuple[int, int], int]) -> tuple[int, bool]:
    """A detached mount of a share, with its owner shown as `user`; and whether it is a folder."""
    tree = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _CLONE_TREE | _CLOEXEC)
    found = os.stat(source)
    owner = (found.st_uid, found.st_gid)
    try:
        if owner not in namespaces:
            namespaces[owner] = _namespace(*owner, user)
        _set_attributes(tree, _NOSUID | _NODEV | _IDMAP, namespaces[owner])
    except OSError:
        # What is only read may lie on a file system that cannot do this; others may read it, or not.
        if writable:
            raise
        _set_attributes(tree, _NOSUID | _NODEV, 0)
    return tree, stat.S_ISDIR(found.st_mode)


def _set_attributes(tree: int, attributes: int, namespace: int) -> None:
    request = struct.pack("@4Q", attributes, 0, 0, namespace)  # struct mount_attr
    _call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, request, len(request))


def _put(tree: int, is_folder: bool, target: str) -> None:
    if is_folder:
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_EMPTY)
    os.close(tree)


def _stage(shares: list[str], user: int) -> None:
    """Build the mount namespace."""
    what = "mount namespace"
    try:
        _check(_libc.unshare(_NEW_MOUNTS))
        _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
        trees = []
        namespaces: dict[tuple[int, int], int] = {}
        for share in shares:
            kind, _, what = share.partition(":")
            trees.append(_take(what, kind == "rw", user, namespaces))
        what = STAGE
        options = b"mode=0711,size=1m"
        _check(_libc.mount(b"pilotfish", STAGE.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, options))
        for index, (tree, is_folder) in enumerate(trees):
            _put(tree, is_folder, f"{STAGE}/{index}")
    except OSError as error:
        _fail(what, error)


def main(arguments: list[str]) -> None:
    global _calls, _libc
    _calls = __import__("calls")
    _libc = _calls.Library()
    user, words = int(arguments[0]), arguments[1:]
    end = words.index("--")
    _stage(words[:end], user)
    command = words[end + 1 :]
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        os.execv(command[0], command)
    except OSError as error:
        _fail(command[0], error)
