"""Programs on a terminal whose bytes a test reads."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence


def written(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """All that a program writes to a terminal of 90x30 cells until it has said ENDED."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    kept = {name: value for name, value in environ.items() if name not in ("TMUX", "STY", "NO_COLOR")}
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=kept)
    os.close(follower)
    got = b""
    end = time.monotonic() + 120
    while time.monotonic() < end and b"ENDED" not in got:
        if select.select([leader], [], [], 1)[0]:
            try:
                got += os.read(leader, 1 << 16)
            except OSError:
                break
    process.kill()
    process.wait()
    os.close(leader)
    assert b"ENDED" in got, got[-2000:].decode("utf-8", "replace")
    return got.decode("utf-8")
