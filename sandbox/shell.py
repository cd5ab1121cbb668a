"""The shell: one bash per command, in a folder and with variables that last from command to command.

A fresh bash each time cannot be wedged by what came before: `exit`, `exec`, an open quote or a killed tree
end one command and nothing else. At its end bash writes what shall last into a file inside the sandbox, and
the next one reads it at its start. Jobs do not last: `sleep 30 &` goes on running, but `fg` and `wait` do
not know it later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.link import Job, Link
from pilotfish.sandbox.output import OutputReader
from pilotfish.sandbox.spec import INNER_WORKSPACE

MAX_COMMAND_BYTES = 100 * 1024  # Linux takes 128 KiB in one argument
INNER_STARTUP = "/etc/pilotfish-shell"

# No pager and no question waits for a person who is not there.
SHELL_ENV: Mapping[str, str] = {
    "GIT_PAGER": "cat",
    "PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "TERM": "dumb",
    "BASH_ENV": INNER_STARTUP,
}

# Bash sources this before the command. What lasts: the folder, variables, functions and aliases, as bash
# itself prints them; the read-only variables of bash fail quietly when they are read back. Shell options do
# not last: `set -e` would end every later command at its first failure.
STARTUP = r"""
unset BASH_ENV
shopt -s expand_aliases
__pilotfish_file=/run/user/shell-state
if [ "$PILOTFISH_SHELL" != fresh ] && [ -r "$__pilotfish_file" ]; then
    __pilotfish_start=$PWD
    __pilotfish_mode=$PILOTFISH_SHELL
    source "$__pilotfish_file" 2>/dev/null
    PWD=$__pilotfish_start
    if [ "$__pilotfish_mode" != here ]; then
        builtin cd -- "$__pilotfish_folder" 2>/dev/null ||
            printf '[folder %s is gone, running in %s]\n' "$__pilotfish_folder" "$PWD" >&2
    fi
    OLDPWD=$__pilotfish_old_folder
fi
unset PILOTFISH_SHELL __pilotfish_start __pilotfish_mode __pilotfish_folder __pilotfish_old_folder
__pilotfish_save() {
    __pilotfish_folder=$PWD
    __pilotfish_old_folder=$OLDPWD
    { builtin declare -p; builtin declare -f; builtin alias -p; } >|"$__pilotfish_file.new" &&
        /usr/bin/mv -f "$__pilotfish_file.new" "$__pilotfish_file"
}
trap '{ set +x; __pilotfish_save; } 2>/dev/null' EXIT
"""


@dataclass(frozen=True)
class ShellResult:
    """What one command did.

    output: standard output and errors in the order they came, at most 32 KiB: beginning and end are kept with
    a line between them that says how much is missing; bytes that are not UTF-8 are replaced.
    exit_code: as bash reports it (128 + N when signal N ended it); None when it was killed at its time limit.
    dropped_bytes: how many bytes from the middle of the output were not kept.
    """

    output: str
    exit_code: int | None
    timed_out: bool = False
    dropped_bytes: int = 0


class Shell:
    """Runs bash commands, one after another."""

    def __init__(self, link: Link, env: Mapping[str, str], limits: Mapping[str, int]) -> None:
        self._link = link
        self._env = {**env, **SHELL_ENV}
        self._limits = limits
        self._turn = asyncio.Lock()
        self._fresh = True

    async def run(self, command: str, timeout_s: float = 60, cwd: str | None = None) -> ShellResult:
        """Run a command; it returns when the command itself ends, background jobs go on.

        After `timeout_s` seconds the command and everything that it started are killed, daemons too; folder
        and variables stay as they were before it. `cwd`, a path inside, replaces the folder of the last
        command; None goes on there (the workspace at first). Raises `SandboxError` for a command that cannot
        be run at all.
        """
        if "\0" in command:
            raise SandboxError("the command holds a null byte, which bash cannot take: remove it.")
        try:
            size = len(command.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError as error:
            half = ascii(command[error.start])
            raise SandboxError(f"the command holds {half}, half a character: write whole ones.") from None
        if size > MAX_COMMAND_BYTES:
            raise SandboxError(
                f"the command has {size} bytes, at most {MAX_COMMAND_BYTES} fit: write a file and run that."
            )
        if not timeout_s > 0:
            raise SandboxError(f"timeout_s is {timeout_s}, give a number of seconds above 0.")
        async with self._turn:
            return await self._run(command, timeout_s, cwd)

    def reset(self) -> None:
        """Let the next command start anew: in the workspace, without what earlier ones have set."""
        self._fresh = True

    async def _run(self, command: str, timeout_s: float, cwd: str | None) -> ShellResult:
        reader = OutputReader()
        job: Job | None = None
        try:
            mode = "fresh" if self._fresh else "go-on" if cwd is None else "here"
            job = self._link.spawn(
                ["bash", "-c", command],
                {**self._env, "PILOTFISH_SHELL": mode},
                cwd or str(INNER_WORKSPACE),
                {1: reader.write_fd, 2: reader.write_fd},
                self._limits,
            )
            reader.handed_over()
            return await self._finish(job, reader, timeout_s)
        except BaseException:
            if job is not None:
                with contextlib.suppress(SandboxError):
                    self._link.kill(job)
            reader.close()
            raise

    async def _finish(self, job: Job, reader: OutputReader, timeout_s: float) -> ShellResult:
        try:
            status = await asyncio.wait_for(asyncio.shield(job.ended), timeout_s)
        except TimeoutError:
            self._link.kill(job)
            await asyncio.shield(job.gone)
            reader.drain()
            reader.close()
            return ShellResult(reader.output.text, None, True, reader.output.dropped_bytes)
        self._fresh = False
        reader.drain()
        # What runs on in the background still may print; that is read and forgotten until it ends.
        job.gone.add_done_callback(lambda _: reader.close())
        code = status if status >= 0 else 128 - status
        return ShellResult(reader.output.text, code, False, reader.output.dropped_bytes)
