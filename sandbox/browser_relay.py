"""Stands outside for Playwright's driver, which runs inside: what Playwright starts in place of Node.js.

Run as `python3 -I -S browser_relay.py SOCKET ARGUMENTS...`. It hands the ends of two pipes to the owner of
the sandbox over SOCKET, who starts the driver inside with them, and carries messages from one side to the
other: four bytes of length, little-endian, then JSON. What comes from inside may not be longer than
`MAX_MESSAGE`. What goes in has no `location`, which would tell where the caller's source files lie.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
from typing import BinaryIO

MAX_MESSAGE = 64 << 20
_PR_SET_PDEATHSIG = 1


def outwards(inside: BinaryIO, client: BinaryIO) -> None:
    """Carry what the driver says, until it ends or says something too long."""
    while len(head := inside.read(4)) == 4:
        length = int.from_bytes(head, "little")
        if length > MAX_MESSAGE or len(body := inside.read(length)) < length:
            return
        client.write(head + body)
        client.flush()


def inwards(client: BinaryIO, inside: BinaryIO) -> None:
    """Carry what Playwright says, until it hangs up."""
    with inside:
        while len(head := client.read(4)) == 4:
            message = json.loads(client.read(int.from_bytes(head, "little")))
            message.get("metadata", {}).pop("location", None)
            body = json.dumps(message).encode()
            inside.write(len(body).to_bytes(4, "little") + body)
            inside.flush()


def main() -> None:
    # A relay that a signal holds would outlast its owner.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.connect(sys.argv[1])
    driver_reads, we_write = os.pipe()
    we_read, driver_writes = os.pipe()
    socket.send_fds(door, [b"1"], [driver_reads, driver_writes])
    os.close(driver_reads)
    os.close(driver_writes)
    client_in, client_out = sys.stdin.buffer, sys.stdout.buffer
    inside = os.fdopen(we_write, "wb")  # closed by the thread
    threading.Thread(target=inwards, args=(client_in, inside), daemon=True).start()
    with os.fdopen(we_read, "rb") as driver:
        outwards(driver, client_out)


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, ConnectionError):
        pass
    finally:
        os._exit(0)  # the thread may stand in a read
