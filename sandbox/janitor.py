"""Tidies up on the host when the owner of a sandbox is killed without a chance to do it itself.

The kernel ends the programs inside with their owner; what would stay is the private folder, the names of the
display, and a bubblewrap that had not yet asked the kernel for that. A small `sh` waits at a pipe: a number
is the process group of bubblewrap, the word "done" sends it home, and the end of file without that word (the
owner is dead) makes it end the group and remove the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

# $1 is the private folder, $2 the display number or nothing, the rest are folders of control groups. Of the
# display, only a name that points into the private folder is removed. All is tried a few times, because the
# last programs inside may still be dying.
_SCRIPT = """
group=
while read -r word; do
    [ "$word" = done ] && exit 0
    group=$word
done
[ -n "$group" ] && kill -s KILL -- "-$group" 2>/dev/null
if [ -n "$2" ]; then
    case "$(readlink "/tmp/.X11-unix/X$2")" in
        "$1"/*) rm -f "/tmp/.X11-unix/X$2" "/tmp/.X$2-lock" ;;
    esac
fi
folder=$1
shift 2
for try in 1 2 3 4 5 6 7 8 9 10; do
    for left; do rmdir -- "$left" 2>/dev/null; done
    rm -rf -- "$folder" 2>/dev/null && removed=yes
    for left; do [ -d "$left" ] && removed=; done
    [ -n "$removed" ] && exit 0
    chmod -R u+rwx -- "$folder" 2>/dev/null
    sleep 0.2
done
"""


class Janitor:
    """The waiting `sh` of one sandbox."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def hire(cls, folder: Path, display: int | None, groups: Sequence[Path] = ()) -> Janitor:
        return cls(
            await asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                _SCRIPT,
                "pilotfish-janitor",
                str(folder),
                str(display or ""),
                *map(str, groups),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,  # it outlives the terminal that the owner was started from
            )
        )

    async def watch(self, group: int) -> None:
        """Name the process group that must not outlive the owner."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(f"{group}\n".encode())
            await self._process.stdin.drain()

    async def dismiss(self) -> None:
        """There is nothing left to tidy."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._process.communicate(b"done\n")
