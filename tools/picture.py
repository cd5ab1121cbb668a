"""A picture file as pixels, of a size that a model looks at."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_SIDE = 1280
"""Longer sides are scaled down to this, in pixels."""
MAX_PIXELS = 40_000_000
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
_STARTS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM")
_ORIENTATION, _LAST_UNTURNED = 0x0112, 4  # of EXIF: from 5 on, width and height change places


@dataclass(frozen=True, eq=False)
class Picture:
    """pixels: uint8 RGB of shape [height, width, 3]; width, height: of the file, before scaling."""

    format: str
    width: int
    height: int
    pixels: npt.NDArray[np.uint8]

    def __str__(self) -> str:
        shown = f"{self.pixels.shape[1]}x{self.pixels.shape[0]}"
        size = f"{self.width}x{self.height}"
        return f"{self.format} picture, {size}" + (f", shown as {shown}" if shown != size else "")


def decode(data: bytes) -> Picture | None:
    """The picture in a file: its first frame, upright, on white where it is transparent.

    None when it is no picture, a damaged one, or one of more than `MAX_PIXELS`.
    """
    if not data.startswith(_STARTS):
        return None
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as file:
            width, height = file.size
            if width * height > MAX_PIXELS:
                return None
            if file.getexif().get(_ORIENTATION, 1) > _LAST_UNTURNED:
                width, height = height, width
            small = file if file.mode in ("RGB", "L") else file.convert("RGBA")
            small.thumbnail((MAX_SIDE, MAX_SIDE))
            upright = ImageOps.exif_transpose(small).convert("RGBA")
            page = Image.new("RGBA", upright.size, "white")
            page.alpha_composite(upright)
            pixels = np.asarray(page.convert("RGB"), dtype=np.uint8)
            return Picture(file.format or "", width, height, pixels)
    except Exception:  # a file made to do harm may raise anything, and all of it means the same
        return None
