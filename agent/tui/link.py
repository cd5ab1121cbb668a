"""The connection to a run's process: what it says now, and asking it for things. No widgets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pilotfish.agent.control.client import ControlError, RunClient
from pilotfish.agent.control.wire import (
    SOCKET,
    Control,
    Delta,
    Done,
    FromRun,
    Question,
    QuestionOver,
    Request,
    Screen,
    State,
    WatchScreen,
)

Change = Literal["state", "delta", "question", "screen", "gone"]
"""What has changed: what the run does, its unfinished answer, what waits for a person, its screen, or that it
has ended the connection.
"""


class Controlled(ControlError):
    """Another client controls the run."""


class Link:
    """One run that is being played, as far as its process tells. `on_change` is called after each message."""

    def __init__(self, folder: Path, on_change: Callable[[Link, Change], None]) -> None:
        self.folder = folder
        self.state: State | None = None
        self.questions: dict[int, Question] = {}
        """What waits for a person, by number."""
        self.screen: Screen | None = None
        self.thinking = self.text = ""
        """The answer that is being written."""
        self.written_of = 0
        """Of which step."""
        self._on_change = on_change
        self._client: RunClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._watches = 0
        self._per_second = 4.0

    @property
    def connected(self) -> bool:
        """Whether the run's process is there."""
        return self._client is not None

    @property
    def controls(self) -> bool:
        """Whether this interface controls the run."""
        return bool(self._client and self.state and self.state.controller == self._client.hello.client)

    @property
    def question(self) -> Question | None:
        """The question that waits longest."""
        return next(iter(self.questions.values()), None)

    async def open(self) -> None:
        """Connect. Raises `ControlError` when no process plays the run."""
        async with self._opening:
            if self._client is not None:
                return
            self._client = await RunClient.connect(self.folder)
            self._task = asyncio.create_task(self._listen(self._client))
            if self._watches:  # by somebody who was looking when the connection before this one ended
                self._asking = asyncio.create_task(self._ask_for_screen(self._client, on=True))

    async def close(self) -> None:
        """End the connection; the run goes on."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def ask(self, request: Request, *, force: bool = False) -> Done:
        """Have something done. Control is taken for it where nobody has it, or, with `force`, from who has.

        Raises `Controlled` when another client controls the run, `ControlError` when the run refuses.
        """
        client = self._client
        if client is None:
            raise ControlError(f"The run {self.folder.name} is not being played; resume it first.")
        if not isinstance(request, Control | WatchScreen) and not self.controls:
            if self.state is not None and self.state.controller is not None and not force:
                raise Controlled("Another window or program controls this run.")
            await client.ask(Control(take=True, force=force))
        return await client.ask(request)

    async def watch_screen(self, on: bool, per_second: float = 4.0) -> None:
        """Begin or end to be sent the live screen, in later connections too; as many ends as beginnings."""
        self._watches += 1 if on else -1
        self._per_second = per_second
        if self._client is not None and self._watches == int(on):
            await self._ask_for_screen(self._client, on=on)

    async def _ask_for_screen(self, client: RunClient, *, on: bool) -> None:
        with contextlib.suppress(ControlError):  # it has none, or is going
            await client.ask(WatchScreen(on=on, per_second=self._per_second))

    async def _listen(self, client: RunClient) -> None:
        try:
            async for said in client.messages():
                if (change := self._hear(said)) is not None:
                    self._on_change(self, change)
        finally:
            if self._client is client:
                self._client = None
                self.state, self.screen = None, None
                self.questions.clear()
                self.thinking = self.text = ""
        await client.close()
        self._on_change(self, "gone")

    def _hear(self, said: FromRun) -> Change | None:
        match said:
            case State():
                self.state = said
                if said.step != self.written_of or said.phase not in ("thinking", "reading"):
                    self.thinking = self.text = ""
                return "state"
            case Delta():
                if said.start or said.step != self.written_of:
                    self.thinking = self.text = ""
                self.written_of = said.step
                if said.kind == "thinking":
                    self.thinking += said.text
                else:
                    self.text += said.text
                return "delta"
            case Question():
                self.questions[said.question] = said
                return "question"
            case QuestionOver():
                self.questions.pop(said.question, None)
                return "question"
            case Screen():
                self.screen = said
                return "screen"
            case _:
                return None


def may_be_played(folder: Path) -> bool:
    """Whether it is worth asking a run's process: its socket is there."""
    return (folder / SOCKET).exists()
