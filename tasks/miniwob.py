"""MiniWoB++ as an environment: a model sees the screen and the utterance, nothing of the page behind them.

The pages are those of the installed `miniwob` package, shown read-only inside the sandbox. Playwright
loads the page, seeds and starts the episode and reads the reward; what the model sees comes from the
display alone. Geometry is fixed and every figure depends on it: a display of 672x448 pixels at two pixels
per CSS pixel, of which the model sees the top left 336x420: the task (160x210 CSS pixels) and 8 CSS pixels
to its right. The rest of the display keeps the page from scrolling sideways, as it would at the width of
the task.

Source: Liu et al. 2018 (arXiv:1802.08802) and the pages' own `core/core.js`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.async_api import Page

from pilotfish.sandbox import PAGE_ERRORS, Sandbox, SandboxError, SandboxSpec
from pilotfish.tasks.environment import End, Grade, StartError, first_line
from pilotfish.tasks.environment_fields import MiniwobEnvironment
from pilotfish.tasks.miniwob_names import check_name
from pilotfish.tasks.windows import let_go
from pilotfish.tools.grid import GRID, Screen

DISPLAY = (672, 448)
SCALE = 2
SEEN = (336, 420)
_TASK = (320, 420)
_INSIDE = "/opt/miniwob"
_START_S, _RESULT_S = 60.0, 10.0
_READY_MS = 5000
_NO_LIMIT_MS = 2**31 - 1
"""The longest timeout a browser takes, 24 days."""

# The reward display and the click marks are not part of a task. After its end an episode would be covered
# by a START button whose click begins the next one and wipes the reward, so the page may not begin another.
_START = """
async ([seed, limit_ms, ready_ms]) => {
  const style = document.createElement("style");
  style.textContent = "#reward-display, #click-canvas { display: none !important; }";
  document.head.append(style);
  Math.seedrandom(seed);
  if (limit_ms !== null) core.EPISODE_MAX_TIME = limit_ms;
  core.startEpisodeReal();
  core.startEpisode = () => {};
  const deadline = performance.now() + ready_ms;
  while (!WOB_TASK_READY && performance.now() < deadline) await new Promise((done) => setTimeout(done, 10));
  if (!WOB_TASK_READY) return null;
  const utterance = core.getUtterance();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return typeof utterance === "string" ? utterance : utterance.utterance;
}
"""
_RESULT = "() => ({done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON})"


class Miniwob:
    """One episode of one MiniWoB++ task.

    All episodes of a sandbox share its browser; each loads its page afresh, because pages keep state (ids,
    open widgets, timers) from one episode to the next.
    """

    def __init__(self, fields: MiniwobEnvironment) -> None:
        check_name(fields.task)
        self._fields = fields
        self.page: Page | None = None
        """The open page, for control only; a model sees the display."""

    def sandbox_spec(self) -> SandboxSpec:
        """The same for every task and seed, so that one box serves them all."""
        return SandboxSpec(
            width=DISPLAY[0], height=DISPLAY[1], browser=True, read_only={pages_folder(): _INSIDE}
        )

    def screen(self, box: Sandbox) -> Screen:
        return Screen(box.display.name, 0, 0, *SEEN)

    async def start(self, box: Sandbox) -> str:
        """Load, seed and start; returns the utterance."""
        name, seed = self._fields.task, self._fields.seed
        limit_ms = _NO_LIMIT_MS if self._fields.time_limit == "untimed" else None
        try:
            let_go(box.display.name)
            async with asyncio.timeout(_START_S):
                self.page = await self._open(box)
                utterance = await self.page.evaluate(_START, [seed, limit_ms, _READY_MS])
        except (*PAGE_ERRORS, SandboxError, TimeoutError) as error:
            raise StartError(
                f"miniwob/{name}, seed {seed}, cannot be started ({first_line(error)})"
            ) from error
        if utterance is None:
            raise StartError(f"miniwob/{name}, seed {seed}, was not ready after {_READY_MS / 1000:g} s.")
        return " ".join(str(utterance).split())

    async def _open(self, box: Sandbox) -> Page:
        """The fresh page; a browser that has died meanwhile is started again, once."""
        path = pages_folder() / "miniwob" / f"{self._fields.task}.html"
        if not box.browser.is_running:
            await box.browser.restart()
        return (await box.browser.open(path, device_scale_factor=SCALE)).page

    async def finished(self, box: Sandbox) -> bool:
        """Whether the page ended the episode, by a right or wrong action or by its clock."""
        result = await self._result()
        return result is None or bool(result["done"])

    async def grade(self, box: Sandbox, end: End) -> Grade:
        """The page's own verdict: passed if the undecayed reward is above 0, and that reward as the score."""
        result = await self._result()
        if result is None:
            return Grade(0.0, False, "The page is gone.")
        if not result["done"]:
            return Grade(0.0, False, "The page saw no end of the episode.")
        reward = float(result["reward"])
        reason = f" ({result['reason']})" if result["reason"] else ""
        return Grade(min(max(reward, 0.0), 1.0), reward > 0, f"The page's reward was {reward:g}{reason}.")

    async def _result(self) -> dict[str, Any] | None:
        """The page's globals; None when there is no page to ask."""
        if self.page is None:
            return None
        try:
            result: dict[str, Any] = await asyncio.wait_for(self.page.evaluate(_RESULT), _RESULT_S)
        except (*PAGE_ERRORS, TimeoutError):
            return None
        return result


def pages_folder() -> Path:
    """The folder of the installed package's pages; raises `SandboxError` where it is not installed."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise SandboxError("The MiniWoB++ pages are missing: pip install miniwob")
    return Path(spec.origin).parent / "html"


def random_click_policy(seed: int) -> Iterator[dict[str, Any]]:
    """The baseline: arguments of the `computer` tool, for ever, each a left click somewhere in the task.

    Places are uniform over the task's 320x420 pixels of the screen, on M3's grid.
    """
    source = random.Random(seed)
    right = GRID * _TASK[0] // SEEN[0]
    while True:
        yield {"action": "left_click", "coordinate": [source.randrange(right), source.randrange(GRID)]}
