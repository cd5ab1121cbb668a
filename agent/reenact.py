"""Executes the recorded calls of an episode again, without a model, and compares what comes of them.

The calls, the tools, the seed and the set-up are those of the log. What comes out may differ all the same
where it hangs on what nobody can set again: clocks, process numbers, the network, pages that roll dice
without a seed, how fast the machine was, and what a person did with mouse and keyboard, of which the log has
no more than how much it was.

A caret or a clock may be in another phase: a difference no larger than what the recorder takes for one is
looked at again for `BLINK_S`, and is none if the recorded frame comes up meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pilotfish.agent import events as log
from pilotfish.agent.approval import changed_note
from pilotfish.agent.damage import SMALL_AREA, Rect
from pilotfish.agent.prefix import without_changes
from pilotfish.agent.recorder import Observed
from pilotfish.agent.view import View
from pilotfish.sandbox import Sandbox
from pilotfish.tools.base import Tool, ToolContext, ToolResult, find_tool, validate
from pilotfish.tools.registry import make_tools

BLINK_S = 1.5
Frame = npt.NDArray[np.uint8]
"""RGB, [height, width, 3]."""


@dataclass(frozen=True)
class Recorded:
    """One thing of the log to be done again, in its place.

    call: None where nothing is executed: `what` is "look" (only the screen is compared), "anew" (the shell's
    programs had ended and its sessions begun anew) or "person" (mouse and keyboard were a person's).
    parts: whether a sub-task did the work, whose calls come before it.
    """

    step: int
    parent: int = 0
    call: log.CallData | None = None
    result: log.Resulted | None = None
    clip: log.ClipData | None = None
    parts: bool = False
    what: str = "call"


@dataclass(frozen=True, eq=False)
class FrameDifference:
    """pixels: how many are not equal, all of them inside `box`; None is the whole of frames whose sizes
    differ.
    """

    pixels: int
    box: Rect | None
    recorded: Frame
    now: Frame

    @property
    def is_small(self) -> bool:
        """Whether it is no larger than what the recorder takes for a caret or a clock."""
        return self.box is not None and self.box.area <= SMALL_AREA

    @property
    def words(self) -> str:
        """It in a few words."""
        if self.box is None:
            sizes = [f"{frame.shape[1]}x{frame.shape[0]}" for frame in (self.recorded, self.now)]
            return f"the screen is {sizes[1]}, not {sizes[0]}"
        box, share = self.box, self.pixels / (self.now.shape[0] * self.now.shape[1])
        amount = "1 pixel" if self.pixels == 1 else f"{self.pixels:,} pixels"
        return f"{amount} ({share:.2%}) in {box.width}x{box.height} at {box.x}, {box.y}"

    def picture(self) -> Frame:
        """What is not equal in red, the rest of what is there now faintly."""
        if self.box is None:
            return self.now
        faint = (self.now // 4 + 191).astype(np.uint8)
        faint[(self.recorded != self.now).any(axis=2)] = (255, 0, 0)
        return faint


@dataclass(frozen=True, eq=False)
class Compared:
    """What came of one recorded thing. step: 0 is the first look.

    text: the first lines that differ, recorded and now. blinked: whether the frames were equal at another
    phase of a caret. note: why something was not done or not compared.
    """

    step: int
    parent: int = 0
    call: log.CallData | None = None
    frame: FrameDifference | None = None
    text: tuple[str, str] | None = None
    blinked: bool = False
    has_frame: bool = False
    note: str = ""
    done: bool = True

    @property
    def equal(self) -> bool:
        """Whether nothing differs of what was compared."""
        return self.frame is None and self.text is None and self.done


def recorded_calls(group: Sequence[log.Event], before: int | None = None) -> list[Recorded]:
    """What an episode did, in order, as far as it was not undone; `before` a step, or all of it."""
    events = log.live(group)
    end = len(events) if before is None else log.step_begins(events, before)
    start = events[0]
    assert isinstance(start, log.EpisodeStarted)
    found = [Recorded(0, what="look", clip=start.clip)]
    results = {
        (event.parent, event.step, event.call_id): event
        for event in events[:end]
        if isinstance(event, log.Resulted)
    }
    parents = {event.parent for event in events[:end] if event.parent}
    handed: list[tuple[int, Recorded]] = []  # whose parts are being done, innermost last
    for event in events[1:end]:
        while handed and not (event.parent or isinstance(event, log.Networked)):
            found.append(handed.pop()[1])
        match event:
            case log.Intended():
                result = results.get((event.parent, event.step, event.call.id))
                clip = None if result is None else result.clip
                one = Recorded(event.step, event.parent, event.call, result, clip, event.n in parents)
                if one.parts:
                    handed.append((event.n, one))
                else:
                    found.append(one)
            case log.Resulted(executed=False, clip=clip) if clip is not None:
                found.append(Recorded(event.step, event.parent, clip=clip, what="look"))
            case log.GaveBack():
                found.append(Recorded(event.step, clip=event.clip, what="person"))
            case log.SteppedBack(over=True) | log.Resumed() if start.screen is None:
                found.append(Recorded(0, what="anew"))
    return found + [one for _, one in reversed(handed)]


def compare_frames(recorded: Frame, now: Frame) -> FrameDifference | None:
    """How two frames differ; None if they do not."""
    if recorded.shape != now.shape:
        return FrameDifference(max(recorded.size, now.size) // 3, None, recorded, now)
    differs = (recorded != now).any(axis=2)
    if not differs.any():
        return None
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    left, top = int(columns[0]), int(rows[0])
    box = Rect(left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1)
    return FrameDifference(int(differs.sum()), box, recorded, now)


def first_difference(recorded: str, now: str) -> tuple[str, str] | None:
    """The first lines in which two texts differ; None if they do not."""
    if recorded == now:
        return None
    before, after = recorded.split("\n"), now.split("\n")
    pairs = zip(before, after, strict=False)
    place = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
    lines = (lines[place] if place < len(lines) else "" for lines in (before, after))
    return next(lines), next(lines)


@dataclass(eq=False)
class Reenactment:
    """Does recorded things again in a sandbox that was set up as at the beginning.

    view: watches its screen. tools: of the episode, by name. or_stopped: awaits, or raises what ends it.
    """

    box: Sandbox
    view: View
    tools: Sequence[Tool[Any]]
    frames: log.FrameStore
    or_stopped: Callable[[Awaitable[Any]], Awaitable[Any]]
    on_compared: Callable[[Compared], None] = lambda compared: None
    on_thing: Callable[[Recorded], None] = lambda thing: None
    """Told of each thing before it is done."""
    compares: bool = True
    """Whether each frame is compared, or only the last one there is."""
    _parts: dict[int, list[Tool[Any]]] = field(default_factory=dict)

    async def run(self, things: Sequence[Recorded]) -> list[Compared]:
        """Do them. Raises `SandboxError`, `CaptureError` and `LogError` for a lost frame."""
        last = max((at for at, thing in enumerate(things) if thing.clip is not None), default=-1)
        found = []
        try:
            for at, thing in enumerate(things):
                self.on_thing(thing)
                compared = await self._one(thing, compares=self.compares or at == last)
                if compared is not None:
                    found.append(compared)
                    self.on_compared(compared)
        finally:
            for tools in self._parts.values():
                for tool in tools:
                    await tool.close()
        return found

    async def _one(self, thing: Recorded, *, compares: bool) -> Compared | None:
        if thing.what == "anew":
            await self.or_stopped(self.box.shell.end_all())
            for tool in self.tools:
                await tool.close()
            return None
        if thing.call is None:
            note = "A person used mouse and keyboard here, which is not repeated." * (thing.what == "person")
            found = Compared(thing.step, thing.parent, note=note)
            return await self._with_frame(found, thing, await self._look(thing), compares)
        found = Compared(thing.step, thing.parent, thing.call)
        if thing.result is None:
            return replace(
                found, note="What came of it was never recorded, and it is not repeated.", done=False
            )
        if thing.parts:
            note = "A sub-task did this, whose own calls stand before it."
            return await self._with_frame(replace(found, note=note), thing, await self._look(thing), compares)
        result, seen = await self.or_stopped(self._execute(thing.call, thing.parent))
        said = without_changes(thing.result.text).removeprefix(f"{changed_note(thing.call)}\n")
        text = first_difference(said, result.text)
        return await self._with_frame(replace(found, text=text), thing, seen, compares)

    async def _execute(self, call: log.CallData, parent: int) -> tuple[ToolResult, Observed | None]:
        tool = find_tool(self._tools_of(parent), call.name)
        if isinstance(tool, ToolResult):
            return tool, None
        arguments = validate(tool, call.arguments)
        if isinstance(arguments, ToolResult):
            return arguments, None
        context = ToolContext(self.box, self.view.screen)
        result, seen = await self.view.watch(lambda: tool.run(arguments, context))
        hit = await self.box.limits_hit()
        return replace(result, text="\n".join([result.text, *(f"[{told}]" for told in hit)])), seen

    def _tools_of(self, parent: int) -> Sequence[Tool[Any]]:
        """A sub-task has tools of its own."""
        if not parent:
            return self.tools
        if parent not in self._parts:
            self._parts[parent] = make_tools([tool.name for tool in self.tools if tool.name != "plan"])
        return self._parts[parent]

    async def _look(self, thing: Recorded) -> Observed | None:
        seen: Observed | None = None if thing.clip is None else await self.or_stopped(self.view.look())
        return seen

    async def _with_frame(
        self, found: Compared, thing: Recorded, seen: Observed | None, compares: bool
    ) -> Compared:
        if thing.clip is None or seen is None or not compares:
            return found
        recorded = await asyncio.to_thread(self.frames.get, thing.clip.frames[3])
        difference = first = compare_frames(recorded, seen.clip.frames[3])
        ends_s = time.monotonic() + BLINK_S
        while difference is not None and difference.is_small and time.monotonic() < ends_s:
            again = await self.or_stopped(self.view.look())
            difference = compare_frames(recorded, again.clip.frames[3])
        if difference is not None:
            difference = first
        return replace(found, frame=difference, blinked=first is not None and not difference, has_frame=True)
