"""The filters, run by a small interpreter of their machine code: both machines, every named call."""

from __future__ import annotations

import errno
import platform
import re
import struct
from pathlib import Path

import pytest

from pilotfish.sandbox import SandboxUnavailable
from pilotfish.sandbox.seccomp import Kind, Machine, build, rules
from pilotfish.sandbox.syscalls import NEWEST, NUMBERS

MACHINES: dict[Machine, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
KINDS: tuple[Kind, ...] = ("base", "strict", "apart")
ALLOWED, ASKED = "allowed", "asked"
O_CREAT, O_TMPFILE, O_WRONLY = 0o100, 0o20200000, 1
NEWUSER, NEWNS, NEWPID, NEWNET, NEWTIME = 0x10000000, 0x20000, 0x20000000, 0x40000000, 0x80
HEADERS = {
    "x86_64": Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def verdict(program: bytes, audit: int, number: int, arguments: tuple[int, ...] = ()) -> str:
    """What the kernel would do: 'allowed', 'killed' or the name of the error."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, audit, 0, *(arguments + (0,) * 6)[:6])
    steps = list(struct.iter_unpack("<HBBI", program))
    at = accumulator = 0
    while True:
        code, yes, no, operand = steps[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif code == 0x54:
            accumulator &= operand
        elif code == 0x05:
            at += operand
        elif code in (0x15, 0x25):
            at += yes if (accumulator == operand if code == 0x15 else accumulator > operand) else no
        else:
            assert code == 0x06, f"step {at - 1} is {code:#x}"
            if operand == 0x7FFF0000:
                return ALLOWED
            if operand == 0x7FC00000:
                return ASKED
            return "killed" if operand == 0x80000000 else errno.errorcode[operand & 0xFFFF]


def asked(kind: Kind, machine: Machine, call: str, *arguments: int, own_user: bool = False) -> str:
    number = NUMBERS[call][machine == "aarch64"]
    assert number is not None
    return verdict(build(kind, machine, own_user), MACHINES[machine], number, arguments)


both = pytest.mark.parametrize("machine", MACHINES)
every = pytest.mark.parametrize("kind", KINDS)


@both
@every
def test_every_plain_rule_and_nothing_else(kind: Kind, machine: Machine) -> None:
    program = build(kind, machine)
    column = machine == "aarch64"
    wanted = {
        NUMBERS[call][column]: errno.errorcode[rule.error] if rule.error else ASKED
        for rule in reversed(rules(kind))
        if not rule.tests
        for call in rule.calls.split()
    }
    for number in range(NEWEST + 1):
        arguments = (2, 1)  # AF_INET, SOCK_STREAM: what no tested rule minds
        conditional = {NUMBERS[c][column] for rule in rules(kind) if rule.tests for c in rule.calls.split()}
        if number in conditional and number not in wanted:
            continue
        assert verdict(program, MACHINES[machine], number, arguments) == wanted.get(number, ALLOWED), number


@both
@every
def test_other_machines_and_unknown_calls(kind: Kind, machine: Machine) -> None:
    program = build(kind, machine)
    assert verdict(program, 0x40000003, 1) == "killed"  # 32-bit x86
    for number in (NEWEST + 1, 999, 39 | 0x40000000, 0xFFFFFFFF):
        assert verdict(program, MACHINES[machine], number) == "ENOSYS"


@both
def test_namespaces(machine: Machine) -> None:
    for call in ("clone", "unshare"):
        assert asked("base", machine, call, NEWUSER | NEWPID | NEWNET) == ALLOWED
        assert asked("base", machine, call, NEWUSER | NEWNS) == "EPERM"
        assert asked("strict", machine, call, NEWUSER) == "EPERM"
    assert asked("base", machine, "unshare", NEWTIME) == "EPERM"
    assert asked("strict", machine, "clone", 0x01200011) == ALLOWED  # fork, whose low byte is a signal
    assert asked("strict", machine, "clone", 0x003D0F00) == ALLOWED  # a thread
    assert asked("base", machine, "chroot") == ALLOWED
    assert asked("strict", machine, "chroot") == "EPERM"


@both
def test_sockets(machine: Machine) -> None:
    for family in (1, 2, 10):
        assert asked("strict", machine, "socket", family, 1) == ALLOWED
    assert asked("strict", machine, "socket", 16, 3, 0) == ALLOWED
    assert asked("strict", machine, "socket", 16, 3, 12) == "EAFNOSUPPORT"
    for family in (17, 38, 40, 15, 31):
        assert asked("strict", machine, "socket", family) == "EAFNOSUPPORT"
    assert asked("apart", machine, "socket", 1, 1) == "EAFNOSUPPORT"
    assert asked("apart", machine, "socketpair", 1, 1 | 0x80000 | 0x800) == ALLOWED
    assert asked("apart", machine, "socketpair", 1, 2 | 0x80000) == "EAFNOSUPPORT"


@both
def test_terminals_by_the_low_half_of_the_request(machine: Machine) -> None:
    for request in (0x5412, 0x541C, 0x541D, 0x5412 | 1 << 32):
        assert asked("strict", machine, "ioctl", 0, request) == "EPERM"
    assert asked("strict", machine, "ioctl", 0, 0x5401) == ALLOWED


@both
def test_set_id_files(machine: Machine) -> None:
    assert asked("strict", machine, "fchmodat", 0, 0, 0o4755) == "EPERM"
    assert asked("strict", machine, "fchmodat", 0, 0, 0o1755) == ALLOWED
    for flags, mode, wanted in (
        (O_CREAT | O_WRONLY, 0o2755, "EPERM"),
        (O_TMPFILE | O_WRONLY, 0o4700, "EPERM"),
        (O_CREAT | O_WRONLY, 0o755, ALLOWED),
        (O_WRONLY, 0o4755, ALLOWED),  # the mode means nothing without O_CREAT
    ):
        assert asked("strict", machine, "openat", 0, 0, flags, mode) == wanted
        if machine == "x86_64":
            assert asked("strict", machine, "open", 0, flags, mode) == wanted
    assert asked("strict", machine, "mkdirat", 0, 0, 0o4755) == "EPERM"
    assert asked("strict", machine, "mkdirat", 0, 0, 0o2755) == ALLOWED


@both
def test_personalities(machine: Machine) -> None:
    for value in (0, 0x40000, 0xFFFFFFFF):
        assert asked("strict", machine, "personality", value) == ALLOWED
    assert asked("strict", machine, "personality", 8) == "EPERM"


@both
def test_where_no_namespace_hides_the_host(machine: Machine) -> None:
    assert asked("apart", machine, "prlimit64", 0, 7) == ALLOWED
    assert asked("apart", machine, "prlimit64", 4711, 7) == "EPERM"
    assert asked("apart", machine, "setpriority", 0, 0, 5) == ALLOWED
    assert asked("apart", machine, "setpriority", 0, 4711, 5) == "EPERM"
    assert asked("apart", machine, "setpriority", 2, 0, 5) == "EPERM"  # all of the user's processes
    assert asked("apart", machine, "utimensat", 3, 0) == ALLOWED
    for path in (0x1000, 0x1_0000_0000):
        assert asked("apart", machine, "utimensat", 3, path) == ASKED
        assert asked("apart", machine, "utimensat", 3, path, own_user=True) == ALLOWED
    assert asked("apart", machine, "fchmodat", 0, 0, 0o755) == ASKED
    assert asked("apart", machine, "fchmodat", 0, 0, 0o4755) == "EPERM"
    assert asked("apart", machine, "fchmodat", 0, 0, 0o755, own_user=True) == ALLOWED
    assert asked("apart", machine, "fchmod", 0, 0o755) == ALLOWED


def test_numbers_are_the_kernels_own() -> None:
    """Against the headers of this machine, as far as they go."""
    for column, machine in enumerate(MACHINES):
        if not HEADERS[machine].exists():
            continue
        text = HEADERS[machine].read_text()
        found = {m[1]: int(m[2]) for m in re.finditer(r"#define __NR(?:3264)?_(\w+) (\d+)", text)}
        assert len(found) > 250
        for call, numbers in NUMBERS.items():
            if call in found:
                assert numbers[column] == found[call], (machine, call)


def test_a_machine_without_a_table() -> None:
    with pytest.raises(SandboxUnavailable, match=r"machine 'riscv64' has no table of system calls"):
        build("strict", "riscv64")
