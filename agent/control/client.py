"""A client of one run: connects to its socket, reads what it says, asks it for things."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from pilotfish.agent.control.peer import is_own
from pilotfish.agent.control.runs import look_at
from pilotfish.agent.control.wire import (
    FROM_RUN,
    MAX_LINE,
    PROTOCOL,
    SOCKET,
    Done,
    FromRun,
    Hello,
    Refused,
    Request,
)
from pilotfish.agent.events import EVENTS
from pilotfish.agent.events.errors import cannot


class ControlError(Exception):
    """A run cannot be reached or refuses; the message is one sentence with the mend."""


class RunClient:
    """A connection to a run that is being played. Use `connect`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello) -> None:
        self.hello = hello
        self._reader, self._writer = reader, writer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Done | Refused]] = {}
        self._said: asyncio.Queue[FromRun | None] = asyncio.Queue()
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def connect(cls, folder: Path) -> Self:
        """Connect to the run of a folder. Raises `ControlError` when no process plays it."""
        try:
            reader, writer = await _open(folder)
        except OSError as error:
            raise ControlError(_why_not(folder, error)) from error
        if not is_own(writer):
            writer.close()
            raise ControlError(
                f"What answers at {folder / SOCKET} is another user's or in a sandbox, so nothing is said to "
                "it; see who may write in that folder, and resume the run."
            )
        try:
            line = await asyncio.wait_for(reader.readline(), 10)
            hello = FROM_RUN.validate_json(line)
        except (TimeoutError, OSError, ValueError) as error:
            writer.close()
            raise ControlError(f"The run {folder.name} does not answer; try again in a moment.") from error
        if not isinstance(hello, Hello) or hello.protocol != PROTOCOL:
            writer.close()
            raise ControlError(
                f"The run {folder.name} is played by another version of pilotfish; use that one."
            )
        return cls(reader, writer, hello)

    async def ask(self, request: Request) -> Done:
        """Have something done. Raises `ControlError` with the run's own sentence when it refuses, or when it
        ends before it has answered.
        """
        number = next(self._ids)
        try:
            line = request.model_copy(update={"id": number}).model_dump_json().encode() + b"\n"
        except PydanticSerializationError:
            raise ControlError(
                "A text in it holds half of a character, as '\\ud800' is one, which no program can be given; "
                "leave it out."
            ) from None
        future: asyncio.Future[Done | Refused] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._writer.write(line)
            await self._writer.drain()
            if self._listening.done():
                raise ConnectionError
            answer = await future
        except OSError as error:
            raise ControlError("The run has ended meanwhile; look at its log.") from error
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, Refused):
            raise ControlError(answer.sentence)
        return answer

    async def messages(self) -> AsyncIterator[FromRun]:
        """What the run says, until it ends the connection; answers to `ask` are not among it."""
        while (said := await self._said.get()) is not None:
            yield said

    async def close(self) -> None:
        """End the connection; the run goes on."""
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                try:
                    said = FROM_RUN.validate_json(line)
                except ValidationError:
                    continue  # a kind of message that this version does not know
                if isinstance(said, Done | Refused):
                    future = self._waiting.get(said.id)
                    if future is not None and not future.done():
                        future.set_result(said)
                else:
                    self._said.put_nowait(said)
        except (OSError, ValueError):
            pass  # the run is gone, or said something without an end
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionError("the run has ended"))
            self._said.put_nowait(None)


def _why_not(folder: Path, error: OSError) -> str:
    """The sentence about a run that cannot be connected to."""
    try:
        found = look_at(folder)
    except PermissionError as shut:
        return cannot("read", folder / EVENTS, shut)
    except OSError:
        return f"There is no run in {folder}; `pilotfish runs` lists those there are."
    if found.playing and isinstance(error, PermissionError):
        return cannot("reach", folder / SOCKET, error)
    if found.playing:
        return f"The run {folder.name} cannot be reached ({error.strerror or error}); try again in a moment."
    if found.status == "finished":
        return f"The run {folder.name} has finished; `pilotfish show {folder.name}` tells its steps."
    return f"The run {folder.name} is not being played; `pilotfish resume {folder.name}` goes on with it."


async def _open(folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect by way of the folder's descriptor: a socket's path may have 107 bytes only."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{descriptor}/{SOCKET}", limit=MAX_LINE)
    finally:
        os.close(descriptor)
