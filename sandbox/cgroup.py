"""Limits on everything in a sandbox together, by a control group of its own, where this process may make one.

Tried are the unified hierarchy (version 2: the own group and those above it, where `memory` and `pids` are
delegated) and then the two old ones (version 1, which takes root). Where neither is to be had, the limits of
each process are all there is, and `Sandbox.bounds` says so.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotfish.sandbox.inside.processes import send_signal

_NEEDED = ("memory", "pids")
_REMOVE_SECONDS = 2.0
_TRIAL = "pilotfish-trial-"
CLOSED = "control group: "
"""What the standard error of `ControlGroup.entering` begins with when the group cannot be entered."""
_ENTER = f"""
while [ "$1" != -- ]; do
    {{ echo 0 >"$1"; }} 2>/dev/null || {{ echo "{CLOSED}$1" >&2; exit 1; }}
    shift
done
shift
exec "$@"
"""


@dataclass(frozen=True)
class ControlGroup:
    """A group, which in version 1 is a folder for each of the two."""

    version: int
    folders: tuple[Path, ...]

    def entering(self, argv: Sequence[str]) -> list[str]:
        """`argv`, run in the group with all that it starts. It must have one thread, as a new process has.

        A process that moves itself alone has no need to wait for all processors of the machine, during which
        nobody on it could start a process.
        """
        name = "cgroup.procs" if self.version == 2 else "tasks"
        return [
            "/bin/sh",
            "-c",
            _ENTER,
            "pilotfish",
            *(f"{folder}/{name}" for folder in self.folders),
            "--",
            *argv,
        ]

    def ended_by_kernel(self) -> int:
        """How many processes the kernel has killed in it for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        try:
            lines = (self.folders[0] / name).read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def kill(self) -> None:
        """Kill every process that is in it now."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                for word in (folder / "cgroup.procs").read_text().split():
                    send_signal(int(word), signal.SIGKILL)

    def remove(self) -> None:
        """Remove it with whoever is left in it; the last ones may just be dying."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        for folder in self.folders:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        return
                    self.kill()
                    time.sleep(0.005)


def folders_of(name: str) -> tuple[Path, ...]:
    """The folders that `make` would make, known before they are there; none where it can make none."""
    place = working_place()
    return () if place is None else tuple(parent / name for parent in place[1])


def make(name: str, processes: int, memory_bytes: int) -> ControlGroup | None:
    """A new group with these limits; None where this process cannot make one that works."""
    place = working_place()
    return None if place is None else _made(*place, name, processes, memory_bytes)


@functools.cache
def working_place() -> tuple[int, tuple[Path, ...]] | None:
    """The version and the folders that groups can be made in: found by making one and joining it."""
    own = _own_groups(Path("/proc/self/cgroup").read_text())
    mounts = _mounts(Path("/proc/self/mountinfo").read_text())
    for version, parents in _places(own, mounts):
        _remove_old_trials(parents)
        group = _made(version, parents, f"{_TRIAL}{os.getpid()}", 8, 64 << 20)
        if group is not None:
            tried = subprocess.run(group.entering(["/bin/true"]), stderr=subprocess.DEVNULL)
            group.remove()
            if tried.returncode == 0:
                return version, parents
    return None


def _remove_old_trials(parents: Sequence[Path]) -> None:
    """Remove the trial groups of processes that were killed meanwhile."""
    for parent in parents:
        for folder in parent.glob(f"{_TRIAL}*"):
            if not Path("/proc", folder.name.removeprefix(_TRIAL)).exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _made(
    version: int, parents: tuple[Path, ...], name: str, processes: int, memory_bytes: int
) -> ControlGroup | None:
    group = ControlGroup(version, tuple(parent / name for parent in parents))
    memory = "memory.max" if version == 2 else "memory.limit_in_bytes"
    try:
        for folder in group.folders:
            folder.mkdir()
        (group.folders[0] / memory).write_text(str(memory_bytes))
        (group.folders[-1] / "pids.max").write_text(str(processes))
    except OSError:
        group.remove()
        return None
    return group


def _own_groups(text: str) -> dict[str, str]:
    """The group of this process for each controller; '' is the unified hierarchy."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _mounts(text: str) -> dict[str, Path]:
    """Where each controller is mounted; '' is the unified hierarchy."""
    found: dict[str, Path] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            found[""] = Path(before.split()[4])
        elif kind == "cgroup":
            found |= dict.fromkeys(options.split(","), Path(before.split()[4]))
    return found


def _places(own: dict[str, str], mounts: dict[str, Path]) -> Iterator[tuple[int, tuple[Path, ...]]]:
    """Folders that a new group may be made in: one for version 2, one for each controller for version 1."""
    if "" in own and "" in mounts:
        place = _below(mounts[""], own[""])
        for folder in (place, *place.parents):
            if not folder.is_relative_to(mounts[""]):
                break
            with contextlib.suppress(OSError):
                delegated = (folder / "cgroup.subtree_control").read_text().split()
                if os.access(folder, os.W_OK) and set(_NEEDED) <= set(delegated):
                    yield 2, (folder,)
    if all(name in own and name in mounts for name in _NEEDED):
        parents = tuple(_below(mounts[name], own[name]) for name in _NEEDED)
        if all(os.access(parent, os.W_OK) for parent in parents):
            yield 1, parents


def _below(mount: Path, path: str) -> Path:
    return mount / path.lstrip("/")
