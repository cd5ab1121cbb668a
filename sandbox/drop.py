# ruff: noqa: PTH116
"""Becomes a user without powers before the sandbox is built, when real root asks for one.

To the host's kernel a program started by root is root, whatever namespace it is in: limits on processes do
not count for it, and a mistake in the sandbox is a mistake with root's powers. So this script stands in front
of the rest: `python3 -I -S drop.py PLAN COMMAND...`, with the standard library only. PLAN is JSON:

    {"user": 2000000001, "shares": [{"source": "/srv/work", "writable": true}, ...], "groups": ["/sys/..."]}

Each source is mounted at /tmp/0, /tmp/1 and so on, in a mount namespace that nothing else sees, and with its
owner shown as `user` (an idmapped mount): the user may write there, and what it writes is the owner's on
disk.
`groups` are files of control groups to be joined. On failure it says `drop: WHAT: WHY` and ends with 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
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

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def _stage(name: str) -> Iterator[None]:
    """Say what failed."""
    try:
        yield
    except OSError as error:
        sys.stderr.write(f"{FAILED}{name}: {os.strerror(error.errno or 0)}\n")
        sys.exit(1)


def _call(number: int, *arguments: Any) -> int:
    wide = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = _libc.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return int(result)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "")


def _swapped(owner: int, user: int) -> str:
    """A map of ids that shows `owner` as `user` and the other way round, and leaves all others."""
    low, high = sorted((owner, user))
    lines = [(owner, user, 1), (user, owner, 1), (0, 0, low), (low + 1, low + 1, high - low - 1)]
    lines.append((high + 1, high + 1, _LAST_ID - high - 1))
    return "".join(f"{inner} {outer} {count}\n" for inner, outer, count in lines if count > 0)


@functools.cache
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
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for fd in (go_read, go_write, made_read):
            os.close(fd)


def _write_map(path: str, owner: int, user: int) -> None:
    try:
        Path(path).write_text(_swapped(owner, user))
    except PermissionError:  # we ourselves are in a namespace that has not all ids
        Path(path).write_text(f"{owner} {user} 1\n")


def _take(share: dict[str, Any], user: int) -> int:
    """A detached mount of one share, with its owner shown as `user`."""
    source = os.fsencode(share["source"])
    tree = _call(_OPEN_TREE, _AT_FDCWD, source, _CLONE_TREE | _CLOEXEC)
    found = os.stat(source)
    try:
        namespace = _namespace(found.st_uid, found.st_gid, user)
        _set_attributes(tree, _NOSUID | _NODEV | _IDMAP, namespace)
    except OSError:
        # What is only read may lie on a file system that cannot do this; others may read it, or not.
        if share["writable"]:
            raise
        _set_attributes(tree, _NOSUID | _NODEV, 0)
    return tree


def _set_attributes(tree: int, attributes: int, namespace: int) -> None:
    request = struct.pack("@4Q", attributes, 0, 0, namespace)  # struct mount_attr
    _call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, request, len(request))


def _put(tree: int, is_folder: bool, target: str) -> None:
    if is_folder:
        Path(target).mkdir()
    else:
        Path(target).touch()
    _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_EMPTY)
    os.close(tree)


def main() -> None:
    plan = json.loads(sys.argv[1])
    command = sys.argv[2:]
    user = int(plan["user"])
    with _stage("control groups"):
        for group in plan["groups"]:
            Path(group).write_text(str(os.getpid()))
    with _stage("mount namespace"):
        _check(_libc.unshare(_NEW_MOUNTS))
        _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
    trees = []
    for share in plan["shares"]:
        with _stage(share["source"]):
            trees.append((_take(share, user), Path(share["source"]).is_dir()))
    with _stage("stage"):
        options = b"mode=0711,size=1m"
        _check(_libc.mount(b"pilotfish", STAGE.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, options))
        for index, (tree, is_folder) in enumerate(trees):
            _put(tree, is_folder, f"{STAGE}/{index}")
    with _stage("user"):
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    with _stage(command[0]):
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
