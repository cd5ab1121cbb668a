# ruff: noqa: F401
"""Runs the probes of `attacks.toml`, inside a sandbox or outside, and says what came of each.

Run as `python3 -I -S -c SOURCE` with the standard library only; the request comes on standard input as JSON:
{"probes": {"A1": "BODY", ...}, "fact": {...}, "work": "/workspace", "numbers": {"bpf": 321, ...}}. The answer
on standard output is {"A1": "EACCES", ...}. Each probe is a process of its own, as some end it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import re
import resource
import signal
import socket
import struct
import sys
import termios
from typing import Any

SECONDS = 15

libc = ctypes.CDLL(None, use_errno=True)
numbers: dict[str, int] = {}


def check(result: int) -> int:
    """The result of a C function, or its error."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def call(name: str | int, *arguments: Any) -> int:
    """A system call by name or number."""
    wide = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    number = name if isinstance(name, int) else numbers[name]
    return check(libc.syscall(ctypes.c_long(number), *wide))


def ioctl_on_terminal(request: int) -> None:
    """An ioctl on a terminal that controls this process."""
    _, slave = os.openpty()
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    check(libc.ioctl(slave, ctypes.c_ulong(request), ctypes.create_string_buffer(b"x")))


def machine_code(code: bytes) -> None:
    """Run a function of machine code."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()


def attempt(body: str, fact: dict[str, Any], work: str) -> str:
    """What comes of a probe, in a word."""
    try:
        exec(body, {**globals(), "fact": fact, "work": work})
    except OSError as error:
        # Names that are not found have numbers of their own.
        return (
            type(error).__name__ if error.errno is None or error.errno < 0 else errno.errorcode[error.errno]
        )
    except Exception as error:
        return type(error).__name__
    return "yes"


def in_a_process(body: str, fact: dict[str, Any], work: str) -> str:
    """The same, in a process that may end in any way."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        os.write(write, attempt(body, fact, work).encode())
        os._exit(0)
    os.close(write)
    status = os.waitpid(child, 0)[1]
    os.set_blocking(read, False)
    try:
        word = os.read(read, 200).decode()
    except BlockingIOError:
        word = ""
    os.close(read)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else word or "nothing"


def main() -> None:
    request = json.load(sys.stdin)
    numbers.update(request["numbers"])
    found = {
        name: in_a_process(body, request["fact"], request["work"]) for name, body in request["probes"].items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
