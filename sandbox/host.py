"""A person's own X11 desktop, for a run that is allowed to work on it: no sandbox around it at all.

`HostDesktop` offers what the display of a sandbox offers, name and size in pixels, so that whoever takes its
pictures or clicks on it does the same for both. One monitor is the screen; see `monitors.py` on pixels.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pilotfish
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.monitors import Monitor, pick_monitor, read_monitors
from pilotfish.sandbox.spawn import spawn

WARNING = "HOST DESKTOP, NOT SANDBOXED"
"""What everything that shows such a run begins with."""
_NEEDED = {
    "XTEST": "to move the mouse",
    "RANDR": "to tell monitors apart",
    "XInputExtension": "to notice that you stop it",
    "SHAPE": "for the banner that lets clicks through",
}
_START_S = 20.0
_END_S = 5.0


class HostDesktop:
    """The desktop that DISPLAY names, watched by a guard (`host_guard.py`) until it is closed.

    `stopped` is why a person stopped the run, or how the guard was lost; '' until then.
    """

    def __init__(self, name: str, display: Any, wanted: str | None) -> None:
        self.name = name
        self.stopped = ""
        self.hot_key = ""
        self._display = display
        self._wanted = wanted
        self._guard: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, monitor: str | None = None, on_stop: Callable[[str], None] = lambda why: None
    ) -> AsyncIterator[HostDesktop]:
        """A guarded desktop.

        monitor: the name or number of one monitor; None is the primary one, whichever that is at the time.
        on_stop: told why, once, when the run must stop at once.
        Raises `SandboxError`, one sentence, where there is no X11 desktop that can be used.
        """
        name = _display_name()
        desktop = cls(name, _connect(name), monitor)
        try:
            desktop.monitor()
            await desktop._start_guard(on_stop)
            yield desktop
        finally:
            await desktop._close()

    @classmethod
    def check(cls, monitor: str | None = None) -> None:
        """Raise what `open` would for a desktop that cannot be used, without a guard."""
        name = _display_name()
        desktop = cls(name, _connect(name), monitor)
        try:
            desktop.monitor()
        finally:
            with contextlib.suppress(Exception):  # a display that is gone makes even closing fail
                desktop._display.close()

    def monitor(self) -> Monitor:
        """The monitor that is the screen, as it is now.

        Raises `SandboxError` when it was unplugged, and when the display is gone.
        """
        from Xlib.error import ConnectionClosedError

        try:
            return pick_monitor(read_monitors(self._display), self._wanted)
        except (ConnectionClosedError, OSError):
            raise SandboxError(f"The display {self.name} is gone, so the desktop cannot be used.") from None

    @property
    def width(self) -> int:
        return self.monitor().width

    @property
    def height(self) -> int:
        return self.monitor().height

    @property
    def protection(self) -> str:
        """What stands around it, in words to be shown with whatever is shown of a run: nothing."""
        return f"{WARNING}: mouse and keyboard act on your own desktop, display {self.name}, {self.monitor()}"

    async def _start_guard(self, on_stop: Callable[[str], None]) -> None:
        roots = [str(Path(pilotfish.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(root for root in roots if root)
        self._guard = await spawn(
            sys.executable,
            "-m",
            "pilotfish.sandbox.host_guard",
            self.name,
            *([] if self._wanted is None else [self._wanted]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C on the terminal is for the agent; the guard tidies up after it
        )
        assert self._guard.stdout is not None
        try:
            async with asyncio.timeout(_START_S):
                said = json.loads(await self._guard.stdout.readline() or b"{}")
        except TimeoutError:
            said = {}
        if "ready" not in said:
            why = said.get("error", "it did not start")
            raise SandboxError(f"The emergency stop cannot watch display {self.name}: {why}")
        self.hot_key = said["ready"]
        self._listener = asyncio.ensure_future(self._listen(on_stop))

    async def _listen(self, on_stop: Callable[[str], None]) -> None:
        assert self._guard is not None
        assert self._guard.stdout is not None
        line = await self._guard.stdout.readline()
        self.stopped = json.loads(line)["stop"] if line else "The emergency stop was ended from outside."
        on_stop(self.stopped)

    async def _close(self) -> None:
        """End the guard, which takes the banner away and undoes what is left."""
        if self._listener is not None:
            self._listener.cancel()
        guard = self._guard
        if guard is not None:
            assert guard.stdin is not None
            guard.stdin.close()
            try:
                async with asyncio.timeout(_END_S):
                    await guard.wait()
            except TimeoutError:
                guard.kill()
                await guard.wait()
        with contextlib.suppress(Exception):  # a display that is gone makes even closing fail
            self._display.close()


def _display_name() -> str:
    name = os.environ.get("DISPLAY", "")
    if name:
        return name
    if os.environ.get("WAYLAND_DISPLAY"):
        raise SandboxError(
            "This is a Wayland session, where a program cannot use the whole desktop: log in to an X11 "
            "(Xorg) session for --host."
        )
    raise SandboxError(
        "DISPLAY is not set, so there is no X11 desktop to use: start it from a terminal on the desktop."
    )


def _connect(name: str) -> Any:
    """An open display that has all that is needed; each way in which it has not is a sentence."""
    from Xlib import display
    from Xlib.error import DisplayConnectionError, DisplayError, DisplayNameError, XauthError

    try:
        found = display.Display(name)
    except DisplayNameError:
        raise SandboxError(f"DISPLAY is '{name}', which names no display: set it, such as to :0.") from None
    except (DisplayConnectionError, XauthError) as error:
        raise SandboxError(_refused(name, error)) from None
    except (DisplayError, OSError) as error:
        raise SandboxError(f"The display {name} cannot be used ({error}); check that it runs.") from None
    try:
        _check(name, found)
    except BaseException:
        found.close()
        raise
    return found


def _refused(name: str, error: Exception) -> str:
    told = str(error).lower()
    if "authoriz" in told or "protocol" in told or "xauth" in told or "cookie" in told:
        file = os.environ.get("XAUTHORITY") or "~/.Xauthority"
        return (
            f"The display {name} refused the key in {file}: set XAUTHORITY to the file of the person who is "
            "logged in there."
        )
    return f"No X server answers at display {name}: set DISPLAY to the desktop's, such as :0."


def _check(name: str, found: Any) -> None:
    extensions = found.list_extensions()
    for extension, purpose in _NEEDED.items():
        if extension not in extensions:
            raise SandboxError(f"The X server at {name} lacks {extension}, which is needed {purpose}.")
    outputs = [monitor.name for monitor in read_monitors(found)]
    if "XWAYLAND" in extensions or any(output.startswith("XWAYLAND") for output in outputs):
        raise SandboxError(
            f"The display {name} is Xwayland, which shows only some windows of a Wayland session: log in to "
            "an X11 (Xorg) session for --host."
        )
    depth = found.screen().root_depth
    if depth != 24:
        raise SandboxError(
            f"The display {name} has {depth} bits per pixel, and only pictures of 24 can be read: set its "
            "DefaultDepth to 24."
        )
