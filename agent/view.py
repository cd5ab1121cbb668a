"""What an episode shows the model: the place of its screen, and a recorder that watches it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pilotfish.agent.damage import Rect
from pilotfish.agent.limits import MachineBroke, ScreenChanged
from pilotfish.agent.recorder import Observed, Recorder
from pilotfish.sandbox import Sandbox, SandboxError
from pilotfish.tasks.environment import Environment
from pilotfish.tools.base import Screen, ToolResult


@dataclass(frozen=True)
class Watching:
    """How the recorder waits for the screen; see `Recorder`."""

    quiet_ms: int = 120
    cap_s: float = 3.0


class View:
    """The screen of one episode; `screen` is None before `find` and where there is none."""

    def __init__(self, environment: Environment, box: Sandbox, watching: Watching) -> None:
        self.screen: Screen | None = None
        self._environment, self._box, self._watching = environment, box, watching
        self._recorder: Recorder | None = None

    def find(self) -> None:
        """Find the screen, once the task is set up. Raises `SandboxError`."""
        self.screen = self._environment.screen(self._box)

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        """Begin to watch it, until the stack is left. Raises `CaptureError`."""
        if self.screen is not None:
            recorder = Recorder(
                self.screen.display,
                _region(self.screen),
                quiet_ms=self._watching.quiet_ms,
                cap_s=self._watching.cap_s,
                camera=self._box.camera(self.screen.display),
            )
            self._recorder = await stack.enter_async_context(recorder)

    def follow(self) -> None:
        """Look where the screen is now. Raises `ScreenChanged` when it is not what the model last saw."""
        try:
            screen = self._environment.screen(self._box)
        except SandboxError as error:
            raise MachineBroke(str(error)) from error
        seen = self.screen
        if screen == seen or screen is None or seen is None or self._recorder is None:
            return
        self.screen = screen
        self._recorder.look_at(_region(screen))
        raise ScreenChanged(
            f"The screen has changed from {seen.width}x{seen.height} pixels at {seen.x}, {seen.y} to "
            f"{screen.width}x{screen.height} at {screen.x}, {screen.y}, so nothing was done; look at the new "
            "picture and act on that."
        )

    async def look(self) -> Observed | None:
        """A clip of the screen as it is. Raises `CaptureError`."""
        return None if self._recorder is None else await self._recorder.clip()

    async def watch(self, work: Callable[[], Awaitable[ToolResult]]) -> tuple[ToolResult, Observed | None]:
        """Do something and take a clip of what it does. Raises `CaptureError`, and what `work` raises."""
        if self._recorder is None:
            return await work(), None
        results: list[ToolResult] = []

        async def action() -> bool:
            results.append(await work())
            return results[0].ok and results[0].end is None

        seen = await self._recorder.clip(action)
        return results[0], seen


def _region(screen: Screen) -> Rect:
    return Rect(screen.x, screen.y, screen.width, screen.height)
