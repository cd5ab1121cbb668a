"""What the parts of a run's screen have in common: the run, and one line to enter text in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from textual.screen import Screen
from textual.widgets import Input

from pilotfish.agent.tui.link import Link
from pilotfish.agent.tui.model import RunModel
from pilotfish.agent.tui.step_list import StepList

if TYPE_CHECKING:
    from pilotfish.agent.tui.app import Interface


class RunBase(Screen[None]):
    """A run and its line of entry."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.link: Link | None = None
        self.model = RunModel()
        self.entering: Literal["message", "search"] = "message"
        """What the line of entry is for."""

    @property
    def interface(self) -> Interface:
        """The application."""
        return cast("Interface", self.app)

    @property
    def live(self) -> bool:
        """Whether a process plays the run, and this interface hears it."""
        return self.link is not None and self.link.connected

    @property
    def controls(self) -> bool:
        """Whether this interface controls the run."""
        return self.link is not None and self.link.controls

    @property
    def steps(self) -> StepList:
        """The list of its steps."""
        return self.query_one(StepList)

    @property
    def writes(self) -> bool:
        """Whether something is being written in the line of entry."""
        return bool(self.query_one("#entry").display)

    def open_entry(self, what: Literal["message", "search"], hint: str) -> None:
        """Show the line of entry."""
        self.entering = what
        entry = self.query_one("#entry", Input)
        entry.placeholder = hint
        entry.value = ""
        entry.display = True
        self.set_focus(entry)

    def close_entry(self) -> None:
        """Hide the line of entry."""
        self.query_one("#entry").display = False
        self.set_focus(self.steps)
        self.entry_closed()

    def entry_closed(self) -> None:
        """Something is written no more."""
