"""The words the model reads. The shipped model was trained on exactly these, so they do not vary.

A first turn is the clip, then the instruction. A tool turn is the result's text, a newline and one
observation word, then the clip. Tasks without a screen send no clip; their turns are otherwise the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pilotfish.model.protocol import Clip, Image, Message, Part

DEVELOPER = (
    "You control a computer through tools. Each clip shows four frames of the screen, oldest first. "
    "Coordinates are integers from 0 to 1000 on both axes. When the task is finished, use the action done."
)

Observation = Literal["settled", "unchanged", "unsettled"]
"""What the screen did after an action: came to rest, stayed byte-identical, or was moving at the cap."""


def developer_turn() -> Message:
    """The fixed opening of every conversation."""
    return Message("developer", (DEVELOPER,))


def first_turn(instruction: str, clip: Clip | None, before: str = "") -> Message:
    """The task: what the screen shows, then what is wanted. before: the repository, laid out."""
    if before:
        return Message("user", (before, instruction))
    return Message("user", (instruction,) if clip is None else (clip, instruction))


def tool_turn(
    result: str, word: Observation | None, clip: Clip | None, image: Image | None = None
) -> Message:
    """One tool result. `word` is None when the task has no screen; `image` is a picture the tool made."""
    parts: list[Part] = [result if word is None else f"{result}\n{word}"]
    parts += [part for part in (image, clip) if part is not None]
    return Message("tool", tuple(parts))


def person_turn(text: str, word: Observation | None = None, clip: Clip | None = None) -> Message:
    """What a person says or has done, and the screen where that is another one by it."""
    if clip is None:
        return Message("user", (text,))
    return Message("user", (f"{text}\n{word}", clip))


def sent_back_turn(text: str) -> Message:
    """Why the model has not finished, after it said that it has."""
    return Message("user", (text,))


def observation_word(*, changed: bool, settled: bool) -> Observation:
    """`unsettled` wins over `unchanged`: a screen that never came to rest was not proven still."""
    if not settled:
        return "unsettled"
    return "settled" if changed else "unchanged"


PRUNED_CLIP = "Clip removed."
"""Stands where an old clip or picture was dropped to keep the conversation short."""

NO_CALL = "Reply with one tool call, or with your final answer."
"""Said when a reply held neither."""


def no_call(faults: Sequence[str]) -> str:
    """What a model is told whose reply held no call that could be read."""
    return " ".join([*(f"{fault[0].upper()}{fault[1:]}." for fault in faults), NO_CALL])


NOT_EXECUTED = "not executed: make one call per turn."
"""The result of every call of a turn after the first."""

UNKNOWN_OUTCOME = (
    "unknown outcome: the run was stopped while this call ran; "
    "look at the current state before you repeat it."
)
"""The result of a call that was running when the run was killed."""
