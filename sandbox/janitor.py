"""Tidies up on the host when the owner of a sandbox is killed without a chance to do it itself.

The programs inside end with their owner; what would stay is the private folder, the names of the display,
the control groups, a bubblewrap that had not yet asked the kernel for that, and what a frozen PID 1 holds. A
small `sh` waits at a pipe: a number is the process group of bubblewrap, or of the guest where there is no
bubblewrap; the word "done" sends it home, and the end of file without that word (the owner is dead) makes it
end the group and remove the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from pilotfish.sandbox.spawn import spawn

_GRACE_TRIES = 60  # of 0.2 s each
_LEAVE_SECONDS = 1.0

# $1 is the private folder, $2 the display number or nothing, the rest are folders of control groups. Of the
# display, only a name that points into the private folder is removed. All is tried a few times, because the
# last programs inside may still be dying. A guest that is not frozen ends all below it and then itself; one
# that is, or has not done so in time, is killed, which its runners hear of. Who is left in a control group
# is killed too.
_SCRIPT = """
group=
frozen() { read -r line < "/proc/$1/stat" && case "${line##*) }" in T*) ;; *) return 1 ;; esac; }
while read -r word; do
    [ "$word" = done ] && exit 0
    group=$word
done
for try in $grace; do
    kill -s 0 -- "-$group" 2>/dev/null && ! frozen "$group" 2>/dev/null || break
    sleep 0.2
done
[ -n "$group" ] && kill -s KILL -- "-$group" 2>/dev/null
if [ -n "$2" ]; then
    case "$(readlink "/tmp/.X11-unix/X$2")" in
        "$1"/*) rm -f "/tmp/.X11-unix/X$2" "/tmp/.X$2-lock" ;;
    esac
fi
folder=$1
shift 2
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    for left; do
        while read -r pid; do kill -s KILL "$pid"; done < "$left/cgroup.procs"
    done 2>/dev/null
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
    async def hire(
        cls, folder: Path, display: int | None, groups: Sequence[Path] = (), in_namespaces: bool = True
    ) -> Janitor:
        """in_namespaces: the process group may be killed at once; else it gets time to end its programs."""
        return cls(
            await spawn(
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
                env={
                    "PATH": "/usr/bin:/bin",
                    "grace": "" if in_namespaces else " ".join(map(str, range(_GRACE_TRIES))),
                },
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
        """There is nothing left to tidy. A janitor that does not go is killed."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            await asyncio.wait_for(self._process.communicate(b"done\n"), _LEAVE_SECONDS)
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
