"""A form for the arguments of a call: a field each, or all of them as JSON."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button

from pilotfish.agent.events import CallData
from pilotfish.agent.safetext import visible
from pilotfish.agent.tui.fields import PlainArea, label
from pilotfish.agent.tui.in_turn import in_turn
from pilotfish.agent.tui.text import Plain, PlainButton
from pilotfish.tools.base import misfit
from pilotfish.tools.registry import TOOLS, make_tools


class EditArguments(ModalScreen[dict[str, Any] | None]):
    """Returns the arguments that the person wants instead, or None when nothing is to change."""

    DEFAULT_CSS = """
    EditArguments { align: center middle; }
    EditArguments > Vertical { width: 100%; max-width: 110; height: 100%; background: $surface;
        padding: 0 1; }
    EditArguments VerticalScroll { height: 1fr; }
    EditArguments PlainArea { height: auto; min-height: 1; max-height: 16; border: none; padding: 0 1;
        background: $boost; }
    EditArguments PlainArea:focus { background: $primary 20%; }
    EditArguments .error { color: $text-error; height: auto; max-height: 4; }
    EditArguments Horizontal { height: 1; }
    EditArguments Button { width: auto; min-width: 0; margin: 0 1 0 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "keep", "Keep", priority=True),
        Binding("f3", "json", "As JSON", priority=True),
        Binding("escape", "leave", "Back"),
    ]

    def __init__(self, call: CallData) -> None:
        super().__init__()
        self._call = call
        self._names: list[str] | None = None
        """Of the fields, in their order; None while all is one JSON text."""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Plain(label(f"Arguments of {visible(self._call.name, one_line=True)}"))
            yield VerticalScroll(id="fields")
            yield Plain(classes="error")
            with Horizontal():
                yield PlainButton("Ctrl+S Keep", id="keep", variant="primary", compact=True)
                yield PlainButton("F3 JSON", id="json", compact=True)
                yield PlainButton("Esc Back", id="leave", compact=True)

    async def on_mount(self) -> None:
        """Begin with a field each."""
        await self._show(self._call.arguments, whole=not self._call.arguments)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The same as the keys."""
        event.stop()
        self.run_worker(self.run_action(event.button.id or "leave"))

    def on_text_area_changed(self) -> None:
        """What was wrong with the text before is no more of use."""
        self._say("")

    @in_turn
    async def action_json(self) -> None:
        """Change between fields and JSON."""
        arguments = self._read()
        if arguments is not None:
            await self._show(arguments, whole=self._names is not None)

    @in_turn
    def action_keep(self) -> None:
        """Return what stands in the fields, if the tool takes it."""
        arguments = self._read()
        if arguments is None:
            return
        if self._call.name in TOOLS:
            wrong = misfit(make_tools([self._call.name])[0], arguments, self._call.arguments)
            if wrong is not None:
                self._say(wrong)
                return
        self.dismiss(arguments)

    def action_leave(self) -> None:
        """Change nothing."""
        self.dismiss(None)

    async def _show(self, arguments: dict[str, Any], *, whole: bool) -> None:
        self._say("")
        self._names = None if whole else list(arguments)
        self.query_one("#json", PlainButton).label = "F3 JSON" if self._names is not None else "F3 Fields"
        made: list[Widget] = []
        if whole:
            made = [Plain(label("All arguments", "JSON")), PlainArea(_json(arguments, 2))]
        else:
            for name, value in arguments.items():
                raw = isinstance(value, str) and PlainArea.can_edit(value)
                area = PlainArea(value if raw else _json(value, None), classes="raw" if raw else "json")
                area.move_cursor(area.document.end)
                made += [Plain(label(name, "text" if raw else "JSON")), area]
        fields = self.query_one("#fields", VerticalScroll)
        with self.app.batch_update():
            await fields.remove_children()
            await fields.mount_all(made)
        self.query(PlainArea).first().focus()

    def _read(self) -> dict[str, Any] | None:
        """What stands in the fields; None, with the reason shown, where it is not JSON."""
        areas = list(self.query(PlainArea))
        if self._names is None:
            value = self._parsed(areas[0].text, "The text")
            if value is not None and not isinstance(value[0], dict):
                self._say("The text is JSON, but not an object of named arguments; put it in { }.")
                return None
            return None if value is None else value[0]
        arguments: dict[str, Any] = {}
        for name, area in zip(self._names, areas, strict=True):
            if area.has_class("raw"):
                arguments[name] = area.text
                continue
            value = self._parsed(area.text, name)
            if value is None:
                return None
            arguments[name] = value[0]
        return arguments

    def _parsed(self, text: str, name: str) -> tuple[Any] | None:
        try:
            value = json.loads(text)
            json.dumps(value, allow_nan=False)
            return (value,)
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            self._say(f"{name} is not JSON at {where} ({error.msg}); mend it or go back.")
        except (ValueError, RecursionError):
            self._say(f"{name} holds a number or a nesting that is too much for JSON; write another.")
        return None

    def _say(self, sentence: str) -> None:
        error = self.query_one(".error", Plain)
        error.display = bool(sentence)
        error.update(sentence)


def _json(value: Any, indent: int | None) -> str:
    """JSON in which every character shows as itself."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join(char if char == "\n" or visible(char) == char else json.dumps(char)[1:-1] for char in text)
