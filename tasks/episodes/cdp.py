"""A small DevTools client: one browser over `--remote-debugging-pipe`, several pages at once.

Messages are JSON ended by a zero byte on file descriptors 3 (to the browser) and 4 (from it); each page is a
flattened session. Nothing but the standard library is used, so that the recorder runs on a bare machine.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

# Rendering flags are chosen so that the pixels equal those of a headed browser on a software X display.
FLAGS = (
    "--no-sandbox",
    "--no-zygote",
    "--disable-gpu",
    "--disable-software-rasterizer",
    "--in-process-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-domain-reliability",
    "--disable-breakpad",
    "--disable-hang-monitor",
    # Tasks must not wait for a frame after input: frames come only when asked for.
    "--disable-features=DeferRendererTasksAfterInput",
    "--allow-file-access-from-files",
    "--disable-smooth-scrolling",
    "--log-level=3",
    "--force-color-profile=srgb",
    "--disable-lcd-text",
    # Frames are drawn only when asked for (HeadlessExperimental.beginFrame), not on a 60 Hz clock.
    "--enable-begin-frame-control",
    "--disable-threaded-animation",
    "--disable-threaded-scrolling",
    "--disable-checker-imaging",
    "--run-all-compositor-stages-before-draw",
    "--disable-new-content-rendering-timeout",
    "--disable-image-animation-resync",
    "--remote-debugging-pipe",
)


@dataclass(frozen=True)
class View:
    """A page's geometry in CSS pixels: what it is laid out for, and the top-left part that is drawn.

    scale: device pixels of a CSS pixel.
    """

    width: int = 336
    height: int = 224
    shown_width: int = 168
    shown_height: int = 210
    scale: float = 2

    @classmethod
    def of(cls, text: str) -> View:
        """A view all of which is drawn, from its device pixels and scale, such as '1280x800@1.6'.

        Raises `ValueError` for what is no such size, and for one that is no whole number of CSS pixels.
        """
        found = re.fullmatch(r"(\d{2,4})x(\d{2,4})@(\d(?:\.\d{1,2})?)", text)
        scale = float(found[3]) if found else 0.0
        if found is None or not 1 <= scale <= 4:
            raise ValueError(f"{text!r} is no size; write it like '1280x800@1.6', with a scale of 1 to 4.")
        width, height = (round(int(pixels) / scale, 6) for pixels in found.groups()[:2])
        if not width.is_integer() or not height.is_integer():
            raise ValueError(
                f"{text!r} is {width:g}x{height:g} CSS pixels; choose a scale with which both are whole."
            )
        return cls(int(width), int(height), int(width), int(height), scale)

    @property
    def pixel_width(self) -> int:
        """Device pixels of a frame."""
        return round(self.shown_width * self.scale)

    @property
    def pixel_height(self) -> int:
        """Device pixels of a frame."""
        return round(self.shown_height * self.scale)

    @property
    def flags(self) -> tuple[str, ...]:
        """The browser flags that go with this geometry."""
        size = f"--window-size={self.shown_width},{self.shown_height}"
        return (f"--force-device-scale-factor={self.scale}", size)


_PROFILE = "pilotfish-browser-"


def sweep_profiles() -> None:
    """Remove the profiles of recorders that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PROFILE}*-*"):
        owner = folder.name.removeprefix(_PROFILE).partition("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)


class BrowserError(Exception):
    """The browser died, refused a command or did not answer in time."""


class PageError(BrowserError):
    """JavaScript in a page raised an error; the browser itself is well."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux `prctl`)."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Browser:
    """One running browser. Use `await Browser.launch(...)`, `await browser.page()`, `browser.close()`."""

    def __init__(self, process: subprocess.Popen[bytes], to_fd: int, from_fd: int, profile: str) -> None:
        self._process = process
        self._to_fd = to_fd
        self._from_fd = from_fd
        self._profile = profile
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pending = bytearray()
        self._unsent = bytearray()
        self._closed = False
        self.drawing = asyncio.Lock()  # two pages drawn at once crash the browser
        self._loop = asyncio.get_running_loop()
        os.set_blocking(to_fd, False)
        os.set_blocking(from_fd, False)
        self._loop.add_reader(from_fd, self._readable)

    @classmethod
    async def launch(
        cls, path: str, flags: Sequence[str] = FLAGS, env: dict[str, str] | None = None, timeout_s: float = 30
    ) -> Browser:
        """Start the headless shell at `path`; raises `BrowserError` when it does not answer."""
        sweep_profiles()
        profile = tempfile.mkdtemp(prefix=f"{_PROFILE}{os.getpid()}-")
        child_in, to_fd = os.pipe()
        from_fd, child_out = os.pipe()
        high_in = fcntl.fcntl(child_in, fcntl.F_DUPFD_CLOEXEC, 20)
        high_out = fcntl.fcntl(child_out, fcntl.F_DUPFD_CLOEXEC, 20)
        os.close(child_in)
        os.close(child_out)
        # Popen's own error pipe must not land on descriptors 3 and 4, which the child overwrites.
        plugs = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
        while plugs[-1] < 5:
            plugs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

        def wire() -> None:
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)
            die_with_parent()

        arguments = [path, *flags, f"--user-data-dir={profile}", "about:blank"]
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 (a few ms, once per browser)
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if not os.environ.get("PILOTFISH_BROWSER_LOG") else None,
                pass_fds=(3, 4),
                preexec_fn=wire,
                start_new_session=True,
                env=env,
            )
        except OSError as error:
            os.close(to_fd)
            os.close(from_fd)
            shutil.rmtree(profile, ignore_errors=True)
            raise BrowserError(
                f"The browser {path!r} cannot be started ({error.strerror}); give its path with --browser."
            ) from error
        finally:
            for fd in (*plugs, high_in, high_out):
                os.close(fd)
        browser = cls(process, to_fd, from_fd, profile)
        try:
            await browser.send("Browser.getVersion", timeout_s=timeout_s)
        except BrowserError:
            browser.close()
            raise
        return browser

    @property
    def pid(self) -> int:
        """The browser's process id, which is also its process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs and its pipe is open."""
        return not self._closed and self._process.poll() is None

    def close(self) -> None:
        """Kill the browser with all its children and remove its profile. May be called twice."""
        self._fail("The browser was closed.")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        shutil.rmtree(self._profile, ignore_errors=True)

    async def send(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        session: str | None = None,
        timeout_s: float = 15,
    ) -> dict[str, Any]:
        """Send one command and wait for its result; `BrowserError` on an error, a death or a timeout."""
        future = self.post(method, params, session)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise BrowserError(f"The browser did not answer {method} within {timeout_s:g} s.") from error

    def post(
        self, method: str, params: dict[str, Any] | None = None, session: str | None = None
    ) -> asyncio.Future[dict[str, Any]]:
        """Send one command without waiting; the future gives its result. Order is kept within a session."""
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        if self._closed:
            future.set_exception(BrowserError("The browser is gone."))
            return future
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        self._waiting[number] = future
        self._write(json.dumps(message).encode() + b"\0")
        return future

    async def page(self, view: View, script: str = "") -> Page:
        """Open a page; `script` runs first in every document it shows."""
        created = {
            "url": "about:blank",
            "newWindow": True,
            "width": view.shown_width,
            "height": view.shown_height,
            "enableBeginFrameControl": True,
        }
        target = (await self.send("Target.createTarget", created))["targetId"]
        attached = await self.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, target, attached["sessionId"])
        # The surface keeps the window's size while the page is laid out for the viewport: a capture is a
        # plain read of the surface, without the relayout that a clip costs.
        metrics = {
            "width": view.width,
            "height": view.height,
            "deviceScaleFactor": view.scale,
            "mobile": False,
            "dontSetVisibleSize": True,
        }
        await page.send("Page.enable")
        await page.send("HeadlessExperimental.enable")
        await page.send("Emulation.setDeviceMetricsOverride", metrics)
        await page.send("Emulation.setFocusEmulationEnabled", {"enabled": True})
        if script:
            await page.send("Page.addScriptToEvaluateOnNewDocument", {"source": script})
            await page.evaluate(script)
        return page

    def _write(self, data: bytes) -> None:
        self._unsent += data
        if len(self._unsent) == len(data):
            self._flush()

    def _flush(self) -> None:
        try:
            sent = os.write(self._to_fd, self._unsent)
            del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._fail("The browser closed its pipe.")
            return
        if self._unsent:
            self._loop.add_writer(self._to_fd, self._flush)
        else:
            self._loop.remove_writer(self._to_fd)

    def _readable(self) -> None:
        try:
            data = os.read(self._from_fd, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._fail("The browser died.")
            return
        self._pending += data
        if 0 not in data:
            return
        *messages, rest = self._pending.split(b"\0")
        self._pending = bytearray(rest)
        for raw in messages:
            message = json.loads(raw)
            future = self._waiting.pop(message.get("id", -1), None)
            if future is None or future.done():
                continue
            if "error" in message:
                future.set_exception(BrowserError(str(message["error"].get("message", message["error"]))))
            else:
                future.set_result(message.get("result", {}))

    def _fail(self, why: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._from_fd)
        self._loop.remove_writer(self._to_fd)
        os.close(self._from_fd)
        os.close(self._to_fd)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(BrowserError(why))
                future.exception()  # mark as seen: nobody may be waiting for it
        self._waiting.clear()


class Page:
    """One page (a DevTools target) of a browser."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self.browser = browser
        self._target = target
        self._session = session

    async def send(
        self, method: str, params: dict[str, Any] | None = None, timeout_s: float = 15
    ) -> dict[str, Any]:
        """Send a command to this page and wait for its result."""
        return await self.browser.send(method, params, self._session, timeout_s)

    def post(self, method: str, params: dict[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        """Send a command to this page without waiting."""
        return self.browser.post(method, params, self._session)

    async def navigate(self, url: str) -> None:
        """Go to `url`; returns when the new document is committed (not when it is loaded)."""
        answer = await self.send("Page.navigate", {"url": url})
        if "errorText" in answer:
            raise BrowserError(f"The page {url} cannot be opened: {answer['errorText']}.")

    async def evaluate(self, expression: str, timeout_s: float = 15) -> Any:
        """The JSON value of a JavaScript expression; promises are awaited, exceptions raise `PageError`."""
        params = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = await self.send("Runtime.evaluate", params, timeout_s)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details.get("text", "unknown")
            raise PageError(f"The page raised an error: {text.splitlines()[0]}")
        return answer["result"].get("value")

    async def capture(self) -> bytes:
        """Draw one frame now and return it as a PNG in device pixels."""
        shot = {"format": "png", "optimizeForSpeed": True}
        async with self.browser.drawing:
            for _ in range(5):
                answer = await self.send("HeadlessExperimental.beginFrame", {"screenshot": shot})
                if "screenshotData" in answer:
                    return base64.b64decode(answer["screenshotData"])
        raise BrowserError("The browser drew five frames and gave no picture of any.")

    async def draw(self) -> None:
        """Draw one frame without looking at it, so that what waits for a frame goes on."""
        async with self.browser.drawing:
            await self.send("HeadlessExperimental.beginFrame", {"noDisplayUpdates": False})

    async def close(self) -> None:
        """Close the page; a dead browser is no error here."""
        with contextlib.suppress(BrowserError):
            await self.browser.send("Target.closeTarget", {"targetId": self._target}, timeout_s=5)


def browser_environment(root: Path | None) -> dict[str, str]:
    """The environment for a bundled browser under `root` (see bundle.py), or this process's own for None."""
    env = {key: value for key, value in os.environ.items() if key not in {"DISPLAY", "WAYLAND_DISPLAY"}}
    if root is not None:
        root = root.resolve()
        env["LD_LIBRARY_PATH"] = str(root / "lib")
        env["FONTCONFIG_FILE"] = str(root / "fonts.conf")
        env["HOME"] = str(root / "home")
        env["LANG"] = "en_US.UTF-8"  # in others a time field takes no AM and PM
    return env
