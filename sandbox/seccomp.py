"""The system calls that programs in a sandbox may not make, as programs for the kernel's seccomp filter.

A filter is classic BPF (`man 2 seccomp`): it sees the machine, the number of the call and its six arguments,
never what a pointer points to. Everything is allowed except what a rule names. Unknown machines end the
process; calls newer than this list fail as if the kernel did not have them, and programs fall back.

Three filters are built from the same rules:

    base     for every process of a level 3 sandbox; leaves Chromium what its own sandbox is made of
    strict   on top of it for everything but Chromium: no new namespaces at all
    apart    for level 2, where no namespace hides the host: also no sockets, no shared memory or queues of
             other programs, nothing that changes another process or a file that cannot be opened
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pilotfish.sandbox.errors import SandboxUnavailable
from pilotfish.sandbox.syscalls import NEWEST, NUMBERS

Kind = Literal["base", "strict", "apart"]
Machine = Literal["x86_64", "aarch64"]

_MACHINES: dict[Machine, tuple[int, int]] = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""AUDIT_ARCH_* and the column of `NUMBERS`."""

# linux/bpf_common.h and linux/seccomp.h
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_GREATER, _JUMP = 0x15, 0x25, 0x05
_ALLOW, _ASK, _ERROR, _KILL = 0x7FFF0000, 0x7FC00000, 0x00050000, 0x80000000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16

Step = tuple[int, int, int, int]
"""Code, how many steps to jump over if true, if false, and the operand."""
_FAIL: Step = (_JUMP, 0, 0, 0)

# clone's flags for new namespaces; the last (time) is a flag of unshare only.
_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_NEW_MOUNT, _NEW_CGROUP, _NEW_UTS, _NEW_IPC, _NEW_TIME = 0x20000, 0x02000000, 0x04000000, 0x08000000, 0x80
_OTHER_NEW = _NEW_MOUNT | _NEW_CGROUP | _NEW_UTS | _NEW_IPC
_ANY_NEW = _OTHER_NEW | _NEW_USER | _NEW_PID | _NEW_NET

_CREATES = 0o100 | 0o20000000  # O_CREAT, and the bit that makes O_TMPFILE out of O_DIRECTORY
_SET_ID, _SET_UID = 0o6000, 0o4000
_TERMINAL_TRICKS = (0x5412, 0x541C, 0x541D)  # TIOCSTI, TIOCLINUX, TIOCCONS
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _SEQPACKET = 1, 5
_NO_RANDOMIZE, _ASK_PERSONALITY = 0x40000, 0xFFFFFFFF


@dataclass(frozen=True)
class Test:
    """Holds when `argument & mask` is one of `values`, or with `among=False` when it is none of them.

    Only the low 32 bits of an argument are seen, which is all that the kernel uses of the numbers here;
    `high=True` looks at the other half of a pointer.
    """

    argument: int
    values: tuple[int, ...]
    among: bool = True
    mask: int = 0xFFFFFFFF
    high: bool = False


def _has(argument: int, bits: int) -> Test:
    return Test(argument, (0,), among=False, mask=bits)


ASK = 0


@dataclass(frozen=True)
class Rule:
    """These calls fail with this error, or are left to the clerk (ASK), when all the tests hold."""

    calls: str
    error: int
    tests: tuple[Test, ...] = ()


# What a program without powers has no use for, and what has let programs out of sandboxes before.
_COMMON = (
    Rule(
        "acct add_key adjtimex bpf clock_adjtime clock_settime create_module delete_module fanotify_init "
        "finit_module get_kernel_syms init_module ioperm iopl kcmp kexec_file_load kexec_load keyctl "
        "lookup_dcookie lsm_set_self_attr memfd_secret migrate_pages modify_ldt move_pages name_to_handle_at "
        "nfsservctl open_by_handle_at perf_event_open pidfd_getfd process_madvise query_module quotactl "
        "quotactl_fd reboot request_key setdomainname sethostname settimeofday swapoff swapon sysfs syslog "
        "uselib userfaultfd ustat vhangup _sysctl "
        # mounts and namespaces of others
        "fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree pivot_root setns umount2",
        errno.EPERM,
    ),
    # Their arguments are in memory, where a filter cannot look; programs fall back to the older calls.
    Rule("clone3 io_uring_enter io_uring_register io_uring_setup openat2", errno.ENOSYS),
    # Typing into a terminal that is shared with the host.
    Rule("ioctl", errno.EPERM, (Test(1, _TERMINAL_TRICKS),)),
    Rule("personality", errno.EPERM, (Test(0, (0, _NO_RANDOMIZE, _ASK_PERSONALITY), among=False),)),
    # A set-user-id file in the workspace would work for everybody on the host.
    Rule("chmod fchmod creat mknod", errno.EPERM, (_has(1, _SET_ID),)),
    Rule("fchmodat fchmodat2 mknodat", errno.EPERM, (_has(2, _SET_ID),)),
    Rule("open", errno.EPERM, (_has(1, _CREATES), _has(2, _SET_ID))),
    Rule("openat", errno.EPERM, (_has(2, _CREATES), _has(3, _SET_ID))),
    Rule("mkdir", errno.EPERM, (_has(1, _SET_UID),)),
    Rule("mkdirat", errno.EPERM, (_has(2, _SET_UID),)),
)

_SOCKETS = (
    Rule("socket socketpair", errno.EAFNOSUPPORT, (Test(0, (_UNIX, _INET, _INET6, _NETLINK), among=False),)),
    Rule("socket", errno.EAFNOSUPPORT, (Test(0, (_NETLINK,)), Test(2, (0,), among=False))),  # routes only
)

_CHROMIUM_NAMESPACES = (
    Rule("clone", errno.EPERM, (_has(0, _OTHER_NEW),)),
    Rule("unshare", errno.EPERM, (_has(0, _OTHER_NEW | _NEW_TIME),)),
)
_NO_NAMESPACES = (
    Rule("clone", errno.EPERM, (_has(0, _ANY_NEW),)),
    Rule("chroot unshare", errno.EPERM),
)

_APART = (
    Rule("socket", errno.EAFNOSUPPORT),
    # A pair is private, but a datagram socket of it could still be sent to any socket that has a name.
    Rule(
        "socketpair",
        errno.EAFNOSUPPORT,
        (Test(1, (_STREAM, _SEQPACKET), among=False, mask=0xF),),
    ),
    Rule("socketpair", errno.EAFNOSUPPORT, (Test(0, (_UNIX,), among=False),)),
    Rule(
        "mq_open mq_unlink msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmget",
        errno.ENOSYS,
    ),
    # Other processes of the same user: their limits, priorities and processors.
    Rule(
        "prlimit64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler",
        errno.EPERM,
        (_has(0, 0xFFFFFFFF),),
    ),
    Rule("ioprio_set setpriority", errno.EPERM, (_has(0, 0xFFFFFFFE),)),
    Rule("ioprio_set setpriority", errno.EPERM, (_has(1, 0xFFFFFFFF),)),
)

# Landlock has no say in these. What names an open file (fchmod, futimens) is left, as files that are not the
# sandbox's cannot be opened. The clerk makes the changes that lie in the sandbox's own folders.
_NAMED_FILES = (
    Rule(
        "chown fchownat futimesat lchown lremovexattr lsetxattr removexattr setxattr utime utimes",
        errno.EPERM,
    ),
    Rule("chmod fchmodat fchmodat2", ASK),
    Rule("utimensat", ASK, (_has(1, 0xFFFFFFFF),)),
    Rule("utimensat", ASK, (Test(1, (0,), among=False, high=True),)),
)


def rules(kind: Kind, own_user: bool = False) -> tuple[Rule, ...]:
    """The rules of a filter. own_user: the sandbox's user id owns nothing else on this machine."""
    if kind == "base":
        return (*_COMMON, *_SOCKETS, *_CHROMIUM_NAMESPACES)
    if kind == "strict":
        return (*_COMMON, *_SOCKETS, *_NO_NAMESPACES)
    return (*_COMMON, *_NO_NAMESPACES, *_APART, *(() if own_user else _NAMED_FILES))


@cache
def build(kind: Kind, machine: str | None = None, own_user: bool = False) -> bytes:
    """A filter as an array of `struct sock_filter`, for `machine` or the one this runs on.

    Raises `SandboxUnavailable` for a machine that has no table.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise SandboxUnavailable(
            f"machine {machine!r} has no table of system calls, only {', '.join(_MACHINES)} have."
        )
    audit, column = _MACHINES[machine]
    steps = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_IF_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        # Also every number of the x32 calling convention, which has bit 30 set.
        (_IF_GREATER, 0, 1, NEWEST),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    ]
    for rule in rules(kind, own_user):
        numbers = [number for name in rule.calls.split() if (number := NUMBERS[name][column]) is not None]
        if numbers:
            steps += _block(numbers, rule)
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def _block(numbers: Sequence[int], rule: Rule) -> Iterator[Step]:
    """One rule; begins and ends with the number loaded, and goes on behind when the rule does not apply."""
    body = [step for test in rule.tests for step in _test(test)]
    body.append((_RETURN, 0, 0, _ERROR | rule.error if rule.error else _ASK))
    # Tests that fail jump behind the return, where the number is loaded again.
    body = [(*step[:3], len(body) - 1 - at) if step == _FAIL else step for at, step in enumerate(body)]
    if rule.tests:
        body.append((_LOAD, 0, 0, _NUMBER_AT))
    for index, number in enumerate(numbers):
        left = len(numbers) - 1 - index
        yield (_IF_EQUAL, left, 0 if left else len(body), number)
    yield from body


def _test(test: Test) -> Iterator[Step]:
    """Goes on behind its last step when the test holds, else comes to `_FAIL`."""
    yield (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * test.argument + (4 if test.high else 0))
    if test.mask != 0xFFFFFFFF:
        yield (_AND, 0, 0, test.mask)
    for index, value in enumerate(test.values):
        yield (_IF_EQUAL, len(test.values) - index, 0, value)
    if not test.among:
        yield (_JUMP, 0, 0, 1)
    yield _FAIL
