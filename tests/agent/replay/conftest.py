"""A real browser that looks at pages, and knows of every error and request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from pilotfish.sandbox.pieces import find_chromium


class Looking:
    """A page in a browser, and what went wrong with it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.set_default_timeout(20_000)
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type != "info" else None)
        page.on("request", lambda request: self.requests.append(request.url))

    async def open(self, path: Path) -> Page:
        """Open a page from its file."""
        await self.page.goto(path.as_uri())
        return self.page

    def check(self, path: Path) -> None:
        """Nothing went wrong, and nothing but the file itself was asked for."""
        assert self.errors == []
        assert {url for url in self.requests if not url.startswith("data:")} == {path.as_uri()}

    async def until(self, what: str) -> None:
        """Wait until an expression is true; the page's policy lets no string be run by itself."""
        async with asyncio.timeout(20):
            while not await self.page.evaluate(what):  # noqa: ASYNC110 - a page signals nothing
                await asyncio.sleep(0.02)

    async def picture_widths(self) -> set[int]:
        """Of all pictures that the page shows, in pixels of their own; 0 is one that does not show."""
        await self.until("[...document.images].every((one) => one.complete)")
        widths = "[...document.images].filter((one) => one.checkVisibility()).map((one) => one.naturalWidth)"
        return set(await self.page.evaluate(widths))

    async def chosen(self) -> str:
        """The line of the list that is chosen."""
        return await self.page.locator(".row[aria-selected=true] .what").inner_text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(find_chromium().host))
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def looking(browser: Browser) -> AsyncIterator[Looking]:
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    yield Looking(await context.new_page())
    await context.close()


@pytest_asyncio.fixture(loop_scope="module")
async def phone(browser: Browser) -> AsyncIterator[Looking]:
    context = await browser.new_context(
        viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True, device_scale_factor=2
    )
    yield Looking(await context.new_page())
    await context.close()
