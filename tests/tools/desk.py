"""A sandbox with the site of `site.py`, and the `browser` tool in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pilotfish.sandbox import Sandbox
from pilotfish.tools.base import Screen, ToolContext, ToolResult, validate
from pilotfish.tools.browser import BrowserTool
from pilotfish.tools.computer import ComputerTool

SITE = "http://localhost:8000"


class Desk:
    """A sandbox with the site, and its browser tool."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.tool = BrowserTool()
        self.computer = ComputerTool()

    async def result(self, action: str, **arguments: Any) -> ToolResult:
        checked = validate(self.tool, {"action": action, **arguments})
        return checked if isinstance(checked, ToolResult) else await self.tool.run(checked, self.context)

    async def ok(self, action: str, **arguments: Any) -> str:
        result = await self.result(action, **arguments)
        assert result.ok, result.text
        return result.text

    async def refused(self, action: str, **arguments: Any) -> str:
        result = await self.result(action, **arguments)
        assert not result.ok, result.text
        assert result.text.startswith("browser: ")
        return result.text

    async def ref(self, name: str) -> str:
        """The reference of the element whose line holds a text."""
        text = await self.ok("read")
        found = re.search(rf"\[(e\d+) [^\]]*{name}", text)
        assert found, text
        return found[1]

    async def click(self, name: str) -> str:
        return await self.ok("click", ref=await self.ref(name))

    @property
    def context(self) -> ToolContext:
        display = self.box.display
        return ToolContext(self.box, Screen(display.name, 0, 0, display.width, display.height))


async def serve(box: Sandbox) -> None:
    box.files.write_text("site.py", Path(__file__).with_name("site.py").read_text())
    await box.run(["python3", "site.py", "8000"])
    ready = "until (: < /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done"
    assert (await box.shell.run(ready, timeout_s=20)).exit_code == 0
