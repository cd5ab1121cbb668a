"""What a sandbox costs on this machine: `python -m pilotfish.sandbox.measure [--pages N] [--json]`.

Prints the medians that docs/sandbox.md quotes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable

import mss

from pilotfish.sandbox.box import Sandbox
from pilotfish.sandbox.spec import SandboxSpec

_LIMIT_MS = 100
_PAGE = "<body style='margin:0;background:rgb({0},0,0)'><p>{0}</p></body>"


async def median_ms(times: int, work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds that `work` takes, the median of `times` runs."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - start) * 1000)
    return statistics.median(taken)


async def open_and_close(spec: SandboxSpec, times: int = 5) -> tuple[float, float]:
    """Median milliseconds to open a sandbox and to close it."""
    opened, closed = [], []
    for _ in range(times):
        start = time.perf_counter()
        box = await Sandbox.start(spec)
        opened.append((time.perf_counter() - start) * 1000)
        start = time.perf_counter()
        await box.close()
        closed.append((time.perf_counter() - start) * 1000)
    return statistics.median(opened), statistics.median(closed)


def grab_ms(box: Sandbox, times: int = 50) -> float:
    """Median milliseconds of one picture of the display, taken from outside."""
    taken = []
    with mss.MSS(display=box.display.name) as camera:
        for _ in range(times):
            start = time.perf_counter()
            camera.grab(camera.monitors[0])
            taken.append((time.perf_counter() - start) * 1000)
    return statistics.median(taken)


async def processes_and_memory(box: Sandbox) -> tuple[int, float]:
    """Processes inside, and the memory they hold together in MiB (shared pages counted once)."""
    command = "n=0; for p in /proc/[0-9]*; do n=$((n+1)); cat $p/smaps_rollup 2>/dev/null; done"
    result = await box.shell.run(
        command + " | awk '/^Pss:/ {s+=$2} END {print s}'; ls -d /proc/[0-9]* | wc -l"
    )
    memory, count = result.output.split()
    return int(count), int(memory) / 1024


async def measure(pages: int) -> dict[str, float]:
    """Every number by its name; times in milliseconds."""
    found: dict[str, float] = {}
    found["open without desktop"], found["close without desktop"] = await open_and_close(
        SandboxSpec(desktop=False)
    )
    found["open at level 2"], found["close at level 2"] = await open_and_close(
        SandboxSpec(desktop=False, level=2)
    )
    found["open with desktop"], found["close with desktop"] = await open_and_close(SandboxSpec())
    for width, height in ((672, 448), (1280, 800)):
        async with Sandbox.open(SandboxSpec(width=width, height=height)) as box:
            found[f"picture {width}x{height}"] = grab_ms(box)
    async with Sandbox.open(SandboxSpec(width=672, height=448)) as box:
        found["first shell command of a session"] = await median_ms(10, lambda: _first_command(box))
        found["shell command"] = await median_ms(100, lambda: box.shell.run("true"))
        found["shell command that is a program"] = await median_ms(100, lambda: box.shell.run("/bin/true"))
        found["time limit of a shell command"] = await median_ms(5, lambda: _time_limit(box)) - _LIMIT_MS
        found["program start and end"] = await median_ms(30, lambda: _run_true(box))
        found["file write"] = await median_ms(100, lambda: _write(box))
        await box.shell.run("mkdir many; cd many; for i in $(seq 1000); do echo $i > $i; done")
        found["snapshot of 1,000 files"] = await median_ms(5, box.snapshot)
        snapshot = await box.snapshot()
        found["restore of 1,000 files"] = await median_ms(5, lambda: box.restore(snapshot))
        found["first page"] = await median_ms(1, lambda: box.browser.open("data:text/html,"))
        await _pages(box, pages, found)
    return found


async def _first_command(box: Sandbox) -> None:
    box.shell.reset()
    await box.shell.run("true")


async def _time_limit(box: Sandbox) -> None:
    """Run into the time limit with a daemon and a foreground tree; what it takes beyond is the killing."""
    await box.shell.run("(setsid sleep 99 &); sleep 99 | cat", timeout_s=_LIMIT_MS / 1000)


async def _run_true(box: Sandbox) -> None:
    process = await box.run(["true"])
    await process.wait()


async def _write(box: Sandbox) -> None:
    box.files.write_text("file", "content")


async def _pages(box: Sandbox, pages: int, found: dict[str, float]) -> None:
    """Load many pages in one browser; compare what it holds after a tenth of them and at the end."""
    taken = []
    for number in range(pages):
        box.files.write_text("page.html", _PAGE.format(number % 256))
        start = time.perf_counter()
        await box.browser.open("page.html")
        taken.append((time.perf_counter() - start) * 1000)
        if number in (pages // 10, pages - 1):
            when = f"after {number + 1} pages"
            found[f"processes {when}"], found[f"memory inside {when}, MiB"] = await processes_and_memory(box)
            found[f"own descriptors {when}"] = len(list(os.scandir("/proc/self/fd")))
    found["next page"] = statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a sandbox costs on this machine.")
    parser.add_argument("--pages", type=int, default=100, help="how many pages to load in one browser")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = asyncio.run(measure(max(options.pages, 10)))
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:40} {value:10.2f}")


if __name__ == "__main__":
    main()
