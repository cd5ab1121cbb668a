# ruff: noqa: PTH109, PTH112, PTH115, PTH118
"""One session of the shell, inside: a terminal, a bash on it, and everything that it started.

Started as `session FD NAME FOLDER CWD [MASTER SLAVE]`: FOLDER is for its files, CWD where the first command
runs, the last two a terminal to use where none can be opened inside. FD is one end of a SOCK_SEQPACKET pair;
the first byte of a packet says what it is:

    in:  r{"turn": 1, "cwd": null}\\0COMMAND     run a command; cwd, if given, is entered first
         t{"turn": 2}\\0TEXT        the bytes are typed at the terminal; none: look again who waits
         k                          end what runs, with everything that it started
    out: j{"event": "begun"}             bash runs, and has the first command of the session
         oBYTES                     output while a command runs
         bBYTES                     output while none runs, of background jobs
         j{"event": "done", "status": 0, "cwd": "/", "killed": false,
           "gone": "/tmp/x",        the folder that was gone before the command, or null
           "ended": "restored",     bash ended, and the next one has its variables ("lost": has not; "frozen":
                                    has not, as a signal had stopped it), or null
           "log": "/tmp/..."}       the file with the whole of a long output, or null
         j{"event": "waiting", "turn": 1, "program": "less", "hidden": false}   turn: of the last r or t
         j{"event": "refused", "errno": 2}      of a cwd that cannot be entered; nothing was run

The first command of a session waits for the imports, so they leave out what is slow: dataclasses, typing.

This process adopts orphans, so everything that a command starts stays its descendant and can be ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import selectors
import signal
import socket
import sys
import time

from pilotfish.sandbox.inside.bash import Bash, Report, taken_over
from pilotfish.sandbox.inside.log import Log
from pilotfish.sandbox.inside.processes import Known, below, children, end_below, look_at, processes
from pilotfish.sandbox.inside.pty import Terminal
from pilotfish.sandbox.inside.waiting import Waiter, find_waiter, program_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_PACKET = 128 * 1024

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_FIRST_LOOK_S, _LAST_PAUSE_S = 0.03, 0.25  # a running command is looked at ever less often
_SURE_S = 0.02  # between the two equal looks that say that a program waits
_QUIET_S = 1.0  # how long one that waits for other things too must have been quiet
_WAKE_S = 0.3  # how long a program may take to wake up to what was typed
_ABORT_S = 1.0  # how long bash may take to give up its command
_STRIKE_S = 0.05  # between two tries to have it do so
_HELD_S = 1.0  # how long it may be stopped by a signal
_START_S = 5.0  # how long a new one is waited for
_ASKS = 4  # how often an idle one is asked for the report that it owes
_MAX_PATH = 4095  # in bytes; a folder with a longer one cannot be entered by it
_SWEEP_S = 2.0  # how long the ending of a tree is tried


class Session:
    """The loop over packets, the terminal, the ends of commands and the ends of processes."""

    def __init__(self, control: socket.socket, terminal: Terminal, name: str, folder: str, cwd: str) -> None:
        self.control = control
        self.terminal = terminal
        self.log = Log(folder, name)
        self.state_file = os.path.join(folder, f"{name}.state")
        self.home, self.cwd = os.getcwd(), cwd
        self.bash: Bash | None = None
        self.last = Report(0, "", self.home)
        self.restore: str | None = None
        self.ended: str | None = None  # what the next report says about a bash that ended
        self.gone: str | None = None
        self.turn = 0
        self.begun = False
        self.running = False
        self.abort_until: float | None = None
        self.next_strike = 0.0
        self.asked = 0  # how often bash was asked for the report of this command
        self.held_since: float | None = None  # when bash was first seen stopped
        self.before: Known = frozenset()
        self.untyped = bytearray()
        self.next_look = self.pause = self.quiet_since = 0.0
        self.seen: tuple[Waiter, int] | None = None
        self.asleep: tuple[Waiter, float] | None = None  # who waited when something was typed, and until when
        self.selector = selectors.DefaultSelector()
        self.wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.selector.register(control, selectors.EVENT_READ, self.read_packet)
        self.selector.register(self.wake, selectors.EVENT_READ, self.reap)
        self.selector.register(self.terminal.master, selectors.EVENT_READ, self.forward)

    def serve(self) -> None:
        """Until the other end of the control socket closes."""
        while True:
            for key, events in self.selector.select(self.time_left()):
                if events & selectors.EVENT_WRITE:
                    self.type_on()
                if events & selectors.EVENT_READ:
                    key.data()
            now = time.monotonic()
            if self.abort_until is not None and now >= self.abort_until:
                self.replace_bash()
            elif self.abort_until is not None and now >= self.next_strike:
                self.strike()
            elif self.running and self.abort_until is None and now >= self.next_look:
                self.look()

    def time_left(self) -> float | None:
        if self.abort_until is not None:
            return max(0.0, min(self.abort_until, self.next_strike) - time.monotonic())
        if not self.running or self.next_look == float("inf"):
            return None
        return max(0.0, self.next_look - time.monotonic())

    def tell(self, **message: Any) -> None:
        self.control.send(b"j" + json.dumps(message).encode())

    def read_packet(self) -> None:
        data = self.control.recv(MAX_PACKET)
        kind, rest = data[:1], data[1:]
        if not data:
            sys.exit()
        elif kind in (b"r", b"t"):
            header, _, text = rest.partition(b"\0")
            request = json.loads(header)
            self.turn = request["turn"]
            if kind == b"r":
                self.run(text, request["cwd"])
            elif self.running:
                self.type(text)
        elif kind == b"k" and self.running and self.abort_until is None:
            self.abort()

    # Running a command

    def run(self, command: bytes, cwd: str | None) -> None:
        """Start a command, in `cwd` if that is given, else where the last one ended."""
        if cwd is not None:
            try:
                if "r" in self.last.options and self.bash is not None:  # a restricted bash does not `cd`
                    raise PermissionError(errno.EPERM, "restricted")
                os.chdir(cwd)
                os.chdir("/")
            except OSError as error:
                self.tell(event="refused", errno=error.errno)
                return
        self.gone = None
        self.settle_bash()
        self.forward()  # what came until now is not the command's
        if self.bash is None:
            self.start_bash()
        elif cwd is None and not _still_there(self.bash.pid):
            self.gone, cwd = self.cwd, self.home
        assert self.bash is not None
        if cwd is not None:
            self.bash.enter(cwd)
        self.terminal.reset()
        self.before = self.descendants()
        self.log.begin()
        self.running, self.asleep, self.asked, self.held_since = True, None, 0, None
        self.look_soon()
        self.bash.run(command, self.last)
        if not self.begun:
            self.begun = True
            self.tell(event="begun")

    def settle_bash(self) -> None:
        """Have bash say what it has to say about its jobs; one that does not react is ended."""
        if self.bash is None:
            return
        self.bash.ask()
        if self.bash.wait(_ABORT_S) is None:
            os.kill(self.bash.pid, signal.SIGKILL)
            self.bash_ended(os.waitstatus_to_exitcode(os.waitpid(self.bash.pid, 0)[1]))

    def start_bash(self) -> None:
        if not os.path.isdir(self.cwd) or not os.access(self.cwd, os.X_OK):
            self.gone, self.cwd = self.cwd, self.home
        self.bash = Bash(self.terminal.slave, self.cwd, self.state_file, self.restore)
        self.last, self.restore = Report(0, "", self.cwd), None
        # A command that is to be broken off at once finds a bash that knows how to.
        self.bash.ask()
        self.bash.wait(_START_S)
        self.selector.register(self.bash.report_fd, selectors.EVENT_READ, self.hear)

    def hear(self) -> None:
        """bash reports that its command is over."""
        report = self.bash.report() if self.bash else None
        if report is not None:
            self.last, self.cwd = report, self.reachable(report.cwd)
            self.finish(report.status)

    def reachable(self, folder: str) -> str:
        """The folder, or the workspace where its path is too long to be entered by."""
        return folder if len(os.fsencode(folder)) <= _MAX_PATH else self.home

    def finish(self, status: int) -> None:
        if not self.running:
            return
        killed, self.abort_until = self.abort_until is not None, None
        if killed:
            self.terminal.read()  # what bash itself says about being interrupted
        else:
            while self.forward():
                pass
        self.running = False
        self.untyped.clear()
        self.watch_for_typing()
        ended, self.ended = self.ended, None
        log = self.log.end()
        self.tell(
            event="done", status=status, cwd=self.cwd, killed=killed, gone=self.gone, ended=ended, log=log
        )

    def forward(self) -> bool:
        """Pass on what the terminal got; whether there was anything."""
        data = self.terminal.read()
        if data and self.abort_until is None:
            if self.running:
                self.log.feed(data)
                self.look_soon()
            self.control.send((b"o" if self.running else b"b") + data)
        return bool(data)

    def reap(self) -> None:
        os.read(self.wake, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.bash is not None and pid == self.bash.pid:
                self.bash_ended(os.waitstatus_to_exitcode(status))

    def bash_ended(self, code: int) -> None:
        """Whatever ended it, the next command gets a new bash in the same folder."""
        assert self.bash is not None
        left = taken_over(self.state_file)
        if left is not None:
            self.restore, self.cwd = left[0], self.reachable(left[1])
        self.ended = "restored" if left else "lost" if self.held_since is None else "frozen"
        self.selector.unregister(self.bash.report_fd)
        self.bash.close()
        self.bash = None
        self.finish(code if code >= 0 else 128 - code)

    # Typing, and waiting for it

    def type(self, text: bytes) -> None:
        waiter = self.waiter() if text else None
        self.asleep = (waiter[0], time.monotonic() + _WAKE_S) if waiter else None
        self.untyped += text
        self.type_on()
        self.look_soon()

    def type_on(self) -> None:
        with contextlib.suppress(BlockingIOError):
            del self.untyped[: os.write(self.terminal.master, self.untyped)]
        self.watch_for_typing()

    def watch_for_typing(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.untyped else 0)
        self.selector.modify(self.terminal.master, events, self.forward)

    def look_soon(self) -> None:
        self.seen, self.pause = None, _FIRST_LOOK_S
        self.quiet_since = time.monotonic()
        self.next_look = self.quiet_since + self.pause

    def look(self) -> None:
        """See whether the command waits for something to be typed; say so once."""
        assert self.bash is not None
        now = time.monotonic()
        self.pause = min(self.pause * 1.5, _LAST_PAUSE_S)
        self.next_look = now + self.pause
        if self.is_held(now) or self.bash.is_astray():
            end_below(os.getpid(), _SWEEP_S, apart=self.before)
            return
        found = self.waiter()
        if found is None:
            self.seen = None
            if self.bash.is_idle() and self.bash.report_fd not in self._readable():
                self.ask()
        elif self.untyped or (self.asleep and found[0] == self.asleep[0] and now < self.asleep[1]):
            self.seen = None  # what was typed has not reached it yet
        elif not found[0].alone and now < self.quiet_since + _QUIET_S:
            self.seen = None
        elif found != self.seen:
            self.seen, self.next_look = found, now + _SURE_S
        else:
            self.next_look = float("inf")  # until it prints or something is typed
            program = program_of(found[0].pid)
            self.tell(event="waiting", turn=self.turn, program=program, hidden=self.terminal.hides_typing)

    def is_held(self, now: float) -> bool:
        """Whether a signal has stopped bash for so long that nobody will continue it."""
        assert self.bash is not None
        entry = look_at(self.bash.pid)
        if entry is None or not entry.is_stopped:
            self.held_since = None
            return False
        self.held_since = self.held_since or now
        return now >= self.held_since + _HELD_S

    def ask(self) -> None:
        """Ask an idle bash for the report it owes; one that cannot give it is ended with all it started."""
        assert self.bash is not None
        self.asked += 1
        if self.asked > _ASKS:
            end_below(os.getpid(), _SWEEP_S, apart=self.before)
        else:
            self.bash.ask()

    def _readable(self) -> set[int]:
        return {key.fd for key, _ in self.selector.select(0)}

    def waiter(self) -> tuple[Waiter, int] | None:
        """Who waits for the terminal in its foreground, and the processor time used there."""
        try:
            group = os.tcgetpgrp(self.terminal.master)
        except OSError:
            return None
        members = [entry for entry in processes().values() if entry.group == group]
        waiter = find_waiter(members, self.terminal.device)
        return (waiter, sum(entry.ticks for entry in members)) if waiter else None

    # Ending a command

    def abort(self) -> None:
        """End everything that the command started, then have bash give up the rest of it."""
        assert self.bash is not None
        self.forward()
        self.abort_until = time.monotonic() + _ABORT_S
        self.strike()

    def strike(self) -> None:
        """One try. When it comes before bash begins the command, or between two lines, one more helps."""
        assert self.bash is not None
        self.next_strike = time.monotonic() + _STRIKE_S
        self.bash.wait_read(_STRIKE_S)
        if self.bash.is_idle():
            self.bash.ask()
            return
        os.kill(self.bash.pid, signal.SIGSTOP)
        while (entry := look_at(self.bash.pid)) and entry.state not in "Tt":
            time.sleep(0.0005)
        end_below(os.getpid(), _SWEEP_S, apart=self.before, keep=self.bash.pid)
        os.kill(self.bash.pid, signal.SIGINT)
        os.kill(self.bash.pid, signal.SIGCONT)

    def replace_bash(self) -> None:
        """It did not give up: end it too. `reap` hears of it."""
        assert self.bash is not None
        self.abort_until = time.monotonic() + _ABORT_S
        end_below(os.getpid(), _SWEEP_S, apart=self.before)

    def descendants(self) -> Known:
        """Everything that earlier commands left running, without bash itself."""
        assert self.bash is not None
        if children(os.getpid()) == {self.bash.pid} and children(self.bash.pid) == set():
            return frozenset()
        table = processes()
        found = below(os.getpid(), table) - {self.bash.pid}
        return frozenset((pid, table[pid].start) for pid in found)


def _still_there(pid: int) -> bool:
    """Whether the folder a process is in can still be reached."""
    try:
        return os.path.isdir(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return True


def main() -> None:
    """Serve one session."""
    libc = ctypes.CDLL(None)
    # Programs inside have the same user id; without this they could attach to this process as a debugger.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    fd, name, folder, cwd, *ends = sys.argv[1:]
    control = socket.socket(fileno=int(fd))
    terminal = Terminal((int(ends[0]), int(ends[1])) if ends else None)
    for handed in (control.fileno(), terminal.master, terminal.slave):
        os.set_inheritable(handed, False)
    # The trusted side may go away while something is being said to it.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        Session(control, terminal, name, folder, cwd).serve()
