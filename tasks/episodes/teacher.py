"""What an expert would do in the state a page is in, whoever brought it there.

An expert reads the page, so it can be asked anew in any state. One that remembers (`REMEMBERING`) is asked
anew only when what it meant to act on is not there any more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import cast

from pilotfish.tasks.episodes.cdp import PageError, View
from pilotfish.tasks.episodes.pages import VIEW, Action, Screen, Unreachable, css_point, pixel_point
from pilotfish.tasks.episodes.steps import Expert, Step

NEAR_PX = 12  # how far the end of a drag may be from the expert's, in device pixels of the frame
# What experts raise on pages that are not as their task leaves them.
LOST = (Unreachable, PageError, LookupError, TypeError, ValueError)


class Lost(Exception):
    """The expert does not know how to go on from the state the page is in."""


class Teacher:
    """Asks one expert for each step of an episode."""

    def __init__(self, screen: Screen, expert: Expert, *, remembers: bool) -> None:
        self._screen, self._expert, self._remembers = screen, expert, remembers
        self._steps: AsyncGenerator[Step] | None = None
        self._meant: Step | None = None

    async def ask(self) -> Step | None:
        """The step to take now; None when the expert has nothing more to do. Raises `Lost`."""
        try:
            if self._meant is not None and not await self._screen.js(f"pf.same({self._place(self._meant)})"):
                await self.close()
            if self._meant is None:
                if self._steps is None:
                    self._steps = cast(AsyncGenerator[Step], self._expert(self._screen))
                self._meant = await anext(self._steps, None)
                if self._meant is not None:
                    await self._screen.js(f"pf.mark({self._place(self._meant)})")
        except LOST as error:
            raise Lost(str(error)) from error
        return self._meant

    def followed(self) -> None:
        """What was meant has been done."""
        self._meant = None

    async def strayed(self, *, changed: bool) -> None:
        """Something else has been done; `changed` says whether that shows on the screen."""
        if changed and not self._remembers:
            await self.close()

    async def close(self) -> None:
        """Forget what was meant, and begin anew with the next question."""
        if self._steps is not None:
            await self._steps.aclose()
        self._steps = self._meant = None

    def _place(self, step: Step) -> str:
        """JavaScript arguments for where a step acts, in CSS pixels; none where it acts on the focus."""
        point = step.action.get("start_coordinate") or step.action.get("coordinate")
        if point is None:
            return ""
        x, y = css_point(point, self._screen.view)
        return f"{x},{y}"


def agrees(action: Action, step: Step, view: View = VIEW) -> bool:
    """Whether an action does what an expert's step means: the same kind, inside its box, the same text."""
    meant = step.action
    if action.get("action") != meant["action"] or action.get("text") != meant.get("text"):
        return False
    if action.get("scroll_direction") != meant.get("scroll_direction"):
        return False
    begin = "start_coordinate" if "start_coordinate" in meant else "coordinate"
    if begin not in meant:
        return True
    if begin not in action or not _inside(action[begin], step, view):
        return False
    if begin == "coordinate":
        return True
    if "coordinate" not in action:
        return False
    ends = zip(*(pixel_point(done["coordinate"], view) for done in (action, meant)), strict=True)
    return all(abs(a - b) <= NEAR_PX for a, b in ends)


def _inside(point: list[int], step: Step, view: View) -> bool:
    x, y = pixel_point(point, view)
    x0, y0, x1, y1 = step.box or (0, 0, view.pixel_width, view.pixel_height)
    return x0 <= x <= x1 and y0 <= y <= y1
