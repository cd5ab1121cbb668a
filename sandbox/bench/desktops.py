"""Pages: one browser over many of them, and eight desktops at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from pilotfish.sandbox.bench.rows import Row, row
from pilotfish.sandbox.box import Sandbox
from pilotfish.sandbox.spec import SandboxSpec

_PAGE = "<body style='margin:0;background:rgb({0},0,0)'><h1>{0}</h1><p>{1}</p></body>"
_AT_ONCE = 8


async def desktops() -> AsyncIterator[Row]:
    """Sandboxes with a desktop of 1280x800 and a Chromium that shows a page, each with a page of its own."""
    for count, aim in ((1, 0), (_AT_ONCE, 6 * 1024)):
        name = "one desktop with Chromium" if count == 1 else f"{count} desktops with Chromium at once"
        before = _memory_mib()
        async with contextlib.AsyncExitStack() as stack:
            start = time.perf_counter()
            boxes = await asyncio.gather(
                *(stack.enter_async_context(Sandbox.open(SandboxSpec())) for _ in range(count))
            )
            await asyncio.gather(*(_show(box, number) for number, box in enumerate(boxes)))
            took = (time.perf_counter() - start) * 1000
            await asyncio.sleep(2)
            used, unread = _memory_mib()
            note = f"{unread} processes could only be counted whole" if unread else ""
            yield row(f"{name}: memory (PSS)", [used - before[0]], aim, "MiB", note)
            yield row(f"{name}: until the pages show", [took])


async def pages(count: int) -> AsyncIterator[Row]:
    """Many pages in one browser; what it holds after a tenth of them and at the end."""
    async with Sandbox.open(SandboxSpec(width=672, height=448)) as box:
        start = time.perf_counter()
        await box.browser.open("data:text/html,")
        yield row("first page (starts Playwright and Chromium)", [(time.perf_counter() - start) * 1000])
        taken, held = [], []
        for number in range(count):
            box.files.write_text("page.html", _PAGE.format(number % 256, ""))
            start = time.perf_counter()
            await box.browser.open("page.html")
            taken.append((time.perf_counter() - start) * 1000)
            if number in (count // 10, count - 1):
                memory, descriptors = _memory_mib()[0], len(list(os.scandir("/proc/self/fd")))
                held.append(row(f"  memory after {number + 1} pages", [memory], unit="MiB"))
                held.append(row("  descriptors of this process then", [descriptors], unit=""))
        yield row("each next page", taken)
        for found in held:
            yield found


async def _show(box: Sandbox, number: int) -> None:
    box.files.write_text("page.html", _PAGE.format(number * 20, "word " * 2000))
    await box.browser.open("page.html")


def _memory_mib() -> tuple[float, int]:
    """What this process and all below it hold, shared pages divided by those who share them.

    Also how many could not be looked at so closely and were counted whole.
    """
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    total, unread, waiting = 0, 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        with contextlib.suppress(OSError):
            try:
                total += _kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss")
            except PermissionError:
                total += _kib(Path(f"/proc/{pid}/status"), "VmRSS")
                unread += 1
    return total / 1024, unread


def _kib(path: Path, name: str) -> int:
    return next(
        (int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(f"{name}:")), 0
    )
