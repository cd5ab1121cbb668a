# ruff: noqa: PTH123, SIM105
"""Watches what all programs of a sandbox use together, and ends those that would take too much.

It runs in PID 1 (`guest.py`), so that it does its work whatever the agent's process is busy with, and imports
next to nothing. A look costs a millisecond or two, and the nearer a limit is, the sooner the next one comes.

Memory is what the kernel says is anonymous or shared, and what lies in memory-backed folders. First the sum
of resident pages is taken, which is never less; if that is too much, the two kinds alone; if that is too much
still, each page divided by those who share it, as forked workers share theirs. The biggest program is ended
with its process group, and what the sandbox itself is built of is spared.

Of a disk, it is watched how much is left for others, and how much fuller it has become; a file counts that
was changed since the start. Who has written most since the last look is ended.
"""

from __future__ import annotations

import posix
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, Protocol

    Units = dict[tuple[int, int], list["Entry"]]

    class Job(Protocol):
        """One job of the guest: `main` is its program's process, 0 before it runs.

        keep: the program is part of the sandbox. confine: without it, it is a browser, whose pages are
        processes that it can lose one by one.
        """

        number: int
        main: int
        keep: bool
        confine: bool


PAGE = posix.sysconf("SC_PAGE_SIZE")
SHORTEST_S, LONGEST_S = 0.1, 0.5  # between two looks
GROWTH_PER_S = 4 << 30  # bytes that programs may take in a second, by which the next look is timed
SHARE_OF_TIME = 0.1  # how much of the time may be spent looking
SIGINT, SIGKILL = 2, 9
GIVE_UP_S = 1.0  # what a shell may take to give up its command
WALK_S = 2.0  # how long files may be looked through
ENDLESS = 1 << 60
A_LOT = 1 << 20  # bytes that make a writer


class Entry:
    """One process: numbers of /proc/PID/stat. rss: bytes."""

    __slots__ = ("group", "name", "parent", "pid", "rss", "start", "threads")

    def __init__(self, pid: int, line: bytes) -> None:
        before, _, after = line.rpartition(b")")
        fields = after.split()
        self.pid = pid
        self.name = before.partition(b"(")[2].decode("utf-8", "replace")
        self.parent, self.group = int(fields[1]), int(fields[2])
        self.threads, self.start = int(fields[17]), int(fields[19])
        self.rss = int(fields[21]) * PAGE


def entries() -> dict[int, Entry]:
    """Every process that can be seen."""
    found = {}
    for name in posix.listdir("/proc"):
        if name.isdigit():
            line = read(f"/proc/{name}/stat")
            if line:
                found[int(name)] = Entry(int(name), line)
    return found


def read(path: str) -> bytes:
    """A file of /proc; empty when it is gone, or not for us."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def numbers(path: str, *names: bytes) -> list[int]:
    """The first number of the lines that begin with these names, 0 where there is none."""
    found = {line.split(b":")[0]: line.split() for line in read(path).splitlines()}
    return [int(found[name][1]) if name in found else 0 for name in names]


def anonymous_and_shared(pid: int) -> tuple[int, int]:
    """Bytes of a process that are no file's, its own and shared ones, each counted whole."""
    anonymous, shared = numbers(f"/proc/{pid}/status", b"RssAnon", b"RssShmem")
    return anonymous << 10, shared << 10


def divided(pid: int) -> tuple[int, int]:
    """The same, each page divided by those who share it; whole where that may not be looked at."""
    anonymous, shared = numbers(f"/proc/{pid}/smaps_rollup", b"Pss_Anon", b"Pss_Shmem")
    return (anonymous << 10, shared << 10) if anonymous or shared else anonymous_and_shared(pid)


def written_by(entry: Entry) -> int:
    """Bytes that a process, and those it has waited for, had written to a disk."""
    return numbers(f"/proc/{entry.pid}/io", b"write_bytes")[0]


def changed_bytes(folders: Iterable[str], since_s: float, unseen: int = 0) -> int:
    """Bytes on disk of the files below some folders that were changed since then.

    unseen: what to add for those that there was no time to look at.
    """
    deadline = time.monotonic() + WALK_S
    total, waiting = 0, list(folders)
    while waiting:
        try:
            with posix.scandir(waiting.pop()) as listing:
                for item in listing:
                    if time.monotonic() > deadline:
                        return total + unseen
                    found = item.stat(follow_symlinks=False)
                    if item.is_dir(follow_symlinks=False):
                        waiting.append(item.path)
                    elif found.st_ctime >= since_s:
                        total += found.st_blocks * 512
        except OSError:
            continue  # it was removed meanwhile, or is closed to us
    return total


def room(folder: str) -> tuple[int, int]:
    """Bytes that are left where a folder lies, and how many there are; endless where it is gone."""
    try:
        found = posix.statvfs(folder)
    except OSError:
        return ENDLESS, ENDLESS
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


class Disk:
    """One file system that folders of the sandbox lie on."""

    def __init__(self, folder: str) -> None:
        self.folders = [folder]
        self.free_at_start, self.size = room(folder)
        self.started_s = time.time()
        self.told = False


class Watchdog:
    """Looks when `due_s` has come. Limits are of `limits` in `watch.py`; None is no limit."""

    def __init__(self, limits: Mapping[str, Any], tell: Callable[..., None], jobs: Mapping[int, Job]) -> None:
        """tell: sends a message to the trusted side. jobs: by the process that looks after each."""
        self.tell, self.jobs = tell, jobs
        self.memory: int | None = limits["memory"]
        self.processes: int = limits["processes"]
        self.others_count: bool = limits["others_count"]
        self.folders: list[str] = limits["folders"]
        self.disk_free: int = limits["disk_free"]
        self.disk_growth: int = limits["disk_growth"]
        self.disks: dict[int, Disk] = {}
        for folder in limits["disks"]:
            device = posix.stat(folder).st_dev
            if device in self.disks:
                self.disks[device].folders.append(folder)
            else:
                self.disks[device] = Disk(folder)
        self.due_s = time.monotonic()
        self.ended: set[tuple[int, int]] = set()  # by number and start time: they may take a while to go
        self.interrupted: dict[tuple[int, int], float] = {}
        self.written: dict[tuple[int, int], int] = {}
        self.since_s = time.time()
        self.full: set[str] = set()
        self.crowded = False

    def seconds_left(self) -> float:
        """Until the next look; -1 while nothing runs."""
        return max(0.0, self.due_s - time.monotonic()) if self.jobs else -1

    def look(self) -> None:
        """See what is used, and end who uses too much."""
        began = time.monotonic()
        table = entries()
        self.ended &= {(entry.pid, entry.start) for entry in table.values()}
        units = dict(self.units(table))
        spare = min(self.look_at_memory(table, units), self.look_at_disks(units))
        self.look_at_counts(table)
        spent = time.monotonic() - began
        pause = min(max(spare / GROWTH_PER_S, SHORTEST_S), LONGEST_S)
        self.due_s = began + max(pause, spent / SHARE_OF_TIME)

    def report(self) -> None:
        """Look, and tell what was full or crowded since the last report."""
        self.look()
        for folder in sorted(self.full):
            self.tell(event="limit", kind="folder", job=0, program=folder, size=room(folder)[1])
        if self.crowded:
            self.tell(event="limit", kind="processes", job=0, program="", size=self.processes)
        self.full, self.crowded = set(), False

    def units(self, table: dict[int, Entry]) -> Iterator[tuple[tuple[int, int], list[Entry]]]:
        """What is ended together, by its job and a process number: mostly a process group."""
        children: dict[int, list[Entry]] = {}
        for entry in table.values():
            children.setdefault(entry.parent, []).append(entry)
        for runner, job in self.jobs.items():
            found: Units = {}
            waiting = list(children.get(runner, ()))
            while waiting:
                entry = waiting.pop()
                waiting += children.get(entry.pid, ())
                if (job.keep and entry.pid == job.main) or (entry.pid, entry.start) in self.ended:
                    continue
                # What a shell starts are groups; itself must not go with what it runs in its own.
                apart = not job.confine or (job.keep and entry.parent == job.main)
                found.setdefault((job.number, entry.pid if apart else entry.group), []).append(entry)
            yield from found.items()

    def look_at_memory(self, table: dict[int, Entry], units: Units) -> int:
        """End the biggest while there is too much; returns how many bytes are left."""
        if self.memory is None:
            return GROWTH_PER_S
        files = sum(size - free for free, size in map(room, self.folders))
        ours = [entry for unit in units.values() for entry in unit]
        ours += [table[job.main] for job in self.jobs.values() if job.keep and job.main in table]
        used = sum(entry.rss for entry in ours) + files
        for measure in (anonymous_and_shared, divided):
            if used <= self.memory:
                return self.memory - used
            sizes = {entry.pid: measure(entry.pid) for entry in ours}
            # Files in memory that programs have mapped are in both.
            used = sum(own for own, _ in sizes.values()) + max(files, sum(both for _, both in sizes.values()))
        biggest = sorted(units, key=lambda unit: sum(sum(sizes[entry.pid]) for entry in units[unit]))
        while used > self.memory and biggest:
            unit = biggest.pop()
            size = sum(sum(sizes[entry.pid]) for entry in units[unit])
            self.say("memory", unit[0], max(units[unit], key=lambda entry: sizes[entry.pid]).name, size)
            self.kill(units[unit])
            used -= size
        return 0

    def look_at_disks(self, units: Units) -> int:
        """End who fills a disk; returns how many bytes are left to the nearest limit."""
        least = GROWTH_PER_S
        waits = False  # for somebody to write, so that what is written is counted from here on
        for disk in self.disks.values():
            free, _ = room(disk.folders[0])
            floor = min(self.disk_free, disk.size // 20)
            left = min(free - floor, self.disk_growth - (disk.free_at_start - free))
            least = min(least, left)
            if left > 0:
                disk.told = False
            elif free <= floor:
                waits |= not self.end_writer(disk, units, "disk free", free)
            elif changed_bytes(disk.folders, disk.started_s, self.disk_growth) < self.disk_growth:
                disk.free_at_start = free  # others have filled it
            else:
                waits |= not self.end_writer(disk, units, "disk growth", self.disk_growth)
        if not waits:
            self.since_s = time.time()
            near = [entry for unit in units.values() for entry in unit] if least < GROWTH_PER_S // 2 else []
            self.written = {(entry.pid, entry.start): written_by(entry) for entry in near}
        return max(least, 0)

    def end_writer(self, disk: Disk, units: Units, kind: str, size: int) -> bool:
        """End the unit that has written most since it was last noted; whether there was one."""
        wrote = {unit: {entry: self.fresh_bytes(entry) for entry in units[unit]} for unit in units}
        most = max(wrote, key=lambda unit: sum(wrote[unit].values()), default=None)
        ended = []
        if most is not None and sum(wrote[most].values()) >= A_LOT:
            ended = [most]
        elif changed_bytes(disk.folders, self.since_s) >= A_LOT:
            ended = list(units)  # it grows without being written, as by fallocate
        for unit in ended:
            doomed = self.doomed(units[unit])
            writer = max(wrote[unit], key=lambda entry: wrote[unit][entry])
            # A shell that only gives up its command is not named, nor is one that wrote nothing.
            if writer in doomed or len(ended) == 1:
                self.say(kind, unit[0], writer.name if writer in doomed else "", size)
            self.kill(doomed)
        if not ended and not disk.told:
            self.say(kind, 0, "", size)
        disk.told = True
        return bool(ended)

    def fresh_bytes(self, entry: Entry) -> int:
        """What a process has written since that was last noted."""
        return written_by(entry) - self.written.get((entry.pid, entry.start), 0)

    def look_at_counts(self, table: dict[int, Entry]) -> None:
        """Note folders that are full, and whether there are as many processes as there may be."""
        for folder in self.folders:
            free, size = room(folder)
            if free * 100 < size:
                self.full.add(folder)
        own = posix.geteuid()
        threads = sum(
            entry.threads for entry in table.values() if not self.others_count or owner(entry.pid) == own
        )
        self.crowded |= threads >= self.processes - max(2, self.processes // 50)

    def say(self, kind: str, job: int, program: str, size: int) -> None:
        """Say that a unit will be killed; before it is, so that who hears of its end can have heard why."""
        self.tell(event="limit", kind=kind, job=job, program=program, size=size)

    def doomed(self, unit: list[Entry]) -> list[Entry]:
        """Who of what writes is to be killed. A shell, whose loop it may be, is first told to give up."""
        shells = {job.main for job in self.jobs.values() if job.keep}
        now = time.monotonic()
        doomed = []
        for member in unit:
            if member.parent in shells:
                name = (member.pid, member.start)
                since = now - self.interrupted.get(name, 0.0)
                if since > 2 * GIVE_UP_S:
                    self.interrupted[name] = now
                    try:
                        posix.kill(member.pid, SIGINT)
                    except ProcessLookupError:  # it ended while the disk was looked at
                        pass
                if since > 2 * GIVE_UP_S or since < GIVE_UP_S:
                    continue
            doomed.append(member)
        return doomed

    def kill(self, unit: list[Entry]) -> None:
        """Kill all of a unit, and count them no more."""
        for member in unit:
            self.ended.add((member.pid, member.start))
            try:
                posix.kill(member.pid, SIGKILL)
            except ProcessLookupError:
                pass


def owner(pid: int) -> int:
    """Whose process it is, -1 when it has ended."""
    try:
        return posix.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1
