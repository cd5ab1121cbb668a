# ruff: noqa: PTH123
"""The runner of one job: starts its program within the walls, adopts its orphans, ends when none is left.

Loaded by `guest.py`, which forks one for each job, with the standard library only.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import _thread
import fcntl
import os
import resource
import struct

from . import calls, processes
from .guest import HIGH_FD, receive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
SECCOMP_SET_FILTER, SECCOMP_NEW_LISTENER = 1, 8
SECCOMP = {"x86_64": 317, "aarch64": 277}.get(os.uname().machine, -1)
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
LANDLOCK_SCOPE_SIGNAL = 2
RULES_FD = 512
KILL_SECONDS = 10.0

libc = calls.Library()


class Walls:
    """What confines a program besides the namespaces. It cannot be taken off again, so it is put on last."""

    def __init__(self, program: bytes, rules: int, folders: list[str]) -> None:
        self.rules = rules
        self.folders = folders
        self.steps = calls.Buffer(program)
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
            os.close(int(words[1]))
        return cls(program, rules, words[2:])

    def close_in(self, clerk: socket.socket) -> None:
        """Confine this process and all that it starts. Without filter and rules there is nothing to do.

        clerk: where the descriptor goes at which the clerk hears of calls, if there is a clerk.
        """
        if self.rules < 0 and not self.steps.size:
            return
        self.check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        if self.rules >= 0:
            self.check(libc.syscall(LANDLOCK_RESTRICT_SELF, self.rules, 0))
        if self.folders:
            listener = libc.syscall(SECCOMP, SECCOMP_SET_FILTER, SECCOMP_NEW_LISTENER, self.program)
            self.check(listener)
            clerk.sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("@i", listener))])
            os.close(listener)
        elif self.steps.size:
            self.check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, self.program, 0, 0))

    def serve(self, clerk: socket.socket) -> None:
        """Have a thread do what the program that has the other end asks for."""
        _, fds = receive(clerk, 1, 1)
        if fds:
            from .clerk import Clerk

            _thread.start_new_thread(Clerk(fds[0], self.folders).serve, ())

    def hire_hand(self) -> int:
        """Have a process end all programs when PID 1 has ended and every runner with it; returns its number.

        Landlock keeps signals within this process and what it starts, so one to everybody ends them all and
        nobody else. Without a ruleset there is none, and 0 is returned.
        """
        if self.rules < 0:
            return 0
        attributes = struct.pack("@3Q", 0, 0, LANDLOCK_SCOPE_SIGNAL)
        scope = libc.syscall(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
        self.check(scope)
        self.check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        self.check(libc.syscall(LANDLOCK_RESTRICT_SELF, scope, 0))
        os.close(scope)
        ended, _ = os.pipe()  # its other end stays open here, and nowhere else
        hand = os.fork()
        if hand == 0:
            try:
                os.setsid()
                os.dup2(ended, 0)
                os.closerange(3, RULES_FD + 1)
                os.execve("/bin/sh", ["pilotfish", "-c", "read -r end; kill -s KILL -- -1"], {})
            finally:
                os._exit(127)
        os.close(ended)
        return hand

    @staticmethod
    def check(result: int) -> None:
        if result < 0:
            raise OSError(calls.get_errno(), "walls")


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
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    if os.getppid() != guest:
        os._exit(0)
