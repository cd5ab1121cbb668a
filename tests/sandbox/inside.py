"""What the tests look at inside a sandbox."""

from __future__ import annotations

import time

from pilotfish.sandbox import Sandbox


async def names(box: Sandbox) -> list[str]:
    """The command lines of everything that runs inside."""
    listing = await box.run(["ps", "-eo", "args"])
    await listing.wait(10)
    return listing.output.splitlines()


async def until(box: Sandbox, name: str, *, gone: bool = False) -> None:
    """Wait until a program runs inside, or no longer does."""
    deadline = time.monotonic() + 5
    while (name in await names(box)) == gone:
        assert time.monotonic() < deadline
