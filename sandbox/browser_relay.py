"""Stands outside for a program that runs inside: what Playwright starts in place of Chromium.

Run as `python3 -I -S browser_relay.py SOCKET ARGUMENTS...`. It hands its arguments and its descriptors 0 to 4
to the owner of the sandbox over SOCKET, then lives as long as the program inside: it ends with the program's
status, and when it is killed the closed connection tells the owner to kill the program.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> int:
    relay = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    relay.connect(sys.argv[1])
    socket.send_fds(relay, [json.dumps(sys.argv[2:]).encode()], [0, 1, 2, 3, 4])
    for fd in (0, 1, 2, 3, 4):
        os.close(fd)
    status = relay.recv(64)  # empty: the owner has gone, and the program with it
    return int(status) if status else 1


if __name__ == "__main__":
    status = main()
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)
