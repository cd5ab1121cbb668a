"""The shell: one bash per command, in a working folder and with variables that last from command to command.

A fresh bash each time cannot be wedged by what came before: `exit`, `exec`, an open quote or a killed tree end one
command and nothing else. What the last bash leaves (folder, variables, functions, aliases) goes into the next one
through a memory file. Jobs do not: `sleep 30 &` goes on running, but `fg` and `wait` do not know it later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.link import Job, Link
from pilotfish.sandbox.output import OutputReader
from pilotfish.sandbox.process import bytes_fd
from pilotfish.sandbox.spec import INNER_WORKSPACE

MAX_COMMAND_BYTES = 1 << 20
_MAX_STATE_BYTES = 4 << 20
_STATE_IN, _STATE_OUT, _COMMAND = 197, 198, 199

# No pager and no question waits for a person who is not there.
SHELL_ENV: Mapping[str, str] = {
    "GIT_PAGER": "cat",
    "PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "DEBIAN_FRONTEND": "noninteractive",
    "TERM": "dumb",
}

# The command is read before it runs, so that it cannot read on in its own text. The exit trap writes the folder, a
# null byte, and the variables, functions and aliases as bash prints them; read-only ones of bash itself fail quietly
# when they are read back. The three descriptors are closed for everything that the command starts.
_DRIVER = f"""
shopt -s expand_aliases
builtin source /dev/fd/{_STATE_IN} 2>/dev/null
IFS= builtin read -r -d '' -u {_COMMAND} __pilotfish_command
exec {_STATE_IN}<&- {_COMMAND}<&-
__pilotfish_save() {{
    builtin trap - EXIT
    builtin unset __pilotfish_command
    {{ builtin printf '%s\\0' "$PWD"; builtin declare -p; builtin declare -f; builtin alias -p; }} >&{_STATE_OUT} 2>/dev/null
}}
builtin trap __pilotfish_save EXIT
builtin eval "$__pilotfish_command"
"""


@dataclass(frozen=True)
class ShellResult:
    """What one command did.

    output: standard output and errors in the order they came, at most 32 KiB of them: beginning and end are kept,
    bytes that are not UTF-8 replaced. exit_code: None when the command was killed at its time limit.
    """

    output: str
    exit_code: int | None
    timed_out: bool = False
    dropped_bytes: int = 0


class Shell:
    """Runs commands one after another in the workspace."""

    def __init__(self, link: Link, env: Mapping[str, str], limits: Mapping[str, int]) -> None:
        self._link = link
        self._env = {**env, **SHELL_ENV}
        self._limits = limits
        self._turn = asyncio.Lock()
        self._state = b""
        self.cwd = str(INNER_WORKSPACE)

    async def run(self, command: str, timeout_s: float = 60, cwd: str | None = None) -> ShellResult:
        """Run a bash command; it returns when the command itself ends, background jobs go on.

        After `timeout_s` seconds the command and everything that it started are killed, daemons too; folder and
        variables stay as they were before it. `cwd` is entered first and lasts.
        Raises `SandboxError` for a command that cannot be one.
        """
        if "\0" in command:
            raise SandboxError("the command holds a null byte, which bash cannot take: remove it.")
        data = command.encode("utf-8", "surrogatepass")
        if len(data) > MAX_COMMAND_BYTES:
            raise SandboxError(
                f"the command has {len(data)} bytes, at most {MAX_COMMAND_BYTES} fit: write a file and run it."
            )
        if timeout_s <= 0:
            raise SandboxError(f"timeout_s is {timeout_s}, give a number of seconds above 0.")
        async with self._turn:
            return await self._run(data, timeout_s, cwd or self.cwd)

    def reset(self) -> None:
        """Forget the folder, the variables, functions and aliases of earlier commands."""
        self._state = b""
        self.cwd = str(INNER_WORKSPACE)

    async def _run(self, command: bytes, timeout_s: float, cwd: str) -> ShellResult:
        reader = OutputReader()
        state_out = os.memfd_create("state", os.MFD_CLOEXEC)
        own: list[int] = [state_out]
        job: Job | None = None
        try:
            own.append(bytes_fd(self._state))
            own.append(bytes_fd(command))
            fds = {
                1: reader.write_fd,
                2: reader.write_fd,
                _STATE_OUT: own[0],
                _STATE_IN: own[1],
                _COMMAND: own[2],
            }
            argv = ["bash", "--norc", "--noprofile", "-c", _DRIVER, "bash"]
            job = self._link.spawn(argv, self._env, cwd, fds, self._limits)
            reader.handed_over()
            await asyncio.shield(job.started)
            return await self._finish(job, reader, state_out, timeout_s)
        except BaseException:
            if job is not None:
                with contextlib.suppress(SandboxError):
                    self._link.kill(job)
            reader.close()
            raise
        finally:
            for fd in own:
                os.close(fd)

    async def _finish(self, job: Job, reader: OutputReader, state_out: int, timeout_s: float) -> ShellResult:
        timed_out = False
        try:
            status: int | None = await asyncio.wait_for(asyncio.shield(job.ended), timeout_s)
        except TimeoutError:
            timed_out, status = True, None
            self._link.kill(job)
            await asyncio.shield(job.gone)
        reader.drain()
        result = ShellResult(reader.output.text, status, timed_out, reader.output.dropped_bytes)
        if timed_out:
            reader.close()
        else:
            job.gone.add_done_callback(lambda _: reader.close())
            self._keep_state(state_out)
        return result

    def _keep_state(self, fd: int) -> None:
        """Take over what bash wrote at its end; after `exec` or a crash there is nothing, and the old state stays."""
        size = os.fstat(fd).st_size
        if not 0 < size <= _MAX_STATE_BYTES:
            return
        folder, mark, state = os.pread(fd, size, 0).partition(b"\0")
        if mark and folder:
            self.cwd = os.fsdecode(folder)
            self._state = state
