"""A page as text, as a person would see it, and the elements of it that can be used, by number.

The reading is done inside by `browser_reader.js`; what comes back is as hostile as the page.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from playwright.async_api import ElementHandle, Frame, Locator, Page, Playwright

from pilotfish.sandbox.browser_marks import plain, shown_url

ENGINE = "seen"
READ_S = 6.0
"""How long the scripts that read a page may take together, in seconds."""
_READER, _SIGHT = (Path(__file__).with_name(f"browser_{name}.js") for name in ("reader", "sight"))
_MAX_FRAMES, _MAX_TEXT, _LEAST_MS = 50, 600_000, 50


@dataclass
class PageText:
    """What a page shows.

    text: lines; elements that can be used stand in it as `[e1 button "Name"]`, and nothing of the page looks
    like that. refs: the frame of each of them, by its number. hidden: how many pieces of text, or parts of
    some, a person could not see and were left out. rest: how many characters, at most, the page has beyond
    what was read; frames: how many frames were not read, since there are too many or no time was left.
    """

    text: str = ""
    refs: dict[int, Frame] = field(default_factory=dict)
    hidden: int = 0
    rest: int = 0
    frames: int = 0
    is_pdf: bool = False


async def register(playwright: Playwright) -> None:
    """Make the reader known to a driver, once."""
    script = f"({_READER.read_text()})({_SIGHT.read_text()})"
    await playwright.selectors.register(ENGINE, script=script, content_script=True)


async def read_page(page: Page, first: int) -> PageText:
    """Read a page and the frames in it that can be seen. New elements are numbered from `first` on.

    Playwright's errors are the caller's, and so is the limit of time: a page may hang.
    """
    found = PageText()
    end = time.monotonic() + READ_S
    read = 0
    async for frame, view in _seen_frames(page):
        if read and time.monotonic() > end:
            break
        read += 1
        left_ms = max(_LEAST_MS, int((end - time.monotonic()) * 1000))
        handle = await frame.query_selector(f"{ENGINE}=read {first} {left_ms}{view}")
        report = json.loads((await handle.text_content() if handle else None) or "{}")
        text, refs = plain(str(report.get("text", ""))[:_MAX_TEXT]), report.get("refs", [])
        found.hidden += int(report.get("hidden", 0))
        found.rest += int(report.get("rest", 0))
        found.is_pdf = found.is_pdf or report.get("type") == "application/pdf"
        found.refs |= {int(number): frame for number in refs}
        first = max(first, int(report.get("next", first)))
        if len(found.text) > _MAX_TEXT:
            found.rest += len(text)
        elif frame == page.main_frame:
            found.text = text
        elif text:
            around = [found.text] if found.text else []
            found.text = "\n".join([*around, f"[frame {shown_url(frame.url)}]", text, "[end of frame]"])
    if read >= _MAX_FRAMES or time.monotonic() > end:
        found.frames = max(0, len(page.frames) - read)
    return found


def page_element(frame: Frame, number: int) -> Locator:
    """The element with this number; it matches nothing once the page has dropped it."""
    return frame.locator(f"{ENGINE}=e{number}")


async def _seen_frames(page: Page) -> AsyncIterator[tuple[Frame, str]]:
    """The main frame and those below it that a person could see, outer ones first, and what part."""
    waiting, count = [(page.main_frame, "")], 0
    while waiting and count < _MAX_FRAMES:
        frame, view = waiting.pop(0)
        count += 1
        yield frame, view
        for child in frame.child_frames[:_MAX_FRAMES]:
            if not child.is_detached() and (part := await _shown_part(await child.frame_element(), view)):
                waiting.append((child, part))


async def _shown_part(holder: ElementHandle, view: str) -> str:
    """What part of a frame shows, as the reader takes it; "" if none."""
    handle = await holder.query_selector(f"{ENGINE}=shown{view}")
    sides = json.loads((await handle.text_content() if handle else None) or "[]")
    return "".join(f" {float(side):.1f}" for side in sides[:4])
