"""A headed Chromium on the sandbox's display, driven through Playwright.

Playwright runs outside and talks to Chromium over the two descriptors of `--remote-debugging-pipe`; no port is open
anywhere. It believes that it starts Chromium itself, but what it starts is `browser_relay.py`, which hands those
descriptors to `BrowserDoor` here, which has the guest start Chromium inside.

Chromium keeps its own sandbox inside ours: our namespaces leave it user namespaces of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from playwright.async_api import BrowserContext, Page, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from pilotfish.sandbox import pieces
from pilotfish.sandbox.display import Display
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.process import Process
from pilotfish.sandbox.spec import INNER_WORKSPACE, SandboxSpec

_RELAY_SCRIPT = Path(__file__).with_name("browser_relay.py")
_INNER_PROFILE = "/home/user/.chromium"
_MAX_ARGUMENTS = 128 * 1024

# Nothing of the browser's own may appear on the page, and nothing may want the network.
_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-domain-reliability",
    "--disable-infobars",
    "--disable-session-crashed-bubble",
    "--hide-crash-restore-bubble",
    "--no-pings",
    "--password-store=basic",
)

# What no flag switches off. Chromium and Chrome read it from their own place below /etc.
_POLICY = {
    "AutofillAddressEnabled": False,
    "AutofillCreditCardEnabled": False,
    "BackgroundModeEnabled": False,
    "BrowserSignin": 0,
    "CommandLineFlagSecurityWarningsEnabled": False,
    "DefaultBrowserSettingEnabled": False,
    "DownloadDirectory": str(INNER_WORKSPACE / "Downloads"),
    "MetricsReportingEnabled": False,
    "PasswordManagerEnabled": False,
    "PromotionalTabsEnabled": False,
    "SearchSuggestEnabled": False,
    "SpellcheckEnabled": False,
    "SyncDisabled": True,
    "TranslateEnabled": False,
}
_POLICY_PLACES = ("chromium/policies/managed/pilotfish.json", "opt/chrome/policies/managed/pilotfish.json")

# The frame is left to the window manager, which gives windows of class pilotfish-page none.
_PREFERENCES = {"browser": {"custom_chrome_frame": False, "has_seen_welcome_page": True}}


class _Box(Protocol):
    spec: SandboxSpec
    workspace: Path

    @property
    def display(self) -> Display: ...
    async def run(
        self,
        argv: Sequence[str],
        *,
        capture: bool = True,
        stdin: int | bytes | None = None,
        fds: Mapping[int, int] | None = None,
    ) -> Process: ...


@dataclass(frozen=True)
class _Look:
    """What a running Chromium cannot change about itself: another look needs a new one."""

    width: int
    height: int
    device_scale_factor: float
    app_window: bool
    fill_display: bool
    hide_scrollbars: bool


@dataclass(frozen=True)
class BrowserPage:
    """A page on the display. `page` is Playwright's own object (async API)."""

    page: Page
    url: str
    width: int
    height: int
    device_scale_factor: float


class Browser:
    """One Chromium, one window, one page at a time. Started by the first `open`."""

    def __init__(self, box: _Box, chromium: pieces.Browser | None, folder: Path) -> None:
        self._box = box
        self._chromium = chromium
        self._folder = folder
        self._turn = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._context: BrowserContext | None = None
        self._look: _Look | None = None
        self._door: BrowserDoor | None = None

    @staticmethod
    def policy_files(folder: Path) -> dict[str, Path]:
        """Write the policy file; returns where it belongs below /etc inside."""
        path = folder / "chromium-policy.json"
        path.write_text(json.dumps(_POLICY))
        return dict.fromkeys(_POLICY_PLACES, path)

    @property
    def is_running(self) -> bool:
        return self._context is not None and self._door is not None and self._door.process_alive

    async def open(
        self,
        url_or_path: str | os.PathLike[str],
        *,
        viewport: tuple[int, int] | None = None,
        device_scale_factor: float = 1,
        app_window: bool = True,
        fill_display: bool = True,
        hide_scrollbars: bool = False,
    ) -> BrowserPage:
        """Show a page and return when it has loaded. The page that was there before is left, its cookies are gone.

        url_or_path: a URL, a path in the workspace, or a host path that `SandboxSpec.read_only` shows inside.
        viewport: size of the page in CSS pixels; None is the whole display. device_scale_factor: display pixels per
        CSS pixel. app_window: only the page, no tabs and no address bar. fill_display: the page's first pixel is the
        display's first and the last the last; a viewport of another size is then refused.
        Raises `SandboxError` when the page cannot be loaded or the browser cannot run.
        """
        look = self._wanted_look(viewport, device_scale_factor, app_window, fill_display, hide_scrollbars)
        url = self._url(os.fspath(url_or_path))
        async with self._turn:
            page = await self._fresh_page(look)
            try:
                await page.goto(url)
            except PlaywrightError as error:
                raise self._sentence(f"page {url!r} could not be opened", error) from error
            return BrowserPage(page, url, look.width, look.height, look.device_scale_factor)

    async def restart(self) -> None:
        """End the browser, if it still runs, and forget its profile; the next `open` starts a new one."""
        async with self._turn:
            await self._stop_browser()

    async def close(self) -> None:
        """End the browser and Playwright's driver."""
        await self._stop_browser()
        if self._playwright is not None:
            with contextlib.suppress(PlaywrightError):
                await self._playwright.stop()
            self._playwright = None

    def _wanted_look(
        self,
        viewport: tuple[int, int] | None,
        scale: float,
        app_window: bool,
        fill_display: bool,
        hide_scrollbars: bool,
    ) -> _Look:
        display = self._box.display
        if not 0.25 <= scale <= 8:
            raise SandboxError(f"device_scale_factor is {scale}, choose 0.25 to 8.")
        full = (round(display.width / scale), round(display.height / scale))
        width, height = viewport or full
        if width < 1 or height < 1 or width > full[0] or height > full[1]:
            raise SandboxError(
                f"viewport {width}x{height} does not fit the display, choose at most {full[0]}x{full[1]}."
            )
        if fill_display and (width, height) != full:
            raise SandboxError(
                f"viewport {width}x{height} does not fill the display, leave it out or pass fill_display=False."
            )
        return _Look(width, height, scale, app_window, fill_display, hide_scrollbars)

    def _url(self, text: str) -> str:
        """The URL inside for what the caller named."""
        scheme, colon, _ = text.partition(":")
        if colon and len(scheme) > 1 and scheme.replace("+", "").replace("-", "").isalnum():
            return text
        return "file://" + _quoted(self._inner_path(text))

    def _inner_path(self, text: str) -> PurePosixPath:
        path = PurePosixPath(text)
        if not path.is_absolute():
            return INNER_WORKSPACE / path
        for host, inner in ((self._box.workspace, str(INNER_WORKSPACE)), *self._box.spec.read_only.items()):
            for name in (host, host.resolve()):
                if path.is_relative_to(PurePosixPath(name)):
                    return PurePosixPath(inner) / path.relative_to(PurePosixPath(name))
        return path

    async def _fresh_page(self, look: _Look) -> Page:
        """The window's one page, with nothing left of the page before."""
        if self._context is None or self._look != look or not self.is_running:
            await self._stop_browser()
            await self._start_browser(look)
        assert self._context is not None
        try:
            await self._context.clear_cookies()
            pages = self._context.pages
            for extra in pages[1:]:
                await extra.close()
            return pages[0]
        except (PlaywrightError, IndexError) as error:
            raise self._sentence("the browser did not answer", error) from error

    async def _start_browser(self, look: _Look) -> None:
        chromium = self._chromium
        if chromium is None:
            chromium = pieces.find_chromium()
            if chromium.folder is not None:
                raise SandboxError(
                    "Chromium appeared after the sandbox was opened, open a new sandbox to use it."
                )
        if self._playwright is None:
            self._playwright = await async_playwright().start()
        self._door = BrowserDoor(self._box, self._folder / "door", chromium)
        command = self._folder / "chromium"
        command.write_text(
            f'#!/bin/sh\nexec {_sh(sys.executable)} -I -S {_sh(str(_RELAY_SCRIPT))} {_sh(str(self._folder / "door"))} "$@"\n'
        )
        command.chmod(0o700)
        try:
            self._context = await self._playwright.chromium.launch_persistent_context(
                str(self._folder / "profile"),
                executable_path=str(command),
                headless=False,
                no_viewport=True,
                chromium_sandbox=True,
                args=self._arguments(look),
                ignore_default_args=["--enable-automation", "--hide-scrollbars"],
                env={"PATH": "/usr/bin:/bin"},
            )
        except PlaywrightError as error:
            await self._stop_browser()
            raise self._sentence("the browser could not start", error) from error
        self._look = look

    def _arguments(self, look: _Look) -> list[str]:
        arguments = [
            *_FLAGS,
            f"--force-device-scale-factor={look.device_scale_factor:g}",
            "--window-position=0,0",
            f"--window-size={look.width},{look.height}",
            # The window manager's rules go by class: Chromium by itself never makes a window as large as the display.
            f"--class={'pilotfish-screen' if look.fill_display else 'pilotfish-page'}",
        ]
        if look.app_window:
            arguments.append("--app=data:text/html,")
        if look.hide_scrollbars:
            arguments.append("--hide-scrollbars")
        return arguments

    async def _stop_browser(self) -> None:
        context, self._context, self._look = self._context, None, None
        if self._door is not None:
            await self._door.close()
            self._door = None
        if context is not None:
            with contextlib.suppress(PlaywrightError):
                await context.close()

    def _sentence(self, what: str, error: Exception) -> SandboxError:
        """A Playwright error as one sentence: its first line, without the call log."""
        if not self.is_running:
            return SandboxError(f"{what}: the browser has ended, call browser.restart().")
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return SandboxError(f"{what}: {first}")


class BrowserDoor:
    """Waits for `browser_relay.py` and starts inside what it was asked to start."""

    def __init__(self, box: _Box, path: Path, chromium: pieces.Browser) -> None:
        self._box = box
        self._path = path
        self._chromium = chromium
        self._process: Process | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(4)
        self._listener.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept())

    @property
    def process_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            relay, _ = await loop.sock_accept(self._listener)
            relay.setblocking(False)
            task = asyncio.ensure_future(self._serve(relay))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, relay: socket.socket) -> None:
        """Start the program of one relay, tell the relay its status; when the relay dies, kill the program."""
        loop = asyncio.get_running_loop()
        with relay:
            await _readable(relay)
            data, fds, _, _ = socket.recv_fds(relay, _MAX_ARGUMENTS, 8, socket.MSG_CMSG_CLOEXEC)
            try:
                process = await self._spawn(json.loads(data), fds)
            except (SandboxError, ValueError):
                with contextlib.suppress(OSError):
                    relay.send(b"127")
                return
            finally:
                for fd in fds:
                    os.close(fd)
            self._process = process
            hung_up = asyncio.ensure_future(_readable(relay))
            ended = asyncio.ensure_future(process.wait())
            try:
                await asyncio.wait([hung_up, ended], return_when=asyncio.FIRST_COMPLETED)
                if ended.done() and ended.exception() is None:
                    with contextlib.suppress(OSError):
                        relay.send(str(ended.result()).encode())
            finally:
                hung_up.cancel()
                ended.cancel()
                with contextlib.suppress(SandboxError):
                    await process.kill()
        del loop

    async def _spawn(self, arguments: list[str], fds: list[int]) -> Process:
        # Playwright names a profile folder of the host; inside, the profile lives in memory.
        arguments = [word for word in arguments if not word.startswith("--user-data-dir=")]
        prepare = f"rm -rf {_INNER_PROFILE} && mkdir -p {_INNER_PROFILE}/Default && cat > {_INNER_PROFILE}/Default/Preferences"
        process = await self._box.run(["sh", "-c", prepare], stdin=json.dumps(_PREFERENCES).encode())
        await process.wait()
        argv = [str(self._chromium.inner), f"--user-data-dir={_INNER_PROFILE}", *arguments]
        return await self._box.run(argv, capture=False, fds=dict(enumerate(fds)))

    async def close(self) -> None:
        self._accepting.cancel()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)


async def _readable(connection: socket.socket) -> None:
    """Wait until there is something to read, or the other side has gone."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(connection)


def _sh(text: str) -> str:
    import shlex

    return shlex.quote(text)


def _quoted(path: PurePosixPath) -> str:
    from urllib.parse import quote

    return quote(str(path))
