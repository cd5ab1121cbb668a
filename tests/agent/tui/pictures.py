"""Screens as SVG, compared with those that were looked at and kept in the folder `pictures`.

`PILOTFISH_KEEP_PICTURES=1` keeps what a test draws; look at the files before they are committed.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot

FOLDER = Path(__file__).parent / "pictures"
SIZES = ((80, 24), (40, 12), (120, 40))


def drawn(app: App[Any]) -> str:
    """What the application shows now, as SVG without anything that differs from one drawing to the next."""
    svg = app.export_screenshot(title="")
    svg = re.sub(r"terminal-\d+", "terminal", svg)
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


async def assert_picture(pilot: Pilot[Any], name: str) -> None:
    """The application must come to look as in the kept picture of this name and of the terminal's size.

    Frames are drawn in threads and keys shown after the rest, which may take a while.
    """
    if os.environ.get("PILOTFISH_KEEP_PICTURES"):
        await pilot.pause(1.5)
    end = time.monotonic() + 15
    while True:
        try:
            return _compare(pilot.app, name)
        except AssertionError:
            if time.monotonic() > end:
                raise
            await pilot.pause(0.2)


async def assert_light(pilot: Pilot[Any], name: str) -> None:
    """The same in the light theme, at 80x24 only."""
    if pilot.app.size == (80, 24):
        pilot.app.theme = "textual-light"
        await assert_picture(pilot, f"{name}-light")


def _compare(app: App[Any], name: str) -> None:
    path = FOLDER / f"{name}-{app.size.width}x{app.size.height}.svg"
    svg = drawn(app)
    if os.environ.get("PILOTFISH_KEEP_PICTURES"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(svg, "utf-8")
        return
    assert path.is_file(), f"no picture {path.name} is kept; look at it and keep it ({__doc__})"
    kept = path.read_text("utf-8")
    if svg != kept:
        lines = difflib.unified_diff(kept.splitlines(), svg.splitlines(), "kept", "drawn", lineterm="", n=0)
        raise AssertionError(f"{path.name} looks different:\n" + "\n".join(list(lines)[:40]))
