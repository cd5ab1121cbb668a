"""Where a killed episode stood, read from its log.

A finished step is kept. A call that was running when the run was killed is told as an unknown outcome and
is not repeated. An answer whose call had not begun is forgotten and the model is asked again, unless a person
had been asked about it: then the person is asked again. What a step back
has undone never was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from pilotfish.agent import events as log
from pilotfish.agent.approval import changed_note, was_changed
from pilotfish.agent.conversation import Conversation
from pilotfish.agent.policy import Rule
from pilotfish.agent.prompt import (
    NOT_EXECUTED,
    UNKNOWN_OUTCOME,
    developer_turn,
    first_turn,
    person_turn,
    sent_back_turn,
    tool_turn,
)
from pilotfish.agent.reply import Reply
from pilotfish.agent.stepback import Way
from pilotfish.model.protocol import CallChunk, Clip, EndChunk, Image, Message, ToolCall


@dataclass
class Standing:
    """An episode up to where it broke off.

    closing: results that must be told for the last answer before the model is asked again: call and text.
    """

    conversation: Conversation
    used_steps: int = 0
    used_tokens: int = 0
    unknown_call: log.CallData | None = None
    closing: list[tuple[log.CallData, str]] = field(default_factory=list)
    pending: Reply | None = None
    """The last answer, if a person had been asked about its call and nothing has come of that."""
    way: Way | None = None
    """How files and screen come to be what they were, where that has to be done."""
    later: list[Message] = field(default_factory=list)
    """Turns of a person that come after what becomes of the last answer."""


def unknown_call(group: Sequence[log.Event]) -> log.CallData | None:
    """The call of an episode that had begun when its records break off, and whose outcome nobody knows."""
    begun: log.CallData | None = None
    for event in log.live(group):
        match event:
            case log.Intended(parent=0):
                begun = event.call
            case log.Resulted(parent=0) if begun is not None and event.call_id == begun.id:
                begun = None
    return begun


def standing(
    group: Sequence[log.Event], frames: log.FrameStore, conversation: Conversation, before: str = ""
) -> Standing:
    """Rebuild an episode from its records into an empty conversation. Raises `log.LogError` for a lost
    frame. before: see `first_turn`.
    """
    start = group[0]
    assert isinstance(start, log.EpisodeStarted)
    here = Standing(conversation, unknown_call=unknown_call(group))
    conversation.append(developer_turn())
    conversation.append(first_turn(start.instruction, _clip(start.clip, frames), before))
    answer: log.Answered | None = None
    said: log.Answered | None = None
    asked = False
    told: set[str] = set()
    for event in log.live(group)[1:]:
        if event.parent:
            here.used_tokens += event.usage.output_tokens if isinstance(event, log.Answered) else 0
            continue
        match event:
            case log.Answered():
                here.used_tokens += event.usage.output_tokens
                _hear(here)
                said = event if event.kept and not event.calls else None
                if event.kept and event.calls:
                    answer, told, asked = event, set(), False
            case log.SentBack() | log.Spoken():
                if said is not None:
                    conversation.append(_assistant(said))
                    said, answer = None, None
                turn = sent_back_turn if isinstance(event, log.SentBack) else person_turn
                here.later.append(turn(event.text))
                if answer is None or told:
                    _hear(here)
            case log.Asked():
                asked = True
            case log.GaveBack(text=text) | log.SteppedBack(told=text) if text:
                if said is not None:
                    conversation.append(_assistant(said))
                    said, answer = None, None
                word = None if event.clip is None else event.clip.word
                conversation.append(person_turn(text, word, _clip(event.clip, frames)))
            case log.Resulted() if answer is not None:
                if not told:
                    here.used_steps += 1
                    conversation.append(_assistant(answer))
                told.add(event.call_id)
                conversation.append(_tool(event, frames))
    if answer is not None and (told or here.unknown_call):
        _close(here, answer, told)
    elif answer is not None and asked:
        conversation.append(_assistant(answer))
        here.pending = _reply(answer)
    if not here.closing and here.pending is None:
        _hear(here)
    return here


def rules_added(events: Iterable[log.Event]) -> list[Rule]:
    """The rules that people have added to a run, as far as this version knows such."""
    found = []
    for event in events:
        if isinstance(event, log.RuleAdded):
            with contextlib.suppress(ValidationError):
                found.append(Rule(**event.rule))
    return found


def messages_left(events: Iterable[log.Event]) -> list[str]:
    """The messages that a run had accepted from people and not told the model, in the run's own
    conversation, when it was killed.
    """
    found: list[str] = []
    for event in events:
        match event:
            case log.MessageLeft():
                found.append(event.text)
            case log.Spoken(parent=0) if event.text in found:
                found.remove(event.text)
    return found


def _hear(here: Standing) -> None:
    for turn in here.later:
        here.conversation.append(turn)
    here.later.clear()


def _reply(answer: log.Answered) -> Reply:
    calls = tuple(
        CallChunk(ToolCall(call.id, call.name, call.arguments), call.confidence) for call in answer.calls
    )
    return Reply(answer.text, answer.reasoning, calls, EndChunk("end", answer.usage), answer.seconds)


def _close(here: Standing, answer: log.Answered, told: set[str]) -> None:
    """Work out what the last answer's calls without a result are to be told."""
    if not told:
        here.used_steps += 1
        here.conversation.append(_assistant(answer))
    for call in answer.calls:
        if call.id in told:
            continue
        if here.unknown_call is not None and call.id == here.unknown_call.id:
            ran = here.unknown_call
            note = f"{changed_note(ran)}\n" if was_changed(call, ran) else ""
            here.closing.append((call, note + UNKNOWN_OUTCOME))
        else:
            here.closing.append((call, NOT_EXECUTED))


def _assistant(answer: log.Answered) -> Message:
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in answer.calls)
    return Message("assistant", (answer.text,) if answer.text else (), answer.reasoning, calls)


def _tool(event: log.Resulted, frames: log.FrameStore) -> Message:
    image = None if event.image is None else Image(frames.get(event.image))
    if event.clip is None:
        return tool_turn(event.text, None, None, image)
    return tool_turn(event.text, event.clip.word, _clip(event.clip, frames), image)


def _clip(data: log.ClipData | None, frames: log.FrameStore) -> Clip | None:
    if data is None:
        return None
    import numpy as np

    return Clip(np.stack([frames.get(name) for name in data.frames]), data.times_s, data.settled)
