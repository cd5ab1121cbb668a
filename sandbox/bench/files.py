"""Snapshots of a workspace, beside copies and what git would take."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from pilotfish.sandbox.bench.rows import Row, row
from pilotfish.sandbox.box import Sandbox
from pilotfish.sandbox.spec import SandboxSpec

FILES, FOLDERS, CHANGED = 10_000, 100, 10
TIMES = 15
_GIT = ("git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0")


async def files() -> AsyncIterator[Row]:
    """Each time, ten files of 10,000 have changed."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder, "workspace")
        await asyncio.to_thread(_fill, workspace)
        async with Sandbox.open(SandboxSpec(desktop=False, workspace=workspace)) as box:
            start = time.perf_counter()
            first = await box.snapshot()
            yield row("first snapshot of 10,000 files", [(time.perf_counter() - start) * 1000])
            taken, restored = [], []
            for number in range(TIMES):
                _change(workspace, number)
                start = time.perf_counter()
                await box.snapshot()
                taken.append((time.perf_counter() - start) * 1000)
                start = time.perf_counter()
                await box.restore(first)
                restored.append((time.perf_counter() - start) * 1000)
            yield row("snapshot when ten of them have changed", taken, aim=60)
            yield row("restore of those ten", restored, aim=150)
        for found in await asyncio.to_thread(_peers, workspace, Path(folder)):
            yield found


def _peers(workspace: Path, folder: Path) -> list[Row]:
    copies, copied_back, added, stashed = [], [], [], []
    for number in range(5):
        _change(workspace, number)
        copy = folder / f"copy-{number}"
        copies.append(_ms(lambda copy=copy: _run("cp", "-a", str(workspace), str(copy))))  # type: ignore[misc]
        copied_back.append(_ms(lambda copy=copy: _copy_back(copy, workspace)))  # type: ignore[misc]
    repository = str(workspace)
    _run(*_GIT, "-C", repository, "init", "-q")
    _run(*_GIT, "-C", repository, "add", "-A")
    _run(*_GIT, "-C", repository, "commit", "-qm", "first")
    for number in range(TIMES):
        _change(workspace, number)
        added.append(_ms(lambda: _run(*_GIT, "-C", repository, "add", "-A")))
        stashed.append(_ms(lambda: _run(*_GIT, "-C", repository, "stash", "push", "-q")))
    return [
        row("  `cp -a` of all", copies),
        row("  all removed and copied back", copied_back),
        row("  `git add -A`", added),
        row("  `git stash` (keeps them and goes back)", stashed),
    ]


def _copy_back(copy: Path, workspace: Path) -> None:
    shutil.rmtree(workspace)
    _run("cp", "-a", str(copy), str(workspace))


def _ms(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def _fill(workspace: Path) -> None:
    """Files of a repository's sizes, about 4 KiB on average, that hold different text."""
    noise = random.Random(1)
    for number in range(FOLDERS):
        folder = workspace / f"folder-{number}"
        folder.mkdir(parents=True)
        for name in range(FILES // FOLDERS):
            (folder / f"{name}.txt").write_bytes(noise.randbytes(int(noise.expovariate(1 / 4096))))


def _change(workspace: Path, number: int) -> None:
    for index in range(CHANGED):
        path = workspace / f"folder-{(number * 7 + index) % FOLDERS}" / f"{index}.txt"
        path.write_bytes(os.urandom(2000 + number))
