"""Whether programs inside could work in a folder of the host, told before a sandbox is opened for it."""

from __future__ import annotations

import os
from pathlib import Path

from pilotfish.sandbox.as_user import is_real_root, user_for
from pilotfish.sandbox.errors import SandboxError, SandboxUnavailable
from pilotfish.sandbox.idmap import mount_namespace
from pilotfish.sandbox.levels import Level

_OF_THE_KERNEL = ("/proc", "/sys", "/dev")
_FILES_ALL_THE_SAME = "/dev/shm"


def check_workspace(workspace: Path, level: Level, *, in_place: bool = True) -> None:
    """Raise `SandboxError` for a folder that cannot be worked in.

    in_place: programs write to the folder itself, not to a copy of it.
    """
    real = workspace.resolve()
    of_the_kernel = any(real.is_relative_to(place) for place in _OF_THE_KERNEL)
    if of_the_kernel and not real.is_relative_to(_FILES_ALL_THE_SAME):
        raise SandboxError(
            f"workspace {str(workspace)!r} holds the kernel's files and none of yours; choose another."
        )
    if not in_place:
        return
    # To a sandbox that root starts, the folder is shown as its user's own.
    lowered = level != 0 and is_real_root()
    if not os.access(real, os.W_OK | os.X_OK) or (lowered and real.stat().st_mode & 0o300 != 0o300):
        raise SandboxError(
            f"workspace {str(workspace)!r} cannot be written; change that, or work in a copy (--review)."
        )
    if lowered:
        try:
            os.close(mount_namespace({str(real): True}, user_for("0")))
        except SandboxUnavailable as error:
            raise SandboxUnavailable(f"{error}.") from error
