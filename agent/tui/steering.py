"""What a person does to a run from its screen: messages, pausing, stepping back, stopping, control."""

from __future__ import annotations

from textual import events
from textual.binding import Binding, BindingType

from pilotfish.agent.control.client import ControlError
from pilotfish.agent.control.wire import Control, Decide, Pause, Request, StepBack, Stop, Tell
from pilotfish.agent.tui.dialogs import Confirm
from pilotfish.agent.tui.link import Controlled
from pilotfish.agent.tui.run_base import RunBase
from pilotfish.agent.tui.text import notify, sentence

STEERING: list[BindingType] = [
    Binding(
        "m", "message", "Message", tooltip="Write a message to the agent; it reads it before its next answer"
    ),
    Binding("p", "pause", "Pause", tooltip="Hold before the next step"),
    Binding("p", "go_on", "Go on", tooltip="Let a paused run go on"),
    Binding("s", "single", "One step", tooltip="Take one step and hold again"),
    Binding("o", "take_over", "Take over", tooltip="Use mouse and keyboard of the sandbox yourself"),
    Binding("x", "stop", "Stop", tooltip="Stop the run in order; it can be resumed"),
    Binding(
        "b", "step_back", "Step back", tooltip="Step back to before the chosen step: screen, files, memory"
    ),
    Binding(
        "c", "control", "Take control", show=False, tooltip="Take the control of the run, or give it back"
    ),
]
_KEYS = list(Binding.make_bindings(STEERING))


class Steering(RunBase):
    """The part of a run's screen that steers it."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What makes sense now."""
        link = self.link
        state = link.state if link is not None and self.live else None
        match action:
            case "answer":
                return bool(link and link.questions)
            case "message" | "stop" | "control":
                return state is not None
            case "pause":
                return state is not None and not state.paused
            case "go_on" | "single":
                return state is not None and state.paused
            case "step_back":
                return state is not None and state.can_step_back
            case "take_over":
                return state is not None and state.can_take_over
            case "search":
                return not self.writes  # the key is then a letter of what is written
            case "resume":
                ended = self.model.ended
                return not self.live and not (ended is not None and ended.status == "finished")
            case _:
                return True

    def on_key(self, event: events.Key) -> None:
        """Say of a key that steers why it does nothing now."""
        name = next((one.description for one in _KEYS if one.key == event.key), "")
        if not name or self.writes or event.key in self.active_bindings:
            return
        if self.live:
            notify(self, f"{event.key} {name}: not possible now.", severity="warning")
        else:
            resumes = "; r resumes it" if self.check_action("resume", ()) else ""
            notify(self, f"{event.key} {name}: the run is not being played{resumes}.", severity="warning")

    def action_message(self) -> None:
        """Write a message to the agent."""
        self.open_entry("message", "Message: Enter sends it, Esc drops it")

    def send(self, text: str) -> None:
        """Send a message to the agent."""
        if text.strip():
            self.do(Tell(text=text), "Sent; the agent reads it before its next answer.")

    # What is asked of the run.

    def action_pause(self) -> None:
        """Hold before the next step."""
        self.do(Pause(on=True), "")

    def action_go_on(self) -> None:
        """Go on."""
        self.do(Pause(on=False), "")

    def action_single(self) -> None:
        """One step, then hold again."""
        waits = self.link is not None and self.link.questions
        self.do(Pause(on=True, single=True), "One step more, once you have answered." if waits else "")

    def action_stop(self) -> None:
        """Stop the run, once that was confirmed."""
        self._confirmed("Stop this run? It can be resumed later.", "Stop it", Stop())

    def action_step_back(self) -> None:
        """Go back to before the chosen step, once that was confirmed."""
        row = self.steps.chosen
        if row is None:
            row = next(
                (one for one in reversed(self.model.rows) if one.kind == "step" and not one.undone), None
            )
        if row is None or not row.step or row.undone or row.depth:
            notify(
                self, "Choose a step of the list first; the run steps back to before it.", severity="warning"
            )
            return
        question = (
            f"Step back to before step {row.step}? The screen, the files and what the agent remembers become "
            "what they were then; the run is paused."
        )
        self._confirmed(question, "Step back", StepBack(step=row.step))

    def action_control(self) -> None:
        """Take the control of the run, or give it back."""
        if self.controls:
            self.do(Control(take=False), "You do not control the run any more.")
        else:
            self.do(Control(take=True), "", take=True)

    def _confirmed(self, question: str, yes: str, request: Request) -> None:
        async def ask() -> None:
            if await self.app.push_screen_wait(Confirm(question, yes)):
                await self.ask_run(request, "")

        self.run_worker(ask())

    def do(self, request: Request, done: str, *, take: bool = False) -> None:
        self.run_worker(self.ask_run(request, done, take=take))

    async def ask_run(self, request: Request, done: str, *, take: bool = False) -> str | None:
        """Have something done and say so; whoever else controls the run is only set aside when asked for.
        None once it is done, else why it is not.
        """
        link = self.link
        if link is None:
            return "The run is not being played."
        try:
            state = link.state
            if take and state is not None and state.controller is not None:
                raise Controlled
            answer = await link.ask(request)
        except Controlled:
            question = "Another window or program controls this run. Take the control from it?"
            if not await self.app.push_screen_wait(Confirm(question, "Take it")):
                return "Another window or program controls this run."
            try:
                answer = await link.ask(Control(take=True, force=True))
                if not isinstance(request, Control):
                    answer = await link.ask(request)
            except ControlError as error:
                return self._refused(error)
        except ControlError as error:
            return self._refused(error)
        quiet = isinstance(request, Control | Decide | Pause)  # the run's line and its list show it
        if said := done or ("" if quiet else answer.note):
            notify(self, said)
        return None

    def _refused(self, error: ControlError) -> str:
        notify(self, sentence(error), severity="error")
        return sentence(error)
