"""The shell: bash on a terminal that stays from command to command, in as many named sessions as are wanted.

Folder, variables, functions, aliases, options and jobs last. A program that waits for what a person types is
reported as such and can be answered. Whatever ends bash (`exit`, `exec`, a kill), the next command goes on
with a new one in the same folder, and the result says so in a sentence.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.link import Link
from pilotfish.sandbox.shell_session import Done, Refused, ShellSession, Waiting
from pilotfish.sandbox.spec import INNER_WORKSPACE
from pilotfish.sandbox.terminal import plain_text

MAX_COMMAND_BYTES = 100 * 1024
MAX_LINE_BYTES = 4000  # a terminal takes 4095 bytes in a line and drops the rest
MAX_PATH_BYTES = 4095
MAX_SESSIONS = 8
MAIN = "main"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")

# No pager and no question waits for a person who is not there, and nothing is coloured.
SHELL_ENV: Mapping[str, str] = {
    "GIT_PAGER": "cat",
    "PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "VIRTUAL_ENV_DISABLE_PROMPT": "1",
    "NO_COLOR": "1",
    "TERM": "dumb",
}

Key = Literal["ctrl-c", "ctrl-d", "ctrl-z"]
_KEYS: Mapping[Key, bytes] = {"ctrl-c": b"\x03", "ctrl-d": b"\x04", "ctrl-z": b"\x1a"}


@dataclass(frozen=True)
class ShellResult:
    """What one command did so far.

    output: standard output and errors in the order they came, as plain text of at most 32 KiB of bytes:
    beginning and end are kept with a line between them that says how much is missing and which file inside
    has all of it. exit_code: as bash reports it (128 + N when signal N ended it); None when it was ended at
    its time limit, and while it waits. waiting: the program that waits for something to be typed; hidden: it
    does not show what is typed, as for a password. note: a sentence about the shell itself, if there is
    something to say. background: what jobs in the background printed before the command. limits: a sentence
    about each limit of the sandbox that was reached meanwhile.
    """

    output: str
    exit_code: int | None
    timed_out: bool = False
    dropped_bytes: int = 0
    waiting: str | None = None
    hidden: bool = False
    note: str = ""
    background: str = ""
    limits: Sequence[str] = ()


class Shell:
    """Runs bash commands, one after another in each session."""

    def __init__(
        self,
        link: Link,
        env: Mapping[str, str],
        limits: Mapping[str, int],
        workspace: str = str(INNER_WORKSPACE),
        bring_terminals: bool = False,
        limits_hit: Callable[[int | None, str, bool], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        """workspace: its path inside. bring_terminals: programs inside may not open terminals themselves.

        limits_hit: tells what limits were reached, see `Bounds.hit`.
        """
        self._link = link
        self._workspace = workspace
        self._bring_terminals = bring_terminals
        self._env = {**env, **SHELL_ENV}
        self._limits = limits
        self._limits_hit = limits_hit
        self._sessions: dict[str, ShellSession] = {}
        self._frozen: list[ShellSession] = []

    @property
    def sessions(self) -> dict[str, str]:
        """The sessions there are, each `idle`, `running` or `waiting`."""
        return {name: session.state for name, session in self._sessions.items() if session.is_open}

    async def run(
        self, command: str, timeout_s: float = 60, cwd: str | None = None, session: str = MAIN
    ) -> ShellResult:
        """Run a command; it returns when the command itself ends or waits for input, background jobs go on.

        After `timeout_s` seconds the command and everything that it started are ended, daemons too; the
        session and what earlier commands started stay. `cwd`, a path inside, is entered first; None goes on
        where the last command ended (the workspace at first). Raises `SandboxError` for a command that cannot
        be run at all, and while another one waits in this session.
        """
        data = _command_bytes(command)
        _check_time(timeout_s)
        if cwd is not None:
            _check_folder(cwd)
        here = self._session(session)
        async with here.turn:
            here = self._session(session)  # the one before it in the queue may have ended it
            if here.state == "waiting":
                raise SandboxError(
                    f"{_safe(here.program)} still waits for input in session {session!r}: answer it, "
                    "interrupt it with ctrl-c, kill it, or use another session."
                )
            background = here.take_background().shown(plain_text)
            if here.finished is not None:
                left = _result(here, here.finished)
                background = f"{left.output}\nexit status {left.exit_code}\n{background}"
            await here.start(data, cwd)
            return await self._outcome(here, timeout_s, background, cwd)

    async def type(
        self, text: str = "", key: Key | None = None, timeout_s: float = 60, session: str = MAIN
    ) -> ShellResult:
        """Type at the program that waits, then press `key`, and go on as `run` does.

        `\\n` is Enter. With neither text nor key it is only heard what the program has done since. When it
        has ended meanwhile, the result is that of its command.
        """
        data = _typed_bytes(text) + (_KEYS[key] if key else b"")
        _check_time(timeout_s)
        async with self._busy(session).turn:
            here = self._busy(session)
            if here.finished is None:
                await here.type(data)
            return await self._outcome(here, timeout_s)

    async def kill(self, session: str = MAIN) -> ShellResult:
        """End the command that waits in a session, with everything that it started."""
        async with self._busy(session).turn:
            here = self._busy(session)
            return await self._with_limits(_result(here, await here.stop()))

    def reset(self, session: str = MAIN) -> None:
        """End a session and all that runs in it; its next command starts anew in the workspace."""
        here = self._sessions.pop(session, None)
        if here is not None:
            here.end()

    async def restart(self, session: str = MAIN) -> bool:
        """`reset`, and wait until nothing of it runs; returns whether that is so."""
        here = self._sessions.get(session)
        self.reset(session)
        return here is None or await here.is_gone()

    async def end_all(self) -> None:
        """End all sessions with everything that was ever started in them, daemons too.

        Raises `SandboxError` when some of it cannot be ended.
        """
        if not all(await asyncio.gather(*map(self.restart, list(self._sessions)))):
            raise SandboxError("programs of the shell could not be ended, open a new sandbox.")

    async def freeze_all(self) -> None:
        """Stop everything that was ever started in the sessions for good: windows stay, nothing changes.

        The sandbox ends it at its close; the next command begins a new session.
        """
        frozen = list(self._sessions.values())
        self._sessions.clear()
        self._frozen += frozen
        for session in frozen:
            session.freeze()
        if frozen:
            await self._link.look()

    def _session(self, name: str) -> ShellSession:
        here = self._sessions.get(name)
        if here is not None and here.is_open:
            return here
        if not _NAME.fullmatch(name):
            raise SandboxError(
                f"session {name!r} is no name, use 1 to 32 letters, digits, '-' and '_', such as 'server'."
            )
        if here is None and len(self.sessions) >= MAX_SESSIONS:
            raise SandboxError(
                f"there are {MAX_SESSIONS} sessions already, use one of {', '.join(self.sessions)}."
            )
        cwd = here.cwd if here else self._workspace
        self._sessions[name] = ShellSession(
            self._link, name, self._env, self._limits, self._workspace, cwd, self._bring_terminals
        )
        return self._sessions[name]

    def _busy(self, name: str) -> ShellSession:
        here = self._sessions.get(name)
        if here is None or not here.is_open or (here.state == "idle" and here.finished is None):
            raise SandboxError(f"nothing waits for input in session {name!r}: run a command there first.")
        return here

    async def _with_limits(self, result: ShellResult) -> ShellResult:
        if self._limits_hit is None:
            return result
        hit = await self._limits_hit(result.exit_code, result.output, result.waiting is None)
        return replace(result, limits=hit) if hit else result

    async def _outcome(
        self, here: ShellSession, timeout_s: float, background: str = "", cwd: str | None = None
    ) -> ShellResult:
        try:
            async with asyncio.timeout(timeout_s):
                event = await here.event()
        except TimeoutError:
            return await self._with_limits(_result(here, await here.stop(), background, timed_out=True))
        except asyncio.CancelledError:
            here.stop_soon()
            raise
        if isinstance(event, Refused):
            raise SandboxError(
                f"working folder {cwd!r} could not be entered ({os.strerror(event.errno)}), create it first."
            )
        return await self._with_limits(_result(here, event, background))


def _result(
    here: ShellSession, event: Done | Waiting, background: str = "", timed_out: bool = False
) -> ShellResult:
    output = here.take_output()
    if isinstance(event, Waiting):
        text = output.shown(plain_text)
        program = _safe(event.program)
        return ShellResult(text, None, False, output.dropped_bytes, program, event.hidden, "", background)
    text = output.shown(plain_text, _safe(event.log) if event.log else None)
    code = None if timed_out else 137 if event.killed else event.status
    return ShellResult(text, code, timed_out, output.dropped_bytes, None, False, _note(event), background)


def _note(done: Done) -> str:
    """What the next command should know about the shell itself."""
    sentences = []
    if done.gone is not None:
        sentences.append(f"the folder {_safe(done.gone)} was gone, so this ran in the workspace")
    if done.ended is not None:
        kept = "with the same" if done.ended == "restored" else "without its"
        what = "a signal stopped bash, so it was ended" if done.ended == "frozen" else "bash ended"
        sentences.append(f"{what}, and a new one goes on in {_safe(done.cwd)} {kept} variables and functions")
    return "; ".join(sentences)


def _safe(text: str) -> str:
    """Words from inside on one line, without anything that does not show as itself."""
    return ascii(text)[1:-1] if not text.isprintable() else text


def _command_bytes(command: str) -> bytes:
    if "\0" in command:
        raise SandboxError("the command holds a null byte, which bash cannot take: remove it.")
    data = _encoded(command, "command")
    if len(data) > MAX_COMMAND_BYTES:
        raise SandboxError(
            f"the command has {len(data)} bytes, at most {MAX_COMMAND_BYTES} fit: write a file and run that."
        )
    return data


def _typed_bytes(text: str) -> bytes:
    data = _encoded(text, "input")
    longest = max(map(len, data.split(b"\n")))
    if longest > MAX_LINE_BYTES or len(data) > MAX_COMMAND_BYTES:
        raise SandboxError(
            f"the input has a line of {longest} bytes and {len(data)} in all, at most {MAX_LINE_BYTES} and "
            f"{MAX_COMMAND_BYTES} can be typed: write a file and let the program read that."
        )
    return data.replace(b"\r\n", b"\r").replace(b"\n", b"\r")  # what the Enter key sends


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise SandboxError(f"the {what} holds {half}, half a character: write whole ones.") from None


def _check_folder(cwd: str) -> None:
    if "\0" in cwd:
        raise SandboxError(f"working folder {cwd[:80]!r} holds a null byte, which no path can: remove it.")
    size = len(_encoded(cwd, "working folder"))
    if not 0 < size <= MAX_PATH_BYTES:
        raise SandboxError(
            f"the working folder's path has {size} bytes, 1 to {MAX_PATH_BYTES} can be entered: give a part "
            "of it, and the rest by `cd` in the command."
        )


def _check_time(timeout_s: float) -> None:
    if not timeout_s > 0:
        raise SandboxError(f"timeout_s is {timeout_s}, give a number of seconds above 0.")
