"""Tidies up on the host when the owner of a sandbox is killed without a chance to do it itself.

The kernel ends the programs inside with their owner; what would stay is the private folder and the names of
the display. A small `sh` waits at a pipe: the word "done" sends it home, the end of file without it (the
owner is dead) makes it remove both.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

# $1 is the private folder, $2 the display number or nothing. Only a name that points into the folder is
# removed. The folder is tried a few times, because the last programs inside may still be dying.
_SCRIPT = """
read -r word && exit 0
if [ -n "$2" ]; then
    case "$(readlink "/tmp/.X11-unix/X$2")" in
        "$1"/*) rm -f "/tmp/.X11-unix/X$2" "/tmp/.X$2-lock" ;;
    esac
fi
for try in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf -- "$1" 2>/dev/null && exit 0
    chmod -R u+rwx -- "$1" 2>/dev/null
    sleep 0.2
done
"""


class Janitor:
    """The waiting `sh` of one sandbox."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def hire(cls, folder: Path, display: int | None) -> Janitor:
        return cls(
            await asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                _SCRIPT,
                "pilotfish-janitor",
                str(folder),
                str(display or ""),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,  # it outlives the terminal that the owner was started from
            )
        )

    async def dismiss(self) -> None:
        """There is nothing left to tidy."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._process.communicate(b"done\n")
