# ruff: noqa: PTH123, SIM105
"""PID 1 of a sandbox: starts programs, reaps them, kills whole trees.

Run inside by bubblewrap as `guest.py FD [FILTER [RULES [FOLDER...]]]`, with the standard library only. FD is
one end of a SOCK_SEQPACKET pair; every datagram is one object, inwards as Python marshals it, outwards in
JSON. FILTER and RULES are descriptors of what every program is confined by: a seccomp filter (`seccomp.py`)
and a Landlock ruleset (`landlock.py`). In each FOLDER, files are changed for programs that may not do it
themselves (`clerk.py`). Of `inside`, which is the shell's, it has the end of trees of processes.

Every sandbox waits for this to start, so it imports next to nothing: with ctypes, json, socket, selectors,
signal and contextlib it would take more than twice as long.

    in:  {"op": "spawn", "job": 7, "argv": [...], "env": {...}, "cwd": "/", "fds": [0, 1, 2], "limits": {...},
          "confine": true, "keep": false} with one descriptor attached for each number in "fds";
         {"op": "kill", "job": 7}; {"op": "signal", "job": 7, "signal": 15};
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
killed, each runner does so.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import _thread
import fcntl
import marshal
import os
import resource
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pilotfish.sandbox.inside import processes

MAX_MESSAGE = 192 * 1024
MAX_FDS = 16
HIGH_FD = 256  # descriptors are parked from here on while they are moved to their final numbers
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
SECCOMP_SET_FILTER, SECCOMP_NEW_LISTENER = 1, 8
SECCOMP = {"x86_64": 317, "aarch64": 277}.get(os.uname().machine, -1)
LANDLOCK_RESTRICT_SELF = 446
RULES_FD = 512
KILL_SECONDS = 10.0
LOOK_SECONDS = 0.5  # between two looks at the programs that are to be kept

# Modules that lie beside this one, and what `calls.py` makes of the C library.
_calls: Any
_libc: Any
_watchdogs: Any


class Walls:
    """What confines a program besides the namespaces. It cannot be taken off again, so it is put on last."""

    def __init__(self, program: bytes, rules: int, folders: list[str]) -> None:
        self.rules = rules
        self.folders = folders
        self.clerks: Any = __import__("clerk") if folders else None
        self.steps = _calls.Buffer(program)
        # struct sock_fprog: how many steps of 8 bytes, and where they are.
        self.program = struct.pack("@HP", len(program) // 8, self.steps.address)

    @classmethod
    def from_words(cls, words: list[str]) -> Walls:
        """Takes FILTER, RULES and FOLDERs of the command line."""
        program, rules = b"", -1
        if words:
            with open(int(words[0]), "rb") as file:
                program = file.read()
        if len(words) > 1:
            rules = fcntl.fcntl(int(words[1]), fcntl.F_DUPFD_CLOEXEC, RULES_FD)
        return cls(program, rules, words[2:])

    def close_in(self, clerk: socket.socket) -> None:
        """Confine this process and all that it starts. Without filter and rules there is nothing to do.

        clerk: where the descriptor goes at which the clerk hears of calls, if there is a clerk.
        """
        if self.rules < 0 and not self.steps.size:
            return
        self.check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        if self.rules >= 0:
            self.check(_libc.syscall(LANDLOCK_RESTRICT_SELF, self.rules, 0))
        if self.folders:
            listener = _libc.syscall(SECCOMP, SECCOMP_SET_FILTER, SECCOMP_NEW_LISTENER, self.program)
            self.check(listener)
            clerk.sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("@i", listener))])
            os.close(listener)
        elif self.steps.size:
            self.check(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, self.program, 0, 0))

    def serve(self, clerk: socket.socket) -> None:
        """Have a thread do what the program that has the other end asks for."""
        _, fds = receive(clerk, 1, 1)
        if fds:
            _thread.start_new_thread(self.clerks.Clerk(fds[0], self.folders).serve, ())

    @staticmethod
    def check(result: int) -> None:
        if result < 0:
            raise OSError(_calls.get_errno(), "walls")


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


def park(fd: int, close: bool = False) -> int:
    """The same descriptor with a number that is out of the way; `close`: and not with its own any more."""
    parked = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    if close:
        os.close(fd)
    return parked


def become_program(
    request: dict[str, Any], fds: list[int], trouble: int, walls: Walls, clerk: socket.socket
) -> None:
    """Become the requested program; on failure write `STAGE ERRNO` to `trouble` and return."""
    stage = "fds"
    try:
        targets: list[int] = request["fds"]
        for target, parked in zip(targets, fds, strict=True):
            os.dup2(parked, target, inheritable=True)
        for standard in (0, 1, 2):
            if standard not in targets:
                null = os.open("/dev/null", os.O_RDWR)
                os.dup2(null, standard, inheritable=True)
        stage = "limits"
        for name, value in request["limits"].items():
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (bound, bound))
        stage = "cwd"
        os.chdir(request["cwd"])
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        # Where memory runs out, programs go before what looks after them.
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("500")
        except OSError:
            pass
        if request["confine"]:
            stage = "walls"
            walls.close_in(clerk)
        stage = "exec"
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except OSError as error:
        os.write(trouble, f"{stage} {error.errno}".encode())
    except ValueError:  # a limit that cannot be set
        os.write(trouble, f"{stage} 22".encode())


def run_job(request: dict[str, Any], fds: list[int], report: int, walls: Walls) -> None:
    """The runner of one job: start the program, adopt its orphans, report on it, end when nothing is left."""
    os.setsid()
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    end_with_guest()
    # Beyond the numbers that the program's own descriptors may get.
    trouble_read, trouble_write = (park(fd, close=True) for fd in os.pipe())
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    clerk, hand = (socket.socket(fileno=park(end.detach(), close=True)) for end in pair)
    main = os.fork()
    if main == 0:
        try:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            os.setsid()
            become_program(request, fds, trouble_write, walls, hand)
        finally:
            os._exit(127)
    hand.close()
    os.close(trouble_write)
    if walls.folders and request["confine"]:
        walls.serve(clerk)
    for fd in fds:
        os.close(fd)
    trouble = os.read(trouble_read, 64)  # empty: exec closed the pipe
    os.close(trouble_read)
    os.write(report, b"failed " + trouble + b"\n" if trouble else b"started %d\n" % main)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if pid == main and not trouble:
            os.write(report, b"exit %d\n" % os.waitstatus_to_exitcode(status))


def end_with_guest() -> None:
    """Have this runner end all below it when PID 1 is killed, as the kernel does in a PID namespace."""
    guest = os.getppid()

    def end(*_: object) -> None:
        processes.end_below(os.getpid(), KILL_SECONDS)
        os._exit(0)

    signal.signal(signal.SIGUSR1, end)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    if os.getppid() != guest:
        os._exit(0)


class Job:
    """What the watchdog wants to know of a job (`watchdog.py`)."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.number: int = request["job"]
        self.main = 0
        self.keep: bool = request["keep"]
        self.confine: bool = request["confine"]


class Guest:
    """The loop of PID 1: requests from the trusted side, reports from the runners, dead children."""

    def __init__(self, control: socket.socket, walls: Walls) -> None:
        self.control = control
        self.walls = walls
        self.poll = select.epoll()
        self.runners: dict[int, int] = {}  # pid of a runner -> its job
        self.jobs: dict[int, Job] = {}  # the same, for the watchdog
        self.watchdog: Any = None
        self.reports: dict[int, int] = {}  # read end of a report pipe -> its job
        self.held: set[int] = set()  # jobs to be kept whose program was stopped at the last look
        self.next_look = 0.0
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.poll.register(control.fileno(), select.EPOLLIN)
        self.poll.register(self.wake, select.EPOLLIN)

    def send(self, **message: Any) -> None:
        self.control.send(as_json(message))

    def serve(self) -> None:
        self.send(event="ready")
        while True:
            for fd, _ in self.poll.poll(self.seconds_left()):
                if fd == self.control.fileno():
                    if not self.read_request():
                        return
                elif fd == self.wake:
                    os.read(self.wake, 4096)
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
        if any(job.keep for job in self.jobs.values()):
            looks.append(max(0.0, self.next_look - time.monotonic()))
        return min(looks, default=None)

    def look_for_held(self) -> None:
        """Tell of programs to be kept that were stopped at two looks in a row."""
        self.next_look = time.monotonic() + LOOK_SECONDS
        held = set()
        for job in self.jobs.values():
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
                self.watchdog = _watchdogs.Watchdog(request, self.send, self.jobs)
            elif request["op"] == "look":
                if self.watchdog:
                    self.watchdog.report()
                self.send(event="looked")
            else:
                self.signal_job(request)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        report_read, report_write = os.pipe()
        try:
            runner = os.fork()
        except OSError as error:
            os.close(report_read)
            os.close(report_write)
            self.send(event="failed", job=request["job"], stage="fork", errno=error.errno)
            self.send(event="gone", job=request["job"])
            return
        if runner == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                parked = [park(fd) for fd in fds]
                report = park(report_write)
                os.closerange(3, HIGH_FD)
                run_job(request, parked, report, self.walls)
            finally:
                os._exit(0)
        os.close(report_write)
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
        else:
            for entry in processes.processes().values():
                if entry.parent == runner:
                    processes.send_signal(entry.pid, request["signal"])

    def read_report(self, fd: int) -> None:
        job = self.reports[fd]
        # A runner writes whole short lines, and a pipe keeps writes of that size in one piece.
        lines = os.read(fd, 4096).decode().splitlines()
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
            os.close(fd)
            del self.reports[fd]
            self.send(event="gone", job=job)

    def reap(self) -> None:
        orphaned = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
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
            runners = [(pid, entry.start) for pid in self.runners if (entry := processes.look_at(pid))]
            processes.end_below(os.getpid(), KILL_SECONDS, apart=frozenset(runners))


def main(words: list[str]) -> None:
    global _calls, _libc, _watchdogs, processes
    processes = __import__("inside.processes", fromlist=["processes"])
    _calls, _watchdogs = __import__("calls"), __import__("watchdog")
    _libc = _calls.Library()
    # Programs inside have the same user id; without this they could attach to PID 1 as a debugger.
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # as PID 1 it is one anyway
    control = socket.socket(fileno=int(words[0]))
    os.set_inheritable(control.fileno(), False)
    walls = Walls.from_words(words[1:])
    sys.path.pop()  # programs may write where this file lies
    os.closerange(3, control.fileno())  # what bubblewrap left open
    os.closerange(control.fileno() + 1, HIGH_FD)
    # The trusted side may go away while something is being said to it.
    try:
        Guest(control, walls).serve()
    except (BrokenPipeError, ConnectionResetError):
        pass
    if os.getpid() != 1:
        processes.end_below(os.getpid(), KILL_SECONDS)
