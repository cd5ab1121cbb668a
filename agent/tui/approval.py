"""The dialog in which a person answers a question of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Button, Input

from pilotfish.agent.control import wire
from pilotfish.agent.events import CallData
from pilotfish.agent.safetext import counted, shortened
from pilotfish.agent.tui.dialogs import Help, of_no_use
from pilotfish.agent.tui.edit_arguments import EditArguments
from pilotfish.agent.tui.exact_view import ExactView
from pilotfish.agent.tui.fields import PlainInput
from pilotfish.agent.tui.proposal import Frame, Point, colour_at, proposal
from pilotfish.agent.tui.question_text import must_be_read, question_lines
from pilotfish.agent.tui.screen_view import PixelView, ScreenView
from pilotfish.agent.tui.text import Plain, PlainButton, notify, sentence, stand_close

DEAF_S = 0.3
"""For so long after it is shown, and after each key in that time, nothing answers: such a key was meant for
something else.
"""
NOTICE_S = 8.0
_ON_SCREEN = ("computer", "browser")
_LABELS = (
    ("once", "y Once", "y Allow once"),
    ("task", "t This run", "t Allow for this run"),
    ("deny", "d Deny", "d Deny…"),
)
"""Of the buttons: where there is little room, and elsewhere."""
Send = Callable[[wire.Request], Awaitable[str]]


class ApprovalDialog(ModalScreen[wire.Decide | None]):
    """Shows exactly what will run, and returns the answer; None leaves the question open."""

    DEFAULT_CSS = """
    ApprovalDialog > Vertical { width: 100%; height: 100%; background: $surface; }
    ApprovalDialog .title { height: 1; background: $warning; color: $text; text-style: bold; padding: 0 1;
        text-wrap: nowrap; text-overflow: ellipsis; }
    ApprovalDialog .notice { height: auto; max-height: 3; padding: 0 1; background: $panel; display: none; }
    ApprovalDialog ToastRack { display: none; }
    ApprovalDialog #body { height: 1fr; layout: vertical; }
    ApprovalDialog ExactView { height: 1fr; width: 1fr; padding: 0 0 0 1; }
    ApprovalDialog #picture { height: 1fr; width: 1fr; layout: horizontal; }
    ApprovalDialog .status { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    ApprovalDialog .status.refusing { color: $text-error; text-style: bold; }
    ApprovalDialog #answers { height: 1; }
    ApprovalDialog Button { width: auto; min-width: 0; margin: 0 1 0 0; }
    ApprovalDialog #reason { height: 1; border: none; padding: 0 1; }
    ApprovalDialog.wide #body { layout: horizontal; }
    ApprovalDialog.wide #picture { layout: vertical; }
    ApprovalDialog.small #picture { display: none; }
    ApprovalDialog.small PixelView { display: none; }
    ApprovalDialog.picture-only #picture { display: block; }
    ApprovalDialog.picture-only ExactView { display: none; }
    """
    EXPLANATION = (
        "A call that the agent wants to make, exactly as it would run; it waits until you answer. For this "
        "run: it and all that the lines at the end allow run without another question."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "allow('once')", "Allow once"),
        Binding("t", "allow('task')", "Allow for this run"),
        Binding("d", "deny", "Deny, with a reason"),
        Binding("e", "edit", "Edit the arguments"),
        Binding("r", "rule", "Add a rule"),
        Binding("v", "picture", "See the screen large"),
        Binding("escape", "later", "Answer later"),
        Binding("question_mark", "help", "Help"),
    ]

    def __init__(
        self,
        question: wire.Question,
        frame: Frame | None = None,
        cursor: Point | None = None,
        *,
        send: Send | None = None,
        arguments: dict[str, Any] | None = None,
        told: str = "",
    ) -> None:
        """frame, cursor: the screen as it is now. send: passes a request on to the run, for rules; what it
        returns and its errors are shown. arguments: those that the person has put in place of the call's.
        told: what else stands above the call.
        """
        super().__init__()
        self.question = question
        self._call = question.call
        if arguments is not None:
            self._call = question.call.model_copy(update={"arguments": arguments})
        self._told = told
        self._frame, self._cursor = frame, cursor
        self._send = send
        self._deaf: Timer | None = None
        self._unnotice: Timer | None = None
        self._listening = self._unheard = False
        self._over = False
        self._said = ""

    def compose(self) -> ComposeResult:
        call = shortened(self.question.call.name, 60)
        with Vertical():
            yield Plain(f"Step {self.question.step}: may {call} run this?", classes="title")
            yield Plain(classes="notice")
            with Vertical(id="body"):
                yield ExactView()
                with Vertical(id="picture"):
                    yield ScreenView(caption=False)
                    yield PixelView()
            yield Plain(classes="status")
            with Horizontal(id="answers"):
                yield PlainButton("y Once", id="once", variant="success", compact=True)
                yield PlainButton("t This run", id="task", compact=True)
                yield PlainButton("d Deny", id="deny", variant="error", compact=True)
                yield PlainButton("e Edit", id="edit", compact=True)
                yield PlainButton("r Rule", id="rule", compact=True)
            yield PlainInput(id="reason", placeholder="Reason; Enter denies, Esc goes back")

    def on_mount(self) -> None:
        """Show it; nothing answers yet."""
        self.query_one("#reason").display = False
        self.query_one("#task").disabled = not self.question.rule
        self.query_one("#rule").disabled = self._send is None
        self._show()
        for one in self.app._notifications:  # of just before, as that an answer was refused
            self.notified(one.message)
        self.query_one(ExactView).focus()
        self.call_after_refresh(self._be_deaf)

    def on_screen_resume(self) -> None:
        """What was open above it has gone, and the key that closed it answers nothing."""
        if self._over:
            self.dismiss(None)
        elif self._deaf is not None:
            self._be_deaf()

    def close(self) -> None:
        """The question waits no more: go, at the latest when it would be shown again."""
        self._over = True
        if self.app.screen is self:
            self.dismiss(None)

    @property
    def listening(self) -> bool:
        """Whether keys and clicks answer already."""
        return self._listening

    def show_screen(self, frame: Frame | None, cursor: Point | None = None) -> None:
        """The live screen has changed."""
        self._frame, self._cursor = frame, cursor
        self._lay_out()
        if self._words() != self._said:
            self._show()
        else:
            self._show_picture()

    def on_resize(self) -> None:
        """The picture stands beside the text, below it, or on a key."""
        self._lay_out()

    def _lay_out(self) -> None:
        width, height = self.size
        self.set_class(width >= 100, "wide")
        self.set_class(width < 46, "narrow")
        stand_close(self, width < 46)
        for name, short, long in _LABELS:
            self.query_one(f"#{name}", PlainButton).label = long if width >= 80 else short
        self.set_class((width < 100 and height < 20) or self._frame is None, "small")

    def notified(self, words: str) -> None:
        """Say it above the call, not over it, for as long as a message elsewhere is shown."""
        notice = self.query_one(".notice", Plain)
        notice.display = True
        notice.update(words)
        if self._unnotice is not None:
            self._unnotice.stop()
        self._unnotice = self.set_timer(NOTICE_S, self._hide_notice)

    def _hide_notice(self) -> None:
        self.query_one(".notice").display = False

    def on_key(self, event: events.Key) -> None:
        """A key that was meant for something else answers nothing; to look or to edit first is no answer."""
        if not self._listening and event.key not in ("e", "v"):
            self._unheard = True
            event.stop()
            event.prevent_default()
            if self._deaf is not None:
                self._deaf.reset()
        elif (words := of_no_use(self, event)) and not self._writing:
            self._refuse(words)

    def on_exact_view_moved(self) -> None:
        """Say how much is below."""
        self._show_status()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The same as the keys."""
        event.stop()
        match event.button.id:
            case "once" | "task" as verdict:
                self.action_allow(verdict)
            case "deny":
                self.action_deny()
            case "edit":
                self.action_edit()
            case _:
                self.action_rule()

    def action_allow(self, verdict: str) -> None:
        """Let the call run, once or like this from now on."""
        if not self._listening or self._writing:
            return
        if verdict == "task" and (not self.question.rule or self._edited):
            self._refuse("Only the call as the agent made it can be allowed for this run; allow it once.")
            return
        if must_be_read(self.question, self._call) and not self.query_one(ExactView).end_seen:
            self._refuse("Read to the end first (End): something stands behind a long gap.")
            return
        self.dismiss(self._answer("once" if verdict == "once" else "task"))

    def action_deny(self) -> None:
        """Ask for the reason."""
        if self._listening and not self._writing:
            self.query_one("#answers").display = False
            reason = self.query_one("#reason", PlainInput)
            reason.display = True
            reason.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The reason is written."""
        event.stop()
        self.dismiss(self._answer("deny", event.value))

    def action_later(self) -> None:
        """Leave the reason, or the question."""
        if not self._listening:
            return
        if self._writing:
            self.query_one("#reason").display = False
            self.query_one("#answers").display = True
            self.query_one(ExactView).focus()
        elif self.has_class("picture-only"):
            self.action_picture()
        else:
            self.dismiss(None)

    def action_edit(self) -> None:
        """Change the arguments; what comes of it is shown before it can be allowed."""
        if not self._writing:
            self.app.push_screen(EditArguments(self._call), self._take_arguments)

    def action_rule(self) -> None:
        """Write a rule, for this run or for all."""
        if not self._listening or self._writing:
            return
        if self._send is None:
            self._refuse("There is no run here that could take a rule.")
            return
        from pilotfish.agent.tui.rules import RuleForm  # it shows calls as this dialog does

        self.app.push_screen(RuleForm(self.question.rule or {"tool": self._call.name}), self._take_rule)

    def action_help(self) -> None:
        """What the keys do."""
        self.app.push_screen(Help(self), lambda _: self._be_deaf())

    def action_picture(self) -> None:
        """Change between text and picture where both have no room."""
        if not self._writing:
            self.toggle_class("picture-only")
            self._show_status()
            self.call_after_refresh(self._show_picture)

    @property
    def _edited(self) -> bool:
        # Not by comparing the arguments: to Python 1, 1.0 and True are equal.
        return _digest(self._call) != _digest(self.question.call)

    @property
    def _writing(self) -> bool:
        return bool(self.query_one("#reason").display)

    def _answer(self, verdict: Any, reason: str = "") -> wire.Decide:
        return wire.Decide(
            question=self.question.question,
            verdict=verdict,
            digest=_digest(self.question.call),
            reason=reason,
            arguments=self._call.arguments if self._edited and verdict == "once" else None,
        )

    def _take_arguments(self, arguments: dict[str, Any] | None) -> None:
        if arguments is not None:
            self._call, self._told = self._call.model_copy(update={"arguments": arguments}), ""
            self._show()
        self._be_deaf()

    def _take_rule(self, request: wire.AddRule | None) -> None:
        if request is not None and self._send is not None:
            self.run_worker(self._add_rule(request))
        self._be_deaf()

    async def _add_rule(self, request: wire.AddRule) -> None:
        assert self._send is not None
        try:
            said = await self._send(request)
        except Exception as error:
            self._refuse(sentence(error))
            return
        notify(self, f"{said} It is for the calls that come; answer this one still.")

    def _be_deaf(self) -> None:
        self._listening = False
        if self._deaf is not None:
            self._deaf.stop()
        self._deaf = self.set_timer(DEAF_S, self._listen)

    def _listen(self) -> None:
        self._listening = True
        self.query_one(ExactView).focus()  # an early click on a button must not leave it to Enter
        self._show_status()
        if self._unheard:
            self._unheard = False
            self._refuse("A key pressed just as this was shown was not heeded; press it again.")

    def _words(self) -> str:
        """What the call would do on the screen as it is now."""
        if self._frame is None:
            at = [f"pixel ({self._pixel[0]}, {self._pixel[1]})"] if self._pixel else []
            acts = self._call.name in _ON_SCREEN
            return ", ".join([*at, "of which no picture was taken yet"] if at or acts else [])
        height, width, _ = self._frame.shape
        what = proposal(self._call, width, height, self._cursor, self._pixel)
        if not (what.point or what.region or what.start):
            return ""
        if not what.point:
            return what.words
        colour = colour_at(self._frame, what.point)
        return f"{what.words}, where the colour is {colour or 'none: that is outside the screen'}"

    def _show(self) -> None:
        self._said = self._words()
        lines = question_lines(self.question, self._call, self._said, self._told, edited=self._edited)
        self.query_one(ExactView).show(lines)
        self._show_picture()

    @property
    def _pixel(self) -> Point | None:
        return None if self._edited else self.question.pixel

    def _show_picture(self) -> None:
        picture = self.query_one(ScreenView)
        picture.show(self._frame, self._cursor, self._call, self._pixel)
        point = picture.proposal.point if picture.proposal else None
        pixels = self.query_one(PixelView)
        pixels.display = point is not None
        if self._frame is not None and point is not None:
            pixels.show(self._frame, point)

    def _show_status(self) -> None:
        status = self.query_one(".status", Plain)
        status.remove_class("refusing")
        below = self.query_one(ExactView).below
        wide, narrow = self.size.width >= 80, self.has_class("narrow")
        keys = ["v Screen"] * (self._frame is not None)
        keys += ["Esc Later", "? Help"] if wide else ["? All keys"]
        if self.has_class("picture-only"):
            said, keys = "v, Esc Back to the words", keys[-1:]
        elif not self._listening:
            said, keys = "…", []
        elif below:
            said = counted(below, "row" if narrow else "more row") + " below"
            said += " (Page Down)" if wide else ""
        else:
            said = "That is all" if narrow else "That is all of it"
        status.update("  ".join([said, *keys]))

    def _refuse(self, words: str) -> None:
        status = self.query_one(".status", Plain)
        status.add_class("refusing")
        status.update(words)


def _digest(call: CallData) -> str:
    return wire.call_digest(call.name, call.arguments)
