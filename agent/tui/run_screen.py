"""One run: its steps, the details of the chosen one, its plan and what it changed."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.widgets import ContentSwitcher, Input

from pilotfish.agent.events import LogError
from pilotfish.agent.events.tail import LogTail, News
from pilotfish.agent.safetext import counted
from pilotfish.agent.tui.bottom_line import HELP, BottomLine
from pilotfish.agent.tui.changes_view import ChangesView, may_change_files
from pilotfish.agent.tui.fields import PlainInput
from pilotfish.agent.tui.going_on import go_on
from pilotfish.agent.tui.link import Change, Link, may_be_played
from pilotfish.agent.tui.looking import Looking
from pilotfish.agent.tui.model import Row, RunModel
from pilotfish.agent.tui.page import write_page
from pilotfish.agent.tui.run_list import WAITS, phase_word
from pilotfish.agent.tui.screen_pane import ScreenPane
from pilotfish.agent.tui.searching import Searching
from pilotfish.agent.tui.steering import STEERING, Steering
from pilotfish.agent.tui.step_list import StepList
from pilotfish.agent.tui.tab_bar import TabBar
from pilotfish.agent.tui.text import Plain, notify, sentence
from pilotfish.agent.tui.text_view import TextView
from pilotfish.agent.tui.words import Part, arguments_text, cost_line, duration, parts

_LOOK_S, _REST_S = 0.5, 2.0
"""Seconds between two looks at a log, while its run is being played and when it is not."""
_WRITING_S = 0.15
"""Seconds between two pictures of an answer that is being written."""
_TABS = ("Step", "Screen", "Plan", "Changes")
_PANES = ("details", "screen", "plan", "changes")


class RunScreen(Looking, Steering, Searching):
    """A run, live or from its log."""

    EXPLANATION = (
        "One run. The list has its steps; the pane beside or below it shows all of the chosen one. While the "
        "run is being played you can send it a message, pause it, take one step at a time, step back, take "
        "mouse and keyboard over, or stop it. A call that needs your word opens a dialog by itself."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "answer", "Answer", tooltip="Open the question that waits for you"),
        Binding("q", "leave", "Back", tooltip="Leave this run; it goes on by itself"),
        Binding("enter", "details", "Details", show=False),
        Binding("1", "tab(0)", "Step", show=False, tooltip="Everything about the chosen step"),
        Binding("2", "tab(1)", "Screen", show=False, tooltip="The screen, live or at the chosen step"),
        Binding("3", "tab(2)", "Plan", show=False, tooltip="The agent's plan"),
        Binding("4", "tab(3)", "Changes", show=False, tooltip="What the run changed in its workspace"),
        *STEERING,
        Binding("slash", "search", "Search", tooltip="Search all that the log has"),
        Binding("n", "found(1)", "Next match", show=False),
        Binding("N", "found(-1)", "Match before", show=False),
        Binding("r", "resume", "Resume", tooltip="Resume a run that was stopped or broken off"),
        Binding("w", "page", "Replay", tooltip="Write the replay page of the run, for a browser"),
        Binding("question_mark", HELP, "Help"),
        Binding("escape", "back", "Back", show=False),
    ]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._tail = LogTail(folder)
        self._news = asyncio.Event()
        self._complete = False
        self._writing = False
        self._shown: tuple[Row | None, int] | None = None

    def compose(self) -> ComposeResult:
        yield Plain(id="top")
        with Container(id="panes"):
            yield StepList(id="steps")
            with Vertical(id="right"):
                yield TabBar(_TABS, id="tabs")
                with ContentSwitcher(initial="details", id="switcher"):
                    yield TextView(id="details")
                    yield TextView(id="plan")
                    yield ChangesView(self.folder, id="changes")
                    yield ScreenPane(self.folder, id="screen")
        yield Plain(id="cost")
        yield PlainInput(id="entry", compact=True)
        yield BottomLine()

    def on_mount(self) -> None:
        """Begin to follow the run."""
        self.query_one("#entry").display = False
        self.steps.focus()
        self.run_worker(self._follow())

    def on_descendant_focus(self) -> None:
        """Say which keys go where, for a pane that has them may have nothing to scroll."""
        in_pane = self.query_one("#right").has_focus_within
        self.query_one(TabBar).note = "Esc: back to the steps" if in_pane else ""

    # What comes from the run.

    def heard(self, link: Link, change: Change) -> None:
        """The run says something."""
        if link.folder != self.folder:
            return
        match change:
            case "delta":
                if not self._writing:
                    self._writing = True
                    self.set_timer(_WRITING_S, self._show_writing)
                return
            case "screen":
                self.screen_changed()
                return
            case "question":
                self.answer_questions()
        self._news.set()
        if change == "gone":
            self.unlinked()
        if change in ("state", "gone", "question"):
            self._show_state()
            self.refresh_bindings()

    async def _follow(self) -> None:
        """Read the log as it grows. One that cannot be read for a moment is read at another."""
        trouble = ""
        while True:
            self._news.clear()
            if not self.live and self.model.ended is None and may_be_played(self.folder):
                self.link = await self.interface.link(self.folder)
                if self.live:
                    self._show_state()
                    self.linked()
                    self.refresh_bindings()
            try:
                news = await asyncio.to_thread(self._tail.read)
            except LogError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    notify(self, sentence(error), severity="error")
                await asyncio.sleep(_REST_S)
                continue
            trouble = ""
            self._take(news)
            if not news.more:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), _LOOK_S if self.live else _REST_S)

    def _take(self, news: News) -> None:
        if news.again:
            self.model = RunModel()
        self.model.take(news.events)
        if news.warnings:
            notify(self, news.warnings[-1], severity="warning")
        was_complete, self._complete = self._complete, not news.more
        if news.events or news.again or self._complete != was_complete:
            self._show_state()
            self.refresh_bindings()
            self.show_plan()
            self.show_screen()
            is_looked_at = self.query_one(TabBar).active == _PANES.index("changes")
            if is_looked_at and may_change_files(news.events):
                self._show_changes()

    # What is shown.

    def _show_state(self) -> None:
        model, state = self.model, self.link.state if self.link else None
        if self.live:
            words = [WAITS if self.link and self.link.questions else phase_word(state), self._who()]
        else:
            words = [model.word if self._complete else "reading the log"]
        if state is not None:
            words += ["paused"] if state.paused and state.phase != "paused" else []
            words += [f"{state.clients} watch"] if state.clients > 1 else []
            words += [f"{counted(state.messages, 'message')} unread"] if state.messages else []
            words += [state.note] if state.note else []
        words += [model.task, self.folder.name]  # what is cut off where there is no room is the name
        self.query_one("#top", Plain).update(" " + "   ".join(filter(None, words)), layout=False)
        self.steps.show(model.rows, self._doing())
        self._show_cost()
        self._show_details()

    def _who(self) -> str:
        """Who controls the run, and how to."""
        state = self.link.state if self.link else None
        if state is None:
            return ""
        if self.controls:
            return "you control it"
        return f"{'nobody' if state.controller is None else 'another'} controls it, c takes it"

    def _show_cost(self) -> None:
        model, steps = self.model, self.steps
        words = [f"row {min(steps.cursor + 1, steps.count):,} of {steps.count:,}"]
        words += [f"{cost_line(model.cost)}, {duration(model.seconds)} in all"]
        words += [f"{len(model.lanes)} at once"] if len(model.lanes) > 1 else []
        self.query_one("#cost", Plain).update(" " + "   ".join(words), layout=False)

    def _doing(self) -> str:
        """What happens now, for the last row."""
        state = self.link.state if self.link and self.live else None
        if state is None or self.link is None:
            return ""
        if self.link.questions:
            return WAITS.lower()
        if state.note:
            return state.note
        match state.phase:
            case "reading" if state.tokens:
                return f"reading {state.computed:,} of {state.tokens:,} tokens"
            case "acting":
                last = self.model.rows[-1] if self.model.rows else None
                calls = last.answer.calls if last is not None and last.answer is not None else []
                return f"acting: {calls[0].name}" if calls else "acting"
            case phase:
                return phase.replace("_", " ")

    def _show_writing(self) -> None:
        self._writing = False
        if self.steps.chosen is None:
            self._show_details()

    def _show_details(self) -> None:
        row = self.steps.chosen
        view = self.query_one("#details", TextView)
        if row is None:
            self._shown = None
            view.show(self._now_parts(), keep_place=True)
        elif self._shown != (row, row.version):
            is_same = self._shown is not None and self._shown[0] is row
            self._shown = (row, row.version)
            view.show(list(parts(row)), keep_place=is_same, key=self._shown)

    def _now_parts(self) -> list[Part]:
        """What is not in the log yet."""
        link = self.link
        if link is None or not self.live:
            return [Part("", "Nothing has been recorded yet." if self._complete else "")]
        found = [Part(f"Now: {self._doing()}", "", "head")]
        if (question := link.question) is not None:
            found += [Part("Press a to answer", question.why, "person")]
            found += [Part(f"Call {question.call.name}", arguments_text(question.call.arguments), "call")]
        found += [Part("Thinking", link.thinking, "thinking")] if link.thinking else []
        found += [Part("Says", link.text)] if link.text else []
        return found

    def show_plan(self) -> None:
        """The agent's plan."""
        signs = {"open": "[ ]", "doing": "[>]", "done": "[x]", "dropped": "[-]"}
        lines = [f"{signs[item.status]} {item.title}" for item in self.model.plan]
        text = "\n".join(lines) or "The agent has made no plan."
        self.query_one("#plan", TextView).show([Part("", text)], keep_place=True)

    def _show_changes(self) -> None:
        """What the run changed in its workspace."""
        self.query_one(ChangesView).look(self.model.events)

    # What the keys do.

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send what was written, or search for it."""
        self.close_entry()
        if self.entering == "search":
            self.search(event.value)
        else:
            self.send(event.value)

    def on_row_list_chosen(self) -> None:
        """Show the chosen step."""
        self._show_cost()
        self._show_details()
        self.show_screen()

    def on_row_list_opened(self) -> None:
        """Go to its details."""
        self.action_details()

    def on_screen_pane_moved(self, event: ScreenPane.Moved) -> None:
        """Choose another step while its screen is looked at."""
        self.steps.action_move(event.by)

    def on_tab_bar_picked(self, event: TabBar.Picked) -> None:
        """Show another tab."""
        self.action_tab(event.index)

    def action_tab(self, index: int) -> None:
        """Show another tab."""
        self.query_one(TabBar).active = index
        self.query_one(ContentSwitcher).current = _PANES[index]
        self.add_class("-details")
        pane = self.query_one(f"#{_PANES[index]}")
        if not isinstance(self.focused, Input):
            self.set_focus(pane)
        if _PANES[index] == "changes":
            self._show_changes()
        self.look_at_screen(_PANES[index] == "screen")

    def action_details(self) -> None:
        """Go to the details of the chosen step."""
        self.action_tab(0)

    def action_back(self) -> None:
        """Leave what is innermost: the entry, the details, the run."""
        steps = self.steps
        if self.query_one("#entry").display:
            self.close_entry()
        elif self.focused is not steps or self.has_class("-details"):
            self.remove_class("-details")
            self.set_focus(steps)
        else:
            self.action_leave()

    def action_resume(self) -> None:
        """Go on with the run, in a process of its own."""
        self.run_worker(go_on(self, self.folder))

    def action_page(self) -> None:
        """Write the page that replays the run."""
        write_page(self, self.folder)

    def action_leave(self) -> None:
        """Leave the run; it goes on."""
        self.look_at_screen(False)
        if self.interface.run_folder is None:
            self.dismiss()
        else:
            self.app.exit()
