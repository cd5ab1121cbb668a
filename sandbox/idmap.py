"""Shows files to a user without powers, when real root builds a sandbox for one (`as_user.py`).

What is shown is mounted at /tmp/0, /tmp/1 and so on, in a mount namespace that nothing else sees, with its
owner shown as that user (an idmapped mount): the user may write there, and what it writes is the owner's on
disk. A namespace belongs to one thread, so a thread of this process builds it and ends; another Python to do
it would take longer to start than all the rest.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pilotfish.sandbox.errors import SandboxUnavailable
from pilotfish.sandbox.inside.calls import Library, get_errno

STAGE = "/tmp"

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_CLONE_TREE, _CLOEXEC, _MOVE_EMPTY = 1, 0o2000000, 4
_NOSUID, _NODEV, _IDMAP = 0x2, 0x4, 0x100000
_NEW_MOUNTS = 0x20000
_MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV = 0x4000, 0x40000, 2, 4
_LAST_ID = 2**32 - 1

_Owner = tuple[int, int]

_libc = Library()


def mount_namespace(shares: Mapping[str, bool], user: int) -> int:
    """A descriptor of a mount namespace in which `user` sees {path: whether it may be written}.

    Raises `SandboxUnavailable` when this machine, or the file system of a path, has it not.
    """
    found: list[int] = []
    failed: list[BaseException] = []

    def build() -> None:
        try:
            found.append(_built(shares, user))
        except BaseException as error:  # it is raised again below
            failed.append(error)

    thread = threading.Thread(target=build, name="pilotfish-mounts")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _built(shares: Mapping[str, bool], user: int) -> int:
    """Move this thread into a new mount namespace, for good, and mount what is shown there."""
    with ExitStack() as ends:
        with _step("user namespace"):
            status = {path: Path(path).stat() for path in shares}
            owners = {(found.st_uid, found.st_gid) for found in status.values()}
            children = {owner: ends.enter_context(_in_namespace()) for owner in owners}
        with _step("mount namespace"):
            _check(_libc.unshare(_NEW_MOUNTS))
            _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
        with _step("user namespace"):
            maps = {owner: _mapped(child, owner, user) for owner, child in children.items()}
            for namespace in maps.values():
                ends.callback(os.close, namespace)
        trees = []
        for path, writable in shares.items():
            with _step(path):
                found = status[path]
                trees.append(_taken(path, writable, maps[found.st_uid, found.st_gid]))
                ends.callback(os.close, trees[-1])
        with _step(STAGE):
            options = b"mode=0711,size=1m"
            _check(_libc.mount(b"pilotfish", STAGE.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, options))
            for index, (tree, found) in enumerate(zip(trees, status.values(), strict=True)):
                _put(tree, stat.S_ISDIR(found.st_mode), f"{STAGE}/{index}")
            return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def _step(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # it says nothing about this machine
        raise SandboxUnavailable(
            "a sandbox that root starts runs as a user without powers, which failed here "
            f"({what}: {os.strerror(error.errno or 0)}): start it as a normal user, or give root "
            "CAP_SYS_ADMIN and a workspace on ext4, xfs, btrfs or tmpfs"
        ) from error


def _check(result: int) -> int:
    if result < 0:
        raise OSError(get_errno(), "")
    return result


@contextmanager
def _in_namespace() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits in a user namespace of its own, which is to be only a map of ids."""
    with subprocess.Popen(
        ["/usr/bin/unshare", "--user", "/bin/cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env={},
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def _mapped(child: subprocess.Popen[bytes], owner: _Owner, user: int) -> int:
    """A descriptor of the namespace, in which `owner` and `user` have changed places."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"1")
    if not child.stdout.read(1):  # it could not get there
        raise PermissionError(errno.EPERM, "")
    for name, number in zip(("uid_map", "gid_map"), owner, strict=True):
        path = Path(f"/proc/{child.pid}/{name}")
        try:
            path.write_text(_swapped(number, user))
        except PermissionError:  # we ourselves are in a namespace that has not all ids
            path.write_text(f"{number} {user} 1\n")
    return os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def _swapped(owner: int, user: int) -> str:
    """A map of ids that shows `owner` as `user` and the other way round, and leaves all others."""
    low, high = sorted((owner, user))
    lines = [(owner, user, 1), (user, owner, 1), (0, 0, low), (low + 1, low + 1, high - low - 1)]
    lines.append((high + 1, high + 1, _LAST_ID - high - 1))
    return "".join(f"{inner} {outer} {count}\n" for inner, outer, count in lines if count > 0)


def _taken(path: str, writable: bool, namespace: int) -> int:
    """A detached mount of a path, with owners as in the map of `namespace`."""
    tree = _check(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _CLONE_TREE | _CLOEXEC))
    try:
        try:
            _set_attributes(tree, _NOSUID | _NODEV | _IDMAP, namespace)
        except OSError:
            # What is only read may lie on a file system that cannot do this; others may read it, or not.
            if writable:
                raise
            _set_attributes(tree, _NOSUID | _NODEV, 0)
    except OSError:
        os.close(tree)
        raise
    return tree


def _set_attributes(tree: int, attributes: int, namespace: int) -> None:
    request = struct.pack("@4Q", attributes, 0, 0, namespace)  # struct mount_attr
    _check(_libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, request, len(request)))


def _put(tree: int, is_folder: bool, target: str) -> None:
    if is_folder:
        Path(target).mkdir()
    else:
        Path(target).touch(0o600)
    _check(_libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_EMPTY))
