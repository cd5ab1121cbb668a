"""An instruction without a task file: a workspace, with or without a desktop, and no grader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.tasks.environment import End, Grade
from pilotfish.tools.grid import Screen

NAME = "instruction"


@dataclass(frozen=True)
class FreeForm:
    """The environment of `pilotfish run --instruction`. It passes when the model says that it is finished."""

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
        passed = end.status == "done"
        return Grade(float(passed), passed, "Nothing was graded; the model's own word counts.")
