"""A headed Chromium on the sandbox's display, driven through Playwright.

Playwright runs outside and talks to Chromium over the two descriptors of `--remote-debugging-pipe`; no port
is open anywhere. It believes that it starts Chromium itself, but what it starts is a relay
(`browser_door.py`) that hands those descriptors into the sandbox.

Chromium keeps its own sandbox inside ours: the namespaces here leave it user namespaces of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import quote

from playwright.async_api import BrowserContext, Page, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from pilotfish.sandbox.browser_door import BrowserDoor, Runner
from pilotfish.sandbox.display import Display
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.pieces import Chromium, find_chromium
from pilotfish.sandbox.spec import INNER_WORKSPACE, SandboxSpec

_STOP_SECONDS = 1.0
_GO_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.4)

# Nothing of the browser's own may appear on the page, and nothing may want the network.
_FLAGS = (
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-domain-reliability",
    "--disable-gpu",
    "--disable-quic",
    "--disable-session-crashed-bubble",
    "--hide-crash-restore-bubble",
    "--no-pings",
)

# What no flag switches off. Chromium and Chrome each read it from a place of their own.
CHROMIUM_POLICY_PLACES = (
    "/etc/chromium/policies/managed/pilotfish.json",
    "/etc/opt/chrome/policies/managed/pilotfish.json",
)
# A Chromium that a program inside starts cannot build a sandbox within its filter. Debian's launcher reads
# this.
CHROMIUM_FLAGS_PLACE = "/etc/chromium.d/pilotfish"
CHROMIUM_FLAGS = 'CHROMIUM_FLAGS="$CHROMIUM_FLAGS --no-sandbox --disable-gpu --no-first-run"\n'
CHROMIUM_POLICY = {
    "AutofillAddressEnabled": False,
    "AutofillCreditCardEnabled": False,
    "BackgroundModeEnabled": False,
    "BrowserSignin": 0,
    "CommandLineFlagSecurityWarningsEnabled": False,
    "DefaultBrowserSettingEnabled": False,
    "MetricsReportingEnabled": False,
    "PasswordManagerEnabled": False,
    "PromotionalTabsEnabled": False,
    "SearchSuggestEnabled": False,
    "SpellcheckEnabled": False,
    "SyncDisabled": True,
    "TranslateEnabled": False,
}


class _Box(Runner, Protocol):
    spec: SandboxSpec
    workspace: Path

    @property
    def display(self) -> Display: ...


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
    """A page on the display. `page` is Playwright's own object (async API); sizes are CSS pixels."""

    page: Page
    url: str
    width: int
    height: int
    device_scale_factor: float
    _browser: Browser

    async def evaluate(self, expression: str, argument: Any = None) -> Any:
        """Playwright's `page.evaluate`, with `SandboxError` when the script fails or the browser has died."""
        try:
            return await self.page.evaluate(expression, argument)
        except PlaywrightError as error:
            raise self._browser.sentence("the page could not run a script", error) from error


class Browser:
    """One Chromium, one window, one page at a time. Started by the first `open`.

    The Playwright page of one `open` serves the next one too, so what a caller adds to it for good (init
    scripts, routes, listeners) stays until `restart`.
    """

    def __init__(self, box: _Box, chromium: Chromium | None, folder: Path) -> None:
        self._box = box
        self._chromium = chromium
        self._folder = folder
        self._turn = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._context: BrowserContext | None = None
        self._look: _Look | None = None
        self._door: BrowserDoor | None = None
        self._closed = False

    @property
    def is_running(self) -> bool:
        """Whether Chromium is up."""
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
        """Show a page and return when it has loaded. The page before it is left, its cookies are gone.

        url_or_path: a URL, a path in the workspace, or a host path that `SandboxSpec.read_only` shows inside.
        viewport: size of the page in CSS pixels; None is the whole display.
        device_scale_factor: display pixels for one CSS pixel.
        app_window: only the page; False gives tabs and an address bar, which take their part of the display.
        fill_display: the page's first pixel is the display's first, the last its last; a smaller viewport
        needs False and lies in the upper left corner. Downloads go to /workspace/Downloads.
        Another viewport, scale or window than the one before restarts the browser (about half a second).
        Raises `SandboxError` when the page cannot be loaded or the browser cannot run.
        """
        look = self._wanted_look(viewport, device_scale_factor, app_window, fill_display, hide_scrollbars)
        url = self._url(os.fspath(url_or_path))
        async with self._turn:
            if self._closed:
                raise SandboxError("the sandbox has ended, open a new one.")
            page = await self._fresh_page(look)
            try:
                await _go(page, url)
            except PlaywrightError as error:
                raise self.sentence(f"page {url!r} could not be opened", error) from error
            return BrowserPage(page, url, look.width, look.height, look.device_scale_factor, self)

    async def restart(self) -> None:
        """End the browser, dead or alive, and forget its profile; the next `open` starts a new one."""
        async with self._turn:
            await self._stop_browser()

    async def close(self) -> None:
        """End the browser and Playwright's driver. An `open` that is under way fails."""
        self._closed = True
        await self._stop_browser()
        async with self._turn:
            await self._stop_browser()
            if self._playwright is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._playwright.stop(), _STOP_SECONDS)
                self._playwright = None

    def sentence(self, what: str, error: PlaywrightError) -> SandboxError:
        """A Playwright error as one sentence: its first line, without the call log."""
        # Playwright hears of the end of the browser a moment before we hear of the end of its process.
        if not self.is_running or "has been closed" in error.message:
            return SandboxError(f"{what}: the browser has ended, call browser.restart().")
        return SandboxError(f"{what}: {_first_line(error)}")

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
        if not (0 < width <= full[0] and 0 < height <= full[1]):
            raise SandboxError(
                f"viewport {width}x{height} does not fit the display, choose at most {full[0]}x{full[1]}."
            )
        if fill_display and (width, height) != full:
            raise SandboxError(
                f"viewport {width}x{height} does not fill the display, which is {full[0]}x{full[1]}: "
                "leave it out or pass fill_display=False."
            )
        return _Look(width, height, scale, app_window, fill_display, hide_scrollbars)

    def _url(self, text: str) -> str:
        """The URL inside for what the caller named."""
        scheme, colon, _ = text.partition(":")
        if colon and scheme.isalpha() and len(scheme) > 1:
            return text
        return "file://" + quote(str(self._inner_path(PurePosixPath(text))))

    def _inner_path(self, path: PurePosixPath) -> PurePosixPath:
        if not path.is_absolute():
            return INNER_WORKSPACE / path
        shown = [(self._box.workspace, str(INNER_WORKSPACE)), *self._box.spec.read_only.items()]
        for host, inner in shown:
            for name in (PurePosixPath(host), PurePosixPath(host.resolve())):
                if path.is_relative_to(name):
                    return PurePosixPath(inner) / path.relative_to(name)
        return path

    async def _fresh_page(self, look: _Look) -> Page:
        """The window's one page, with nothing left of the page before."""
        if self._look == look and self.is_running:
            # A browser that has just died, or whose last window was closed, is found out here.
            with contextlib.suppress(PlaywrightError, LookupError):
                return await self._tidied_page()
        await self._stop_browser()
        await self._start_browser(look)
        try:
            return await self._tidied_page()
        except (PlaywrightError, LookupError):
            raise SandboxError("the browser ended as it started, try again.") from None

    async def _tidied_page(self) -> Page:
        assert self._context is not None
        await self._context.clear_cookies()
        page = self._context.pages[0]
        for other in self._context.pages[1:]:
            await other.close()
        return page

    async def _start_browser(self, look: _Look) -> None:
        if self._chromium is None:
            self._chromium = find_chromium()  # says what is missing
        if self._playwright is None:
            self._playwright = await async_playwright().start()
        self._door = BrowserDoor(self._box, self._folder, self._chromium)
        try:
            self._context = await self._playwright.chromium.launch_persistent_context(
                str(self._folder / "profile"),
                executable_path=str(self._door.command),
                headless=False,
                no_viewport=True,
                chromium_sandbox=True,
                args=_arguments(look),
                ignore_default_args=["--enable-automation"],
                env={"PATH": "/usr/bin:/bin"},
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
            await self._keep_downloads(self._context)
        except (PlaywrightError, LookupError) as error:
            await self._stop_browser()
            raise SandboxError(f"the browser could not start ({_first_line(error)}), try again.") from error
        self._look = look

    @staticmethod
    async def _keep_downloads(context: BrowserContext) -> None:
        """Save downloads where the task's files are; Playwright would name a folder of the host."""
        session = await context.new_cdp_session(context.pages[0])
        settings = {"behavior": "allow", "downloadPath": str(INNER_WORKSPACE / "Downloads")}
        await session.send("Browser.setDownloadBehavior", settings)

    async def _stop_browser(self) -> None:
        context, self._context, self._look = self._context, None, None
        door, self._door = self._door, None
        if door is not None:
            await door.close()
        if context is not None:
            with contextlib.suppress(PlaywrightError, TimeoutError):
                await asyncio.wait_for(context.close(), _STOP_SECONDS)


async def _go(page: Page, url: str) -> None:
    """Navigate. The error page of a failed navigation may still be on its way and break the next one off."""
    for pause_s in _GO_PAUSES_S:
        try:
            await page.goto(url)
            return
        except PlaywrightError as error:
            if "interrupted by another navigation" not in error.message:
                raise
        await asyncio.sleep(pause_s)
    await page.goto(url)


def _first_line(error: Exception) -> str:
    """What went wrong, without the name of the call (`Page.goto: `) and without the log of it."""
    line = (str(error).strip() or "no reason given").splitlines()[0]
    return re.sub(r"^\w+\.\w+: ", "", line)


def _arguments(look: _Look) -> list[str]:
    arguments = [
        *_FLAGS,
        f"--force-device-scale-factor={look.device_scale_factor:g}",
        "--window-position=0,0",
        f"--window-size={look.width},{look.height}",
        # The window manager's rules go by class: by itself Chromium makes no window as large as the display.
        f"--class={'pilotfish-screen' if look.fill_display else 'pilotfish-page'}",
    ]
    if look.app_window:
        arguments.append("--app=data:text/html,")
    if look.hide_scrollbars:
        arguments.append("--hide-scrollbars")
    return arguments
