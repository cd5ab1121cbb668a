"""What a run's screen shows of the sandbox's screen, and the questions that wait for a person."""

from __future__ import annotations

import asyncio
from typing import Any

from pilotfish.agent.control.client import ControlError
from pilotfish.agent.control.wire import Decide, Question, Request
from pilotfish.agent.events import CallData, ClipData
from pilotfish.agent.safetext import shortened
from pilotfish.agent.tui.approval import ApprovalDialog
from pilotfish.agent.tui.dialogs import Confirm
from pilotfish.agent.tui.proposal import Frame, Point
from pilotfish.agent.tui.rules import RulesScreen
from pilotfish.agent.tui.screen_pane import ScreenPane, clip_before, decoded
from pilotfish.agent.tui.screen_view import ScreenView
from pilotfish.agent.tui.steering import Steering
from pilotfish.agent.tui.takeover import TakeOver
from pilotfish.agent.tui.text import notify
from pilotfish.agent.tui.words import brief_call

ANOTHERS = "Another window or program controls this run; an answer asks whether to take it from there."


class Looking(Steering):
    """The part of a run's screen that looks at the sandbox's screen."""

    _on_tab = False
    _watching = False
    _decoding = False
    _frame: Frame | None = None
    _cursor: Point | None = None
    _asked: ApprovalDialog | None = None
    _hands: TakeOver | None = None
    _later: int | None = None
    """The question that was put off."""
    _told: int | None = None
    """The one that came while something was being written, or the rules were open."""

    def linked(self) -> None:
        """There is a connection to the run."""
        self._watch()
        self.answer_questions()

    def unlinked(self) -> None:
        """The connection has ended."""
        self._frame = self._cursor = None
        self.answer_questions()
        self.show_screen()

    def look_at_screen(self, on: bool) -> None:
        """Begin or end to show the screen."""
        self._on_tab = on
        self._watch()
        self.show_screen()

    def _watch(self) -> None:
        """Have the run send its screen for as long as somebody looks at it."""
        wanted = self._on_tab or self._asked is not None or self._hands is not None
        if wanted != self._watching and self.link is not None:
            self._watching = wanted
            self.run_worker(self.link.watch_screen(wanted))

    def screen_changed(self) -> None:
        """The run has sent its screen."""
        if not self._decoding:
            self._decoding = True
            self.run_worker(self._decode())

    async def _decode(self) -> None:
        """Decode the newest screen in a thread; those that have come and gone meanwhile are left out."""
        try:
            while self.link is not None and (screen := self.link.screen) is not None:
                self._frame, self._cursor = await asyncio.to_thread(decoded, screen), screen.cursor
                if self.link.screen is None:
                    self._frame = self._cursor = None
                self.show_screen()
                if self._asked is not None and self._asked.query(ScreenView):
                    self._asked.show_screen(self._frame, self._cursor)
                if self._hands is not None and self._hands.query(ScreenView):
                    self._hands.show_screen(self._frame, self._cursor)
                if self.link.screen is screen:
                    return
        finally:
            self._decoding = False

    def show_screen(self) -> None:
        """Show the live screen, or that of the chosen step."""
        if not self._on_tab:
            return
        pane = self.query_one(ScreenPane)
        row = self.steps.chosen
        rows = self.model.rows
        is_last = row is None or row.index == len(rows) - 1
        if self.live and is_last and self._frame is not None:
            pane.show_live(self._frame, self._cursor, self._proposed())
        elif row is not None:
            calls = row.answer.calls if row.answer is not None else []
            before = clip_before(rows, row)
            pane.show_step(before, calls[0] if calls else None, row.clip, self._why_no_picture())
        else:
            pane.show_step(self.model.clip, self._proposed(), None, self._why_no_picture())

    def _why_no_picture(self) -> str:
        state = self.link.state if self.link is not None and self.live else None
        if state is not None and state.has_screen is False:
            return "This run has no screen."
        if self.model.clip is not None:
            return "No picture of the screen was taken before this step; choose a later one."
        if self.live:
            return "No picture of the screen was taken yet; it is shown as soon as there is one."
        return "This run has no picture of a screen."

    def _proposed(self) -> CallData | None:
        question = self.link.question if self.link is not None else None
        return None if question is None else question.call

    def action_take_over(self) -> None:
        """Use mouse and keyboard of the sandbox, once it was confirmed where that denies a call."""
        if self._hands is not None:
            return
        if (call := self._proposed()) is None:
            self._take_over()
            return
        question = (
            "Take mouse and keyboard? The call that waits for you is denied by it, and the agent is told so: "
            f"{shortened(brief_call(call), 100)}"
        )
        self.app.push_screen(Confirm(question, "Take over"), lambda yes: self._take_over() if yes else None)

    def _take_over(self) -> None:
        if self._hands is None:
            waits = self._proposed() is not None
            self._hands = TakeOver(self._ask, self._frame, self._cursor, waits=waits)
            self._watch()
            self.app.push_screen(self._hands, lambda _: self._handed_back())

    def _handed_back(self) -> None:
        self._hands = None
        self._watch()

    async def _ask(self, request: Request) -> str:
        if self.link is None:
            raise ControlError("The run is not being played; resume it first.")
        return (await self.link.ask(request)).note

    # Questions.

    def answer_questions(self) -> None:
        """Open the question that waits longest, unless it was put off; close one that waits no more."""
        question = self.link.question if self.link is not None else None
        if self._asked is not None:
            if self.link is None or self._asked.question.question not in self.link.questions:
                self._close()
            return
        if question is None or question.question == self._later or not self.is_current:
            return
        in_rules = any(isinstance(screen, RulesScreen) for screen in self.app.screen_stack)
        if not self.writes and not in_rules:
            self._open(question)
        elif question.question != self._told:
            self._told = question.question
            until = "have left the rules" if in_rules else "have written this"
            notify(self.app, f"Step {question.step} waits for you; it is shown when you {until}.")

    def entry_closed(self) -> None:
        """A question may have come meanwhile; what is written must answer none."""
        self.answer_questions()

    def action_answer(self) -> None:
        """Open the question that waits."""
        self._later = None
        self.answer_questions()

    def on_screen_resume(self) -> None:
        """A question may have come while another screen was on top."""
        self.answer_questions()

    def _open(self, question: Question, arguments: dict[str, Any] | None = None, told: str = "") -> None:
        state = self.link.state if self.link is not None else None
        is_anothers = state is not None and state.controller is not None and not self.controls
        self._asked = ApprovalDialog(
            question,
            self._frame,
            self._cursor,
            send=self._ask,
            arguments=arguments,
            told=told or (ANOTHERS if is_anothers else ""),
        )
        self._watch()
        self.app.bell()
        self.app.push_screen(self._asked, lambda answer: self._answered(question, answer))
        if self._frame is None and self.model.clip is not None:
            self.run_worker(self._show_newest(self._asked, self.model.clip))

    async def _show_newest(self, dialog: ApprovalDialog, clip: ClipData) -> None:
        """Until the run sends its screen, a question has the newest picture of the log beside it."""
        frame = await self.query_one(ScreenPane).last_of(clip)
        if self._frame is None and dialog is self._asked and dialog.query(ScreenView):
            dialog.show_screen(frame)

    def _answered(self, question: Question, answer: Decide | None) -> None:
        if self._asked is not None and self._asked.question.question != question.question:
            return  # it had been closed, and the next one is open already
        self._asked = None
        self._later = question.question  # until the run says that it is over, or `a` is pressed
        self._watch()
        if answer is not None:
            self.run_worker(self._answer(question, answer))
        self.answer_questions()

    async def _answer(self, question: Question, answer: Decide) -> None:
        """Give the run an answer; one not taken opens the question again, with what was edited."""
        refused = await self.ask_run(answer, "")
        waits = self.link is not None and question.question in self.link.questions
        if refused and waits and self.is_current:
            self._open(question, answer.arguments, refused)

    def _close(self) -> None:
        """Close the dialog, and what was opened from it; the rules of the configuration stay."""
        dialog, self._asked = self._asked, None
        if dialog is None or dialog not in self.app.screen_stack:
            return
        above = self.app.screen_stack[self.app.screen_stack.index(dialog) :]
        if not any(isinstance(screen, RulesScreen) for screen in above):
            while self.app.screen is not dialog:
                self.app.pop_screen()
        dialog.close()
