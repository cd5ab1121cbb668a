"""Keeps the workspace before each call that may write to it, so that every step can be gone back on."""

from __future__ import annotations

import time

from pilotfish.agent import events as log
from pilotfish.agent.safetext import counted, visible
from pilotfish.model.protocol import ToolCall
from pilotfish.sandbox import Sandbox, SandboxError, Snapshot

_LOOKING: dict[str, tuple[str, tuple[str | None, ...]]] = {
    "plan": ("", (None,)),  # what a sub-task writes is kept in its own steps
    "edit": ("command", ("view",)),
    "index": ("command", ("map", "likely", "find", "references", "callers", "outline", "search", "read")),
    "computer": (
        "action",
        ("screenshot", "zoom", "cursor_position", "mouse_move", "wait", "scroll", "done", "infeasible"),
    ),
}
"""What cannot write, by tool: the argument that says so and its values. Every other call may: a click or a
key can have a program save a file, and what a tool unknown here does is not known.
"""
_LONGEST_PAUSE = 64


def may_write(call: ToolCall) -> bool:
    """Whether a call, or a program that it reaches, may change files."""
    argument, values = _LOOKING.get(call.name, ("", ()))
    return call.arguments.get(argument) not in values


class Keeper:
    """Takes the snapshots of one episode. It never raises for one that fails: the log says so."""

    def __init__(self, box: Sandbox, events: log.EventLog, *, of_part: bool) -> None:
        """of_part: whether it is the episode of a sub-task, whose steps are counted on their own."""
        self._box = box
        self._whose = " of a sub-task" if of_part else ""
        self._events = events
        self._others = 0
        self._said = ""
        self._pause = self._waiting = 0

    async def before(self, call: ToolCall, step: int) -> None:
        """Take one if the call may write."""
        if not may_write(call):
            return
        if self._waiting:
            self._waiting -= 1
            return
        await self.keep(step, call.name)

    async def keep(self, step: int, what: str) -> None:
        """Take one before a step. what: for what, in a word or a few."""
        began_s = time.monotonic()
        label = f"before step {step}{self._whose}, {what}"
        try:
            taken = self._box.find_snapshot(await self._box.snapshot(label))
        except SandboxError as error:
            # What failed will mostly fail again, and finding that out costs time in every step.
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause + 1)
            self._waiting = self._pause
            if self._said != str(error):
                self._said = str(error)
                note = f"Steps from here on cannot be gone back on: {error}"
                self._events.append(log.SnapshotTaken(step=step, note=note))
            return
        self._pause, self._said = 0, ""
        self._events.append(
            log.SnapshotTaken(
                step=step,
                snapshot=taken.id,
                files=taken.files,
                bytes=taken.bytes,
                seconds=round(time.monotonic() - began_s, 4),
                note=self._note(taken),
            )
        )

    def _note(self, taken: Snapshot) -> str:
        notes = []
        if taken.dropped:
            notes.append(
                f"There was no room left, so the {counted(taken.dropped, 'oldest snapshot')} had to go."
            )
        if taken.others > self._others:
            missing = visible(taken.missing, one_line=True)
            notes.append(f"Not kept, and so not to be gone back on: {missing}.")
        self._others = taken.others
        return " ".join(notes)
