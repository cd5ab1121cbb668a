"""Files that are whole at any moment: whoever reads one finds what was there or what is there now."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Put a file in place once all of it is on disk; its mode and a link to it stay. A crash, or an error in
    the making of `data`, leaves what was there. A pipe or a device is written to as it is. Raises `OSError`.
    """
    pieces = [data] if isinstance(data, bytes) else data
    if path.exists() and not path.is_file():  # before the link is followed: /dev/stdout leads to no path
        with path.open("wb") as file:
            file.writelines(pieces)
        return
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with draft.open("xb") as file:
            with contextlib.suppress(FileNotFoundError):
                draft.chmod(path.stat().st_mode & 0o777)
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
