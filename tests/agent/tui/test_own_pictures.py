"""Pictures in terminals that have their own: what a Kitty and one with Sixel are sent, through the gate."""

from __future__ import annotations

import os
import sys

import pytest

from .ptys import written

_APP = """
import numpy as np
from textual.app import App
from pilotfish.agent.events import CallData
from pilotfish.agent.tui.screen_view import ScreenView
from pilotfish.agent.tui.terminal import Terminal
from pilotfish.agent.tui.text import Gate

class Shown(App):
    terminal = Terminal({kind!r}, (8, 16))
    def __init__(self):
        super().__init__()
        self._filters.append(Gate())
    def compose(self):
        yield ScreenView()
    def on_mount(self):
        frame = np.full((200, 320, 3), 90, np.uint8)
        call = CallData(id="c", name="computer", arguments=dict(action="left_click", coordinate=[500, 500]))
        self.query_one(ScreenView).show(frame, (5, 5), call)
        self.set_timer(1.5, self.exit)

Shown().run()
print("ENDED", flush=True)
"""


@pytest.mark.parametrize(
    ("kind", "begins", "shows"),
    [("kitty", "\x1b_Gi=", "\U0010eeee\u0305\u0305"), ("sixel", "\x1bP", "#0;2;")],
)
def test_pictures_reach_the_terminal(kind: str, begins: str, shows: str) -> None:
    program = _APP.format(kind=kind)
    got = written([sys.executable, "-c", program], os.environ | {"TERM": "xterm-256color"})
    assert begins in got, got[-6000:]
    assert shows in got
    assert "\ufffd" not in got
    assert "left click at pixel (160, 100) #5a5a5a" in got
