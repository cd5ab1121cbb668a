"""What the programs of a sandbox may use together: who counts it, and what is said of a limit that was hit.

Memory is counted by the kernel where there is a control group, else by the watchdog in PID 1, which also
watches the number of processes, the memory-backed folders and the disks. For some limits of a single process
the kernel keeps no count: of these is told when a command fails and says so in the words of the C library.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence

from pilotfish.sandbox.cgroup import ControlGroup
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.levels import Level
from pilotfish.sandbox.link import Hit, Link
from pilotfish.sandbox.spec import Limits, Places

_LOOK_S = 1.0
_MIB = 1 << 20


class Bounds:
    """The limits of one sandbox on everything in it together."""

    def __init__(self, limits: Limits, level: Level, places: Places, group: ControlGroup | None) -> None:
        self._limits, self._level, self._places, self._group = limits, level, places, group
        self._folders: Mapping[str, int] = {}
        if level == 3:
            self._folders = {
                str(places.tmp): limits.tmp_folder,
                "/home": limits.home_folder,
                "/dev/shm": limits.shm_folder,
            }
        self._link: Link | None = None
        self._kernel_ended = 0

    def __str__(self) -> str:
        """Who counts memory."""
        memory = f"{self._limits.memory_bytes // _MIB} MiB for the whole sandbox"
        if self._group is not None:
            return f"a control group (version {self._group.version}) of {memory}"
        if self._level == 0:
            return f"{self._limits.data_bytes // _MIB} MiB for each process"
        return f"a watchdog of {memory}, as no control group can be made here"

    def watch(self, link: Link) -> None:
        """Have PID 1 watch from now on. At level 0 nothing is watched."""
        if self._level == 0:
            return
        self._link = link
        places = self._places
        own = [places.workspace] if self._level == 3 else [places.workspace, places.home, places.tmp]
        link.watch(
            memory=None if self._group else self._limits.memory_bytes,
            processes=self._limits.processes,
            others_count=self._level != 3,
            folders=list(self._folders),
            disks=list(map(str, own)),
            disk_free=self._limits.disk_free,
            disk_growth=self._limits.disk_growth,
        )

    async def hit(self, status: int | None, output: str, over: bool = True) -> list[str]:
        """Sentences on the limits that were reached since the last time.

        status and output are those of a command; it is looked once more when one is over and has failed.
        """
        if self._link is None:
            return []
        failed = over and status != 0
        if failed:
            with contextlib.suppress(TimeoutError, SandboxError):
                await asyncio.wait_for(self._link.look(), _LOOK_S)
        else:
            self._link.hear()
        kinds: dict[str, list[Hit]] = {}
        for hit in self._link.take_hits():
            kinds.setdefault(hit.kind, []).append(hit)
        sentences = [self._sentence(kind, hits) for kind, hits in kinds.items()]
        if self._group is not None:
            ended = self._group.ended_by_kernel()
            if ended > self._kernel_ended:
                sentences.append(self._memory(_counted(ended - self._kernel_ended, "program"), "the kernel"))
            self._kernel_ended = ended
        if failed:
            sentences += self._said(status, output, set(kinds))
        return sentences

    def _memory(self, what: str, who: str) -> str:
        return (
            f"the sandbox's memory limit of {self._limits.memory_bytes // _MIB} MiB was reached and {who} "
            f"ended {what}: process the data in pieces"
        )

    def _sentence(self, kind: str, hits: Sequence[Hit]) -> str:
        first = hits[0]
        match kind:
            case "memory":
                sizes = [f"`{_safe(hit.program)}` ({hit.size // _MIB} MiB)" for hit in hits]
                return self._memory(_listed(sizes), "a watchdog")
            case "processes":
                return f"the sandbox's limit of {first.size} processes was reached: start fewer at a time"
            case "folder":
                full = " and ".join(f"{_safe(hit.program)} (of {hit.size // _MIB} MiB)" for hit in hits)
                return f"{full} is full, as it is kept in memory: remove files there or use the workspace"
            case "disk growth":
                what = f"the workspace may grow by {first.size // _MIB} MiB and has"
            case _:
                what = f"the disk of the workspace has only {first.size // _MIB} MiB left"
        ended = list(dict.fromkeys(f"`{_safe(hit.program)}`" for hit in hits if hit.program))
        if ended:
            what += f", so {_listed(ended)} {'was' if len(ended) == 1 else 'were'} ended"
        elif any(hit.job for hit in hits):
            what += ", so the command was ended"
        return f"{what}: remove files that are not needed"

    def _said(self, status: int | None, output: str, known: set[str]) -> Iterator[str]:
        """What the kernel keeps no count of, by how a failed command ended and what it said."""
        limits = self._limits
        if status == 128 + signal.SIGXFSZ or "File too large" in output:
            yield f"a file may have {limits.file_bytes // _MIB} MiB: write several"
        if "Too many open files" in output:
            yield f"a program may have {limits.open_files} files open at a time: close those it is done with"
        memory = ("MemoryError", "Cannot allocate memory", "std::bad_alloc")
        if "memory" not in known and any(words in output for words in memory):
            yield f"a program may hold {limits.data_bytes // _MIB} MiB of memory: process the data in pieces"
        fork = ("fork: Resource temporarily unavailable", "fork: retry", "can't start new thread")
        if "processes" not in known and any(words in output for words in fork):
            yield f"there may be {limits.processes} processes in the sandbox: start fewer at a time"
        if "No space left on device" in output and not known & {"folder", "disk free", "disk growth"}:
            sizes = ", ".join(f"{name} of {size // _MIB} MiB" for name, size in self._folders.items())
            if sizes:
                yield f"folders that are kept in memory are small ({sizes}): put big files into the workspace"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _listed(words: Sequence[str]) -> str:
    """`a`, `b` and `c`; of many the first three."""
    *most, last = words if len(words) <= 3 else [*words[:3], "others"]
    return f"{', '.join(most)} and {last}" if most else last


def _safe(name: str) -> str:
    return name if name.isprintable() else ascii(name)[1:-1]
