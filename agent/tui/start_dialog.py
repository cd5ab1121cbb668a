"""The dialog that starts a task."""

from __future__ import annotations

import asyncio
import difflib
import time
from functools import cache
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.timer import Timer
from textual.widgets import Button, Input
from textual.worker import Worker

from pilotfish.agent.control.spawn import StartError, start_supervised
from pilotfish.agent.safetext import counted, shortened, visible
from pilotfish.agent.settings import Settings
from pilotfish.agent.tui.bottom_line import BottomLine
from pilotfish.agent.tui.fields import PlainInput, Tick
from pilotfish.agent.tui.in_turn import in_turn
from pilotfish.agent.tui.text import Plain, PlainButton, sentence

_EXAMPLE = "as miniwob/click-tab, or: Mend the failing test."
_PAUSE_S = 0.3
"""Seconds without a key after which a task is looked up."""


class TaskNames(Suggester):
    """Completes the names of tasks that ship."""

    def __init__(self) -> None:
        super().__init__(case_sensitive=True)
        self._names: tuple[str, ...] | None = None

    async def get_suggestion(self, value: str) -> str | None:
        """The first task whose name begins so; its suite first."""
        if not value or " " in value:
            return None
        if self._names is None:
            self._names = await asyncio.to_thread(task_names)
        return next((name for name in self._names if name.startswith(value)), None)


class Folders(Suggester):
    """Completes the names of folders."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """The first folder whose path begins so."""
        return await asyncio.to_thread(_folder_after, value) if value else None


@cache
def task_names() -> tuple[str, ...]:
    """All tasks that ship, by suite."""
    from pilotfish.tasks.load import list_suites, load_suite

    return tuple(f"{suite}/{task.id}" for suite in list_suites() for task in load_suite(suite))


def _folder_after(value: str) -> str | None:
    above, _, begins = value.rpartition("/")
    try:
        place = Path(f"{above}/" if above or value.startswith("/") else ".").expanduser()
        names = sorted(
            path.name for path in place.iterdir() if path.name.startswith(begins) and path.is_dir()
        )
    except (OSError, RuntimeError):
        return None
    shown = [name for name in names if visible(name, one_line=True) == name]
    return f"{value}{shown[0][len(begins) :]}/" if shown else None


class StartDialog(ModalScreen[Path | None]):
    """Asks what is to be done, where and by whom, and starts it; returns the run's folder."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "start", "Start", priority=True),
        Binding("escape", "leave", "Cancel"),
    ]

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self._timer: Timer | None = None
        self._starting: Worker[None] | None = None
        self._waits_for = ""
        self._waits_since = 0.0

    def compose(self) -> ComposeResult:
        ask = self._settings.default_verdict == "ask"
        with VerticalScroll(classes="dialog", can_focus=False):
            yield Plain("What is to be done: the name of a task, or an instruction", classes="label")
            yield PlainInput(id="what", placeholder=_EXAMPLE, suggester=TaskNames(), compact=True)
            yield Plain(id="hint", classes="hint")
            with Vertical(id="where") as where:  # of an instruction; a task brings its own
                where.display = False
                yield Plain("The folder to work in; empty is a fresh one", classes="label")
                yield PlainInput(id="workspace", suggester=Folders(), compact=True)
                yield Tick("a desktop to work on", id="desktop")
            yield Plain("Model: nano, a checkpoint's folder, openai:URL#NAME, solution", classes="label")
            yield PlainInput(
                self._settings.model, id="model", suggester=Folders(), compact=True, select_on_focus=True
            )
            yield Tick("ask me before each call", ask, id="ask")
            yield Plain(id="error")
            with Horizontal(classes="buttons"):
                yield PlainButton("Ctrl+S Start", id="start", variant="success", compact=True)
                yield PlainButton("Esc Cancel", id="cancel", compact=True)
        yield BottomLine()

    def on_mount(self) -> None:
        """Begin with what is to be done."""
        self.query_one("#what").focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say what it would be, once the typing pauses."""
        if self._starting is None:
            self.query_one("#error", Plain).update("")  # which was about what stood there before
        if event.input.id == "what":
            self._show_where(" " in self._value("what"))
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(_PAUSE_S, self._look_up)

    def on_input_submitted(self) -> None:
        """Enter goes on to the next field."""
        self.focus_next()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The same as the keys."""
        if event.button.id == "start":
            self.action_start()
        else:
            self.action_leave()

    @in_turn
    def action_start(self) -> None:
        """Start it."""
        if self._starting is None:
            self._starting = self.run_worker(self._start())

    def action_leave(self) -> None:
        """Start nothing; a run that is being started is given up."""
        if self._starting is not None:
            self._starting.cancel()
        self.dismiss(None)

    def _value(self, name: str) -> str:
        return self.query_one(f"#{name}", PlainInput).value.strip()

    @property
    def _is_gone(self) -> bool:
        """Whether it was left meanwhile, and its fields are no more."""
        return not self.query("#hint")

    def _look_up(self) -> None:
        self.run_worker(self._tell(self._value("what"), self._value("model")), group="hint", exclusive=True)

    async def _tell(self, what: str, model: str) -> None:
        shown = await asyncio.to_thread(_is_instruction, what)
        if self._is_gone:
            return
        self._show_where(shown)
        words = await asyncio.to_thread(hint, what, self._settings, model)
        if self._is_gone:
            return
        self.query_one("#hint", Plain).update(words)
        if self.focused is not None:  # which the longer hint may have moved out of sight
            self.call_after_refresh(self._show_focused)

    def _show_focused(self) -> None:
        """Have the field that is written in, and of the first its label, in sight."""
        if self.focused is self.query_one("#what"):
            self.query_one(".dialog").scroll_home(animate=False)
        elif self.focused is not None:
            self.focused.scroll_visible(animate=False)

    def _show_where(self, shown: bool) -> None:
        """Ask where only of an instruction: what is asked late would move the tick that is aimed at."""
        where = self.query_one("#where")
        where.display = shown or where.has_focus_within  # what is being written in stays

    def words(self) -> list[str]:
        """The command line that the fields make. Raises `StartError` where something is missing."""
        what, workspace, model = self._value("what"), self._value("workspace"), self._value("model")
        if not what:
            raise StartError(f"Write what is to be done first, {_EXAMPLE}")
        words = ["run"]
        if is_task(what):
            words.append(what)
        elif " " not in what and (begun := _begun(what)):
            raise StartError(
                f"{what!r} begins the names of {counted(len(begun), 'task')}, such as {begun[0]}; "
                "write one of them whole, or an instruction of several words."
            )
        else:
            words += ["--instruction", what]
            words += ["--workspace", str(Path(workspace).expanduser())] if workspace else []
            words += ["--desktop"] if self.query_one("#desktop", Tick).value else []
        words += ["--model", model] if model else []
        if self.query_one("#ask", Tick).value:
            words += ["--default-verdict", "ask"]
        elif self._settings.default_verdict == "ask":
            words += ["--default-verdict", "allow"]
        return words

    async def _start(self) -> None:
        error, button = self.query_one("#error", Plain), self.query_one("#start", PlainButton)
        error.remove_class("failed")
        button.disabled = True
        self._waits_since = time.monotonic()
        ticking = self.set_interval(1, self._tell_wait)
        self._waits_for = "the names of the tasks"
        try:
            await asyncio.to_thread(task_names)
            folder = await start_supervised(self.words(), self._settings.record_dir, self._tell_wait)
        except (StartError, OSError) as failure:
            error.add_class("failed")
            error.update(sentence(failure))
            self.query_one("#hint", Plain).update("")  # which may say the same
            self.call_after_refresh(error.scroll_visible)
        else:
            self.dismiss(folder)
        finally:
            ticking.stop()
            button.disabled = False
            self._starting = None

    def _tell_wait(self, what: str = "") -> None:
        """Say what is waited for, and for how long."""
        self._waits_for = what or self._waits_for
        seconds = round(time.monotonic() - self._waits_since)
        words = f"Waiting for {self._waits_for} ({counted(seconds, 'second')}); Esc gives it up."
        self.query_one("#error", Plain).update(words)


def is_task(what: str) -> bool:
    """Whether it names a task, rather than being an instruction."""
    from pilotfish.tasks.load import list_suites

    suite, slash, name = what.partition("/")
    if " " not in what and slash and name and suite in list_suites():
        return True
    try:
        return "\n" not in what and Path(what).expanduser().exists()
    except OSError:
        return False


def _is_instruction(what: str) -> bool:
    """Whether it is one, rather than a task's name or the beginning of one."""
    return bool(what) and not is_task(what) and not _begun(what)


def hint(what: str, settings: Settings, model: str) -> str:
    """What would be started, and what is to be known of it, in a line or two. Takes a while."""
    from pilotfish.agent.models import check_model, shortcoming
    from pilotfish.model.protocol import ModelError
    from pilotfish.tasks.load import find_task, list_suites
    from pilotfish.tasks.reader import TaskError

    if not what:
        return f"Suites of tasks: {', '.join(list_suites())}."
    task = None
    said = "An instruction."
    if " " not in what and (near := _near(what)):
        said = f"An instruction; did you mean the task {near}?"
    begun = _begun(what)
    completed = f"The right arrow key completes it to {begun[0]}.{_others(begun[1:])}" if begun else ""
    if is_task(what):
        try:
            task = find_task(what)
        except TaskError as error:
            return completed or str(error)
        said = f"A task: {shortened(task.instruction, 200)}" if task.instruction else "A task."
    elif completed:
        return completed
    chosen = settings.model_copy(update={"model": model or settings.model})
    try:
        check_model(chosen, task)
    except ModelError as error:
        lack: str | None = f"It cannot start: {error}"
    else:
        lack = shortcoming(chosen, task)
    if not lack:
        return said
    lack = lack.replace("give --model", "choose as the model").replace("another --model", "another model")
    return f"{said} {lack}"


def _begun(what: str) -> list[str]:
    """The tasks whose names begin so."""
    return [name for name in task_names() if name.startswith(what)]


def _others(names: list[str]) -> str:
    """Other tasks that begin so, as many as a line or two have room for."""
    return f" Others: {shortened(', '.join(names), 100)}" if names else ""


def _near(what: str) -> str:
    """The task that is spelt nearly so, or '' for none."""
    names = task_names()
    same = [name for name in names if name.partition("/")[2] == what]
    return next(iter(same or difflib.get_close_matches(what, names, 1, 0.8)), "")
