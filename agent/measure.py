"""`python -m pilotfish.agent.measure`: what observing and recording cost on this machine.

Prints the milliseconds of a grab, of the settle wait after a click, of a record and of a stored frame.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from pilotfish.agent.damage import Rect
from pilotfish.agent.events import EventLog, Told
from pilotfish.agent.recorder import Recorder
from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.sandbox.busy import warn_when_busy
from pilotfish.tools.base import ToolContext, ToolResult, validate
from pilotfish.tools.grid import Screen
from pilotfish.tools.registry import make_tools

PAGE = """<!doctype html><body style="margin:0"><button style="width:100vw;height:100vh;font-size:60px"
onclick="this.textContent = ++n; this.style.background = n % 2 ? '#9f9' : '#99f'">0</button>
<script>var n = 0</script>"""
CLICKS = 20


def times_ms(work: Callable[[], object], count: int) -> list[float]:
    """The milliseconds of each of `count` calls."""
    spent = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        spent.append((time.perf_counter() - began) * 1000)
    return spent


def show(what: str, spent_ms: list[float]) -> None:
    """One line: median and worst."""
    print(f"{what:<58} {statistics.median(spent_ms):8.2f} ms median {max(spent_ms):8.2f} ms worst")


async def measure_screen(width: int, height: int) -> None:
    """Grabs of a still screen and clips around clicks on a page that repaints itself each time."""
    from mss import MSS

    async with Sandbox.open(SandboxSpec(width=width, height=height, browser=True)) as box:
        box.files.write_text("page.html", PAGE)
        await box.browser.open("page.html")
        with MSS(display=box.display.name) as camera:
            region = {"left": 0, "top": 0, "width": width, "height": height}
            show(f"one grab by an X client, {width}x{height}", times_ms(lambda: camera.grab(region), 100))
        picture = box.framebuffer
        show(f"one grab, {width}x{height}", times_ms(lambda: picture.grab(0, 0, width, height), 100))
        screen = Screen(box.display.name, 0, 0, width, height)
        async with Recorder(box.display.name, Rect(0, 0, width, height), camera=picture) as recorder:
            await measure_clicks(recorder, ToolContext(box, screen), f"{width}x{height}")


async def measure_clicks(recorder: Recorder, context: ToolContext, size: str) -> None:
    """Wall time of clips without an action and around clicks, and processor time of a still screen."""
    (tool,) = make_tools(["computer"])
    click = validate(tool, {"action": "left_click", "coordinate": [500, 500]})
    assert not isinstance(click, ToolResult)
    still, clicks = [], []

    async def act() -> bool:
        return (await tool.run(click, context)).ok

    await recorder.clip(act)
    for _ in range(CLICKS):
        began = time.perf_counter()
        seen = await recorder.clip(act)
        clicks.append((time.perf_counter() - began) * 1000)
        assert seen.word == "settled", seen.word
        began = time.perf_counter()
        await recorder.clip()
        still.append((time.perf_counter() - began) * 1000)
    await tool.close()
    show(f"clip of a still screen, {size}, quiet for {recorder.quiet_s * 1000:.0f} ms", still)
    show(f"click and clip, {size}", clicks)
    before = time.process_time()
    await asyncio.sleep(2)
    print(f"{'processor time of an idle recorder':<58} {(time.process_time() - before) / 2 * 100:8.2f} %")


def measure_log(folder: Path) -> None:
    """Records and frames, in `folder`, whose file system decides."""
    random = np.random.default_rng(1)
    with EventLog(folder) as events:
        write = partial(events.append, Told(step=1, text="x" * 400))
        show("one record with fsync", times_ms(write, 100))
        for width, height in ((336, 420), (1280, 800)):
            blocks = random.integers(0, 256, (20, height // 20, width // 20, 3), np.uint8)
            frames = [np.ascontiguousarray(block.repeat(20, 0).repeat(20, 1)) for block in blocks]
            coming = [partial(events.frames.put, frame) for frame in frames]
            show(f"one new frame, {width}x{height}", [times_ms(put, 1)[0] for put in coming])
            show(f"one known frame, {width}x{height}", [times_ms(put, 1)[0] for put in coming])


def main() -> None:
    """Measure everything."""
    warn_when_busy()
    for width, height in ((336, 420), (1280, 800)):
        asyncio.run(measure_screen(width, height))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        measure_log(Path(folder))


if __name__ == "__main__":
    main()
