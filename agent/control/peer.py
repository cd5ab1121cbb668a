"""Who is at the other end of a run's socket."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path

_PEER = struct.Struct("3i")


def is_own(writer: asyncio.StreamWriter) -> bool:
    """Whether the program at the other end is the user's own and in no sandbox: in the workspace of another
    run the socket may be seen or replaced, and who is in there has the user's number too.
    """
    connection = writer.get_extra_info("socket")
    process, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    try:
        return user == os.getuid() and all(
            Path(f"/proc/{process}/ns/{kind}").readlink() == Path(f"/proc/self/ns/{kind}").readlink()
            for kind in ("user", "pid")
        )
    except OSError:
        return False  # it has gone, or is hidden from this process
