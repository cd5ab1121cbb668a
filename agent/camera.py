"""Where a recorder's frames come from: a sandbox's framebuffer file, or an X client for any other display."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Frame = npt.NDArray[np.uint8]
"""Raw pixels as the X server has them: [height, width, 4], order B, G, R, unused."""


class Camera(Protocol):
    """Takes pictures of one display; `Framebuffer` of a sandbox is one."""

    def grab(self, x: int, y: int, width: int, height: int) -> Frame:
        """A region as it is now."""

    def close(self) -> None:
        """Take no more."""


class XCamera:
    """Asks the X server (mss). Its methods raise mss's `ScreenShotError`."""

    def __init__(self, display: str) -> None:
        import mss

        self._client: Any = mss.MSS(display=display)

    def grab(self, x: int, y: int, width: int, height: int) -> Frame:
        raw = self._client.grab({"left": x, "top": y, "width": width, "height": height}).raw
        return np.frombuffer(raw, np.uint8).reshape(height, width, 4)

    def close(self) -> None:
        self._client.close()
