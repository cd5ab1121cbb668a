"""Sandboxes for the tests of this folder; one is shared by a module where tests do not disturb each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pilotfish.sandbox import Sandbox, SandboxSpec, Shell, Snapshots


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def box() -> AsyncIterator[Sandbox]:
    """A sandbox without a desktop."""
    async with Sandbox.open(SandboxSpec(desktop=False)) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def desk() -> AsyncIterator[Sandbox]:
    """A sandbox with a small desktop."""
    async with Sandbox.open(SandboxSpec(width=672, height=448)) as opened:
        yield opened


@pytest.fixture
def shell(box: Sandbox) -> Shell:
    """The shell of `box` without any session; nothing of the test before runs in it."""
    for name in box.shell.sessions:
        box.shell.reset(name)
    return box.shell


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace to take snapshots of."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def kept(work: Path) -> Snapshots:
    """Its snapshots."""
    return Snapshots(work, work.parent / "store")
