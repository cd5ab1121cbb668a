"""The rules that say which calls run, are asked about or are denied: to read, to try out, to change."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import ValidationError
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, OptionList

from pilotfish.agent.control import wire
from pilotfish.agent.events import CallData
from pilotfish.agent.policy import Policy, Rule, Verdict, spelt
from pilotfish.agent.safetext import shortened
from pilotfish.agent.tui.dialogs import of_no_use
from pilotfish.agent.tui.fields import Choice, Choices, PlainArea, PlainInput, label
from pilotfish.agent.tui.in_turn import in_turn
from pilotfish.agent.tui.text import Plain, PlainButton, PlainOptions, option, sentence, stand_close

_NARROW = 60
"""Columns below which buttons stand closer, and in two lines if need be."""
VERDICTS: tuple[Verdict, ...] = ("allow", "ask", "deny")
PATTERNS = [name for name in Rule.model_fields if name != "verdict"]
_NOTES = {
    "tool": "a tool's name; * is any",
    "action": "what the tool is to do, as left_click; * is any",
    "command": "a shell command, as git *; empty is any",
    "path": "a file that a call names, as secrets/*; empty is any",
    "network": "a host that a call names, as *.example.org; empty is any",
}
_STYLE = """
{0} {{ align: center middle; }}
{0} > Vertical {{ width: 100%; max-width: 110; height: 100%; background: $surface; padding: 0 1; }}
{0} VerticalScroll, {0} PlainOptions {{ height: 1fr; }}
{0} PlainOptions {{ border: none; padding: 0; }}
{0} PlainInput {{ height: 1; padding: 0 1; background: $boost; }}
{0} PlainInput, {0} PlainInput:focus, {0} PlainArea, {0} PlainArea:focus {{ border: none; }}
{0} PlainInput:focus, {0} PlainArea:focus {{ background: $primary 20%; }}
{0} PlainArea {{ height: auto; min-height: 3; max-height: 12; padding: 0 1; }}
{0} PlainArea {{ background: $boost; }}
{0} RadioSet {{ layout: horizontal; border: none; padding: 0; height: 1; width: auto; }}
{0} RadioSet:focus, {0} PlainOptions:focus {{ border: none; padding: 0; }}
{0} Choice {{ width: auto; margin: 0 2 0 0; }}
{0} .said {{ height: auto; max-height: 5; }}
{0} .error {{ color: $text-error; height: auto; max-height: 4; }}
{0} Horizontal {{ height: 1; width: auto; }}
{0} Button {{ width: auto; min-width: 0; margin: 0 1 0 0; }}
{0} .answers {{ height: auto; layout: horizontal; }}
{0}.narrow .answers {{ layout: vertical; }}
"""


def rule_words(rule: Rule) -> str:
    """A rule on one line, with every pattern that it has."""
    return f"{rule.verdict:5} {spelt(rule)}"


def _fit(screen: ModalScreen[Any]) -> None:
    """Have the buttons stand as the room allows."""
    narrow = screen.size.width < _NARROW
    screen.set_class(narrow, "narrow")
    stand_close(screen, narrow)


class RuleForm(ModalScreen[wire.AddRule | None]):
    """Returns a rule that the person wrote, and whether it is to be kept for later runs."""

    DEFAULT_CSS = _STYLE.format("RuleForm")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "keep(False)", "Keep", priority=True),
        Binding("f5", "keep(True)", "For all runs", priority=True),
        Binding("escape", "leave", "Back"),
    ]

    def __init__(self, rule: Mapping[str, Any], *, of_run: bool = True) -> None:
        """of_run: whether it can hold for one run only."""
        super().__init__()
        self._rule = rule
        self._of_run = of_run

    def compose(self) -> ComposeResult:
        with Vertical():
            with VerticalScroll():
                yield Plain(
                    "A rule. It holds for calls that fit all its patterns; * and ? stand for anything."
                )
                with Choices():
                    for verdict in VERDICTS:
                        yield Choice(verdict, verdict == self._rule.get("verdict", "allow"))
                for name in PATTERNS:
                    value = self._rule.get(name)
                    note = _NOTES.get(name, "a pattern; empty is any")
                    yield Plain(label(name, note), id=f"of-pattern-{name}")
                    yield PlainInput("" if value is None else str(value), id=f"pattern-{name}")
            yield Plain(classes="error")
            with Horizontal():
                first = "Ctrl+S This run" if self._of_run else "Ctrl+S Keep"
                yield PlainButton(first, id="run", variant="primary", compact=True)
                if self._of_run:
                    yield PlainButton("F5 All runs", id="all", compact=True)
                yield PlainButton("Esc Back", id="back", compact=True)

    def on_mount(self) -> None:
        """Begin with the verdict."""
        self.query_one(Choices).focus()

    def on_resize(self) -> None:
        """There is another room."""
        _fit(self)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Show what stands above the field with it."""
        field = event.widget
        if isinstance(field, PlainInput):
            above = self.query_one(f"#of-{field.id}")
            self.call_after_refresh(above.scroll_visible, animate=False, immediate=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The same as the keys."""
        event.stop()
        if event.button.id == "back":
            self.action_leave()
        else:
            self.action_keep(event.button.id == "all")

    @in_turn
    def action_keep(self, save: bool) -> None:
        """Return the rule, if it is one."""
        given: dict[str, Any] = {"verdict": VERDICTS[max(0, self.query_one(Choices).pressed_index)]}
        for name in PATTERNS:
            text = self.query_one(f"#pattern-{name}", PlainInput).value
            if text:
                given[name] = text
        try:
            rule = Rule.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the rule"
            value = shortened(repr(first["input"]), 60)
            self.query_one(".error", Plain).update(f"{where} is {value}, which does not fit: {first['msg']}.")
            return
        kept = rule.model_dump(exclude_defaults=True, mode="json") | {"verdict": rule.verdict}
        self.dismiss(wire.AddRule(rule=kept, save=save and self._of_run))

    def action_leave(self) -> None:
        """Write none."""
        self.dismiss(None)


class WhatIf(ModalScreen[None]):
    """Says what the rules do with a call that the person makes up."""

    DEFAULT_CSS = _STYLE.format("WhatIf")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Back")]

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._policy = policy

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Plain("What would happen with this call? Esc goes back.")
            with VerticalScroll():
                yield Plain(label("tool"))
                yield PlainInput("shell")
                yield Plain(label("arguments", "JSON"))
                yield PlainArea(json.dumps({"command": "git status"}, indent=2))
            yield Plain(classes="said")

    def on_mount(self) -> None:
        """Judge the call as it stands."""
        self.query_one(PlainArea).focus()
        self._judge()

    def on_input_changed(self) -> None:
        """Judge anew."""
        self._judge()

    def on_text_area_changed(self) -> None:
        """Judge anew."""
        self._judge()

    def _judge(self) -> None:
        said = self.query_one(".said", Plain)
        try:
            arguments = json.loads(self.query_one(PlainArea).text)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            said.update("The arguments are not a JSON object yet.")
            return
        found = self._policy.judge(
            CallData(id="", name=self.query_one(PlainInput).value, arguments=arguments)
        )
        said.update(f"{found.verdict}: {found.why}")


class RulesScreen(ModalScreen[None]):
    """The rules of the configuration, in their order."""

    DEFAULT_CSS = _STYLE.format("RulesScreen")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "new", "New rule"),
        Binding("e", "edit", "Edit the rule"),
        Binding("x,delete", "remove", "Remove the rule"),
        Binding("shift+up,K", "move(-1)", "Move it up"),
        Binding("shift+down,J", "move(1)", "Move it down"),
        Binding("w", "what_if", "What would happen with a call"),
        Binding("ctrl+s", "save", "Save"),
        Binding("escape", "leave", "Back"),
    ]

    def __init__(
        self,
        rules: Sequence[Rule],
        save: Callable[[Sequence[Rule]], str],
        *,
        default: Verdict = "allow",
        on_host: bool = False,
    ) -> None:
        """save: writes the rules to the configuration and returns where that is; what it raises is shown."""
        super().__init__()
        self.rules = list(rules)
        self._saved = list(rules)
        self._save, self._default, self._on_host = save, default, on_host

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Plain("Rules of runs to come. A deny beats an ask, an ask beats an allow.")
            yield PlainOptions()
            yield Plain(classes="said")
            with Container(classes="answers"):
                with Horizontal():
                    yield PlainButton("n New", id="new", compact=True)
                    yield PlainButton("e Edit", id="edit", compact=True)
                    yield PlainButton("Ctrl+S Save", id="save", variant="primary", compact=True)
                with Horizontal():
                    yield PlainButton("x Remove", id="remove", compact=True)
                    yield PlainButton("w Try", id="what_if", compact=True)
                    yield PlainButton("Esc Back", id="leave", compact=True)

    def on_mount(self) -> None:
        """List them."""
        self._list(0)
        self.query_one(PlainOptions).focus()

    def on_resize(self) -> None:
        """There is another room."""
        _fit(self)

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        """The same as the keys."""
        event.stop()
        await self.run_action(event.button.id or "leave")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click on a rule."""
        event.stop()
        self.action_edit()

    def on_key(self, event: events.Key) -> None:
        """Say of a key that it is none here."""
        if words := of_no_use(self, event):
            self._say(words)

    def action_new(self) -> None:
        """Write a rule; it comes last."""
        self.app.push_screen(RuleForm({}, of_run=False), lambda made: self._put(made, len(self.rules)))

    def action_edit(self) -> None:
        """Change the chosen rule."""
        index = self._chosen
        if index is not None:
            form = RuleForm(self.rules[index].model_dump(mode="json"), of_run=False)
            self.app.push_screen(form, lambda made: self._put(made, index))

    def action_remove(self) -> None:
        """Take the chosen rule out."""
        if (index := self._chosen) is not None:
            del self.rules[index]
            self._list(index)

    def action_move(self, by: int) -> None:
        """Move the chosen rule among the others."""
        index = self._chosen
        if index is not None and 0 <= index + by < len(self.rules):
            self.rules.insert(index + by, self.rules.pop(index))
            self._list(index + by)

    def action_what_if(self) -> None:
        """Try the rules, saved or not, with a call."""
        self.app.push_screen(WhatIf(Policy(self.rules, default=self._default, on_host=self._on_host)))

    def action_save(self) -> None:
        """Write them to the configuration."""
        try:
            where = self._save(self.rules)
        except Exception as error:
            self._say(sentence(error))
            return
        self._saved = list(self.rules)
        self._list(self._chosen or 0)
        self._say(f"Saved in {where}; runs that start from now on hold to them.")

    def action_leave(self) -> None:
        """Go back; what is not saved is lost, which is said once."""
        if self.rules != self._saved and not self.has_class("warned"):
            self.add_class("warned")
            self._say("The rules are not saved: Ctrl+S saves them, Esc again leaves them as they were.")
            return
        self.dismiss(None)

    @property
    def _chosen(self) -> int | None:
        index = self.query_one(PlainOptions).highlighted
        return index if index is not None and index < len(self.rules) else None

    def _put(self, made: wire.AddRule | None, index: int) -> None:
        if made is not None:
            self.rules[index : index + 1] = [Rule.model_validate(made.rule)]
            self._list(index)

    def _list(self, chosen: int) -> None:
        listed = self.query_one(PlainOptions)
        listed.clear_options()
        listed.add_options([option(rule_words(rule)) for rule in self.rules])
        if self.rules:
            listed.highlighted = max(0, min(chosen, len(self.rules) - 1))
        self.remove_class("warned")
        if not self.rules:
            rest = f"every call is {_past(self._default)}, unless a run is started otherwise"
            self._say(f"There are no rules: {rest}. n writes one.")
        else:
            rest = f"A call that no rule fits is {_past(self._default)}."
            self._say(rest if self.rules == self._saved else f"{rest} Not saved yet.")

    def _say(self, words: str) -> None:
        self.query_one(".said", Plain).update(words)


def _past(verdict: Verdict) -> str:
    return {"allow": "allowed", "ask": "asked about", "deny": "denied"}[verdict]
