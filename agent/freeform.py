"""An instruction without a task file: a workspace, with or without a desktop, and no grader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pilotfish.sandbox import HostDesktop, Sandbox, SandboxSpec
from pilotfish.tasks.environment import End, Grade
from pilotfish.tools.grid import Screen

NAME = "instruction"


@dataclass(frozen=True)
class FreeForm:
    """The environment of `pilotfish run --instruction`. Nothing can judge what comes of it."""

    instruction: str
    workspace: Path | None = None
    desktop: bool = False

    def sandbox_spec(self) -> SandboxSpec:
        return SandboxSpec(desktop=self.desktop, workspace=self.workspace)

    def screen(self, box: Sandbox) -> Screen | None:
        if not self.desktop:
            return None
        return Screen(box.display.name, 0, 0, box.display.width, box.display.height)

    async def start(self, box: Sandbox) -> str:
        return self.instruction

    async def finished(self, box: Sandbox) -> bool:
        return False

    async def grade(self, box: Sandbox, end: End) -> Grade:
        said = " That it is finished is the model's own word." if end.status == "done" else ""
        return Grade(0.0, None, f"An instruction has no grader.{said}")


@dataclass(frozen=True)
class OnHost(FreeForm):
    """The environment of `pilotfish run --host`: the screen is the user's own, all else is in the sandbox."""

    host: HostDesktop | None = None

    def screen(self, box: Sandbox) -> Screen:
        assert self.host is not None
        monitor = self.host.monitor()
        return Screen(self.host.name, monitor.x, monitor.y, monitor.width, monitor.height, shared=True)

    async def start(self, box: Sandbox) -> str:
        assert self.host is not None
        return (
            f"{self.instruction}\n\nThe screen is monitor {self.host.monitor().name} of the user's own "
            "desktop. The computer tool acts there; the other tools work in a sandbox apart from it."
        )
