"""The pseudo-terminal of one session of the shell."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios

ROWS, COLUMNS = 50, 160

_CHUNK = 64 * 1024
_IUTF8 = 0o40000  # a backspace takes a whole character; asm-generic/termbits.h


class Terminal:
    """A pseudo-terminal. Both ends stay open here, so its reader never sees it end."""

    def __init__(self, ends: tuple[int, int] | None = None) -> None:
        self.master, self.slave = ends or os.openpty()
        os.set_blocking(self.master, False)
        self.device = os.fstat(self.slave).st_rdev
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        modes = termios.tcgetattr(self.slave)
        modes[0] = termios.ICRNL | _IUTF8  # no IXON: a ctrl-s would stop everything
        modes[1] = 0  # output goes through as it is
        modes[3] |= termios.NOFLSH  # an interrupt loses nothing that was printed
        self._modes = modes

    def reset(self) -> None:
        """The usual modes, whatever a program left, and nothing typed that nobody has read."""
        termios.tcsetattr(self.slave, termios.TCSAFLUSH, self._modes)
        # A program that made its end non-blocking did so for every program on this terminal.
        flags = fcntl.fcntl(self.slave, fcntl.F_GETFL)
        fcntl.fcntl(self.slave, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)

    @property
    def hides_typing(self) -> bool:
        """Whether a line is read without showing it, as for a password."""
        local = int(termios.tcgetattr(self.slave)[3])
        return bool(local & termios.ICANON) and not local & termios.ECHO

    def read(self) -> bytes:
        """What has been written since, at most `_CHUNK`; empty when that is all.

        The read waits for what is still on its way from the other end, so nothing that was written before is
        missed.
        """
        data = b""
        with contextlib.suppress(BlockingIOError):
            while len(data) < _CHUNK:
                data += os.read(self.master, _CHUNK)
        return data
