"""What a run shows on a terminal: one or two plain lines per step. No markup is parsed, nothing hidden is
sent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from typing import TextIO

from pilotfish.agent import events as log
from pilotfish.agent.accounts import in_words, sure
from pilotfish.agent.safetext import shortened, visible
from pilotfish.agent.status import Reading, StatusLine

WIDTH = 100


def say(text: str, stream: TextIO | None = None) -> None:
    """Print one message safely; characters the terminal cannot show are spelt out."""
    stream = sys.stdout if stream is None else stream
    if stream is None:  # the process was started with this stream closed
        return
    encoding = stream.encoding or "utf-8"
    line = visible(text).encode(encoding, "backslashreplace").decode(encoding)
    print(line, file=stream, flush=True)


class Narrator:
    """Tells the records of a run as they are written."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        accounts: bool = False,
        undone: Collection[int] = frozenset(),
    ) -> None:
        """accounts: tell what each answer cost as well. undone: the ordinals of what a step back undid."""
        self._stream, self._accounts, self._undone = stream, accounts, undone
        self._status = StatusLine()
        self.on_progress = Reading(self._status)
        """Shows how far the model has read its prompt, where there is a terminal."""

    def __call__(self, event: log.Event) -> None:
        """Show one record."""
        self._status.clear()
        for line in _lines(event):
            lane = f"[{event.lane}] " if event.lane else ""
            lane += "undone  " if event.n in self._undone else ""
            say(f"{lane}   |  {line}" if event.parent else f"{lane}{line}", self._stream)
        if self._accounts and isinstance(event, log.Answered) and (words := in_words(event.usage)):
            say(f"      {', '.join(words)}", self._stream)


def sandbox_note(level: int, network: Sequence[str] = ()) -> str:
    """What anybody who looks at a run has to know of its sandbox; '' when it is whole and has no network."""
    notes = [f"network: {', '.join(network)}"] if network else []
    if level != 3:
        from pilotfish.sandbox.levels import meaning  # brings the whole sandbox along

        notes.insert(0, meaning(2 if level == 2 else 0))
    return "; ".join(notes)


def attempt_line(attempt: log.AttemptData) -> str:
    """One attempt at the network, for a person."""
    what = f"{attempt.method} {attempt.host}:{attempt.port}" if attempt.port else attempt.host or "a request"
    size = f", {attempt.sent} bytes out, {attempt.received} in" if attempt.over and attempt.sent else ""
    return f"{what.strip()} {attempt.verdict}{size}" + (f": {attempt.why}" if attempt.why else "")


def run_note(started: log.RunStarted) -> str:
    """What anybody who looks at a run has to know of where it acts; '' when that is a whole sandbox."""
    return ". ".join(
        note for note in (started.host_desktop, sandbox_note(started.sandbox_level, started.network)) if note
    )


def call_line(call: log.CallData) -> str:
    """A call, how sure the model was of it, and its arguments."""
    return f"{call.name}{sure(call.confidence)} {json.dumps(call.arguments, ensure_ascii=False)}"


def verdict(passed: bool | None) -> str:
    """What graders said, in words; None is that nothing was graded."""
    return "not graded" if passed is None else "passed" if passed else "not passed"


def plan_state(items: Sequence[log.PlanItem]) -> str:
    """How far a plan is, in a line."""
    left = [item for item in items if item.status != "dropped"]
    done = sum(item.status == "done" for item in left)
    doing = "; ".join(item.title for item in left if item.status == "doing")
    return f"{done} of {len(left)} done{f'; now: {doing}' if doing else ''}"


def tests_went(run: log.Tested) -> str:
    """How one run of a project's tests went, in words."""
    if run.status is None:
        return f"did not end within {run.seconds:.0f} s"
    if run.ran_none:
        return f"ran no test ({run.seconds:.1f} s)"
    if run.status == 0:
        return f"passed ({run.seconds:.1f} s)"
    what = f"{len(run.failed)} failed" if run.failed else f"ended with status {run.status}"
    return f"{what} ({run.seconds:.1f} s)"


def laid_out_words(laid: log.LaidOut) -> str:
    """What of a repository stands before the task."""
    if not laid.digest:
        return laid.note
    whole = f"{laid.files} of {laid.files + laid.left_out} files whole"
    about = "about " if laid.counted == "estimate" else ""
    return f"{about}{laid.tokens:,} tokens of the repository before the task ({whole})"


def prefilled_words(read: log.Prefilled) -> list[str]:
    """How the model came by what was laid out."""
    words = (
        f"{read.tokens:,} tokens read in {read.seconds:.1f} s, {read.loaded:,} of them loaded from the disk"
    )
    words += f"; {read.saved:,} kept there for later tasks" if read.saved else ""
    return [words, *([read.note] if read.note else [])]


def stepped_back_words(back: log.SteppedBack) -> str:
    """What a step back did."""
    if not back.over:
        return f"A step back to before step {back.to} begins."
    words = f"The run is before step {back.to} again; what came after that is undone."
    return f"{words} {back.note}".strip()


def steps(count: int) -> str:
    """A number of steps in words."""
    return f"{count} step" if count == 1 else f"{count} steps"


def _lines(event: log.Event) -> list[str]:
    match event:
        case log.RunStarted():
            return [line for line in (run_note(event), event.host_stop) if line]
        case log.Networked():
            lines = [attempt_line(attempt) for attempt in event.attempts if _is_news(attempt)]
            lines += [event.note] if event.note else []
            return [f"net   {shortened(line, WIDTH)}" for line in dict.fromkeys(lines)]
        case log.EpisodeStarted():
            first = event.instruction.partition("\n\n")[0]
            return [f"task  {event.task}", f"      {shortened(first, 4 * WIDTH)}"]
        case log.LaidOut():
            return [f"repo  {shortened(laid_out_words(event), 2 * WIDTH)}"]
        case log.Prefilled():
            return [f"repo  {shortened(words, 2 * WIDTH)}" for words in prefilled_words(event)]
        case log.Answered():
            said = [event.text] if event.text.strip() else []
            said += [call_line(call) for call in event.calls]
            return [f"{event.step:>4}  {shortened(line, WIDTH)}" for line in said]
        case log.Resulted():
            word = f" ({event.clip.word})" if event.clip else ""
            return [f"      {shortened(event.text, WIDTH)}{word}"]
        case log.Tested():
            when = "before any change" if event.attempt == 0 else f"look {event.attempt}"
            lines = [f"tests {shortened(event.command, WIDTH)}, {when}: {tests_went(event)}"]
            if event.status and not event.failed and event.output.strip():
                lines.append(f"      {shortened(event.output.strip().splitlines()[-1], 2 * WIDTH)}")
            return lines
        case log.Planned():
            return [f"plan  {shortened(plan_state(event.items), 2 * WIDTH)}"]
        case log.SentBack():
            return [f"      sent back: {shortened(event.text, 2 * WIDTH)}"]
        case log.Told():
            return [f"      told: {shortened(event.text, 2 * WIDTH)}"]
        case log.SnapshotTaken():
            return [f"      {shortened(event.note, 2 * WIDTH)}"] if event.note else []
        case log.Resumed():
            return [event.note] if event.note else []
        case log.Asked():
            return [f"      asks: {shortened(event.why, 2 * WIDTH)}"]
        case log.Decided():
            return [f"      {shortened(decided_words(event), 2 * WIDTH)}"]
        case log.RuleAdded():
            saved = ", and for later ones" if event.saved else ""
            return [f"rule  for this run{saved}: {shortened(json.dumps(event.rule), 2 * WIDTH)}"]
        case log.Spoken():
            return [f"user  {shortened(event.text, 2 * WIDTH)}"]
        case log.Paused():
            return ["      paused" if event.on else "      goes on"]
        case log.TookOver():
            return ["user  took over mouse and keyboard"]
        case log.GaveBack():
            did = [f"user  {shortened(line, 2 * WIDTH)}" for line in event.did]
            return [*did, f"user  gave them back: {shortened(event.text, 2 * WIDTH)}"]
        case log.SteppedBack(over=True):
            return [f"back  {shortened(stepped_back_words(event), 4 * WIDTH)}"]
        case log.EpisodeEnded():
            how = f"{event.end}, {verdict(event.passed)}, {steps(event.steps)}, {event.seconds:.1f} s"
            return [f"end   {how}. {event.reason}"]
        case _:
            return []


def decided_words(event: log.Decided) -> str:
    """What a person said of a call."""
    if event.verdict == "deny":
        return f"denied: {event.reason}" if event.reason else "denied"
    how = "allowed for this run" if event.verdict == "task" else "allowed once"
    return (
        how if event.arguments is None else f"{how}, with {json.dumps(event.arguments, ensure_ascii=False)}"
    )


def _is_news(attempt: log.AttemptData) -> bool:
    """An allowed attempt is shown when it begins, and its end only if it failed."""
    return attempt.over == (attempt.verdict != "allowed")
