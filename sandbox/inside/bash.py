# ruff: noqa: PTH108, PTH116, PTH123, PTH208
"""One bash as the leader of a terminal: started, given commands, heard when each is over.

bash is interactive, so a command that is broken off, or fails in its expansions, does not end it. But it
reads its commands from a pipe and reports on another, so there is neither a prompt nor an echo to take apart,
and commands have the terminal as standard input and neither of the two pipes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import termios
import time

# Below what `ulimit -n` is set to, away from 200, by which scripts lock files, and from 63 downwards, which
# bash gives to coprocesses. While a command runs bash keeps copies of these, from 10 and from 43 on.
_TERMINAL_FD, _NOWHERE_FD, _REPORT_FD = 40, 41, 42
_LINE_BYTES = 1024  # what bash asks for when it reads commands; its `read` asks for less

# A bash that ends by `exit` or `set -e` leaves to the next one what it prints about its variables, functions
# and aliases, then a null byte, then its folder. Read-only variables fail quietly when they are read back.
_SETUP = rb"""
export -n PS1 PS2; set +o history +H; unset HISTFILE MAILCHECK
__pilotfish_report() { builtin printf '\0%s\0%s\0%s\0' "$1" "$2" "$PWD" >&42; }
__pilotfish_status() { return "$1"; }
__pilotfish_save() {
    { set +xv; builtin declare -p; builtin declare -f; builtin alias -p; builtin printf '\0%s' "$PWD"; } \
        >|"$__pilotfish_state"
} 2>/dev/null
trap __pilotfish_save EXIT
"""
# On the line of the command, which bash has read by then: how it ended; no tracing and no prompt of its own
# before the next one. A DEBUG trap would run for each of our own commands, so it is taken off, after it was
# sent along to be put on again; the status goes with the descriptor because the trap is run before the first.
# Nothing of this is shown, and a restricted shell may not open /dev/null for that.
_AFTER = (
    rb'{ \builtin trap -p DEBUG >&"$((__pilotfish_last=$?, 42))"; \builtin trap - DEBUG; '
    rb"__pilotfish_options=$- PS0= PS1= PS2= PROMPT_COMMAND=; \builtin set +xv; } >&41 2>&41"
)
# On lines of their own, so that they are read even when the line of the command is given up. The empty one
# ends what an open quote in the command leaves behind in bash's parser.
_REPORT = (
    rb"""
{ __pilotfish_last=${__pilotfish_last:-$?} __pilotfish_options=${__pilotfish_options:-$-};"""
    rb""" \builtin set +xv;"""
    rb""" \builtin trap -p DEBUG >&42; \builtin trap - DEBUG;"""
    rb""" \__pilotfish_report "$__pilotfish_last" "$__pilotfish_options"; } >&41 2>&41
"""
)


# `set -o vi` makes an interactive bash read its next line by readline, also when it is in the middle of an
# `eval`, whose rest it then looks for at address 0; `set +o emacs` makes it read the terminal. While bash
# reads a file it does not count as interactive. So commands are looked through for what may do that, also by
# words that only bash knows. One that hides it better ends bash, and the next command gets a new one.
_EDITING = re.compile(
    rb"[-+]\w*o\W{1,8}(?:vi|emacs)\b"
    rb"|\bset\s+(?!--)[^;&|\n]{0,80}[$`]"
    rb"|\bshopt\b[^;&|\n]{0,80}(?:\bvi\b|\bemacs\b|[$`])"
)
_CALM_SCRIPT = b'\\builtin eval "$__pilotfish_command"\n'


def quoted(text: str | bytes) -> bytes:
    """As one word of bash."""
    return b"'" + os.fsencode(text).replace(b"'", b"'\\''") + b"'"


class Report:
    """How bash stands after a command: its status, its single-letter options, its folder; what sets its
    DEBUG trap again.
    """

    __slots__ = ("cwd", "options", "status", "trap")

    def __init__(self, status: int, options: str, cwd: str, trap: bytes = b"") -> None:
        self.status = status
        self.options = options
        self.cwd = cwd
        self.trap = trap


class Bash:
    """A running bash. `report_fd` is readable when a command is over."""

    def __init__(self, slave: int, cwd: str, state: str, restore: str | None) -> None:
        """slave: its terminal. state: the file it leaves its state in. restore: one to take over."""
        with contextlib.suppress(OSError):  # a command may have closed its folder to everybody
            os.unlink(state)
        commands, self._commands = os.pipe2(os.O_CLOEXEC)
        self.report_fd, report = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.report_fd, False)
        self._said = b""
        self._calm_script = f"{state}.run"
        self._calm = False  # whether commands are read from a file, see `_EDITING`
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _become_bash(slave, commands, report, cwd)
            finally:
                os._exit(127)
        os.close(commands)
        os.close(report)
        script = _SETUP
        if restore is not None:
            script += b"\\builtin source %s 2>/dev/null; __pilotfish_old=$OLDPWD\n" % quoted(restore)
            script += b"\\builtin cd -- %s; OLDPWD=$__pilotfish_old; unset __pilotfish_old\n" % quoted(cwd)
        self._write(script + b"__pilotfish_state=%s\n" % quoted(state))

    def enter(self, folder: str) -> None:
        """Change the folder, as a command of its own that is not reported."""
        self._write(b"\\builtin cd -- %s\n" % quoted(folder))

    def run(self, command: bytes, after: Report) -> None:
        """Run a command at the top level, where `declare` makes variables that last.

        `after`: how the last one ended. Its status is there as `$?`; as the left side of `&&` it is neither a
        failure for `set -e` nor for an ERR trap. What was taken off while our own lines are read is put on.
        """
        line = b"__pilotfish_last= __pilotfish_options=\n"
        if after.status:
            line += b"__pilotfish_status %d && :\n" % after.status
        traced = "".join(option for option in "vx" if option in after.options)
        before = b"set -%s; " % traced.encode() if traced else b""
        before += after.trap or (before and b"\n")
        fds = b"<&%d %d<&- %d>&- %d>&-" % (_TERMINAL_FD, _TERMINAL_FD, _NOWHERE_FD, _REPORT_FD)
        words = quoted(before + command)
        if self._keeps_calm(command) and "r" not in after.options:
            line += b"__pilotfish_command=%s\n" % words
            line += b"\\builtin source %s %s; %s\n" % (quoted(self._calm_script), fds, _AFTER)
        else:
            line += b"\\builtin eval %s %s; %s\n" % (words, fds, _AFTER)
        self._write(line + _REPORT)

    def _keeps_calm(self, command: bytes) -> bool:
        """Whether this command is better read from a file, as is every one after the first that is."""
        if not self._calm and _EDITING.search(command):
            with contextlib.suppress(OSError):  # without room for the file it goes on as before
                with open(self._calm_script, "wb") as file:
                    file.write(_CALM_SCRIPT)
                self._calm = True
        return self._calm

    def ask(self) -> None:
        """Ask for a report that did not come although bash is idle."""
        self._write(_REPORT)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is heard as the end of a child
            while rest:
                rest = rest[os.write(self._commands, rest) :]

    def report(self) -> Report | None:
        """The report of a command that is over, None while it runs."""
        with contextlib.suppress(BlockingIOError):
            self._said += os.read(self.report_fd, 64 * 1024)
        fields = self._said.split(b"\0")
        if len(fields) < 5:
            return None
        self._said = b""
        trap = fields[-5]
        status, options, cwd = (os.fsdecode(field) for field in fields[-4:-1])
        return Report(int(status) if status.isdigit() else 1, options, cwd, trap)

    def wait(self, seconds: float) -> Report | None:
        """Wait for a report, at most so long."""
        poll = select.poll()
        poll.register(self.report_fd, select.POLLIN)
        deadline = time.monotonic() + seconds
        report = None
        while report is None and (left := deadline - time.monotonic()) > 0:
            for _, events in poll.poll(left * 1000):
                report = self.report()
                if report is None and not events & select.POLLIN:
                    return None  # it has ended
        return report

    def wait_read(self, seconds: float) -> None:
        """Wait until it has read all that was written to it, at most so long."""
        deadline = time.monotonic() + seconds
        unread = b"\0" * 4
        while any(fcntl.ioctl(self._commands, termios.FIONREAD, unread)) and time.monotonic() < deadline:
            time.sleep(0.0005)

    def is_idle(self) -> bool:
        """Whether it sits and reads for its next command."""
        return self._reads() > 0 and self._has_commands_at(0)

    def is_astray(self) -> bool:
        """Whether it reads for commands at the terminal: it could not get its own input back after one that
        took the descriptors for that away.
        """
        if self._reads() != _LINE_BYTES or self._has_commands_at(0):
            return False
        with contextlib.suppress(OSError):
            return any(map(self._has_commands_at, os.listdir(f"/proc/{self.pid}/fd")))
        return False

    def _reads(self) -> int:
        """How many bytes it sits and reads for at descriptor 0; 0 when it does something else."""
        try:
            with open(f"/proc/{self.pid}/syscall") as file:
                number, fd, _, size, *_ = file.read().split()
            # The number of read on x86-64 and on the others.
            return int(size, 16) if number in ("0", "63") and int(fd, 16) == 0 else 0
        except (OSError, ValueError):
            return 0

    def _has_commands_at(self, fd: int | str) -> bool:
        """Whether a descriptor of it is our pipe, both ends of which are one file."""
        try:
            return os.path.samestat(os.stat(f"/proc/{self.pid}/fd/{fd}"), os.fstat(self._commands))
        except OSError:
            return False

    def close(self) -> None:
        """Close our ends of its pipes."""
        os.close(self._commands)
        os.close(self.report_fd)


def _become_bash(slave: int, commands: int, report: int, cwd: str) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    nowhere = os.open("/dev/null", os.O_WRONLY)
    for fd, target in ((commands, 0), (slave, 1), (slave, 2), (slave, _TERMINAL_FD), (report, _REPORT_FD)):
        os.dup2(fd, target)
    os.dup2(nowhere, _NOWHERE_FD)
    os.closerange(3, _TERMINAL_FD)
    os.chdir(cwd)
    env = {**os.environ, "PS1": "", "PS2": ""}
    os.execvpe("bash", ["bash", "--noprofile", "--norc", "--noediting", "-i"], env)


def taken_over(state: str) -> tuple[str, str] | None:
    """What a bash that ended by itself left: a file to restore from, and its folder. None when it left none.

    The file is moved aside, so that one state is taken over once.
    """
    try:
        with open(state, "rb") as file:
            text, complete, cwd = file.read().rpartition(b"\0")
        os.unlink(state)
        if not complete:
            return None
        with open(f"{state}.restore", "wb") as file:
            file.write(text)
    except OSError:
        return None
    return f"{state}.restore", os.fsdecode(cwd)
