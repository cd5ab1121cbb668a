"""Runs into the memory limit at both levels, as whoever runs it, and prints what is said."""

from __future__ import annotations

import asyncio

from pilotfish.sandbox import Limits, Sandbox, SandboxSpec
from pilotfish.sandbox.levels import Level


async def main() -> None:
    levels: tuple[Level, ...] = (3, 2)
    for level in levels:
        spec = SandboxSpec(desktop=False, level=level, limits=Limits(memory_bytes=400 << 20))
        async with Sandbox.open(spec) as box:
            if level == 3:
                print(box.bounds)
            print(*(await box.shell.run("python3 -c 'b = bytearray(900 << 20); input()'")).limits)


asyncio.run(main())
