"""What can go wrong with a run's folder, in a sentence."""

from __future__ import annotations

import errno
from pathlib import Path


class LogError(Exception):
    """A run folder cannot be written or read; the message is one sentence with the mend."""


def cannot(verb: str, path: Path, error: OSError) -> str:
    """The sentence about a path of which `verb` (read, write) has failed."""
    mends = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some space",
        errno.EFBIG: "raise the file size limit",
        errno.EACCES: "check its permissions",
        errno.EPERM: "check its permissions",
        errno.EROFS: "choose a folder that can be written",
        errno.ENOENT: "check the path",
        errno.ENOTDIR: "choose a folder",
    }
    mend = mends.get(error.errno or 0, "choose another folder")
    return f"Cannot {verb} {path} ({error.strerror or error}); {mend}."
