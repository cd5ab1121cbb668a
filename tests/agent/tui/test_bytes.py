"""What reaches a real terminal: no control code of hostile text, whatever shows it. And the rule that only
the module `text` makes widgets that would read a `str` as markup.
"""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import sys
from pathlib import Path

from textual.widget import Widget
from textual.widgets import Button, DataTable, Label, OptionList, Static

import pilotfish.agent.tui
from pilotfish.agent.safetext import visible
from pilotfish.agent.tui import fields, text

from .ptys import written

PACKAGE = Path(pilotfish.agent.tui.__file__).parent
_READS_MARKUP = {
    *("Static", "Label", "Button", "OptionList", "Option", "DataTable", "Tree", "Log", "RichLog", "Markdown"),
    *("Link", "Collapsible", "Tab", "Tabs", "TabPane", "Select", "SelectionList", "Pretty", "Toast"),
}
"""Widgets of Textual that take a `str` for markup, or do not show what is in it."""

_APP = """
import sys
sys.path.insert(0, {folder!r})
from textual.app import App
from pilotfish.agent.events import CallData
from pilotfish.agent.control.wire import Question
from pilotfish.agent.tui import text
from pilotfish.agent.tui.approval import ApprovalDialog
from pilotfish.agent.tui.fields import PlainInput
from pilotfish.agent.tui.text import Gate, Plain, PlainOptions
from fuzz import strings
words = strings(60) if {hostile} else ["harmless words"] * 60

class Shown(App):
    def __init__(self):
        super().__init__()
        self._filters.append(Gate())
    def compose(self):
        yield Plain(words[0][:200])
        yield PlainOptions(*words[1:6])
        yield PlainInput(words[7])
    def on_mount(self):
        text.notify(self, words[20])
        self.set_timer(0.5, self.ask)
    def ask(self):
        call = CallData(id="c", name=words[23], arguments=dict(enumerate_words()))
        dialog = ApprovalDialog(Question(question=1, step=1, call=call, why=words[24], diff=words[25],
                                         warnings=words[26:28], run_warning=words[28]))
        self.push_screen(dialog)
        self.set_interval(0.1, lambda: dialog.query_one("ExactView").scroll_page_down(animate=False))
        self.set_timer(2.5, self.exit)

def enumerate_words():
    return ((str(index), word[:300]) for index, word in enumerate(words[30:]))

Shown().run()
print("ENDED", flush=True)
"""


def _written(hostile: bool) -> str:
    """All that an application writes to its terminal."""
    program = _APP.format(folder=str(Path(__file__).parent), hostile=hostile)
    return written(
        [sys.executable, "-c", program], os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    )


def _controls(written: str) -> tuple[set[str], str]:
    """The kinds of control sequences in what was written, and the rest of it."""
    sequence = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")
    kinds = set()
    for found in sequence.findall(written):
        # Colours and places differ; everything else is held against what harmless words need.
        kinds.add(re.sub(r"[\d;:]+", "#", found) if found[-1] in "mHABCDGd" else found)
    return kinds, sequence.sub("", written)


def test_hostile_text_adds_no_control_code_to_what_the_terminal_gets() -> None:
    needed, _ = _controls(_written(hostile=False))
    found, rest = _controls(_written(hostile=True))
    assert found <= needed
    odd = {char for char in rest if visible(char, one_line=True) != char} - {"\r", "\n"}
    assert odd == set()


def test_only_one_module_makes_widgets_that_could_read_markup() -> None:
    for path in PACKAGE.glob("*.py"):
        if path.name == "text.py":
            continue
        tree = ast.parse(path.read_text("utf-8"))
        textual = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("textual.widgets")
            for alias in node.names
        }
        for node in ast.walk(tree):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                assert name not in _READS_MARKUP & textual, (
                    f"{where}: {name} reads markup; use the one of text.py"
                )
                assert name not in ("from_markup", "render_str"), f"{where}: {name} parses markup"
                if name == "notify":
                    assert isinstance(node.func, ast.Name), f"{where}: use notify of text.py"
                if name in ("RadioButton", "Checkbox", "ToggleButton") and node.args:
                    label = node.args[0]
                    safe = isinstance(label, ast.Call) or (
                        isinstance(label, ast.Constant) and "[" not in str(label.value)
                    )
                    assert safe, f"{where}: give {name} a constant or plain(...)"
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.attr for target in targets if isinstance(target, ast.Attribute)]
                wrong = {"border_title", "border_subtitle", "tooltip"} & set(names)
                assert not wrong, f"{where}: {wrong} reads markup; give it plain(...) in text.py"


def test_every_widget_of_the_package_is_one_that_shows_text_as_it_is() -> None:
    safe: tuple[type[Widget], ...] = (text.Plain, text.PlainButton, text.PlainOptions)
    safe += (fields.PlainInput, fields.Tick, fields.Choice)
    for module in pkgutil.iter_modules([str(PACKAGE)]):
        for value in vars(importlib.import_module(f"pilotfish.agent.tui.{module.name}")).values():
            if not (isinstance(value, type) and issubclass(value, Widget)):
                continue
            if not value.__module__.startswith("pilotfish."):
                continue
            for unsafe in (Static, Label, Button, OptionList, DataTable):
                if issubclass(value, unsafe):
                    assert issubclass(value, safe), f"{value} reads markup"
