"""A run told entry by entry, from its records in their order: as a whole, or while they are written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.accounts import in_words, totals
from pilotfish.agent.replay.diffs import edit_diff
from pilotfish.agent.replay.entries import Entry, Kind, call_title
from pilotfish.agent.safetext import counted, shortened, visible
from pilotfish.agent.show import attempt_line, call_line, laid_out_words, plan_state, tests_went, verdict

Between = Callable[[str, str | None], str]
_VERDICTS = {
    "once": "allowed once",
    "task": "allowed for this run",
    "deny": "denied",
}


@dataclass
class Episode:
    """One episode so far. `feed` takes its records in their order."""

    start: log.EpisodeStarted
    between: Between | None = None
    """What changed from one snapshot of the workspace to another, or to now."""
    entries: list[Entry] = field(default_factory=list)
    _calls: dict[tuple[int, int, str], tuple[Entry, log.CallData]] = field(default_factory=dict)
    _answers: list[log.Event] = field(default_factory=list)
    _snapshot: tuple[Entry, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """What the page says of it besides its entries."""
        screen = self.start.screen
        return {
            "episode": self.start.episode,
            "task": visible(self.start.task, one_line=True),
            "seed": self.start.seed,
            "screen": list(screen) if screen and min(screen) > 0 else [1, 1],
        }

    def feed(self, event: log.Event) -> None:
        """Take the next record."""
        match event:
            case log.EpisodeStarted():
                self._begin(event)
            case log.Answered():
                self._answered(event)
            case log.Asked() | log.Decided() | log.Intended() | log.Resulted():
                self._of_call(event)
            case log.SnapshotTaken():
                self._kept(event)
            case log.Tested():
                entry = self._add("tests", f"tests: {tests_went(event)}", event)
                entry.seconds = event.seconds
                entry.note("command", event.command)
                entry.note("output", event.output)
                entry.note("note", event.note)
                if event.status != 0:
                    entry.tag("failed")
            case log.Planned():
                self._last.plan = [[item.status, visible(item.title)] for item in event.items]
                self._last.note("plan", plan_state(event.items))
            case log.Told():
                self._last.note("told", event.text)
            case log.SentBack():
                self._last.note("sent back", event.text)
            case log.LaidOut():
                self._last.note("repository", laid_out_words(event))
            case log.Prefilled():
                self._last.note("repository", event.note)
            case log.HandedBack():
                self._handed_back(event)
            case log.Networked():
                self._networked(event)
            case log.RuleAdded():
                how = "kept for later runs too" if event.saved else "for this run"
                self._last.note("rule added", f"{json.dumps(event.rule, ensure_ascii=False)}, {how}")
            case log.Spoken() | log.Paused() | log.TookOver() | log.GaveBack() | log.SteppedBack():
                self._steered(event)
            case log.Resumed():
                self._add("resumed", "resumed", event).note("note", event.note)
            case log.EpisodeEnded():
                self._ended(event)

    @property
    def _last(self) -> Entry:
        return self.entries[-1]

    def _add(self, kind: Kind, title: str, event: log.Event, step: int | None = None) -> Entry:
        before = self.entries[-1].frames[-1:] if self.entries else []
        entry = Entry(kind, visible(title, one_line=True), t=event.t, step=step, frames=list(before))
        if event.parent:
            entry.tag("subtask")
        self.entries.append(entry)
        return entry

    def _begin(self, event: log.EpisodeStarted) -> None:
        entry = self._add("start", "sub-task: start" if event.parent else "start", event)
        if not event.parent:
            entry.show(event.clip)
        entry.note("instruction", event.instruction)

    def _answered(self, event: log.Answered) -> None:
        self._answers.append(event)
        if not event.kept:
            entry = self._add("retry", "sampled again", event, event.step)
        elif not event.calls:
            entry = self._add("said", "answer", event, event.step)
        else:
            for call in event.calls:
                made = self._add("step", "", event, event.step)
                made.set_call(call, call.arguments)
                if event.parent:
                    made.title = f"sub-task: {made.title}"
                made.tag("waiting")
                self._calls[event.parent, event.step, call.id] = made, call
            entry = self._calls[event.parent, event.step, event.calls[0].id][0]
        entry.t = event.t - event.seconds
        entry.account(event)
        entry.note("thinking", event.reasoning or "")
        entry.note("text", event.text)
        for call in event.calls:
            made = self._calls[event.parent, event.step, call.id][0] if event.kept else entry
            made.note("call", call_line(call))
            if call.name == "edit":
                made.note("edit", edit_diff(call.arguments))

    def _of_call(self, event: log.Asked | log.Decided | log.Intended | log.Resulted) -> None:
        known = event.call if isinstance(event, log.Asked | log.Intended) else None
        name = known.id if known else getattr(event, "call_id", "")
        found = self._calls.get((event.parent, event.step, name))
        if found is None:  # its answer is not in the log
            call = known or log.CallData(id=name, name="call")
            found = self._add("step", call_title(call, call.arguments), event, event.step), call
            self._calls[event.parent, event.step, name] = found
        entry, call = found
        match event:
            case log.Asked():
                entry.tag("asked")
                entry.note("asked", event.why or "by default")
            case log.Decided():
                entry.tag("asked")
                entry.note("decided", ": ".join(filter(None, [_VERDICTS[event.verdict], event.reason])))
                if event.verdict == "deny":
                    entry.tag("denied")
                elif event.arguments is not None:
                    self._edited(entry, call, event.arguments)
            case log.Intended():
                if event.call.arguments != call.arguments:
                    self._edited(entry, call, event.call.arguments)
            case log.Resulted():
                self._resulted(entry, event)

    def _edited(self, entry: Entry, call: log.CallData, arguments: dict[str, Any]) -> None:
        """A person had other arguments run than the model's own."""
        changed = log.CallData(id=call.id, name=call.name, arguments=arguments)
        if ["ran instead", visible(call_line(changed))] not in entry.notes:
            entry.set_call(changed, arguments)
            entry.note("ran instead", call_line(changed))

    def _resulted(self, entry: Entry, event: log.Resulted) -> None:
        entry.untag("waiting")
        entry.seconds += event.seconds
        entry.cost["call_s"] = event.seconds
        entry.facts.insert(0, f"{entry.seconds:.3f} s")
        entry.show(event.clip)
        entry.image = event.image or ""
        entry.note("result", event.text)
        if not event.ok:
            entry.tag("failed" if event.executed else "denied")

    def _kept(self, event: log.SnapshotTaken) -> None:
        if not event.snapshot:
            self._last.note("snapshot", event.note)
            return
        self._tell_changes(event.snapshot)
        self._snapshot = self._last, event.snapshot

    def _tell_changes(self, after: str | None) -> None:
        """Say what changed in the workspace since the last snapshot, where that was taken."""
        if self._snapshot is not None and self.between is not None:
            entry, before = self._snapshot
            entry.note("workspace" if after else "workspace since then", self.between(before, after))
        self._snapshot = None

    def close(self) -> None:
        """No record comes any more: say what changed since the last snapshot."""
        self._tell_changes(None)

    def _networked(self, event: log.Networked) -> None:
        for one in event.attempts:
            if one.over:
                self._last.note("network", attempt_line(one))
                if one.verdict != "allowed":
                    self._last.tag("network")
        self._last.note("network", event.note)

    def _handed_back(self, event: log.HandedBack) -> None:
        paths = "\n".join(f"{how} {path}" for how, path, _ in event.changed) or "nothing was changed"
        for name, text in (("changed", paths), ("patch", event.patch), ("branch", event.branch)):
            self._last.note(name, text)
        for note in (*event.notes, *event.undone):
            self._last.note("note", note)

    def _steered(
        self, event: log.Spoken | log.Paused | log.TookOver | log.GaveBack | log.SteppedBack
    ) -> None:
        """What a person did to the run."""
        match event:
            case log.Spoken():
                title, name, text = f"message: {shortened(event.text, 60)}", "message", event.text
            case log.Paused():
                title, name, text = "paused" if event.on else "went on", "", ""
            case log.TookOver():
                title, name, text = "mouse and keyboard taken over", "", ""
            case log.GaveBack():
                inputs = counted(event.inputs, "input")
                title = f"handed back after {inputs}, {event.seconds:.1f} s"
                name, text = "told", event.text
            case log.SteppedBack():
                self._undo(event)
                if not event.over:
                    return
                title, name, text = f"stepped back to before step {event.to}", "note", event.note
        stays = isinstance(event, log.Paused | log.SteppedBack)
        entry = self._add("steering" if stays else "person", title, event, event.step)
        entry.tag("person")
        entry.note(name, text)
        if isinstance(event, log.SteppedBack):
            entry.note("told", event.told)
        if isinstance(event, log.GaveBack):
            entry.note("did", "\n".join(event.did))
        if isinstance(event, log.GaveBack | log.SteppedBack):
            entry.show(event.clip)

    def _undo(self, event: log.SteppedBack) -> None:
        """Mark what is undone, as `log.undone` has it: all from the first answer of the step on."""
        first = len(self.entries)
        for at, entry in enumerate(self.entries):
            answers = entry.kind in ("step", "said", "retry") and "undone" not in entry.tags
            if answers and "subtask" not in entry.tags and (entry.step or 0) >= event.to:
                first = at
                break
        self._snapshot = None  # what came between was put back, and is no change
        for entry in self.entries[first:]:
            if entry.kind not in ("steering", "resumed"):
                entry.tag("undone")

    def _ended(self, event: log.EpisodeEnded) -> None:
        if event.parent:
            entry = self._add("end", f"sub-task: {event.end}", event)
        else:
            score = "" if event.passed is None else f", score {event.score:g}"
            entry = self._add("end", f"{event.end}: {verdict(event.passed)}{score}", event)
            entry.facts = in_words(totals(self._answers))
            if event.passed is False:
                entry.tag("failed")
        entry.note("answer", event.answer)
        entry.note("reason", event.reason)


class Story:
    """A whole run so far. `feed` takes its records in their order, as they come."""

    def __init__(self, between: Between | None = None) -> None:
        self.episodes: list[Episode] = []
        self._placing = log.Placing()
        self._between = between

    def feed(self, event: log.Event) -> list[int]:
        """Take the next record; the numbers of the episodes in which something was told, from 0."""
        numbers = self._placing.place(event)
        for number in numbers:
            if number == len(self.episodes):
                assert isinstance(event, log.EpisodeStarted)
                self.episodes.append(Episode(event, self._between))
            self.episodes[number].feed(event)
        return numbers
