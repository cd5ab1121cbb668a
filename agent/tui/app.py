"""The application: its look, its links to runs, and the screens they are shown on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen
from textual.worker import WorkerFailed

from pilotfish.agent.control.client import ControlError
from pilotfish.agent.tui.colours import Coloured
from pilotfish.agent.tui.keys import written
from pilotfish.agent.tui.link import Change, Link
from pilotfish.agent.tui.terminal import Terminal, find_out
from pilotfish.agent.tui.text import LOW, Gate, notify, sentence

_RESTORED = (
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # the mouse
    "\x1b[?1004l\x1b[?2004l\x1b[?2048l\x1b[<u"  # focus, pasting, sizes, Kitty's keys
    "\x1b7\x1b[?1049l\x1b8\x1b[?25h\x1b[0m"  # the screen, with the cursor where it was
)
"""Undoes what an interface that was killed has left behind; of a terminal in order it changes nothing."""


@runtime_checkable
class Hears(Protocol):
    """A screen that is told of what runs say."""

    def heard(self, link: Link, change: Change) -> None:
        """Something has changed."""
        ...


class Interface(Coloured):
    """`pilotfish tui` and `pilotfish attach`. run: opened at once, and all there is."""

    CSS_PATH = "styles.tcss"
    TITLE = "Pilotfish"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "help", "Help", show=False),
        # Of priority, or they would do nothing while a dialog is open.
        Binding("f2", "light_or_dark", "Light or dark", show=False, priority=True),
        Binding(
            "f4",
            "rules",
            "Rules",
            show=False,
            priority=True,
            tooltip="Which calls run, are asked about or are denied",
        ),
    ]

    def __init__(
        self, record_dir: Path, *, run: Path | None = None, terminal: Terminal | None = None
    ) -> None:
        super().__init__()
        self.animation_level = "none"  # a terminal may be far away
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]
        self.VERTICAL_BREAKPOINTS = [(0, "-tiny"), (8, "-low"), (LOW, "-tall")]
        self.record_dir, self.run_folder = record_dir, run
        self.terminal = terminal or Terminal("words")
        self.links: dict[Path, Link] = {}
        self.left_waiting: list[str] = []
        """The runs that waited for a person when the interface was left."""
        self._filters.append(Gate())

    def on_mount(self) -> None:
        """Show home, or the one run."""
        from pilotfish.agent.tui.home import Home
        from pilotfish.agent.tui.run_screen import RunScreen

        self.push_screen(Home() if self.run_folder is None else RunScreen(self.run_folder))

    async def link(self, folder: Path) -> Link | None:
        """The connection to a run, made if there is none; None when no process plays it."""
        link = self.links.get(folder)
        if link is None:
            link = self.links[folder] = Link(folder, self._heard)
        if not link.connected:
            try:
                await link.open()
            except ControlError:
                return None
        return link

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What the command palette offers: all that has a key here, and what belongs to the application."""
        offered = set()
        for node in (screen, self):
            for binding in Binding.make_bindings(type(node).BINDINGS):
                action = f"{'app.' if node is self else ''}{binding.action}".replace("app.app.", "app.")
                if binding.description and action not in offered and self._may(node, binding.action):
                    offered.add(action)
                    says = binding.tooltip or binding.description
                    run = partial(screen.run_action, action)
                    yield SystemCommand(binding.description, f"{says} ({written(binding.key)})", run)
        yield SystemCommand("Quit", "Leave; runs go on by themselves (Ctrl+Q)", self.action_quit)

    @staticmethod
    def _may(node: DOMNode, action: str) -> bool:
        return node.check_action(action.partition("(")[0], ()) is True

    def action_help(self) -> None:
        """Every key."""
        from pilotfish.agent.tui.dialogs import Help

        if not isinstance(self.screen, Help):
            self.push_screen(Help(self.screen))

    def action_rules(self) -> None:
        """Show the rules in the user's configuration."""
        from pilotfish.agent.rule_file import RuleFileError, save_rules, saved_rules
        from pilotfish.agent.settings import SettingsError, load_settings
        from pilotfish.agent.tui.rules import RulesScreen

        if any(isinstance(screen, RulesScreen) for screen in self.screen_stack):
            if not isinstance(self.screen, RulesScreen):
                notify(self, "The rules are open already; Esc goes back to them.")
            return
        try:
            default = load_settings({}).default_verdict
            self.push_screen(RulesScreen(saved_rules(), save_rules, default=default))
        except (RuleFileError, SettingsError) as error:
            notify(self, sentence(error), severity="error")

    def _fatal_error(self) -> None:
        """End after a fault of the interface; who has started it tells of it, with no text of a run in it."""
        self._close_messages_no_wait()

    async def on_unmount(self) -> None:
        """Leave the runs to themselves."""
        self.left_waiting = [folder.name for folder, link in self.links.items() if link.questions]
        for link in self.links.values():
            await link.close()

    def _heard(self, link: Link, change: Change) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, Hears):
                screen.heard(link, change)


def play(record_dir: Path, run: Path | None = None) -> list[str]:
    """Show the interface until its user leaves it; returns the runs that wait for one."""
    _restore_terminal()
    app = Interface(record_dir, run=run, terminal=find_out())
    with contextlib.suppress(asyncio.CancelledError):
        app.run()
    fault = app._exception
    if fault is not None:
        raise fault.error if isinstance(fault, WorkerFailed) else fault
    return app.left_waiting


def _restore_terminal() -> None:
    """Put the terminal in order: an earlier interface may have been killed in it."""
    out = sys.__stdout__
    if out is None or not out.isatty():
        return
    os.write(out.fileno(), _RESTORED.encode())
    with contextlib.suppress(termios.error):
        modes = termios.tcgetattr(out.fileno())
        if not modes[3] & termios.ICANON:  # as Textual sets it, and no shell leaves it
            modes[0] |= termios.ICRNL | termios.IXON
            modes[3] |= termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN
            termios.tcsetattr(out.fileno(), termios.TCSANOW, modes)
