"""Home: the runs there are, what each does now, and a way to start another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from pilotfish.agent.control.client import ControlError
from pilotfish.agent.control.wire import Stop
from pilotfish.agent.safetext import counted
from pilotfish.agent.settings import SettingsError, load_settings
from pilotfish.agent.tui.bottom_line import HELP, BottomLine
from pilotfish.agent.tui.dialogs import Confirm
from pilotfish.agent.tui.going_on import go_on
from pilotfish.agent.tui.link import Change, Link
from pilotfish.agent.tui.page import write_page
from pilotfish.agent.tui.run_list import WAITS, RunList
from pilotfish.agent.tui.run_screen import RunScreen
from pilotfish.agent.tui.runs import Run, Runs
from pilotfish.agent.tui.start_dialog import StartDialog
from pilotfish.agent.tui.text import Plain, notify, sentence
from pilotfish.agent.tui.words import cost_line

if TYPE_CHECKING:
    from pilotfish.agent.tui.app import Interface

_LOOK_S = 1.0
_EMPTY = "No runs yet. Press n to start a task; it runs by itself in a sandbox, and shows up here."


class Home(Screen[None]):
    """The list of runs."""

    EXPLANATION = (
        "Every run of the agent that was recorded here, the newest first. Each is a process of its own: "
        "leaving this interface ends none of them. Enter opens one; n starts another."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open"),
        Binding("n", "new", "New task", tooltip="Start a new task"),
        Binding("q", "app.quit", "Quit", tooltip="Leave; runs go on by themselves"),
        Binding("r", "resume", "Resume", tooltip="Resume a run that was stopped or broken off"),
        Binding("x", "stop", "Stop", tooltip="Stop the run in order"),
        Binding("w", "page", "Replay", tooltip="Write the replay page of the run, for a browser"),
        Binding("question_mark", HELP, "Help"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._looking = asyncio.Event()
        self._runs: Runs | None = None
        self._tried: set[Run] = set()

    @property
    def interface(self) -> Interface:
        """The application."""
        return cast("Interface", self.app)

    def compose(self) -> ComposeResult:
        yield Plain(id="top")
        yield RunList(self.interface.links, id="runs")
        yield Plain(_EMPTY, id="empty")
        yield Plain(id="about")
        yield BottomLine()

    def on_mount(self) -> None:
        """Begin to look."""
        self._runs = Runs(self.interface.record_dir)
        self.query_one(RunList).focus()
        self.run_worker(self._look())

    def heard(self, link: Link, change: Change) -> None:
        """A run says something."""
        if change in ("state", "question", "gone"):
            self.query_one(RunList).refresh()
            self._tell()
        if change == "gone":
            self._looking.set()
        if change == "question" and link.questions and self.is_current:
            self.app.bell()  # the list and the line above it say which

    def look(self) -> None:
        """Look at the folder at once."""
        self._looking.set()

    async def _look(self) -> None:
        assert self._runs is not None
        rows = self.query_one(RunList)
        is_first = True
        while True:
            self._looking.clear()
            runs, changed = await asyncio.to_thread(self._runs.look)
            for run in runs:
                await self._connect(run)
            if changed or is_first:
                is_first = False
                rows.show(runs)
                self.query_one("#empty").display = not runs
                rows.display = bool(runs)
                self._tell()
            elif any(link.connected for link in self.interface.links.values()):
                rows.refresh()  # time goes on
            wait = 0.01 if any(not run.complete for run in runs) else _LOOK_S
            try:
                await asyncio.wait_for(self._looking.wait(), wait)
            except TimeoutError:
                continue

    async def _connect(self, run: Run) -> None:
        """Connect to a run's process, once for each time that its socket appears."""
        if not run.has_socket:
            self._tried.discard(run)
            return
        link = self.interface.links.get(run.folder)
        if run not in self._tried and (link is None or not link.connected):
            self._tried.add(run)
            await self.interface.link(run.folder)

    def on_row_list_chosen(self) -> None:
        """Tell of the run under the cursor."""
        self._tell()
        self.refresh_bindings()

    def on_row_list_opened(self) -> None:
        """Open it."""
        self.action_open()

    def _tell(self) -> None:
        rows = self.query_one(RunList)
        links = self.interface.links.values()
        live = sum(link.connected for link in links)
        waiting = sum(bool(link.questions) for link in links)
        words = [counted(rows.count, "run"), f"{live} running"] if rows.count else []
        words += [f"{waiting} {WAITS.lower()}"] if waiting else []
        self.query_one("#top", Plain).update(" Pilotfish   " + ", ".join(words), layout=False)
        run = rows.chosen
        about = ""
        if run is not None:
            summary = run.summary
            about = f"{run.folder.name}   {rows.status(run)}   {cost_line(summary.cost)}\n"
            about += summary.instruction.strip()[:1000] or run.trouble
        self.query_one("#about", Plain).update(about, layout=False)

    # What the keys do.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What makes sense for the run under the cursor."""
        run = self.query_one(RunList).chosen if self.is_mounted else None
        if action in ("open", "page", "stop", "resume") and run is None:
            return False
        if run is not None and action in ("stop", "resume"):
            link = self.interface.links.get(run.folder)
            live = link is not None and link.connected
            ended = run.summary.ended
            finished = ended is not None and ended.status == "finished"
            return live if action == "stop" else not live and not finished
        return True

    def action_open(self) -> None:
        """Open the run under the cursor."""
        if (run := self.query_one(RunList).chosen) is not None:
            self._open(run.folder)

    def _open(self, folder: Path) -> None:
        # Named as it is in the list, so that both screens share a connection.
        self.app.push_screen(RunScreen(self.interface.record_dir / folder.name))

    def action_new(self) -> None:
        """Start a task, and open its run."""
        self.run_worker(self._new())

    async def _new(self) -> None:
        try:
            settings = load_settings({"record_dir": self.interface.record_dir})
        except SettingsError as error:
            notify(self, sentence(error), severity="error")
            return
        folder = await self.app.push_screen_wait(StartDialog(settings))
        if folder is not None:
            self.look()
            self._open(folder)

    def action_resume(self) -> None:
        """Go on with the run under the cursor."""
        if (run := self.query_one(RunList).chosen) is not None:
            self.run_worker(self._resume(run))

    async def _resume(self, run: Run) -> None:
        if await go_on(self, run.folder):
            self.look()
            self._open(run.folder)

    def action_page(self) -> None:
        """Write the page that replays it."""
        if (run := self.query_one(RunList).chosen) is not None:
            write_page(self, run.folder)

    def action_stop(self) -> None:
        """Stop it, once that was confirmed."""
        if (run := self.query_one(RunList).chosen) is not None:
            self.run_worker(self._stop(run))

    async def _stop(self, run: Run) -> None:
        link = self.interface.links.get(run.folder)
        if link is None or not await self.app.push_screen_wait(
            Confirm(f"Stop {run.folder.name}? It can be resumed later.", "Stop it")
        ):
            return
        try:
            await link.ask(Stop(), force=True)
        except ControlError as error:
            notify(self, sentence(error), severity="error")
