"""Where an episode goes on that was left: by a process that was killed, or by a person's step back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotfish.agent import events as log
from pilotfish.agent.conversation import Conversation
from pilotfish.agent.resume import Standing, standing, unknown_call
from pilotfish.agent.stepback import NoWay, unfinished, way_back


@dataclass(frozen=True)
class Resumption:
    """How a run is gone on with. note: for a person. starts: from the beginning. back: before which step its
    screen has to be brought back; None where that is not needed, or where a step back was under way.
    """

    note: str
    starts: bool = False
    back: int | None = None
    unknown: log.CallData | None = None


def how_to_resume(last: Sequence[log.Event], *, keeps_files: bool, own_files: bool) -> Resumption:
    """How an episode is gone on with, by its records.

    keeps_files: whether its workspace outlives its sandbox. own_files: whether that is the run's own, whose
    files nobody else changes.
    """
    if not last:
        return Resumption("The run had not come to its first step; it starts again.", starts=True)
    if (pending := unfinished(last)) is not None:
        return Resumption(f"The run goes back to before step {pending.to}, which had been begun.")
    start, unknown = last[0], unknown_call(last)
    assert isinstance(start, log.EpisodeStarted)
    lost = "" if unknown is None else f"The outcome of the last call of {unknown.name} is unknown"
    if start.screen is None and keeps_files:
        note = f"{lost}; it is not repeated." if lost else "The run goes on after its last finished step."
        return Resumption(note, unknown=unknown)
    done = [event.step for event in log.live(last) if isinstance(event, log.Resulted) and not event.parent]
    why = "no step of it was finished" if not done else ""
    if done and keeps_files and not own_files:
        why = "files in a folder of yours may be others by now"
    if not why:
        step = max(done) + 1
        try:
            way_back(last, step, keeps_files=keeps_files)
        except NoWay as no:
            why = f"{str(no)[0].lower()}{str(no)[1:].rstrip('.')}"
        else:
            again = "its finished step" if step == 2 else f"its {step - 1} finished steps"
            return Resumption(f"The screen is brought back by doing {again} again.", back=step)
    note = f"The screen of {start.task} cannot be brought back ({why}), so the episode starts again."
    return Resumption(f"{note} {lost}.".removesuffix(" ."), starts=True, unknown=unknown)


def take_up(
    events: log.EventLog,
    how: Resumption,
    conversation: Conversation,
    before: str = "",
    *,
    keeps_files: bool,
) -> Standing | None:
    """Record that a run is gone on with; where it stands, None where it starts again. before: see
    `first_turn`. Raises `log.LogError`.
    """
    events.append(log.Resumed(unknown_call=how.unknown, note=how.note))
    if how.starts:
        return None
    if how.back is not None:
        events.append(log.SteppedBack(step=how.back, to=how.back, over=False))
    return standing_now(events.folder, conversation, before, keeps_files=keeps_files)


def standing_now(
    folder: Path, conversation: Conversation, before: str = "", *, keeps_files: bool
) -> Standing:
    """Where the last episode of a log stands, with the way to go if a step back was begun. Raises
    `log.LogError`.
    """
    run = log.read_run(folder)
    group = run.episodes()[-1]
    here = standing(group, run.frames, conversation, before)
    if (back := unfinished(group)) is not None:
        try:
            here.way = way_back(group, back.to, keeps_files=keeps_files)
        except NoWay as no:
            raise log.LogError(str(no)) from no
    return here
