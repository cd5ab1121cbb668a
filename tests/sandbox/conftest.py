"""Sandboxes for the tests of this folder; one is shared by a module where tests do not disturb each other."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from pilotfish.sandbox import Sandbox, SandboxSpec


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
