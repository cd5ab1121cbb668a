"""The X display of a sandbox: Xvfb and openbox run inside, plain X clients outside may connect to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.framebuffer import INNER_SCREEN
from pilotfish.sandbox.process import Process

INNER_SOCKETS = "/tmp/.X11-unix"
INNER_OPENBOX_CONFIG = "/etc/pilotfish-openbox.xml"
_READY = "openbox-is-ready"
_START_SECONDS = 20.0

# No key or mouse binding of the window manager's own except what a person expects of a mouse, so that every
# key reaches the program; no menus, no desktops to switch to. Windows whose class asks for it have no frame.
OPENBOX_CONFIG = """<?xml version="1.0" encoding="UTF-8"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
  <focus><focusNew>yes</focusNew><followMouse>no</followMouse><raiseOnFocus>yes</raiseOnFocus></focus>
  <placement><policy>Smart</policy><center>yes</center></placement>
  <theme><name>Clearlooks</name><titleLayout>LIMC</titleLayout><keepBorder>no</keepBorder><animateIconify>no</animateIconify></theme>
  <desktops><number>1</number><popupTime>0</popupTime></desktops>
  <resize><popupShow>Never</popupShow></resize> <keyboard/> <mouse>
    <dragThreshold>4</dragThreshold><doubleClickTime>400</doubleClickTime><screenEdgeWarpTime>0</screenEdgeWarpTime>
    <context name="Client">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Middle" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Right" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    </context>
    <context name="Titlebar">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
      <mousebind button="Left" action="DoubleClick"><action name="ToggleMaximize"/></mousebind>
    </context> <context name="Bottom"><mousebind button="Left" action="Drag"><action
    name="Resize"/></mousebind></context> <context name="BLCorner"><mousebind button="Left"
    action="Drag"><action name="Resize"/></mousebind></context> <context name="BRCorner"><mousebind
    button="Left" action="Drag"><action name="Resize"/></mousebind></context> <context name="Close">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Left" action="Click"><action name="Close"/></mousebind>
    </context>
    <context name="Maximize">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Left" action="Click"><action name="ToggleMaximize"/></mousebind>
    </context>
    <context name="Iconify">
      <mousebind button="Left" action="Click"><action name="Iconify"/></mousebind>
    </context>
  </mouse>
  <applications>
    <application class="pilotfish-page">
      <decor>no</decor><position force="yes"><x>0</x><y>0</y></position><focus>yes</focus>
    </application>
    <application class="pilotfish-screen">
      <decor>no</decor><maximized>yes</maximized><focus>yes</focus>
    </application>
  </applications>
</openbox_config>
"""


@dataclass(frozen=True)
class Display:
    """An X display: `name` is what DISPLAY is set to, inside and outside; sizes are pixels."""

    name: str
    width: int
    height: int

    @property
    def number(self) -> int:
        return int(self.name[1:])


class _Runner(Protocol):
    async def run(self, argv: Sequence[str], *, vital: str) -> Process: ...


async def start_display(box: _Runner, display: Display, sockets: Path) -> Process:
    """Start the X server and the window manager, and wait until both are ready; gives the X server.

    sockets: the host folder that is /tmp/.X11-unix inside.
    """
    size = f"{display.width}x{display.height}x24"
    flags = ["-nolisten", "tcp", "-nolisten", "local", "-noreset", "-ac", "-dpi", "96"]
    # The pointer would be drawn into the picture, which X clients get without it.
    flags += ["-nocursor", "-fbdir", INNER_SCREEN]
    server = await box.run(
        ["Xvfb", display.name, "-screen", "0", size, *flags], vital="the display server (Xvfb)"
    )
    await _until(server, lambda: _listens(sockets / f"X{display.number}"))
    # Openbox runs its startup command when it manages windows.
    sign = f"touch {INNER_SOCKETS}/{_READY}"
    manager = await box.run(
        ["openbox", "--sm-disable", "--config-file", INNER_OPENBOX_CONFIG, "--startup", sign],
        vital="the window manager (openbox)",
    )
    await _until(manager, (sockets / _READY).exists)
    return server


def _listens(path: Path) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        probe.connect(str(path))
        return True
    return False


async def _until(program: Process, ready: Callable[[], bool]) -> None:
    """Look every 4 ms whether a program is ready."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _START_SECONDS
    name = program.name
    while not ready():
        if not program.is_running:
            await program.wait()  # it raises when the whole sandbox has ended
            raise SandboxError(f"{name} could not start, it said {program.output.strip()[-300:]!r}.")
        if loop.time() > deadline:
            raise SandboxError(
                f"{name} was not ready after {_START_SECONDS:.0f} s, the machine may be overloaded: "
                "try again."
            )
        await asyncio.sleep(0.004)
