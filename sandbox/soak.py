"""`python -m pilotfish.sandbox.soak`: does anything stay behind of many sandboxes, closed or killed?

Opens and closes `--sandboxes` of them in a row, every third with a desktop. Then `--kills` processes that
open, use and close sandboxes are killed (SIGKILL), each at a random moment. Processes, mounts, descriptors,
folders and X names on the host, control groups and memory are counted before and after; the exit status is 1
if any grew. Killed sandboxes get some seconds to be tidied up after. What one leaves that is killed before
its helper is there, the next sandbox removes: another is opened if anything is left, and the report says so.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pilotfish.sandbox.box import Sandbox
from pilotfish.sandbox.cgroup import working_place
from pilotfish.sandbox.hostdir import X_SOCKETS, base_folder
from pilotfish.sandbox.inside.processes import below, processes
from pilotfish.sandbox.levels import Level
from pilotfish.sandbox.spec import SandboxSpec

WARM_UP = 3
MEMORY_SLACK_MB = 40
"""What the interpreter's and the libraries' own caches may add, however many sandboxes there were."""
_SETTLE_S = 20.0
_LONGEST_LIFE_S = 0.9  # of a process that is killed, from the moment that it is ready
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Count:
    """What there is now: processes below this one, mounts that it sees, its descriptors, folders and X names
    of its sandboxes on the host, their control groups, and its own memory.
    """

    processes: int
    mounts: int
    descriptors: int
    folders: int
    x_names: int
    groups: int
    memory_mb: float

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {getattr(self, field.name):g}" for field in fields(self))


def count(ids: set[str]) -> Count:
    """ids: of every sandbox that was seen."""
    base = base_folder()
    links = [entry.readlink() for entry in X_SOCKETS.glob("X*") if entry.is_symlink()]
    place = working_place()
    groups = [parent / f"pilotfish-{name}" for parent in (place[1] if place else ()) for name in ids]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Count(
        processes=len(below(os.getpid(), processes())),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        folders=len([entry for entry in base.iterdir() if entry.is_dir()]),
        x_names=sum(link.is_relative_to(base) for link in links),
        groups=sum(group.exists() for group in groups),
        memory_mb=round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
    )


def grew(before: Count, after: Count) -> list[str]:
    """The names of what grew."""
    names = [name for name in asdict(before) if name != "memory_mb"]
    more = [name for name in names if getattr(after, name) > getattr(before, name)]
    return more + (["memory"] if after.memory_mb > before.memory_mb + MEMORY_SLACK_MB else [])


async def open_use_close(spec: SandboxSpec, ids: set[str], phase: Any = None) -> None:
    """One sandbox with a daemon in it. phase: told what happens next."""
    tell = phase or (lambda word: None)
    tell("start")
    box = await Sandbox.start(spec)
    ids.add(box.id)
    tell("use")
    await box.shell.run("(setsid nohup sleep 3000 >/dev/null 2>&1 &); echo x > file; sleep 3001 &")
    await box.run(["sh", "-c", "trap '' TERM HUP INT; while :; do sleep 0.01; done"])
    box.files.read_text("file")
    tell("close")
    await box.close()


def _spec(number: int, level: Level) -> SandboxSpec:
    return SandboxSpec(width=320, height=240, desktop=level == 3 and number % 3 == 0, level=level)


async def in_a_row(number: int, level: Level, ids: set[str]) -> None:
    """Open and close so many."""
    for done in range(number):
        await open_use_close(_spec(done, level), ids)
        if (done + 1) % 50 == 0:
            print(f"{done + 1} of {number} closed", file=sys.stderr, flush=True)


def kill_at_random(number: int, level: Level, ids: set[str], dice: random.Random) -> Counter[str]:
    """Kill so many owners; returns how often which phase of theirs was hit."""
    hit: Counter[str] = Counter()
    argv = [sys.executable, "-m", "pilotfish.sandbox.soak", "--level", str(level), "--victim"]
    for done in range(number):
        victim = subprocess.Popen([*argv, str(done)], stdout=subprocess.PIPE, bufsize=0)
        assert victim.stdout is not None
        victim.stdout.readline()  # it has loaded everything
        deadline = time.monotonic() + dice.uniform(0, _LONGEST_LIFE_S)
        said = b""
        while (left := deadline - time.monotonic()) > 0:
            if select.select([victim.stdout], [], [], left)[0]:
                said += os.read(victim.stdout.fileno(), 4096)
        ids |= {entry.name for entry in base_folder().iterdir() if entry.is_dir()}
        victim.kill()
        victim.wait()
        said += victim.stdout.read()
        victim.stdout.close()
        hit[said.decode().split()[-1] if said else "start"] += 1
        if (done + 1) % 10 == 0:
            print(f"{done + 1} of {number} killed", file=sys.stderr, flush=True)
    return hit


async def be_killed(level: Level, seed: int) -> None:
    """What a victim does until it is killed."""
    print("ready", flush=True)
    while True:
        await open_use_close(_spec(seed, level), set(), lambda word: print(word, flush=True))


def _reap() -> None:
    """Orphans that this process has adopted, once they are dead."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def soak(sandboxes: int, kills: int, level: Level, seed: int) -> dict[str, Any]:
    """All of it, in a folder of its own; the report."""
    began = time.monotonic()
    # Orphans of killed owners become children of this process, so that they are counted.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="pfs-", dir="/tmp") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        ids: set[str] = set()
        asyncio.run(in_a_row(WARM_UP, level, ids))
        before = count(ids)
        asyncio.run(in_a_row(sandboxes, level, ids))
        closed = count(ids)
        hit = kill_at_random(kills, level, ids, random.Random(seed))
        deadline = time.monotonic() + _SETTLE_S
        while True:
            _reap()
            after = count(ids)
            if not grew(before, after) or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        waiting = grew(before, after)
        if waiting:
            asyncio.run(open_use_close(_spec(1, level), ids))
            _reap()
            after = count(ids)
    return {
        "sandboxes": sandboxes,
        "kills": kills,
        "killed_in": dict(hit),
        "level": level,
        "seconds": round(time.monotonic() - began, 1),
        "before": asdict(before),
        "after_closing": asdict(closed),
        "after": asdict(after),
        "left_to_the_next": waiting,
        "grew": sorted({*grew(before, closed), *grew(before, after)}),
    }


def main() -> None:
    """Read the command line, soak, and compare."""
    parser = argparse.ArgumentParser(
        prog="python -m pilotfish.sandbox.soak", description="Look for what stays behind of many sandboxes."
    )
    parser.add_argument("--sandboxes", type=int, default=300, help="how many to open and close in a row")
    parser.add_argument("--kills", type=int, default=50, help="how many owners to kill at random moments")
    parser.add_argument("--level", type=int, default=3, choices=(3, 2, 0))
    parser.add_argument("--seed", type=int, default=1, help="of the random moments")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--victim", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.victim is not None:
        asyncio.run(be_killed(options.level, options.victim))
    report = soak(options.sandboxes, options.kills, options.level, options.seed)
    if options.json:
        print(json.dumps(report))
    else:
        print(f"before:                  {Count(**report['before'])}")
        print(f"after {report['sandboxes']:4} closed:       {Count(**report['after_closing'])}")
        hit = ", ".join(f"{number} in {phase}" for phase, number in sorted(report["killed_in"].items()))
        print(f"after {report['kills']:4} killed:       {Count(**report['after'])}")
        print(f"killed: {hit or 'none'}; {report['seconds']:g} s")
        if left := report["left_to_the_next"]:
            print(f"left to the next sandbox: {', '.join(left)}")
        print(f"grew: {', '.join(report['grew'])}" if report["grew"] else "nothing grew")
    sys.exit(1 if report["grew"] else 0)


if __name__ == "__main__":
    main()
