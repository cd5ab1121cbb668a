"""A display outside any sandbox that stands for a person's own desktop, and the person's hands on it."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from Xlib import XK, X, error
from Xlib.display import Display
from Xlib.protocol import rq

from .waiting import wait_for

WIDTH, HEIGHT = 3000, 900
THREE = {
    "LEFT": "1000/260x900/240+0+0",
    "*MID": "1000/260x900/240+1000+0",
    "RIGHT": "1000/260x800/240+2000+50",
}
"""Three monitors as `xrandr --setmonitor` takes them, one left of the primary, one lower and shorter."""
# Event numbers of the X Input Extension 1.5, from its first one on.
_VALUATOR, _KEY, _BUTTON, _MOTION = 0, 1, 3, 5


@dataclass(frozen=True)
class Seen:
    """An event that reached a window: kind, button number or key symbol, and root pixel."""

    kind: str
    code: int
    x: int
    y: int
    state: int


class _Raw(rq.Request):
    """A request given as bytes: python-xlib's own for XTEST knows no devices."""

    def __init__(self, display: Any, data: bytes) -> None:
        self._display, self._serial, self._onerror, self._binary = display, None, None, data
        display.send_request(self, 0)


class OwnDesktop:
    """One display. `hand_...` is the person: what comes from the devices that Xvfb has for mouse and keys."""

    wait_for = staticmethod(wait_for)

    def __init__(self, name: str) -> None:
        self.name = name
        self.display: Any = Display(name)
        self.root = self.display.screen().root
        devices = self.display.xinput_query_device(0).devices
        self._device = {one.name: one.deviceid for one in devices}
        self._first = self.display.query_extension("XInputExtension").first_event
        self._covers: list[Window] = []

    def set_monitors(self, monitors: dict[str, str]) -> None:
        """These monitors and no others; the first one takes the output, or all would not be used."""
        for line in self.xrandr("--listmonitors").splitlines()[1:]:
            self.xrandr("--delmonitor", line.split()[1].lstrip("+*"))
        for name, place in monitors.items():
            self.xrandr("--setmonitor", name, place, "screen" if name == next(iter(monitors)) else "none")

    def xrandr(self, *arguments: str) -> str:
        done = subprocess.run(
            ["xrandr", "-d", self.name, *arguments], capture_output=True, text=True, timeout=20
        )
        return done.stdout

    def hand_moves(self, x: int, y: int, *, by: bool = False) -> None:
        """Move the mouse itself, to a pixel or by a distance."""
        self._event(self._device["Xvfb mouse"], _MOTION, int(by), (x, y))

    def hand_presses(self, *keys: str) -> None:
        for key in keys:
            self._event(self._device["Xvfb keyboard"], _KEY, self.code(key), ())

    def hand_releases(self, *keys: str) -> None:
        for key in reversed(keys):
            self._event(self._device["Xvfb keyboard"], _KEY + 1, self.code(key), ())

    def hand_button(self, button: int, *, press: bool) -> None:
        self._event(self._device["Xvfb mouse"], _BUTTON if press else _BUTTON + 1, button, ())

    def code(self, key: str) -> int:
        return int(self.display.keysym_to_keycode(XK.string_to_keysym(key)))

    def pointer(self) -> tuple[int, int]:
        at = self.root.query_pointer()
        return at.root_x, at.root_y

    def keymap(self) -> list[list[int]]:
        """Every key code's symbols."""
        fresh = Display(self.name)
        try:
            return [list(row) for row in fresh.get_keyboard_mapping(8, 248)]
        finally:
            fresh.close()

    def keys_down(self) -> list[int]:
        down = self.display.query_keymap()
        return [code for code in range(8, 256) if down[code // 8] >> code % 8 & 1]

    def is_anything_down(self) -> bool:
        return bool(self.keys_down() or self.root.query_pointer().mask & 0x1F00)

    def window_named(self, name: str) -> Any:
        """The topmost window of the display with this title, or None."""
        for window in reversed(self.root.query_tree().children):
            with contextlib.suppress(error.BadWindow):  # it may close while we look
                if window.get_wm_name() == name:
                    return window
        return None

    def cover(self, x: int = 0, y: int = 0, width: int = WIDTH, height: int = HEIGHT) -> Window:
        """A window that has the keyboard and records what reaches it."""
        window = Window(self, x, y, width, height)
        self._covers.append(window)
        return window

    def tidy(self) -> None:
        """Take away what a test that failed left: its windows, and what is held down."""
        for window in self._covers:
            window.close()
        self._covers = []
        for code in self.keys_down():
            self._event(self._device["Xvfb keyboard"], _KEY + 1, code, ())
        for button in range(1, 4):
            self.hand_button(button, press=False)

    def _event(self, device: int, kind: int, detail: int, values: tuple[int, ...]) -> None:
        """Source: XTEST 2.2, XTestFakeInput with an event of the X Input Extension."""
        more = bool(values)
        data = struct.pack("<BB29xB", self._first + kind, detail, device | (0x80 if more else 0))
        if more:
            padded = [*values, *[0] * (6 - len(values))]
            data += struct.pack("<BBHHBB6i", self._first + _VALUATOR, device, 0, 0, len(values), 0, *padded)
        opcode = self.display.display.get_extension_major("XTEST")
        _Raw(self.display.display, struct.pack("<BBH", opcode, 2, 1 + len(data) // 4) + data)
        self.display.sync()


class Window:
    """See `OwnDesktop.cover`."""

    def __init__(self, desktop: OwnDesktop, x: int, y: int, width: int, height: int) -> None:
        self.display: Any = Display(desktop.name)
        mask = X.ButtonPressMask | X.ButtonReleaseMask | X.KeyPressMask | X.KeyReleaseMask
        root = self.display.screen().root
        self.window = root.create_window(
            x,
            y,
            width,
            height,
            0,
            X.CopyFromParent,
            event_mask=mask,
            override_redirect=True,
            background_pixel=0x204080,
        )
        self.window.map()
        self.window.set_input_focus(X.RevertToParent, X.CurrentTime)
        self.events()

    def events(self) -> list[Seen]:
        """What came since the last call."""
        self.display.sync()
        names = {X.ButtonPress: "press", X.ButtonRelease: "release", X.KeyPress: "key", X.KeyRelease: "keyup"}
        found = []
        while self.display.pending_events():
            event = self.display.next_event()
            if event.type in names:
                is_key = event.type in (X.KeyPress, X.KeyRelease)
                code = self.display.keycode_to_keysym(event.detail, 0) if is_key else event.detail
                found.append(Seen(names[event.type], code, event.root_x, event.root_y, event.state))
        return found

    def presses(self) -> list[tuple[int, int]]:
        """Where buttons were pressed since the last call."""
        return [(event.x, event.y) for event in self.events() if event.kind == "press"]

    def close(self) -> None:
        with contextlib.suppress(error.ConnectionClosedError):  # closed already
            self.display.close()


@contextmanager
def own_desktop(*flags: str) -> Iterator[OwnDesktop]:
    """A display with a window manager and three monitors, ended with the block."""
    with _started_display(*flags) as name:
        manager = subprocess.Popen(
            ["openbox", "--sm-disable"],
            env=os.environ | {"DISPLAY": name},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        desktop = OwnDesktop(name)
        try:
            atom = desktop.display.intern_atom("_NET_SUPPORTING_WM_CHECK")
            wait_for(lambda: desktop.root.get_full_property(atom, X.AnyPropertyType))
            desktop.set_monitors(THREE)
            yield desktop
        finally:
            manager.terminate()
            manager.wait()
            desktop.display.close()


@contextmanager
def _started_display(*flags: str) -> Iterator[str]:
    read, write = os.pipe()
    argv = ["Xvfb", "-displayfd", str(write), "-screen", "0", f"{WIDTH}x{HEIGHT}x24"]
    server = subprocess.Popen(
        [*argv, "-nolisten", "tcp", "-noreset", *(flags or ["-ac"])],
        pass_fds=[write],
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    with os.fdopen(read) as number:
        name = f":{number.readline().strip()}"
    try:
        yield name
    finally:
        server.terminate()
        server.wait()
