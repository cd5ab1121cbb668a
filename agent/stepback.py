"""The way back to before a step: whether there is one, and going it.

Files come back from the snapshot before the step, and what the model was told from the log. A screen cannot
be kept: the sandbox is opened anew, the task set up again and the calls up to the step executed again, and
then it is compared. Without a screen the sandbox stays, and what the shell had started is ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.keeping import may_write
from pilotfish.agent.recorder import Observed
from pilotfish.agent.reenact import Compared, Recorded, Reenactment, recorded_calls
from pilotfish.agent.safetext import counted
from pilotfish.agent.view import View
from pilotfish.model.protocol import ToolCall
from pilotfish.sandbox import Sandbox, SandboxError
from pilotfish.tasks.environment import Environment
from pilotfish.tools.base import Tool

PROGRAMS_ENDED = (
    "The user had the work go back to this point. Programs that you had started in the shell have ended, and "
    "its sessions begin anew in the workspace."
)
SCREEN_DIFFERS = (
    "The user had the work go back to this point, and the screen is not quite as it was; look at it again."
)


class NoWay(Exception):
    """There is no way back; the message is one sentence."""


@dataclass(frozen=True)
class Way:
    """How an episode comes to be before step `to` again.

    step: where it is now. first: the snapshot of before the first call; at: that of before the step; '' where
    the files are not kept or are as they were. things: what is done again on a screen; None without one.
    programs: whether the shell was used before the step, and used: whether at all.
    """

    to: int
    step: int = 0
    first: str = ""
    at: str = ""
    things: Sequence[Recorded] | None = None
    programs: bool = False
    used: bool = False


@dataclass(frozen=True)
class Arrived:
    """What came of it. note: for a person. told: for the model, '' for nothing."""

    note: str
    told: str = ""
    seen: Observed | None = None


def unfinished(group: Sequence[log.Event]) -> log.SteppedBack | None:
    """The step back that an episode's records break off in."""
    backs = [event for event in group if isinstance(event, log.SteppedBack)]
    return backs[-1] if backs and not backs[-1].over else None


def way_back(group: Sequence[log.Event], to: int, *, keeps_files: bool) -> Way:
    """The way of an episode to before step `to`. Raises `NoWay`.

    keeps_files: whether its workspace outlives its sandbox. A step back that the records break off in is
    taken to be the one that is wanted.
    """
    pending = unfinished(group)
    events = log.live([event for event in group if event is not pending])
    steps = {event.step for event in events if isinstance(event, log.Answered) and not event.parent}
    if not steps or to not in {*steps, max(steps) + 1}:
        there = f"it has taken {counted(len(steps), 'step')}" if steps else "it has not taken one yet"
        raise NoWay(f"There is no step {to} to go back to: {there}.")
    start, cut = events[0], log.step_begins(events, to)
    assert isinstance(start, log.EpisodeStarted)
    screen = start.screen is not None
    first = at = ""
    if keeps_files:
        at = _snapshot(events[cut:], to)
        first = _snapshot([event for event in group if event is not pending], 1) if screen else ""
    if screen and (hosts := _reached(events[:cut])):
        raise NoWay(
            f"Bringing the screen back would repeat steps in which programs reached {hosts}, and what they "
            "did there might be done twice."
        )
    things = recorded_calls(events, to) if screen else None
    shell = [
        at
        for at, event in enumerate(events)
        if isinstance(event, log.Intended) and event.call.name == "shell"
    ]
    step = max(steps, default=0) if pending is None else pending.step
    return Way(to, step, first, at, things, any(at < cut for at in shell), bool(shell))


def _snapshot(events: Sequence[log.Event], step: int) -> str:
    """The files at the beginning of these records; '' where nothing in them can have written. Raises
    `NoWay`.
    """
    for event in events:
        match event:
            case log.SnapshotTaken(snapshot=snapshot) if snapshot:
                return snapshot
            case log.Intended(call=call) if may_write(ToolCall(call.id, call.name, call.arguments)):
                raise NoWay(f"The files before step {step} were not kept, so they cannot be brought back.")
    return ""


def _reached(events: Sequence[log.Event]) -> str:
    hosts = {
        f"{attempt.host}:{attempt.port}"
        for event in events
        if isinstance(event, log.Networked)
        for attempt in event.attempts
        if attempt.verdict == "allowed"
    }
    return ", ".join(sorted(hosts))


@dataclass(eq=False)
class Traveller:
    """Goes a way back in a sandbox: the one there was, or for a screen a fresh one.

    or_stopped: awaits, or raises what ends it. tell: told in a few words what is being done. Everything
    raises `SandboxError`, `StartError`, `CaptureError` and `LogError`.
    """

    box: Sandbox
    environment: Environment
    view: View
    tools: Sequence[Tool[Any]]
    frames: log.FrameStore
    or_stopped: Callable[[Awaitable[Any]], Awaitable[Any]]
    tell: Callable[[str], None]

    async def go(self, way: Way, stack: contextlib.AsyncExitStack) -> Arrived:
        """Go it. stack: until it is left the view watches the screen."""
        if way.things is None:
            return await self._files_only(way)
        self.tell(f"going back to before step {way.to}: setting up")
        if way.first or way.at:
            await self._keep(way)
        if way.first:
            await self._restore(way.first)
        await self.or_stopped(self.environment.start(self.box))
        self.view.find()
        await self.view.open(stack)

        def tell_of(thing: Recorded) -> None:
            if thing.step:
                self.tell(f"going back: step {thing.step} of {way.to - 1} is done again")

        again = Reenactment(
            self.box,
            self.view,
            self.tools,
            self.frames,
            self.or_stopped,
            on_thing=tell_of,
            compares=False,
        )
        compared = await again.run(way.things)
        notes = await self._restore(way.at) if way.at else []
        seen = await self.or_stopped(self.view.look())
        shown = [one for one in compared if one.has_frame]
        last = shown[-1] if shown else None
        others = sum(one.text is not None for one in compared)
        notes = [
            _screen_note(last),
            *[f"{counted(others, 'result')} came out otherwise."] * bool(others),
            *notes,
        ]
        notes += dict.fromkeys(one.note for one in compared if one.note)
        frame = None if last is None else last.frame
        matters = (
            last is None
            or (frame is not None and not frame.is_small)
            or not all(one.done for one in compared)
        )
        return Arrived(" ".join(notes), SCREEN_DIFFERS if matters else "", seen)

    async def _files_only(self, way: Way) -> Arrived:
        notes = []
        if way.used:
            await self.or_stopped(self.box.shell.end_all())
            notes.append("Programs that the shell had started were ended, and its sessions begin anew.")
        if way.at:
            await self._keep(way)
            notes += await self._restore(way.at)
        return Arrived(" ".join(notes), PROGRAMS_ENDED if way.programs else "")

    async def _keep(self, way: Way) -> None:
        """Keep the files as they are now, for whoever wants them after all."""
        with contextlib.suppress(SandboxError):  # what is undone is worth less than that it is
            label = f"before going back to step {way.to}"
            wanted = [snapshot for snapshot in (way.first, way.at) if snapshot]
            await self.or_stopped(self.box.snapshot(label, needed=wanted))

    async def _restore(self, snapshot: str) -> list[str]:
        """Bring files back; sentences on those that could not be."""
        try:
            restored = await self.or_stopped(self.box.restore(snapshot))
        except SandboxError as error:
            return [f"The files could not be brought back: {error}"]
        return [f"Not brought back: {problem}." for problem in restored.problems[:3]]


def _screen_note(last: Compared | None) -> str:
    if last is None:
        return "The screen was set up again; there is nothing to compare it with."
    if last.frame is None:
        return "The screen is equal to what it was."
    return f"The screen is not quite what it was: {last.frame.words} differ."
