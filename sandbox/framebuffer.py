"""The picture of a sandbox's display, read from the file that Xvfb draws into.

No X client is needed, so nothing is parsed that a hostile program could answer in place of the X server: each
field of the file's header is known beforehand and compared, and the pixels are copied from where they have to
be. The file is an X window dump (X11/XWDFile.h): 25 big-endian numbers, the window's name, 12 bytes for each
colour, then rows of pixels.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pilotfish.sandbox.errors import SandboxError

INNER_SCREEN = "/run/pilotfish-screen"
"""The folder inside that Xvfb makes its file in."""
_FILE = "Xvfb_screen0"

_FIELDS = struct.Struct(">25I")
_COLOUR_BYTES = 12
_COLOURS = 256
_LONGEST_NAME = 256
_PIXEL_BYTES = 4
# What a TrueColor screen of depth 24 on a little-endian machine says around its sizes: ZPixmap, depth; then
# offset, byte order, unit, bit order, pad, bits of a pixel; class, masks, bits of a colour, colours twice.
_BEFORE_SIZE = (2, 24)
_AFTER_SIZE = (0, 0, 32, 0, 32, 32)
_AFTER_ROW = (4, 0xFF0000, 0xFF00, 0xFF, 8, _COLOURS, _COLOURS)


class Framebuffer:
    """The pixels of one display of a known size."""

    def __init__(self, folder: Path, width: int, height: int, is_alive: Callable[[], bool]) -> None:
        """folder: where the file is, on the host. is_alive: whether the X server still draws into it."""
        self._path = folder / _FILE
        self.width = width
        self.height = height
        self._is_alive = is_alive

    def grab(self, x: int, y: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        """A region now, as [height, width, 4] of B, G, R, unused.

        Raises `SandboxError` when the region is not on the display, when the X server has ended, and when the
        file is not what Xvfb makes.
        """
        if not (0 <= x < x + width <= self.width and 0 <= y < y + height <= self.height):
            raise SandboxError(
                f"the region {width}x{height} at ({x}, {y}) is not on the display, which is "
                f"{self.width}x{self.height}."
            )
        if not self._is_alive():
            raise SandboxError("the display's X server has ended, open a new sandbox.")
        row_bytes = self.width * _PIXEL_BYTES
        rows = np.empty((height, self.width, _PIXEL_BYTES), np.uint8)
        try:
            # The sandbox may have put anything there: a link, a pipe, a file that shrinks as it is read.
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                start = self._start(fd)
                got = os.preadv(fd, [rows.data], start + y * row_bytes)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._wrong(os.strerror(error.errno or 0)) from None
        if got != rows.nbytes:
            raise self._wrong("it is too short")
        return rows[:, x : x + width]

    def close(self) -> None:
        """Nothing is kept open."""

    def _start(self, fd: int) -> int:
        """Where the pixels begin. Everything but the length of the window's name is known."""
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise self._wrong("it is no regular file")
        header = os.pread(fd, _FIELDS.size, 0)
        if len(header) != _FIELDS.size:
            raise self._wrong("it is too short")
        length, *fields = _FIELDS.unpack(header)
        size = (self.width, self.height)
        wanted = (
            7,
            *_BEFORE_SIZE,
            *size,
            *_AFTER_SIZE,
            self.width * _PIXEL_BYTES,
            *_AFTER_ROW,
            *size,
            0,
            0,
            0,
        )
        if tuple(fields) != wanted or not _FIELDS.size <= length <= _FIELDS.size + _LONGEST_NAME:
            raise self._wrong("its header is another one")
        return length + _COLOURS * _COLOUR_BYTES

    @staticmethod
    def _wrong(why: str) -> SandboxError:
        return SandboxError(
            f"the display's picture is not what its X server makes ({why}): a program inside has changed it, "
            "open a new sandbox."
        )
