"""Searching a run: all that its log has, the thinking and the results too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pilotfish.agent.safetext import counted
from pilotfish.agent.tui.model import Row
from pilotfish.agent.tui.run_base import RunBase
from pilotfish.agent.tui.text import notify
from pilotfish.agent.tui.text_view import TextView
from pilotfish.agent.tui.words import text_of


class Searching(RunBase):
    """The part of a run's screen that searches it."""

    _matches: Sequence[int] = ()

    def action_search(self) -> None:
        """Ask for words."""
        self.open_entry("search", "Search: then n is the next match, N the one before")

    def search(self, words: str) -> None:
        """Find the rows that have some words in them; '' ends the search."""
        for view in self.query(TextView):
            view.found = words
        self._matches = ()
        if words:
            self.run_worker(self._search(words), group="search", exclusive=True)

    async def _search(self, words: str) -> None:
        self._matches = await asyncio.to_thread(matching, list(self.model.rows), words)
        if not self._matches:
            notify(self, f"Nothing in this run has “{words}”.", severity="warning")
            return
        notify(self, f"{counted(len(self._matches), 'row')} with “{words}”; n is the next.", timeout=3)
        here = self.steps.cursor
        self._go(next((index for index in self._matches if index >= here), self._matches[0]))

    def action_found(self, by: int) -> None:
        """Go to the next match, within the details first."""
        if not self._matches:
            self.action_search()
            return
        view, steps = self.query_one("#details", TextView), self.steps
        if self.focused is view and view.next_found(by > 0):
            return
        here = steps.cursor
        ordered = self._matches if by > 0 else list(reversed(self._matches))
        later = (index for index in ordered if (index > here if by > 0 else index < here))
        self._go(next(later, ordered[0]))

    def _go(self, index: int) -> None:
        steps = self.steps
        if steps.cursor == index:
            self.query_one("#details", TextView).first_found()
        steps.choose(index)


def matching(rows: Sequence[Row], words: str) -> list[int]:
    """The places of the rows that have some words in them, whatever the case."""
    words = words.casefold()
    return [row.index for row in rows if words in text_of(row).casefold()]
