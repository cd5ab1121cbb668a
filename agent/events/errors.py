"""What can go wrong with a run's folder, in a sentence."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from pathlib import Path


class LogError(Exception):
    """A run folder cannot be written or read; the message is one sentence with the mend."""


def cannot(verb: str, path: Path, error: OSError) -> str:
    """The sentence about a path of which `verb` (read, write) has failed."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"Cannot {verb} {path} ({error.strerror}): {_whose(path)}."
    mends = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some space",
        errno.EFBIG: "raise the file size limit",
        errno.EROFS: "choose a folder that can be written",
        errno.ENOENT: "check the path",
        errno.ENOTDIR: "choose a folder",
    }
    mend = mends.get(error.errno or 0, "choose another folder")
    return f"Cannot {verb} {path} ({error.strerror or error}); {mend}."


def _whose(path: Path) -> str:
    """Whose the first thing on the way to a path is that may not be used, and the mend."""
    shut = path = path.absolute()
    for above in path.parents[::-1]:
        try:
            os.lstat(above / path.relative_to(above).parts[0])
        except PermissionError:
            shut = above
            break
        except OSError:
            break
    try:
        found = shut.stat()
    except OSError:
        return "check the permissions on the way to it"
    mode = f"{stat.S_IMODE(found.st_mode):03o}"
    if found.st_uid == os.geteuid():
        return f"{shut} is yours and has mode {mode}, check its permissions"
    try:
        owner = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        owner = f"user {found.st_uid}"
    return f"{shut} belongs to {owner} and has mode {mode}, ask them or do it as {owner}"
