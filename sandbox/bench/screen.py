"""From a click to the picture that shows its effect; what one picture costs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import mss
import numpy as np

from pilotfish.sandbox.bench.rows import Row, row, times_ms
from pilotfish.sandbox.box import Sandbox
from pilotfish.sandbox.spec import SandboxSpec

_INPUT = "pilotfish.tools.input_process"
"""What moves the mouse for the `computer` tool; run as it runs it, since this room knows nothing of tools."""
_PAGE = """data:text/html,<body style="margin:0;height:100vh" onmousedown="this.style.background =
 ++n %2525 2 ? 'teal' : 'white'"><script>n = 0</script>""".replace("%2525", "%25").replace("\n", "")
_SLOWEST_S = 5.0


async def screen() -> AsyncIterator[Row]:
    """On a display of 1280x800."""
    async with Sandbox.open(SandboxSpec()) as box:
        size = (box.display.width, box.display.height)
        async with _program("pilotfish.sandbox.bench.window", box), _program(_INPUT, box) as mouse:
            yield row("click to changed picture, 1280x800", await _clicks(box, mouse), aim=15)

            async def read() -> None:
                box.framebuffer.grab(0, 0, *size)

            yield row("one picture from the framebuffer", await times_ms(100, read))
            with mss.MSS(display=box.display.name) as camera:

                async def grab() -> None:
                    camera.grab(camera.monitors[0])

                yield row("  by mss", await times_ms(100, grab))
        page = (await box.browser.open(_PAGE)).page
        yield row("  by Playwright's `page.screenshot`", await times_ms(15, page.screenshot))
        taken = []
        for _ in range(15):
            start = time.perf_counter()
            await page.mouse.click(600, 400)
            await page.screenshot()
            taken.append((time.perf_counter() - start) * 1000)
        yield row("  Playwright's `page.mouse.click` and `page.screenshot`", taken)


async def _clicks(box: Sandbox, mouse: asyncio.subprocess.Process) -> list[float]:
    assert mouse.stdin is not None
    assert mouse.stdout is not None
    camera, size = box.framebuffer, (box.display.width, box.display.height)
    taken = []
    for number in range(41):
        at = [300 + 10 * number, 400]
        before = camera.grab(0, 0, *size)
        request: dict[str, Any] = {"op": "click", "at": at, "button": "left", "count": 1, "keys": []}
        start = time.perf_counter()
        mouse.stdin.write(json.dumps(request).encode() + b"\n")
        while np.array_equal(camera.grab(0, 0, *size), before):
            await asyncio.sleep(0)
            if time.perf_counter() - start > _SLOWEST_S:
                raise TimeoutError("the click changed nothing")
        taken.append((time.perf_counter() - start) * 1000)
        await mouse.stdout.readline()
        await asyncio.sleep(0.02)
    return taken[1:]


@contextlib.asynccontextmanager
async def _program(module: str, box: Sandbox) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python program outside on the sandbox's display, once it has said that it is ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "DISPLAY": box.display.name},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            await process.stdout.readline()
        yield process
    finally:
        process.kill()
        await process.wait()
