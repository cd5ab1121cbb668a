"""The process that watches a person's own display while the agent works there: banner and emergency stop.

`python -m pilotfish.sandbox.host_guard DISPLAY [MONITOR]`, started by `HostDesktop`. It is a process of its
own so that it notices a person at once, whatever the agent computes, and can tidy up when the agent is
killed. It writes one JSON object a line: `{"ready": sentence about the hot key}` or `{"error": sentence}`
first, then `{"stop": sentence}` when a person has stopped the run. It ends with its input, or at SIGTERM.

A person stops the run by the hot key, or by keeping the pointer in a corner of a monitor for a moment. The
agent may click into corners too. What it does comes through the XTEST device, and it notes each place before
it goes there; a motion of any other device in a corner, or of XTEST to a place that nobody noted (remote
desktops send those), is a person's.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import sys
import time
from types import FrameType
from typing import Any

from Xlib import XK, X, display, error
from Xlib.ext import xinput

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.host_banner import Banner
from pilotfish.sandbox.host_traces import GUARD_SELECTION, Traces
from pilotfish.sandbox.modifiers import ModifierEvents
from pilotfish.sandbox.monitors import Monitor, pick_monitor, read_monitors

HOT_KEY = "Ctrl+Alt+Escape"
TEXT = f"Pilotfish is using this desktop. To stop it: {HOT_KEY}, or the pointer in a corner"
CORNER_S = 0.1
"""Seconds in a corner after which it is meant."""
CORNER_PIXELS = 3
"""How far from the corner pixel, on both axes, still is the corner."""
_LOOK_S = 1.0
"""Seconds between two looks at the monitors."""
_HOT_MODIFIERS = X.ControlMask | X.Mod1Mask
# Caps Lock and Num Lock are modifiers too, and a grab is for one exact set of them.
_LOCKS = (0, X.LockMask, X.Mod2Mask, X.LockMask | X.Mod2Mask)
# A raw event's data: device, time, detail (a key code), and the physical device that it came from.
# Source: X Input Extension 2.2, RawEvent.
_RAW = struct.Struct("<HIIH")


class Guard:
    """One display's guard. `run` serves until its input ends."""

    def __init__(self, name: str, wanted: str | None) -> None:
        """Raises `SandboxError` when another guard watches the display."""
        self._display: Any = display.Display(name)
        self._root = self._display.screen().root
        self._traces = Traces(self._display)
        self._wanted = wanted
        self._monitors: list[Monitor] = []
        self._in_corner_since: float | None = None
        self._banner: Banner | None = None
        self._escape = 0
        self._own_devices: set[int] = set()
        self._take_over()
        # What an earlier run left when it was killed together with its guard.
        self._traces.release()
        self._traces.restore_map()
        self._hears_all = self._listen()
        self._look()

    def run(self) -> None:
        """Watch until standard input ends."""
        looked_s = time.monotonic()
        stopped = False
        while True:
            wait_s = _LOOK_S if self._in_corner_since is None else CORNER_S / 4
            if self._display.pending_events():  # read already, together with a reply
                wait_s = 0.0
            ready, _, _ = select.select([self._display.fileno(), sys.stdin], [], [], wait_s)
            if sys.stdin in ready and not os.read(0, 4096):
                return
            why = self._hear()
            if why and not stopped:
                stopped = True
                self._stop()
                _say({"stop": why})
            if not stopped and time.monotonic() - looked_s >= _LOOK_S:
                looked_s = time.monotonic()
                self._look()

    def close(self) -> None:
        """Take banner and selection away, and undo what is noted."""
        self._stop()
        self._traces.restore_map()
        self._traces.forget()
        self._display.close()

    @property
    def sentence(self) -> str:
        """What there is to say of the hot key."""
        if self._hears_all:
            return f"{HOT_KEY} stops the run, and so does the pointer in a corner of a monitor."
        return (
            f"{HOT_KEY} stops the run, but another program has it too and acts on it as well; the pointer in "
            "a corner of a monitor stops the run too."
        )

    def _take_over(self) -> None:
        """Own the selection that says that the display is guarded."""
        atom = self._display.intern_atom(GUARD_SELECTION)
        if self._traces.is_guarded():
            raise SandboxError("another run works on this desktop already; stop it first.")
        self._seat = self._root.create_window(-10, -10, 1, 1, 0, X.CopyFromParent, override_redirect=True)
        self._seat.set_selection_owner(atom, X.CurrentTime)
        self._display.sync()
        if self._display.get_selection_owner(atom) != self._seat:
            raise SandboxError("another run works on this desktop already; stop it first.")

    def _listen(self) -> bool:
        """Hear every device; returns whether the hot key is kept from other programs too."""
        # Since 2.1 raw events come also while another program has grabbed keyboard or pointer, as an open
        # menu does. python-xlib's own method asks for 2.0.
        opcode = self._display.display.get_extension_major(xinput.extname)
        xinput.XIQueryVersion(display=self._display.display, opcode=opcode, major_version=2, minor_version=2)
        self._modifiers = ModifierEvents(self._display)
        mask = xinput.RawMotionMask | xinput.RawKeyPressMask
        self._root.xinput_select_events([(xinput.AllMasterDevices, mask)])
        self._find_devices()
        return self._grab_hot_key()

    def _find_devices(self) -> None:
        devices = self._display.xinput_query_device(xinput.AllDevices).devices
        self._own_devices = {one.deviceid for one in devices if "XTEST" in one.name}

    def _grab_hot_key(self) -> bool:
        if self._escape:
            for locks in _LOCKS:
                self._root.ungrab_key(self._escape, _HOT_MODIFIERS | locks)
        self._escape = self._display.keysym_to_keycode(XK.XK_Escape)
        refused = error.CatchError(error.BadAccess)
        for locks in _LOCKS:
            self._root.grab_key(
                self._escape, _HOT_MODIFIERS | locks, False, X.GrabModeAsync, X.GrabModeAsync, onerror=refused
            )
        self._display.sync()
        return refused.get_error() is None

    def _look(self) -> None:
        """See where the monitors are, and put the banner on the one that the model sees."""
        monitors = read_monitors(self._display)
        if monitors == self._monitors:
            return
        self._monitors = monitors
        self._find_devices()
        try:
            monitor = pick_monitor(monitors, self._wanted)
        except SandboxError:  # unplugged; the agent finds that out by itself
            return
        if self._banner is None:
            self._banner = Banner(self._display, monitor, TEXT)
        else:
            self._banner.show(monitor)

    def _hear(self) -> str | None:
        """Deal with what the server tells; returns why the run must stop, if it must."""
        why = None
        while self._display.pending_events():
            event = self._display.next_event()
            self._modifiers.follow(event)
            if event.type == X.VisibilityNotify and event.state != X.VisibilityUnobscured:
                if self._banner is not None:
                    self._banner.keep_above()
            elif event.type == X.KeyPress:
                why = f"The user pressed {HOT_KEY}."
            elif event.type == X.MappingNotify:
                self._display.refresh_keyboard_mapping(event)
                if self._display.keysym_to_keycode(XK.XK_Escape) != self._escape:
                    self._grab_hot_key()
            elif event.type == self._display.extension_event.GenericEvent and isinstance(event.data, bytes):
                why = self._raw(event.evtype, event.data) or why
        return why or self._corner()

    def _raw(self, kind: int, data: bytes) -> str | None:
        _, _, detail, source = _RAW.unpack_from(data)
        if kind == xinput.RawKeyPress:
            held = self._modifiers.mask & _HOT_MODIFIERS == _HOT_MODIFIERS
            return f"The user pressed {HOT_KEY}." if held and detail == self._escape else None
        pointer = self._root.query_pointer()
        at = pointer.root_x, pointer.root_y
        if self._banner is not None:
            self._banner.pointer_at(*at)
        if not self._is_corner(at) or (source in self._own_devices and at == self._traces.pointer()):
            self._in_corner_since = None
        elif self._in_corner_since is None:
            self._in_corner_since = time.monotonic()
        return None

    def _corner(self) -> str | None:
        """Whether the pointer was kept in a corner for long enough."""
        since = self._in_corner_since
        if since is None or time.monotonic() - since < CORNER_S:
            return None
        pointer = self._root.query_pointer()
        self._in_corner_since = None
        if not self._is_corner((pointer.root_x, pointer.root_y)):
            return None
        return f"The user pushed the pointer into a corner, to {pointer.root_x}, {pointer.root_y}."

    def _is_corner(self, at: tuple[int, int]) -> bool:
        return any(
            abs(at[0] - x) <= CORNER_PIXELS and abs(at[1] - y) <= CORNER_PIXELS
            for monitor in self._monitors
            for x, y in monitor.corners
        )

    def _stop(self) -> None:
        """Nobody acts on the display without the selection's owner; then let go of what is down."""
        if self._seat is not None:
            self._seat.destroy()
            self._seat = None
        if self._banner is not None:
            self._banner.close()
            self._banner = None
        self._traces.release()


def _say(value: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # whoever started us is gone; the display still has to be tidied
        print(json.dumps(value), flush=True)


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def main() -> None:
    """Guard the display named on the command line."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        guard = Guard(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    except (SandboxError, error.DisplayError, error.XError) as trouble:
        _say({"error": str(trouble)})
        return
    try:
        _say({"ready": guard.sentence})
        guard.run()
    except error.ConnectionClosedError:
        return
    finally:
        with contextlib.suppress(error.ConnectionClosedError, OSError):
            guard.close()


if __name__ == "__main__":
    main()
