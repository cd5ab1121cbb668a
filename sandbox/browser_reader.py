"""A page as text, as a person would see it, and the elements of it that can be used, by number.

The reading is done inside by `browser_reader.js`; what comes back is as hostile as the page.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from playwright.async_api import ElementHandle, Frame, Locator, Page, Playwright
from playwright.async_api import Error as PlaywrightError

from pilotfish.sandbox.browser_marks import plain, shown_url

ENGINE = "seen"
READ_S = 6.0
"""How long the scripts that read a page may take together, in seconds."""
_READER, _SIGHT = (Path(__file__).with_name(f"browser_{name}.js") for name in ("reader", "sight"))
_MAX_FRAMES, _MAX_TEXT, _LEAST_MS, _FRAME_S = 50, 600_000, 50, 3.0


@dataclass
class PageText:
    """What a page shows.

    text: lines; elements that can be used stand in it as `[e1 button "Name"]`, and nothing of the page looks
    like that. refs: the frame of each of them, by its number. hidden: how many pieces of text, or parts of
    some, a person could not see and were left out. rest: how many characters, at most, the page has beyond
    what was read; frames: how many frames were not read: too
    many, too late, or without an answer.
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

    Playwright's errors are the caller's, and so is the limit of time: a page may hang. Frames that do not
    answer are counted.
    """
    found = PageText()
    end = time.monotonic() + READ_S
    first = await _add(found, page.main_frame, "", first, READ_S)
    around, tried = [(page.main_frame, "")], 0
    while around:
        frame, view = around.pop(0)
        for child in frame.child_frames:
            left = end - time.monotonic()
            if tried >= _MAX_FRAMES or left < 0:
                found.frames += 1
                continue
            tried += 1
            try:
                async with asyncio.timeout(_FRAME_S):
                    if part := await _shown_part(await child.frame_element(), view):
                        first = await _add(found, child, part, first, min(left, _FRAME_S / 2))
                        around.append((child, part))
            except (PlaywrightError, TimeoutError):
                found.frames += 1
    return found


async def _add(found: PageText, frame: Frame, view: str, first: int, limit_s: float) -> int:
    """Read one frame; returns from where on elements of the next are numbered."""
    limit_ms = max(_LEAST_MS, int(limit_s * 1000))
    handle = await frame.query_selector(f"{ENGINE}=read {first} {limit_ms}{view}")
    report = json.loads((await handle.text_content() if handle else None) or "{}")
    text, refs = plain(str(report.get("text", ""))[:_MAX_TEXT]), report.get("refs", [])
    found.hidden += int(report.get("hidden", 0))
    found.rest += int(report.get("rest", 0))
    found.is_pdf = found.is_pdf or report.get("type") == "application/pdf"
    found.refs |= {int(number): frame for number in refs}
    if len(found.text) > _MAX_TEXT:
        found.rest += len(text)
    elif frame.parent_frame is None:
        found.text = text
    elif text:
        before = [found.text] if found.text else []
        found.text = "\n".join([*before, f"[frame {shown_url(frame.url)}]", text, "[end of frame]"])
    return max(first, int(report.get("next", first)))


def page_element(frame: Frame, number: int) -> Locator:
    """The element with this number; it matches nothing once the page has dropped it."""
    return frame.locator(f"{ENGINE}=e{number}")


async def _shown_part(holder: ElementHandle, view: str) -> str:
    """What part of a frame shows, as the reader takes it; "" if none."""
    handle = await holder.query_selector(f"{ENGINE}=shown{view}")
    sides = json.loads((await handle.text_content() if handle else None) or "[]")
    return "".join(f" {float(side):.1f}" for side in sides[:4])
