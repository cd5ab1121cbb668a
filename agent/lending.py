"""Lends mouse and keyboard of an episode's sandbox to a person, and tells the model of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.agent.control.hands import Hands
from pilotfish.agent.control.reach import Reach
from pilotfish.agent.keeping import Keeper
from pilotfish.agent.recorder import Observed
from pilotfish.agent.safetext import counted
from pilotfish.agent.transcript import Transcript
from pilotfish.tools.base import Screen, Tool
from pilotfish.tools.computer import ComputerTool


@dataclass(eq=False)
class Lender:
    """look: takes a clip. or_stopped: awaits, or raises what ends the episode. keeps_text: log what is typed,
    and not only how much.
    """

    reach: Reach
    tools: Sequence[Tool[Any]]
    keeper: Keeper | None
    look: Callable[[], Awaitable[Observed | None]]
    or_stopped: Callable[[Awaitable[Any]], Awaitable[Any]]
    keeps_text: bool

    async def lend(self, screen: Screen, transcript: Transcript, step: int) -> None:
        """Lend them before a step until they come back. What the model held down is released before, and
        what the person held after.
        """
        for tool in self.tools:
            if isinstance(tool, ComputerTool):
                await tool.close()
        if self.keeper is not None:
            await self.or_stopped(self.keeper.keep(step, "a person used mouse and keyboard"))
        hands = Hands(screen, keeps_text=self.keeps_text)
        transcript.took_over(step)
        text, seen = "", None
        try:
            note = await self.or_stopped(self.reach.lend(hands))
            await hands.close()
            seen = await self.look()
            text = _words(hands, note)
        finally:
            await hands.close()
            transcript.gave_back(step, text, seen, hands)
            self.reach.returned()


def _words(hands: Hands, note: str) -> str:
    used = "used mouse and keyboard" if hands.inputs else "had mouse and keyboard but did nothing"
    count = f" ({counted(hands.inputs, 'input')})" if hands.inputs else ""
    said = f" They say: {note.strip()}" if note.strip() else ""
    return f"The user {used} for {max(1, round(hands.seconds))} s{count}.{said}"
