"""A headed Chromium on the sandbox's display, driven through Playwright.

Playwright's driver and Chromium both run inside (`browser_driver.py`), joined by the two descriptors of
`--remote-debugging-pipe`; no port is open anywhere. Out here is Playwright's Python client, and whatever it
is told is taken for the word of a hostile page.

Chromium keeps its own sandbox inside ours: the namespaces here leave it user namespaces of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol
from urllib.parse import quote

from playwright.async_api import BrowserContext, Dialog, Page, Response
from playwright.async_api import Error as PlaywrightError

from pilotfish.sandbox import browser_reader
from pilotfish.sandbox.browser_downloads import Downloads
from pilotfish.sandbox.browser_driver import Driver, Runner, find_driver
from pilotfish.sandbox.browser_look import PREFERENCES, Look, arguments, proxy_arguments, wanted_look
from pilotfish.sandbox.display import Display
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.pieces import Chromium, find_chromium
from pilotfish.sandbox.spec import INNER_HOME, INNER_WORKSPACE, SandboxSpec

PAGE_ERRORS = (PlaywrightError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What a call of Playwright may raise: its own error, or what its client made of a message that makes no
sense.
"""

_Until = Literal["load", "domcontentloaded"]
_STOP_SECONDS = 1.0
_OPEN_SECONDS = 60.0
_GO_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.4)
_PROFILE = INNER_HOME / ".chromium"
_PREPARE = f"rm -rf {_PROFILE} && mkdir -p {_PROFILE}/Default && cat > {_PROFILE}/Default/Preferences"


class _Box(Runner, Protocol):
    spec: SandboxSpec
    workspace: Path

    @property
    def display(self) -> Display: ...

    @property
    def env(self) -> dict[str, str]: ...


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
        except PAGE_ERRORS as error:
            raise self._browser.sentence("the page could not run a script", error) from error


class Browser:
    """One Chromium. Started by the first `open`, or by the first look at its `tabs`.

    The Playwright page of one `open` serves the next one too, so what a caller adds to it for good (init
    scripts, routes, listeners) stays until `restart`.
    """

    def __init__(self, box: _Box, chromium: Chromium | None, folder: Path) -> None:
        self._box = box
        self._chromium = chromium
        self._folder = folder
        self._turn = asyncio.Lock()
        self._driver: Driver | None = None
        self._context: BrowserContext | None = None
        self._look: Look | None = None
        self._closed = False
        self.starts = 0
        """How often a Chromium was started; another number means that its tabs are others."""
        self.dialogs: list[Dialog] = []
        """The dialogs of pages that stand open: alert, confirm, prompt, and leaving a page.

        They wait for a person on the display or for a call of `accept` or `dismiss`; until then their pages
        answer nothing.
        """
        self.dialog_opened = asyncio.Event()
        """Set when one opens; who waits clears it first."""
        self.downloads = Downloads()

    @property
    def is_running(self) -> bool:
        """Whether Chromium is up."""
        return self._context is not None and self._driver is not None and self._driver.is_running

    @property
    def driver_pid(self) -> int | None:
        """The number inside of the program that has started Chromium; None while none is up."""
        return self._driver.pid if self.is_running and self._driver is not None else None

    async def tabs(self) -> list[Page]:
        """The pages that are open, in the order they came.

        Where no browser runs, one with a bar of tabs is started.
        """
        async with self._turn:
            if self._closed:
                raise SandboxError("the sandbox has ended, open a new one.")
            # With its last tab a browser ends, which may not be heard of yet.
            if not self.is_running or self._context is None or not self._context.pages:
                await self._stop_browser()
                try:
                    async with asyncio.timeout(_OPEN_SECONDS):
                        await self._start_browser(wanted_look(self._box.display, None, 1, False, True, False))
                except TimeoutError:
                    await self._stop_driver()
                    raise SandboxError(
                        f"the browser had not started after {_OPEN_SECONDS:g} s, the machine may be "
                        "overloaded: try again."
                    ) from None
            assert self._context is not None
            return list(self._context.pages)

    async def new_tab(self) -> Page:
        """One more page, empty, in front."""
        await self.tabs()
        assert self._context is not None
        return await self._context.new_page()

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
        look = wanted_look(
            self._box.display, viewport, device_scale_factor, app_window, fill_display, hide_scrollbars
        )
        url = self._url(os.fspath(url_or_path))
        async with self._turn:
            if self._closed:
                raise SandboxError("the sandbox has ended, open a new one.")
            try:
                async with asyncio.timeout(_OPEN_SECONDS):
                    page = await self._fresh_page(look)
                    await go(page, url)
            except TimeoutError:
                raise SandboxError(
                    f"page {url!r} was not there after {_OPEN_SECONDS:g} s, call browser.restart()."
                ) from None
            except PAGE_ERRORS as error:
                raise self.sentence(f"page {url!r} could not be opened", error) from error
            return BrowserPage(page, url, look.width, look.height, look.device_scale_factor, self)

    async def restart(self) -> None:
        """End the browser, dead or alive, and forget its profile; the next `open` starts a new one."""
        async with self._turn:
            await self._stop_browser()

    async def close(self) -> None:
        """End the browser and Playwright's driver. An `open` that is under way fails."""
        self._closed = True
        await self._stop_driver()
        async with self._turn:
            await self._stop_driver()

    async def dismiss_dialogs(self) -> None:
        """Close the dialogs that stand open, so that their pages answer again."""
        while self.dialogs:
            with contextlib.suppress(*PAGE_ERRORS, TimeoutError):
                await asyncio.wait_for(self.dialogs.pop().dismiss(), _STOP_SECONDS)

    def sentence(self, what: str, error: Exception) -> SandboxError:
        """An error of Playwright's as one sentence: its first line, without the call log."""
        # Playwright hears of the end of the browser a moment before we hear of the end of its process.
        if not self.is_running or "has been closed" in str(error):
            return SandboxError(f"{what}: the browser has ended, call browser.restart().")
        return SandboxError(f"{what}: {_first_line(error)}")

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

    async def _fresh_page(self, look: Look) -> Page:
        """The window's one page, with nothing left of the page before."""
        if self._look == look and self.is_running:
            # A browser that has just died, or whose last window was closed, is found out here.
            with contextlib.suppress(*PAGE_ERRORS):
                return await self._tidied_page()
        await self._stop_browser()
        await self._start_browser(look)
        try:
            return await self._tidied_page()
        except PAGE_ERRORS:
            raise SandboxError("the browser ended as it started, try again.") from None

    async def _tidied_page(self) -> Page:
        assert self._context is not None
        await self.dismiss_dialogs()
        await self._context.clear_cookies()
        page = self._context.pages[0]
        for other in self._context.pages[1:]:
            await other.close()
        return page

    async def _start_browser(self, look: Look) -> None:
        if self._chromium is None:
            find_driver()
            self._chromium = find_chromium()  # says what is missing
        if self._driver is None or not self._driver.is_running:
            await self._stop_driver()
            self._driver = await Driver.start(self._box, self._folder)
            assert self._driver.playwright is not None
            await browser_reader.register(self._driver.playwright)
        profile = await self._box.run(["sh", "-c", _PREPARE], stdin=json.dumps(PREFERENCES).encode())
        await profile.wait()
        playwright = self._driver.playwright
        assert playwright is not None
        try:
            context = await playwright.chromium.launch_persistent_context(
                str(_PROFILE),
                executable_path=str(self._chromium.inner),
                headless=False,
                no_viewport=True,
                chromium_sandbox=True,
                args=[*arguments(look), *proxy_arguments(self._box.spec.network)],
                ignore_default_args=["--enable-automation"],
                env=dict(self._box.env),
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
            context.on("close", self._gone)
            context.on("dialog", self._dialog)
            context.on("dialogclosed", self._dialog_closed)
            self._context = context
            await self.downloads.watch(context)
        except PAGE_ERRORS as error:
            await self._stop_browser()
            raise SandboxError(f"the browser could not start ({_first_line(error)}), try again.") from error
        self._look = look
        self.starts += 1

    def _gone(self, context: BrowserContext) -> None:
        if context == self._context:
            self._context = self._look = None
            self.dialogs.clear()

    def _dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog)
        self.dialog_opened.set()

    def _dialog_closed(self, dialog: Dialog) -> None:
        if dialog in self.dialogs:
            self.dialogs.remove(dialog)

    async def _stop_browser(self) -> None:
        context, self._context, self._look = self._context, None, None
        self.dialogs.clear()
        if context is None:
            return
        try:
            await asyncio.wait_for(context.close(), _STOP_SECONDS)
        except (*PAGE_ERRORS, TimeoutError):
            await self._stop_driver()  # and with it the browser that does not end

    async def _stop_driver(self) -> None:
        driver, self._driver = self._driver, None
        self._context = self._look = None
        if driver is not None:
            await driver.close()


async def go(
    page: Page, url: str, timeout_ms: float = 30_000, wait_until: _Until = "load"
) -> Response | None:
    """Navigate. The error page of a failed navigation may still be on its way and break the next one off."""
    for pause_s in _GO_PAUSES_S:
        try:
            return await page.goto(url, timeout=timeout_ms, wait_until=wait_until)
        except PlaywrightError as error:
            if "interrupted by another navigation" not in error.message:
                raise
        await asyncio.sleep(pause_s)
    return await page.goto(url, timeout=timeout_ms, wait_until=wait_until)


def _first_line(error: Exception) -> str:
    """What went wrong, without the name of the call (`Page.goto: `) and without the log of it."""
    line = (str(error).strip() or "no reason given").splitlines()[0]
    return re.sub(r"^\w+\.\w+: ", "", line)
