"""The tabs of the `browser` tool: their numbers, which is in front, and calls that no page can hold up."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from playwright.async_api import Dialog, Frame, Page
from playwright.async_api import Error as PlaywrightError

from pilotfish.sandbox import PAGE_ERRORS, Browser, PageText, Sandbox, read_page
from pilotfish.sandbox.browser_marks import shown_url
from pilotfish.tools.words import short

T = TypeVar("T")

MAX_TABS = 50
"""With so many open, no other is opened."""
PAGE_S = 10.0
"""How long a page may take to answer, in seconds."""
_TITLE_S, _CLOSE_S, _READ_S = 2.0, 5.0, 15.0
_GONE_PAUSES_S = (0.1, 0.3, 1.0)


class Trouble(Exception):
    """What is wrong and how to mend it, as the end of a sentence."""


class DialogOpened(Exception):
    """The page waits for an answer to a dialog."""


class Tabs:
    """The tabs of one sandbox's browser, and the elements that were last read in each."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.browser: Browser = box.browser
        self.current: Page | None = None
        self._numbers: dict[Page, int] = {}
        self.silent: Page | None = None
        """A page that did not answer the last call."""
        self.crashed: set[Page] = set()
        self._last, self._starts = 0, 0
        self._refs: dict[int, Frame] = {}
        self._next_ref = 1
        self._left: set[asyncio.Future[Any]] = set()
        self._news: list[str] = []

    def news(self) -> list[str]:
        """What is to be told since the last call."""
        told, self._news = self._news, []
        return told

    async def look(self) -> None:
        """Bring the list up to date, starting the browser where none runs."""
        pages = await self.browser.tabs()
        if self.browser.starts != self._starts:
            if self._starts:
                self._news.append("the browser had ended and was started again: its tabs and pages are gone")
            self._starts, self.current = self.browser.starts, None
            self._numbers.clear()
            self._refs.clear()
        for page in [page for page in self._numbers if page not in pages]:
            del self._numbers[page]
        fresh = [page for page in pages if page not in self._numbers]
        for page in fresh:
            self._last += 1
            self._numbers[page] = self._last
            page.on("crash", self._crash)
        if self.current not in pages:
            self.current = pages[-1] if pages else None
        elif fresh and fresh[-1] != self.current:
            self.current = fresh[-1]
            self._news.append(f"a new tab opened, {self._numbers[fresh[-1]]}, and is in front")

    def _crash(self, page: Page) -> None:
        self.crashed.add(page)

    async def page(self) -> Page:
        """The page in front, which answers; raises `Trouble` when it cannot."""
        if self.current is None:
            self.current = await self.browser.new_tab()
            await self.look()
        page = self.current
        if page in self.crashed:
            raise Trouble(
                f"tab {self.number(page)} has crashed; use navigate, which opens another in its place"
            )
        if (dialog := self.dialog()) is not None:
            raise Trouble(described(dialog))
        return page

    async def page_to_leave(self) -> Page:
        """The page in front, to be navigated; one that has crashed or hangs is replaced."""
        if self.current is not None and (self.current in self.crashed or self.current == self.silent):
            await self.replace(self.current)
        return await self.page()

    async def replace(self, page: Page) -> None:
        """Open another tab in the place of one that is of no use any more, and close that."""
        async with self._insisting():
            self.current = await self.browser.new_tab()
            await page.close()
        await self.look()

    def page_to_close(self, number: int | None) -> Page:
        """The tab of this number, or the one in front."""
        page = self.current if number is None else self.by_number(number)
        if page is None:
            raise Trouble("no tab is open")
        return page

    async def close(self, page: Page) -> None:
        """Close a tab; the last one leaves an empty one, since the browser would end with it."""
        if len(self._numbers) == 1:
            await self.replace(page)
        else:
            async with self._insisting():
                await page.close()
            await self.look()

    @contextlib.asynccontextmanager
    async def _insisting(self) -> AsyncIterator[None]:
        """Have done with a tab, if need be by a new browser: a page can keep all of it busy."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                yield
        except (*PAGE_ERRORS, TimeoutError):
            await self.browser.restart()

    def number(self, page: Page) -> int:
        return self._numbers.get(page, 0)

    def by_number(self, number: int) -> Page:
        for page, own in self._numbers.items():
            if own == number:
                return page
        known = ", ".join(map(str, self._numbers.values()))
        raise Trouble(f"there is no tab {number}; open are {known}")

    def dialog(self) -> Dialog | None:
        """The dialog that the page in front shows; one of no page in particular counts too."""
        for dialog in self.browser.dialogs:
            if dialog.page is None or dialog.page == self.current:
                return dialog
        return None

    async def bounded(self, work: Coroutine[Any, Any, T], limit_s: float = PAGE_S) -> T:
        """Do something with a page that may not answer.

        Raises `DialogOpened` when a dialog opens meanwhile, `TimeoutError` when the time is over.
        """
        self.browser.dialog_opened.clear()
        doing = asyncio.ensure_future(work)
        opened = asyncio.ensure_future(self.browser.dialog_opened.wait())
        try:
            await asyncio.wait([doing, opened], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
            if not doing.done() and not self.browser.dialog_opened.is_set():
                doing.cancel()
        if doing.done():
            return doing.result()
        if self.browser.dialog_opened.is_set():
            # It goes on when the dialog is answered, and nobody waits for it then.
            self._left.add(doing)
            doing.add_done_callback(self._let_go)
            raise DialogOpened
        raise TimeoutError

    def _let_go(self, done: asyncio.Future[Any]) -> None:
        self._left.discard(done)
        if not done.cancelled():
            done.exception()

    async def read(self) -> PageText:
        """Read the page in front, and keep its elements."""
        page = await self.page()
        found = await self.bounded(self._settled(page), _READ_S)
        self._refs = {ref: frame for ref, frame in self._refs.items() if frame.page != page} | found.refs
        self._next_ref = max([self._next_ref, *(number + 1 for number in found.refs)])
        return found

    async def _settled(self, page: Page) -> PageText:
        """The page's text; where a page just gives way to the next one, that of the next."""
        for pause_s in _GONE_PAUSES_S:
            try:
                return await read_page(page, self._next_ref)
            except PlaywrightError as error:
                if not re.search("context was destroyed|navigat|detached", error.message):
                    raise
            await asyncio.sleep(pause_s)
        raise Trouble("the page gives way to another again and again; use navigate to leave it")

    def frame_of(self, ref: int) -> Frame:
        """The frame of an element that was read in the page in front."""
        frame = self._refs.get(ref)
        if frame is None or frame.page != self.current or frame.is_detached():
            raise Trouble(f"there is no element e{ref} on this page; use read to see which there are")
        return frame

    async def describe(self, page: Page) -> str:
        """A tab in words: its number, title and address."""
        try:
            title = await asyncio.wait_for(page.title(), _TITLE_S)
        except (*PAGE_ERRORS, TimeoutError):
            title = "no title yet"
        if page in self.crashed:
            title = "crashed"
        return f"tab {self.number(page)}: {short(title, 80)} {shown_url(page.url, 300)}"

    async def list(self) -> list[str]:
        """All tabs in words, the one in front marked."""
        pages = list(self._numbers)
        lines = await asyncio.gather(*map(self.describe, pages))
        return [
            ("* " if page == self.current else "  ") + line for page, line in zip(pages, lines, strict=True)
        ]

    @property
    def is_full(self) -> bool:
        return len(self._numbers) >= MAX_TABS

    def stop(self) -> None:
        """Forget what was left waiting for a dialog."""
        for doing in self._left:
            doing.cancel()


def described(dialog: Dialog) -> str:
    """A dialog in words, and what to do about it."""
    kind = {"beforeunload": "question whether to leave the page"}.get(dialog.type, dialog.type)
    said = f"a dialog is open ({kind}): {short(dialog.message, 300)}"
    return f"{said}; use accept_dialog or dismiss_dialog, or close_tab if the page goes on asking"
