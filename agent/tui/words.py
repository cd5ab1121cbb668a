"""Rows in words: one line for the list, everything for the details. The text is as it came; whoever shows it
makes it visible.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pilotfish.agent import events as log
from pilotfish.agent.accounts import in_words, sure
from pilotfish.agent.safetext import counted
from pilotfish.agent.show import (
    attempt_line,
    laid_out_words,
    plan_state,
    prefilled_words,
    run_note,
    tests_went,
    verdict,
)
from pilotfish.agent.tui.model import Cost, Row

Tone = Literal["plain", "head", "thinking", "call", "result", "fault", "person", "faint"]


@dataclass(frozen=True)
class Part:
    """A piece of the details: its heading, '' for none, and its text."""

    heading: str
    text: str
    tone: Tone = "plain"


def duration(seconds: float) -> str:
    """A time that has passed, in at most six characters."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m" if minutes < 6000 else f"{minutes // 1440} d"


def number(count: int) -> str:
    """A count in at most five characters."""
    if count < 10_000:
        return str(count)
    if count < 1_000_000:
        return f"{count / 1000:.0f}k" if count >= 100_000 else f"{count / 1000:.1f}k"
    return f"{count / 1e6:.1f}M" if count < 1e8 else f"{count / 1e6:.0f}M"


def cost_line(cost: Cost) -> str:
    """What a run has cost so far."""
    if not cost.answers:
        return "no answer yet"
    hits = f" ({cost.hits:.0%} cached)" if cost.hits is not None else ""
    return (
        f"{number(cost.tokens_in)} tokens in{hits}, {number(cost.tokens_out)} out, "
        f"{duration(cost.seconds)} of model"
    )


def brief_call(call: log.CallData) -> str:
    """A call in a few words: its name and what tells it from others of its kind."""
    values = []
    for name, value in call.arguments.items():
        if isinstance(value, dict | list):
            value = json.dumps(value, ensure_ascii=False)
        values.append(str(value) if name in ("action", "command", "path", "text") else f"{name}={value}")
    return " ".join([call.name, *values])


def head(row: Row) -> str:
    """One line about a row."""
    event = row.events[-1] if row.kind == "mark" else row.events[0]
    match event:
        case log.RunStarted():
            return run_note(event) or f"{event.command} with {event.model}"
        case log.EpisodeStarted():
            name = "part" if row.depth else event.task
            return f"{name}: {event.instruction}" if event.instruction else name
        case log.Answered():
            calls = "; ".join(brief_call(call) for call in event.calls)
            edited = _edited(row)
            if any(isinstance(decided, log.Decided) and decided.verdict == "deny" for decided in row.events):
                calls = f"denied: {calls}"
            elif edited is not None and event.calls:
                calls = f"edited: {brief_call(event.calls[0].model_copy(update={'arguments': edited}))}"
            return calls or event.text.strip() or "said nothing"
        case log.Told() | log.SentBack() | log.Spoken():
            return event.text
        case log.Tested():
            return f"{event.command}: {tests_went(event)}"
        case log.Networked():
            lines = _attempts(row)
            return lines[-1] if len(lines) == 1 else f"{counted(len(lines), 'attempt')}; {lines[-1]}"
        case log.LaidOut():
            return laid_out_words(event)
        case log.Prefilled():
            return prefilled_words(event)[0]
        case log.SteppedBack():
            return f"you {'stepped' if event.over else 'are stepping'} back to before step {event.to}"
        case log.Paused():
            return "you paused it" if event.on else "you let it go on"
        case log.TookOver():
            return "you took mouse and keyboard"
        case log.GaveBack():
            return "you handed mouse and keyboard back"
        case log.RuleAdded():
            return f"you added a rule: {_rule_words(event.rule)}"
        case log.Resumed():
            return f"resumed{': ' + event.note if event.note else ''}"
        case log.EpisodeEnded():
            return f"{event.end}, {verdict(event.passed)}{'. ' + event.reason if event.reason else ''}"
        case log.RunEnded():
            return f"the run {_ended(event)}{': ' + event.reason if event.reason else ''}"
        case log.HandedBack():
            return f"handed back {counted(len(event.changed), 'changed file')} as {event.patch}"
        case _:
            return event.type


def _rule_words(rule: dict[str, Any]) -> str:
    """A rule as the log has it, spelt as the form and the list of rules spell it."""
    words = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in rule.items()]
    patterns = [word for name, word in zip(rule, words, strict=True) if name != "verdict"]
    return f"{rule.get('verdict', 'allow')} {', '.join(patterns) or 'every call'}"


def _edited(row: Row) -> dict[str, Any] | None:
    """The arguments that a person has put in place of the model's."""
    decided = (event for event in row.events if isinstance(event, log.Decided))
    return next((event.arguments for event in decided if event.arguments is not None), None)


def _ended(event: log.RunEnded) -> str:
    """How a run ended, in the word that the list of runs has for it."""
    return {"interrupted": "was stopped"}.get(event.status, event.status)


def _waits(row: Row) -> bool:
    """Whether a call of it waits for a person still."""
    said = [event for event in row.events if isinstance(event, log.Asked | log.Decided)]
    return bool(said) and isinstance(said[-1], log.Asked) and not row.undone


def mark(row: Row) -> str:
    """One character that tells how a row went: it is no colour's alone to say so."""
    match row.kind:
        case "task":
            return ">"
        case "step":
            results = row.results
            if row.answer is not None and not row.answer.kept:
                return "~"
            if not results:
                return "?" if _waits(row) else "."
            return "+" if all(result.ok for result in results[:1]) else "!"
        case "you" | "mark":
            return "@"
        case "tests":
            return "+" if getattr(row.events[0], "status", None) == 0 else "!"
        case "end":
            return "#"
        case _:
            return " "


def parts(row: Row) -> Iterator[Part]:
    """Everything that the log has about a row, in the order in which it happened."""
    when = time.strftime("%H:%M:%S", time.localtime(row.t))
    where = [f"step {row.step}" if row.step else row.kind, when]
    where += [f"lane {row.lane}"] if row.lane else []
    where += ["in a sub-task"] if row.depth else []
    where += ["undone"] if row.undone else []
    yield Part(", ".join(where), "", "head")
    for event in row.events:
        yield from _parts(event)
    if (answer := row.answer) is not None:
        words = [duration(answer.seconds), *in_words(answer.usage)]
        yield Part("Cost", ", ".join(words), "faint")


def _parts(event: log.Event) -> Iterator[Part]:
    match event:
        case log.EpisodeStarted():
            yield Part("Task", event.task)
            yield Part("Instruction", event.instruction)
            screen = f", screen {event.screen[0]}x{event.screen[1]}" if event.screen else ""
            seed = "" if event.seed is None else f", seed {event.seed}"
            tools = ", ".join(str(tool.get("name")) for tool in event.tools)
            yield Part("Played by", f"{event.model}{seed}{screen}, with {tools or 'no tools'}", "faint")
        case log.Answered():
            yield from _answer_parts(event)
        case log.Asked():
            yield Part("A person is asked", event.why, "person")
        case log.Decided():
            word = {"once": "allowed once", "task": "allowed for this run", "deny": "denied"}
            yield Part(f"You: {word[event.verdict]}", event.reason, "person")
            if event.arguments is not None:
                yield Part("With these arguments instead", arguments_text(event.arguments), "person")
        case log.Intended():
            pass  # the answer has the call already, and the result says whether it ran
        case log.Resulted():
            ran = "" if event.executed else ", not executed"
            seen = f", screen {event.clip.word}" if event.clip else ""
            heading = f"Result{'' if event.ok else ': failed'}{ran}, {duration(event.seconds)}{seen}"
            yield Part(heading, event.text, "result" if event.ok else "fault")
        case log.SnapshotTaken():
            files = f"snapshot {event.snapshot} of {counted(event.files, 'file')}, {duration(event.seconds)}"
            yield Part(
                "Kept before the tests" if event.tests else "Kept before",
                files if event.snapshot else event.note,
                "faint",
            )
        case log.Planned():
            yield Part("Plan", plan_state(event.items), "faint")
        case log.Tested():
            heading = f"Tests: {tests_went(event)}"
            yield Part(heading, event.command, "call")
            yield Part("Failed", "\n".join(event.failed)) if event.failed else Part("", event.note)
            yield Part("Output", event.output, "result")
        case log.Networked():
            yield Part("", "\n".join([*map(attempt_line, event.attempts), *filter(None, [event.note])]))
        case log.Told() | log.SentBack():
            yield Part("The model is told", event.text)
        case log.Spoken():
            yield Part("You", event.text, "person")
        case log.GaveBack():
            yield Part(f"You handed back after {counted(event.inputs, 'input')}", event.text, "person")
        case log.SteppedBack():
            yield Part(
                f"You {'stepped' if event.over else 'go'} back to before step {event.to}",
                event.note,
                "person",
            )
            yield Part("The model is told", event.told)
        case log.EpisodeEnded():
            yield Part(f"The end: {event.end}, {verdict(event.passed)}", event.reason)
            yield Part("Answer", event.answer)
            yield Part("Took", f"{counted(event.steps, 'step')}, {duration(event.seconds)}", "faint")
        case log.RunEnded():
            yield Part(f"The run {_ended(event)}", event.reason)
        case log.HandedBack():
            changed = [" ".join(filter(None, one)) for one in event.changed]
            yield Part(
                "Handed back", "\n".join([event.patch, event.branch, *changed, *event.notes, *event.undone])
            )
        case _:
            fields = event.model_dump(mode="json", exclude={"v", "n", "t", "type", "parent", "lane"})
            yield Part(event.type, arguments_text(fields))


def _answer_parts(event: log.Answered) -> Iterator[Part]:
    if not event.kept:
        yield Part("This answer was asked for again and is no part of the conversation", "", "fault")
    if event.reasoning:
        yield Part("Thinking", event.reasoning, "thinking")
    if event.text.strip():
        yield Part("Says", event.text)
    for call in event.calls:
        yield Part(f"Call {call.name}{sure(call.confidence)}", arguments_text(call.arguments), "call")


def arguments_text(arguments: dict[str, Any]) -> str:
    """Arguments for a person: texts as they are, one under another; all else as JSON."""
    lines = []
    for name, value in arguments.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{name}:\n{shown}" if "\n" in shown else f"{name}: {shown}")
    return "\n".join(lines)


def _attempts(row: Row) -> Sequence[str]:
    lines = [
        line
        for event in row.events
        if isinstance(event, log.Networked)
        for line in [*map(attempt_line, event.attempts), *filter(None, [event.note])]
    ]
    return lines or ["network"]


def text_of(row: Row) -> str:
    """Everything about a row as one text, to be searched."""
    return "\n".join(f"{part.heading}\n{part.text}" for part in parts(row))
