"""Opening and closing a sandbox; the shell's round trip."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Sequence

from pilotfish.sandbox.bench.rows import Row, row, times_ms
from pilotfish.sandbox.box import Sandbox
from pilotfish.sandbox.bwrap import probe_argv
from pilotfish.sandbox.landlock import NEEDED_VERSION, version
from pilotfish.sandbox.spec import SandboxSpec

_LIMIT_MS = 100


async def ready() -> AsyncIterator[Row]:
    """How long until a first command can be given, and how long until a sandbox is gone."""
    opened, closed = await _open_and_close(SandboxSpec(desktop=False), 40)
    yield row("sandbox ready", opened, aim=40)
    yield row("  and its first command has run", await times_ms(20, _open_and_run))
    yield row("  closed", closed)
    yield row("  bubblewrap alone, the same arguments around `true`", await _runs(probe_argv()))
    for engine in ("docker", "podman"):
        yield await asyncio.to_thread(_container, engine)
    if version() >= NEEDED_VERSION:
        opened, closed = await _open_and_close(SandboxSpec(desktop=False, level=2), 20)
        yield row("  at level 2", opened)
    else:
        yield Row("  at level 2", note=f"needs Landlock {NEEDED_VERSION}, here it is {version()}")
    opened, closed = await _open_and_close(SandboxSpec(), 20)
    yield row("sandbox with a desktop ready (Xvfb, openbox)", opened)
    yield row("  closed", closed)


async def shell() -> AsyncIterator[Row]:
    """What a command costs."""
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        yield row("shell command `true`", await times_ms(300, lambda: box.shell.run("true")), aim=2)
        yield row("  `bash -c true` by subprocess, unconfined", await _runs(["bash", "-c", "true"]))
        yield row("shell command `/bin/true`", await times_ms(100, lambda: box.shell.run("/bin/true")))
        yield row("first command of a session", await times_ms(15, lambda: _first_command(box)))
        over = [taken - _LIMIT_MS for taken in await times_ms(8, lambda: _time_limit(box))]
        yield row("what a time limit takes to end a tree with a daemon", over)
        yield row("program started and waited for", await times_ms(50, lambda: _run_true(box)))
        yield row("file written", await times_ms(100, lambda: _write(box)))


async def _open_and_close(spec: SandboxSpec, count: int) -> tuple[list[float], list[float]]:
    opened, closed = [], []
    for _ in range(count + 1):
        start = time.perf_counter()
        box = await Sandbox.start(spec)
        opened.append((time.perf_counter() - start) * 1000)
        start = time.perf_counter()
        await box.close()
        closed.append((time.perf_counter() - start) * 1000)
    return opened[1:], closed[1:]


async def _open_and_run() -> None:
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        await box.shell.run("true")


async def _runs(argv: Sequence[str], count: int = 40) -> list[float]:
    def work() -> None:
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)

    async def one() -> None:
        work()

    return await times_ms(count, one)


def _container(engine: str) -> Row:
    """`ENGINE run IMAGE true` with an image that is there, if there is one."""
    what = f"  `{engine} run` of an image that is here, around `true`"
    if shutil.which(engine) is None:
        return Row(what, note="not installed")
    listing = subprocess.run([engine, "image", "ls", "--quiet"], capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        return Row(what, note=f"it does not run here ({_first_sentence(listing.stderr)})")
    if not listing.stdout.split():
        return Row(what, note="there is no image")
    argv = [engine, "run", "--rm", "--network=none", listing.stdout.split()[0], "true"]
    taken = []
    for _ in range(10):
        start = time.perf_counter()
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        taken.append((time.perf_counter() - start) * 1000)
        if done.returncode != 0:
            return Row(what, note=f"it failed ({_first_sentence(done.stderr)})")
    return row(what, taken)


def _first_sentence(text: str) -> str:
    return text.strip().partition(". ")[0].partition("\n")[0]


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
