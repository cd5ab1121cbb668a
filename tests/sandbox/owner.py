"""A process that owns a sandbox and is killed by the tests: prints what to look for, then waits.

Run as `python owner.py SHAPE`; SHAPE is `plain`, `desk` or `browser`, with `-term` added when SIGTERM is to
close it, or `-level-2` or `-level-0` for another level.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.sandbox.levels import Level


async def main(shape: str) -> None:
    if shape.endswith("-term"):
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    level: Level = 2 if shape.endswith("-level-2") else 0 if shape.endswith("-level-0") else 3
    spec = SandboxSpec(width=320, height=240, desktop=not shape.startswith("plain"), level=level)
    async with Sandbox.open(spec) as box:
        if shape.startswith("browser"):
            await box.browser.open("data:text/html,hello")
        await box.shell.run("(setsid nohup sleep 7001 >/dev/null 2>&1 &); sleep 7002 &")
        await box.shell.run("until [ $(pgrep -fc '^sleep 700') = 2 ]; do sleep 0.01; done", timeout_s=10)
        await box.run(["sh", "-c", "trap '' TERM HUP INT; while :; do sleep 0.05; echo x >> log; done"])
        name = box.display.name if box.spec.desktop else ""
        print("open", box.workspace, name, flush=True)
        await asyncio.sleep(600)


asyncio.run(main(sys.argv[1]))
