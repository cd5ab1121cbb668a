# ruff: noqa: SIM105
"""PID 1 of a sandbox: starts programs, reaps them, kills whole trees.

Run inside by bubblewrap as `guest.py FD [FILTER [RULES [FOLDER...]]]`, with the standard library only. FD is
one end of a SOCK_SEQPACKET pair; every datagram is one object, inwards as Python marshals it, outwards in
JSON. FILTER and RULES are descriptors of what every program is confined by: a seccomp filter (`seccomp.py`)
and a Landlock ruleset (`landlock.py`). In each FOLDER, files are changed for programs that may not do it
themselves (`clerk.py`).

Every sandbox waits for this to start, so it imports next to nothing, not even `os`: with that, ctypes, json,
socket, selectors, signal and contextlib it would take more than twice as long. What is needed for the first
program only (`runner.py`) is loaded once it is said that this one is ready.

    in:  {"op": "spawn", "job": 7, "argv": [...], "env": {...}, "cwd": "/", "fds": [0, 1, 2], "limits": {...},
          "confine": true, "keep": false} with one descriptor attached for each number in "fds";
         {"op": "kill", "job": 7}; {"op": "signal", "job": 7, "signal": 15};
         {"op": "freeze", "job": 7}, all that its program has started, not itself (`holding.py`);
         {"op": "watch", ...}, limits on everything together (`watchdog.py`); {"op": "look"}
    out: {"event": "ready"}, {"event": "started", "job": 7, "pid": 12},
         {"event": "failed", "job": 7, "stage": "exec", "errno": 2},
         {"event": "exit", "job": 7, "status": 0} (the program itself; negative: killed by that signal),
         {"event": "stopped", "job": 7} (for "keep": a signal such as SIGSTOP holds the program itself),
         {"event": "gone", "job": 7} (nothing that it started is left),
         {"event": "limit", "kind": "memory", "job": 7, "program": "python3", "size": 8123} (one was reached),
         {"event": "looked"} (every limit that was reached by then has been told)

Each job has a runner, a fork of this process that adopts orphans (PR_SET_CHILD_SUBREAPER): however often a
program forks and calls setsid, it stays a descendant of its runner and can be found and killed with it. When
the other end of FD closes this process exits, and the kernel kills everything else in the PID namespace at
once. Where there is no such namespace (level 2) it kills everything itself before it exits, and when it is
killed, each runner does so; when those are killed too, a process that waits for that (`Walls.hire_hand`).
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import _struct as struct
import marshal
import posix
import select
import sys
import time

from . import calls, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .runner import Walls
    from .watchdog import Watchdog

MAX_MESSAGE = 192 * 1024
MAX_FDS = 16
HIGH_FD = 256  # descriptors are parked from here on while they are moved to their final numbers
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 10.0
LOOK_SECONDS = 0.5  # between two looks at whether runners and the programs that are to be kept are stopped
SIGCONT = 18  # the same on x86-64 and aarch64


def receive(control: socket.socket, size: int, count: int) -> tuple[bytes, list[int]]:
    """One datagram and the descriptors that came with it."""
    word = struct.calcsize("@i")
    room = socket.CMSG_SPACE(count * word)
    data, attached, _, _ = control.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    packed = b"".join(what for _, _, what in attached)
    return data, list(struct.unpack(f"@{len(packed) // word}i", packed))


def as_json(message: dict[str, Any]) -> bytes:
    """Numbers and words of the first 65,536 characters, as `json.dumps` would write them."""
    fields = []
    for name, value in message.items():
        if isinstance(value, str):
            signs = (sign if sign.isalnum() else f"\\u{ord(sign):04x}" for sign in value)
            value = f'"{"".join(signs)}"'
        fields.append(f'"{name}": {value}')
    return f"{{{', '.join(fields)}}}".encode()


class Job:
    """What the watchdog wants to know of a job (`watchdog.py`)."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.number: int = request["job"]
        self.main = 0
        self.keep: bool = request["keep"]
        self.confine: bool = request["confine"]


class Guest:
    """The loop of PID 1: requests from the trusted side, reports from the runners, dead children."""

    def __init__(self, control: socket.socket, words: list[str]) -> None:
        """words: FILTER, RULES and FOLDERs of the command line."""
        self.control = control
        self.words = words
        self.poll = select.epoll()
        self.runners: dict[int, int] = {}  # pid of a runner -> its job
        self.jobs: dict[int, Job] = {}  # the same, for the watchdog
        self.watchdog: Watchdog | None = None
        self.reports: dict[int, int] = {}  # read end of a report pipe -> its job
        self.held: set[int] = set()  # jobs to be kept whose program was stopped at the last look
        self.next_look = 0.0
        self.wake, wake_write = posix.pipe()
        posix.set_blocking(self.wake, False)
        posix.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.poll.register(control.fileno(), select.EPOLLIN)
        self.poll.register(self.wake, select.EPOLLIN)

    def send(self, **message: Any) -> None:
        self.control.send(as_json(message))

    def serve(self) -> None:
        self.send(event="ready")
        from . import runner

        sys.path.pop()  # programs may write where this file lies
        self.run_job: Callable[[dict[str, Any], list[int], int, Walls], None] = runner.run_job
        self.park: Callable[[int], int] = runner.park
        self.walls = runner.Walls.from_words(self.words)
        self.hand = self.walls.hire_hand()
        while True:
            for fd, _ in self.poll.poll(self.seconds_left()):
                if fd == self.control.fileno():
                    if not self.read_request():
                        return
                elif fd == self.wake:
                    posix.read(self.wake, 4096)
                    self.reap()
                else:
                    self.read_report(fd)
            if self.watchdog and self.watchdog.seconds_left() == 0:
                self.watchdog.look()
            if time.monotonic() >= self.next_look:
                self.look_for_held()

    def seconds_left(self) -> float | None:
        """Until the next look at something."""
        looks = [self.watchdog.seconds_left()] if self.watchdog else []
        if self.jobs:
            looks.append(max(0.0, self.next_look - time.monotonic()))
        return min(looks, default=None)

    def look_for_held(self) -> None:
        """Tell of programs to be kept that were stopped at two looks in a row; continue stopped runners."""
        self.next_look = time.monotonic() + LOOK_SECONDS
        held = set()
        for runner, job in self.jobs.items():
            if (entry := processes.look_at(runner)) and entry.is_stopped:
                processes.send_signal(runner, SIGCONT)
            if job.keep and job.main and (entry := processes.look_at(job.main)) and entry.is_stopped:
                held.add(job.number)
        for number in held & self.held:
            self.send(event="stopped", job=number)
        self.held = held

    def read_request(self) -> bool:
        """Serve one request; False when the trusted side is gone."""
        data, fds = receive(self.control, MAX_MESSAGE, MAX_FDS)
        if not data:
            return False
        try:
            request = marshal.loads(data)
            if request["op"] == "spawn":
                self.spawn(request, fds)
            elif request["op"] == "watch":
                from .watchdog import Watchdog

                self.watchdog = Watchdog(request, self.send, self.jobs)
            elif request["op"] == "look":
                if self.watchdog:
                    self.watchdog.report()
                self.send(event="looked")
            else:
                self.signal_job(request)
        finally:
            for fd in fds:
                posix.close(fd)
        return True

    def spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        report_read, report_write = posix.pipe()
        try:
            runner = posix.fork()
        except OSError as error:
            posix.close(report_read)
            posix.close(report_write)
            self.send(event="failed", job=request["job"], stage="fork", errno=error.errno)
            self.send(event="gone", job=request["job"])
            return
        if runner == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                parked = [self.park(fd) for fd in fds]
                report = self.park(report_write)
                posix.closerange(3, HIGH_FD)
                self.run_job(request, parked, report, self.walls)
            finally:
                posix._exit(0)
        posix.close(report_write)
        self.runners[runner] = request["job"]
        self.jobs[runner] = Job(request)
        self.reports[report_read] = request["job"]
        self.poll.register(report_read, select.EPOLLIN)

    def signal_job(self, request: dict[str, Any]) -> None:
        runner = next((pid for pid, job in self.runners.items() if job == request["job"]), None)
        if runner is None:
            return
        if request["op"] == "kill":
            processes.end_below(runner, KILL_SECONDS)
        elif request["op"] == "freeze":
            from .holding import hold_below

            hold_below(self.jobs[runner].main)
        else:
            for entry in processes.processes().values():
                if entry.parent == runner:
                    processes.send_signal(entry.pid, request["signal"])

    def read_report(self, fd: int) -> None:
        job = self.reports[fd]
        # A runner writes whole short lines, and a pipe keeps writes of that size in one piece.
        lines = posix.read(fd, 4096).decode().splitlines()
        for line in lines:
            word, *values = line.split()
            if word == "started":
                for watched in self.jobs.values():
                    if watched.number == job:
                        watched.main = int(values[0])
                self.send(event="started", job=job, pid=int(values[0]))
            elif word == "failed":
                self.send(event="failed", job=job, stage=values[0], errno=int(values[1]))
            elif word == "exit":
                self.send(event="exit", job=job, status=int(values[0]))
        if not lines:
            self.poll.unregister(fd)
            posix.close(fd)
            del self.reports[fd]
            self.send(event="gone", job=job)

    def reap(self) -> None:
        orphaned = False
        while True:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.jobs.pop(pid, None)
            if self.runners.pop(pid, None) is not None and status != 0:
                orphaned = (
                    True  # a program killed its runner: what that runner guarded is now a child of ours
                )
        if orphaned:
            ours = [*self.runners, self.hand]
            apart = [(pid, entry.start) for pid in ours if (entry := processes.look_at(pid))]
            processes.end_below(posix.getpid(), KILL_SECONDS, apart=frozenset(apart))


def main(words: list[str]) -> None:
    libc = calls.Library()
    # Programs inside have the same user id; without this they could attach to PID 1 as a debugger.
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # as PID 1 it is one anyway
    number = int(words[0])
    kept = sorted({number, *map(int, words[1:3])})
    for first, last in zip([2, *kept], [*kept, HIGH_FD], strict=True):
        posix.closerange(first + 1, last)  # what bubblewrap left open
    for fd in kept:
        posix.set_inheritable(fd, False)
    control = socket.socket(fileno=number)
    # The trusted side may go away while something is being said to it.
    try:
        Guest(control, words[1:]).serve()
    except (BrokenPipeError, ConnectionResetError):
        pass
    if posix.getpid() != 1:
        processes.end_below(posix.getpid(), KILL_SECONDS)
    posix._exit(0)  # at once: nobody needs Python's own tidying
