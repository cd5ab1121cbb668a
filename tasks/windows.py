"""A sandbox's display from outside: wait for windows, wait until it is quiet, let go of what is held."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import mss
from Xlib import X, display
from Xlib.error import ConnectionClosedError, DisplayError
from Xlib.ext import xtest
from Xlib.protocol import request

from pilotfish.sandbox import SandboxError
from pilotfish.tools.grid import Screen

_LOOK_S = 0.05


@contextlib.contextmanager
def _connected(name: str) -> Iterator[Any]:
    try:
        connection = display.Display(name)
        try:
            yield connection
        finally:
            connection.close()
    except (DisplayError, ConnectionClosedError) as error:
        raise SandboxError(f"display {name} does not answer, open a new sandbox.") from error


def window_count(name: str) -> int:
    """How many programs' windows the window manager of display `name` shows."""
    with _connected(name) as connection:
        root = connection.screen().root
        clients = root.get_full_property(connection.intern_atom("_NET_CLIENT_LIST"), X.AnyPropertyType)
        return len(clients.value) if clients else 0


async def wait_for_windows(name: str, count: int, cap_s: float, hopeless: Callable[[], bool]) -> bool:
    """Wait until at least `count` windows are shown; False when `cap_s` s pass or `hopeless()` first."""
    for _ in range(math.ceil(cap_s / _LOOK_S)):
        if await asyncio.to_thread(window_count, name) >= count:
            return True
        if hopeless():
            return False
        await asyncio.sleep(_LOOK_S)
    return False


async def settle(screen: Screen, quiet_s: float = 0.25, cap_s: float = 5.0) -> bool:
    """Wait until the screen has not changed for `quiet_s`; False when `cap_s` seconds pass first."""
    loop = asyncio.get_running_loop()
    region = {"left": screen.x, "top": screen.y, "width": screen.width, "height": screen.height}
    with mss.MSS(display=screen.display) as eye:
        end = loop.time() + cap_s
        seen, since = eye.grab(region).raw, loop.time()
        while loop.time() < end:
            await asyncio.sleep(_LOOK_S)
            now = eye.grab(region).raw
            if now != seen:
                seen, since = now, loop.time()
            elif loop.time() - since >= quiet_s:
                return True
    return False


def let_go(name: str) -> None:
    """Release every key and button, move the pointer to the bottom right corner, and empty the clipboard.

    Called between the episodes of one browser: nothing that a model held or copied reaches the next one.
    """
    with _connected(name) as connection:
        screen = connection.screen()
        held = connection.query_keymap()
        for code in range(8, 256):
            if held[code // 8] & 1 << code % 8:
                xtest.fake_input(connection, X.KeyRelease, code)
        mask = screen.root.query_pointer().mask
        for button in (1, 2, 3):
            if mask & X.Button1Mask << (button - 1):
                xtest.fake_input(connection, X.ButtonRelease, button)
        screen.root.warp_pointer(screen.width_in_pixels - 1, screen.height_in_pixels - 1)
        for selection in ("PRIMARY", "CLIPBOARD"):
            atom = connection.intern_atom(selection)
            request.SetSelectionOwner(
                display=connection.display, window=X.NONE, selection=atom, time=X.CurrentTime
            )
        connection.sync()
