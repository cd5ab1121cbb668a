"""The rules of the configuration: listed, added, edited, ordered, removed, tried out and saved."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from pilotfish.agent.policy import Rule
from pilotfish.agent.tui.colours import Coloured
from pilotfish.agent.tui.fields import PlainArea, PlainInput
from pilotfish.agent.tui.rules import RuleForm, RulesScreen, WhatIf
from pilotfish.agent.tui.text import Plain

from .pictures import SIZES, assert_light, assert_picture
from .screens import shown_text

RULES = [
    Rule(verdict="deny", tool="shell", command="rm *[a-z]"),
    Rule(verdict="ask", tool="computer", action="[/red]\x1b[2J"),
    Rule(verdict="allow", tool="shell", command="git *"),
]


class _App(Coloured):
    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        super().__init__()
        self.saved: list[list[Rule]] = []
        self.fails = ""
        self.rules = RulesScreen(rules, self._save, default="ask")

    def on_mount(self) -> None:
        self.push_screen(self.rules)

    def _save(self, rules: Sequence[Rule]) -> str:
        if self.fails:
            raise OSError(self.fails)
        self.saved.append(list(rules))
        return "/home/user/.config/pilotfish/config.toml"

    def said(self) -> str:
        return str(self.rules.query_one(".said", Plain).content)


async def test_rules_are_listed_as_they_are_and_changed_by_keys() -> None:
    app = _App()
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        shown = shown_text(app)
        assert 'deny  tool = "shell", command = "rm *[a-z]"' in shown
        assert 'ask   tool = "computer", action = "[/red]' in shown
        await pilot.press("J")
        assert app.rules.rules == [RULES[1], RULES[0], RULES[2]]
        await pilot.press("K", "K", "x")
        assert app.rules.rules == RULES[1:]
        assert "Not saved yet" in app.said()
        await pilot.press("escape")
        assert app.screen is app.rules
        assert "Esc again" in app.said()
        app.fails = "no room for [/] \x1b"
        await pilot.press("ctrl+s")
        assert app.said() == "no room for [/] \\x1b"
        app.fails = ""
        await pilot.press("ctrl+s")
        assert app.saved == [RULES[1:]]
        await pilot.press("escape")
        assert app.screen is not app.rules


async def test_a_rule_is_written_and_edited_in_a_form() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("e", "tab")
        assert re.search(r"^ +shell +$", shown_text(app), re.MULTILINE), "what is being edited is shown"
        await pilot.press("escape", "n")
        form = app.screen
        assert isinstance(form, RuleForm)
        await pilot.press("right", "left", "right", "right")  # what the arrows lead to is chosen by that
        form.query_one("#pattern-tool", PlainInput).value = "browser"
        form.query_one("#pattern-network", PlainInput).value = "*.example.org"
        await pilot.press("ctrl+s")
        assert app.rules.rules == [*RULES, Rule(verdict="deny", tool="browser", network="*.example.org")]
        await pilot.press("end", "e")
        form = app.screen
        assert isinstance(form, RuleForm)
        assert form.query_one("#pattern-network", PlainInput).value == "*.example.org"
        form.query_one("#pattern-network", PlainInput).value = ""
        await pilot.press("ctrl+s")
        assert app.rules.rules[-1] == Rule(verdict="deny", tool="browser")
        await pilot.press("home", "enter", "escape")
        assert app.rules.rules[0] == RULES[0]


async def test_a_call_is_tried_against_the_rules_as_they_stand() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("w")
        asked = app.screen
        assert isinstance(asked, WhatIf)
        said = asked.query_one(".said", Plain)
        assert str(said.content).startswith("allow: ")
        asked.query_one(PlainArea).text = '{"command": "git status; rm -f x"}'
        await pilot.pause()
        assert str(said.content).startswith("deny: ")
        asked.query_one(PlainArea).text = '{"command": "ls [/]"}'
        await pilot.pause()
        assert str(said.content).startswith("ask: ")
        asked.query_one(PlainArea).text = '{"command'
        await pilot.pause()
        assert "not a JSON object" in str(said.content)
        await pilot.press("escape")
        assert app.screen is app.rules


@pytest.mark.parametrize("of_run", [True, False])
async def test_every_field_of_the_form_is_reached_where_there_is_little_room(of_run: bool) -> None:
    app = _App()
    async with app.run_test(size=(40, 12)) as pilot:
        form = RuleForm({"verdict": "deny"}, of_run=of_run)
        app.push_screen(form)
        await pilot.pause()
        fields = [widget for widget in form.query(PlainInput) if widget.id]
        names = [str(field.id).removeprefix("pattern-") for field in fields]
        assert names == ["tool", "action", "command", "path", "network"]
        for key, order in (("tab", fields), ("shift+tab", fields[-2::-1])):
            for field in order:
                await pilot.press(key)
                await pilot.pause(0.1)
                assert app.focused is field
                above = form.query_one(f"#of-{field.id}", Plain)
                room = field.parent.region  # type: ignore[union-attr]
                assert room.contains_region(field.region), field.id
                assert room.contains_region(above.region), field.id
                await pilot.press("Z")
                await pilot.pause()
                shown = re.sub(r"[\s▀-▟]", "", shown_text(app))  # without blanks and the scroll bar
                assert re.sub(r"\s", "", str(above.content)) + field.value in shown
        line = shown_text(app).splitlines()[-1]
        words = ["Ctrl+S This run", "F5 All runs"] if of_run else ["Ctrl+S Keep"]
        assert all(word in line for word in [*words, "Esc Back"])


async def test_every_button_is_shown_where_there_is_little_room() -> None:
    app = _App()
    async with app.run_test(size=(40, 12)) as pilot:
        await pilot.pause()
        shown = shown_text(app)
        for words in ("n New", "e Edit", "Ctrl+S Save", "x Remove", "w Try", "Esc Back"):
            assert words in shown


@pytest.mark.parametrize("size", SIZES)
async def test_pictures(size: tuple[int, int]) -> None:
    app = _App()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await assert_picture(pilot, "rules")
        await pilot.press("e")
        await pilot.pause()
        assert all(verdict in shown_text(app) for verdict in ("allow", "ask", "deny"))
        await assert_picture(pilot, "rule-form")
        await assert_light(pilot, "rule-form")
        await pilot.press("escape")
        await pilot.pause()
        await assert_light(pilot, "rules")
