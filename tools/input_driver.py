"""The agent's end of the input process: starts it, asks it, replaces it when it dies."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pilotfish
from pilotfish.sandbox.spawn import spawn

_START_S = 20.0
_END_S = 2.0


class InputError(Exception):
    """The display did not take an input; the message is one sentence."""


class InputDriver:
    """Mouse and keyboard of one display, through a process that is started at the first call and kept.

    A call that times out or is cancelled ends the process, which releases what it holds; the next call
    starts a fresh one. Not for use from two event loops.
    """

    def __init__(self, display: str, answer_s: float = 10.0, *, shared: bool = False) -> None:
        """answer_s: how long a call may take beyond the time the operation itself lasts, in seconds.

        shared: whether a person uses the display too (`host_input.py`).
        """
        self._name = display
        self._module = f"pilotfish.tools.{'host_input' if shared else 'input_process'}"
        self.notes: list[str] = []
        """What the last call has to tell the model."""
        self._answer_s = answer_s
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    @property
    def process_id(self) -> int | None:
        """The process that serves this display now, None before the first call."""
        return None if self._process is None else self._process.pid

    async def call(self, op: str, /, *, takes_s: float = 0.0, **parameters: Any) -> Any:
        """Run one operation of `InputProcess` and return its value.

        takes_s: how long the operation itself lasts, beyond which the time limit counts. Raises InputError.
        """
        async with self._lock:
            process = await self._running()
            try:
                return await self._ask(process, {"op": op, **parameters}, self._answer_s + takes_s)
            except TimeoutError:
                await self._end()
                raise InputError(
                    f"display {self._name} did not take the input within {self._answer_s + takes_s:g} s; "
                    "look at the screen and try again"
                ) from None
            except (ConnectionError, EOFError):
                await self._end()
                raise InputError(
                    f"the input process of display {self._name} ended while it was used; "
                    "look at the screen and try again"
                ) from None
            except asyncio.CancelledError:
                await self._end()
                raise

    async def close(self) -> None:
        """Release all keys and buttons and end the process."""
        async with self._lock:
            await self._end()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._process = None
        process = await spawn(
            sys.executable,
            "-m",
            self._module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(self._name),
            start_new_session=True,
        )
        self._process = process
        try:
            await self._answer(process, _START_S)
        except InputError as error:
            await self._end()
            raise InputError(f"display {self._name} cannot be used: {error}; check that it runs") from None
        except (TimeoutError, EOFError):
            await self._end()
            raise InputError(f"display {self._name} does not answer; check that it runs") from None
        except asyncio.CancelledError:
            await self._end()
            raise
        return process

    async def _ask(self, process: asyncio.subprocess.Process, request: dict[str, Any], limit_s: float) -> Any:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
        return await self._answer(process, limit_s)

    async def _answer(self, process: asyncio.subprocess.Process, limit_s: float) -> Any:
        assert process.stdout is not None
        async with asyncio.timeout(limit_s):
            line = await process.stdout.readline()
        if not line:
            raise EOFError
        answer = json.loads(line)
        self.notes = answer.get("notes", [])
        if not answer["ok"]:
            raise InputError(answer["error"])
        return answer["value"]

    async def _end(self) -> None:
        """End the process gently, so that it releases what it holds; kill it if it does not end."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _environment(display: str) -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "XAUTHORITY", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "WINDOWID")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    roots = [str(Path(pilotfish.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(root for root in roots if root)
    return environment | {"DISPLAY": display, "PYTHONIOENCODING": "utf-8"}
