"""A page as text, as a person would see it, and the elements of it that can be used, by number.

The reading is done inside by `browser_reader.js`; what comes back is as hostile as the page.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from playwright.async_api import ElementHandle, Frame, Locator, Page, Playwright

ENGINE = "seen"
_SCRIPT = Path(__file__).with_name("browser_reader.js")
_MAX_FRAMES, _MAX_TEXT = 50, 600_000


@dataclass
class PageText:
    """What a page shows.

    refs: the frame of each element that can be used, by the element's number. hidden: how many pieces of text
    a person could not see and were left out. cut: the page has more than is ever read.
    """

    text: str = ""
    refs: dict[int, Frame] = field(default_factory=dict)
    hidden: int = 0
    cut: bool = False
    is_pdf: bool = False


async def register(playwright: Playwright) -> None:
    """Make the reader known to a driver, once."""
    await playwright.selectors.register(ENGINE, path=_SCRIPT, content_script=True)


async def read_page(page: Page, first: int) -> PageText:
    """Read a page and the frames in it that can be seen. New elements are numbered from `first` on.

    Playwright's errors are the caller's, and so is the limit of time: a page may hang.
    """
    found = PageText()
    async for frame in _seen_frames(page):
        if len(found.text) > _MAX_TEXT:
            found.cut = True
            break
        handle = await frame.query_selector(f"{ENGINE}=read {first}")
        report = json.loads((await handle.text_content() if handle else None) or "{}")
        text, refs = str(report.get("text", ""))[:_MAX_TEXT], report.get("refs", [])
        found.hidden += int(report.get("hidden", 0))
        found.cut = found.cut or bool(report.get("cut"))
        found.is_pdf = found.is_pdf or report.get("type") == "application/pdf"
        found.refs |= {int(number): frame for number in refs}
        first = max(first, int(report.get("next", first)))
        if frame == page.main_frame:
            found.text = text
        elif text:
            found.text += f"\n[frame {frame.url[:200]}]\n{text}\n[end of frame]"
    return found


def page_element(frame: Frame, number: int) -> Locator:
    """The element with this number; it matches nothing once the page has dropped it."""
    return frame.locator(f"{ENGINE}=e{number}")


async def _seen_frames(page: Page) -> AsyncIterator[Frame]:
    """The main frame and those below it that a person could see, outer ones first."""
    waiting, count = [page.main_frame], 0
    while waiting and count < _MAX_FRAMES:
        frame = waiting.pop(0)
        count += 1
        yield frame
        for child in frame.child_frames:
            if not child.is_detached() and await _is_shown(await child.frame_element()):
                waiting.append(child)


async def _is_shown(holder: ElementHandle) -> bool:
    return await holder.query_selector(f"{ENGINE}=shown") is not None
