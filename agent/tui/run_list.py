"""The list of runs at home."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style

from pilotfish.agent.control.wire import State
from pilotfish.agent.safetext import shortened
from pilotfish.agent.tui.link import Link
from pilotfish.agent.tui.row_list import RowList, fitted
from pilotfish.agent.tui.runs import Run
from pilotfish.agent.tui.words import duration, number

WAITS = "WAITS FOR YOU"
_STATUS = 13
_WIDE, _MIDDLE = 104, 68
_PHASES = {
    "starting": "starting",
    "reading": "reading",
    "thinking": "thinking",
    "asking": WAITS,
    "acting": "acting",
    "paused": "paused",
    "taken_over": "taken over",
    "grading": "grading",
    "ended": "ending",
}


def phase_word(state: State | None) -> str:
    """What a run does, in at most two words."""
    return "running" if state is None else _PHASES[state.phase]


class RunList(RowList):
    """Runs, newest first: how each stands, what it is about, and what it took."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"run--waits", "run--live", "run--good", "run--bad", "run--faint"}
    DEFAULT_CSS = """
    RunList > .run--waits { text-style: bold reverse; color: $text-warning; }
    RunList > .run--live { color: $text-primary; text-style: bold; }
    RunList > .run--good { color: $text-success; }
    RunList > .run--bad { color: $text-error; }
    RunList > .run--faint { color: $foreground-muted; }
    """

    def __init__(self, links: Mapping[Path, Link], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._links = links
        self._runs: list[Run] = []

    @property
    def count(self) -> int:
        """All runs."""
        return len(self._runs)

    @property
    def chosen(self) -> Run | None:
        """The run under the cursor."""
        return self._runs[self.cursor] if self.cursor < len(self._runs) else None

    def show(self, runs: list[Run]) -> None:
        """Show these; the cursor stays on its run when new ones come above it."""
        chosen = self.chosen
        self._runs = runs
        if chosen is not None and self.cursor > 0 and chosen in runs:
            self.cursor = runs.index(chosen)
        self.changed()

    def status(self, run: Run) -> str:
        """How a run stands, in a word or two."""
        link = self._links.get(run.folder)
        if link is not None and link.connected:
            return WAITS if link.questions else phase_word(link.state)
        if run.trouble:
            return "unreadable"
        return run.summary.word if run.complete or run.summary.started else "…"

    def draw(self, index: int, width: int, base: Style) -> list[Segment]:
        """One run."""
        run = self._runs[index]
        status = self.status(run)
        link = self._links.get(run.folder)
        live = link is not None and link.connected
        if status == WAITS:
            style = self.styled("run--waits", base)
        elif live:
            style = self.styled("run--live", base)
        elif status in ("passed", "done"):
            style = self.styled("run--good", base)
        elif status in ("not passed", "failed", "broken off", "unreadable"):
            style = self.styled("run--bad", base)
        else:
            style = base
        figures = _figures(run, width, time.time() if live else None)
        room = max(0, width - _STATUS - 1 - len(figures))
        summary = run.summary
        what = run.trouble or (
            summary.instruction
            if summary.task in ("", "instruction")
            else f"{summary.task}  {summary.instruction}"
        )
        text = shortened(what[:800], 400) or run.folder.name
        return [
            Segment(f"{status[:_STATUS]:<{_STATUS}}", style),
            Segment(" " + fitted(text, room), base),
            Segment(figures, self.styled("run--faint", base)),
        ]


def _figures(run: Run, width: int, now: float | None) -> str:
    """Steps, time and tokens, and when it began, as far as there is room."""
    summary = run.summary
    if width < _MIDDLE or not summary.began:
        return ""
    seconds = (now or summary.newest) - summary.began
    count, what = (summary.step, "step") if summary.episodes < 2 else (summary.episodes, "episode")
    steps = f"{number(count)} {what}{'' if count == 1 else 's'}"
    figures = f" {steps:>13} {duration(seconds):>7} {number(summary.cost.tokens_out):>5} out"
    if width < _WIDE:
        return figures
    cost = summary.cost
    cached = "" if cost.hits is None else f"{cost.hits:.0%}"
    when = time.strftime("%d %b %H:%M", time.localtime(summary.began))
    return f"{figures} {number(cost.tokens_in):>5} in {cached:>4}  {when}"
