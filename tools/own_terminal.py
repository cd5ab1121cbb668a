"""The terminal that a run was started from, as a window of the display that the run acts on.

A person answers there what the model asks, so nothing that the model types or clicks may arrive there. It is
told by WINDOWID, which some terminals set, and by the process that made the terminal of our own session;
behind tmux or ssh neither leads to a window.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from Xlib import X
from Xlib.error import BadWindow
from Xlib.protocol import event

_FOCUS_S = 0.5


class OwnTerminal:
    """Knows the terminal's windows, and which window had the focus before the person went there."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._root = display.screen().root
        told = os.environ.get("WINDOWID", "")
        self._window = int(told) if told.isdigit() else 0
        self._process = _terminal_process()
        self._last: Any = None

    def note_focus(self) -> None:
        """Remember the active window, unless it is the terminal."""
        active = self._active()
        if active is not None and not self._is_own(active):
            self._last = active

    def give_focus_back(self, *, must: bool = True) -> None:
        """Activate the last active window if the person is in the terminal.

        Raises ValueError when there is none and `must`.
        """
        if not self._has_focus():
            return
        if self._last is not None:
            self._activate(self._last)
        deadline = time.monotonic() + _FOCUS_S
        while self._last is not None and time.monotonic() < deadline:
            if not self._has_focus():
                return
            time.sleep(0.01)
        if must:
            raise ValueError(
                "the keyboard goes to the terminal that Pilotfish was started from, which is out of bounds; "
                "click the window that you mean first"
            )

    def check_points(self, points: Sequence[Sequence[int] | None]) -> None:
        """Raises ValueError if one of these display pixels is in the terminal."""
        for point in points:
            if point is not None and any(self._matches(window) for window in self._windows_at(*point)):
                raise ValueError(
                    "that is in the terminal that Pilotfish was started from, which is out of bounds, so "
                    "nothing was done"
                )

    def _active(self) -> Any:
        found = self._root.get_full_property(
            self._display.intern_atom("_NET_ACTIVE_WINDOW"), X.AnyPropertyType
        )
        if found is None or isinstance(found.value, bytes) or not found.value or not found.value[0]:
            focus = self._display.get_input_focus().focus
            return None if isinstance(focus, int) or focus == self._root else focus
        return self._display.create_resource_object("window", found.value[0])

    def _has_focus(self) -> bool:
        focus = self._display.get_input_focus().focus
        return not isinstance(focus, int) and self._is_own(focus)

    def _is_own(self, window: Any) -> bool:
        """Whether a window or one that it lies in is the terminal's."""
        try:
            while not isinstance(window, int) and window != self._root:
                if self._matches(window):
                    return True
                window = window.query_tree().parent
        except BadWindow:
            pass
        return False

    def _matches(self, window: Any) -> bool:
        if window.id == self._window:
            return True
        try:
            made_by = window.get_full_property(self._display.intern_atom("_NET_WM_PID"), X.AnyPropertyType)
        except BadWindow:
            return False
        return self._process != 0 and made_by is not None and list(made_by.value)[:1] == [self._process]

    def _windows_at(self, x: int, y: int) -> Iterator[Any]:
        """The windows below a display pixel, from the outermost in."""
        window = self._root
        try:
            while True:
                inner = window.translate_coords(self._root, x, y).child
                if isinstance(inner, int):
                    return
                yield inner
                window = inner
        except BadWindow:
            return

    def _activate(self, window: Any) -> None:
        """Ask the window manager for it. Source: Extended Window Manager Hints, _NET_ACTIVE_WINDOW."""
        kind = self._display.intern_atom("_NET_ACTIVE_WINDOW")
        message = event.ClientMessage(window=window, client_type=kind, data=(32, [2, X.CurrentTime, 0, 0, 0]))
        self._root.send_event(message, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
        self._display.sync()


def _terminal_process() -> int:
    """The process that made the terminal of the agent's session; 0 where there is no terminal."""
    try:
        fields = _status(os.getppid())
        session, terminal = int(fields[3]), int(fields[4])
        return int(_status(session)[1]) if terminal else 0
    except OSError:
        return 0


def _status(process: int) -> list[str]:
    """State, parent, group, session, terminal ... of a process. Source: proc(5), /proc/PID/stat."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
