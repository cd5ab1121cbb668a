"""Whether the machine of an episode still works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pilotfish.sandbox import Sandbox
from pilotfish.tools.base import Tool

LOOK_S = 0.25
"""Seconds between two looks."""


class Health:
    """What is wrong with a sandbox, its display and its browser."""

    def __init__(self, box: Sandbox, tools: Sequence[Tool[Any]]) -> None:
        self._box = box
        # The browser tool starts a browser when it needs one, and says so.
        self._needs_browser = box.spec.browser and not any(tool.name == "browser" for tool in tools)

    @property
    def trouble(self) -> str | None:
        """A sentence about what has broken of the sandbox itself."""
        trouble = self._box.trouble
        return trouble and trouble[0].upper() + trouble[1:]

    @property
    def browser_trouble(self) -> str | None:
        """A sentence about a browser that is needed and has ended."""
        if self._needs_browser and not self._box.browser.is_running:
            return "The browser in the sandbox has ended."
        return None

    async def until_broken(self, thinks: Callable[[], bool]) -> str:
        """Wait until the machine does not work any more; the sentence that says why.

        thinks: whether the model is at work, and no tool, which may have a reason to end the browser and
        start another.
        """
        while True:
            if trouble := self.trouble or (self.browser_trouble if thinks() else None):
                return trouble
            await asyncio.sleep(LOOK_S)
