"""The commands of the terminal interface: tui and attach."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

import typer

from pilotfish.agent.cli_options import RecordDir, settings_of
from pilotfish.agent.cli_output import Run


def add_to(app: typer.Typer) -> None:
    """Make them commands of `pilotfish`."""
    for command in (tui, attach):
        app.command()(command)


def tui(record_dir: RecordDir = None) -> None:
    """Watch and steer runs in the terminal; start new ones.

    Each run is a process of its own: leaving the interface, or losing the terminal, ends none of them. Press
    ? for every key.
    """
    _need_terminal("tui")
    with _opening():
        from pilotfish.agent.tui.app import play

    _tell_who_waits(play(settings_of(record_dir=record_dir).record_dir))


def attach(folder: Run) -> None:
    """Watch and steer one run in the terminal, from any terminal and as often as you like."""
    _need_terminal("attach")
    with _opening():
        from pilotfish.agent.tui.app import play

    _tell_who_waits(play(folder.parent, folder))


@contextlib.contextmanager
def _opening() -> Iterator[None]:
    """Say on an empty terminal that something comes: on a busy machine its parts take seconds to read."""
    sys.stdout.write("Opening the interface…")
    sys.stdout.flush()
    try:
        yield
    finally:
        sys.stdout.write("\r\x1b[K")
        sys.stdout.flush()


def _tell_who_waits(runs: list[str]) -> None:
    from pilotfish.agent.show import say

    for name in runs:
        say(f"{name} waits for you: pilotfish attach {name}", sys.stderr)


def _need_terminal(command: str) -> None:
    """Say what to use instead where there is no terminal that an interface can be drawn on."""
    term = os.environ.get("TERM", "")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        _refuse(f"`pilotfish {command}` needs a terminal")
    if term in ("", "dumb"):
        _refuse(f"`pilotfish {command}` needs a terminal that can draw, and TERM is '{term}'")


def _refuse(why: str) -> NoReturn:
    instead = "`pilotfish show RUN` tells a run's steps, `pilotfish steer RUN` steers one"
    raise typer.BadParameter(f"{why}; {instead}")
