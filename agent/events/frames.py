"""The frames of a run: `frames/`, one PNG per distinct frame."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pilotfish.agent.events.errors import LogError, cannot

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FRAMES = "frames"


class FrameStore:
    """Frames as PNG files named by their content, so that equal frames are stored once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: set[str] = set()

    def put(self, frame: npt.NDArray[np.uint8]) -> str:
        """Store an RGB frame [height, width, 3] unless it is there, and return its name.

        Raises `LogError` when it cannot be written. A frame is whole or absent: it is renamed into place.
        """
        import numpy as np

        frame = np.ascontiguousarray(frame)
        digest = hashlib.blake2b(frame.data, digest_size=16, person=b"%dx%d" % frame.shape[:2])
        name = digest.hexdigest()
        path = self.path(name)
        if name in self._known or path.exists():
            self._known.add(name)
            return name
        from PIL import Image

        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self.folder.mkdir(exist_ok=True)
            with part.open("wb") as file:
                Image.fromarray(frame).save(file, format="PNG", compress_level=1)
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise LogError(cannot("write", path, error)) from error
        self._known.add(name)
        return name

    def path(self, name: str) -> Path:
        """Where a frame lies. Raises `LogError` for a name that this store cannot have given."""
        if not name.isalnum():
            raise LogError(f"'{name}' is not the name of a frame; the event log was changed by hand.")
        return self.folder / f"{name}.png"

    def get(self, name: str) -> npt.NDArray[np.uint8]:
        """A frame as uint8 RGB [height, width, 3]. Raises `LogError` when it is missing or damaged."""
        import numpy as np
        from PIL import Image

        path = self.path(name)
        try:
            with Image.open(path) as image:
                return np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError) as error:
            raise LogError(
                f"The frame {path} is missing or damaged; the run can be read without it."
            ) from error
