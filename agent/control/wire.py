"""What a run and its clients say to each other, one class for each kind of message.

The log is the truth about a run; the socket carries what is not in it yet (what the run is doing now, an
answer while it is written, a question that waits, the live screen) and what a person wants. A client may
watch; one at a time controls. Every request has an `id` of the client's choosing and is answered by one
`Done` or `Refused`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from pilotfish.agent.events import CallData

PROTOCOL = 1
SOCKET = "control.sock"
MAX_LINE = 64 << 20
"""Bytes of the longest message; a screen of 4K as PNG stays far below."""

Phase = Literal[
    "starting", "reading", "thinking", "asking", "acting", "paused", "taken_over", "grading", "ended"
]
"""What a run does: sets up, computes the prompt, waits for the model, waits for a person, executes a call,
holds before the next step, lets a person use mouse and keyboard, grades, has ended.
"""


def call_digest(name: str, arguments: Mapping[str, Any]) -> str:
    """The SHA-256, in hexadecimal, of a call: of its canonical JSON with sorted names, in ASCII."""
    call = {"name": name, "arguments": arguments}
    text = json.dumps(call, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class _Message(BaseModel):
    # Else a number that JSON has not would become null on its way.
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")


# From the run.


class Hello(_Message):
    """The first message on a connection."""

    type: Literal["hello"] = "hello"
    protocol: int = PROTOCOL
    run: str
    folder: str
    pid: int
    client: int
    """The number of the one who has connected."""


class State(_Message):
    """What the run does, sent after `Hello` and whenever it changes."""

    type: Literal["state"] = "state"
    phase: Phase
    step: int = 0
    """The step that is being taken, from 1; 0 before the first."""
    episode: int = 0
    task: str = ""
    paused: bool = False
    """Whether it holds before the next step, or will as soon as it gets there."""
    controller: int | None = None
    """The client that controls it."""
    clients: int = 0
    messages: int = 0
    """Messages of a person that the model has not been told yet."""
    computed: int = 0
    """Of a prompt that is being read, the tokens computed so far."""
    tokens: int = 0
    """Of that prompt, all tokens."""
    can_step_back: bool = False
    can_take_over: bool = False
    has_screen: bool | None = None
    """Whether there is a screen to watch; None until that is known."""
    note: str = ""


class Delta(_Message):
    """More of the answer that the model is writing. A new `step` or `start` begins it anew."""

    type: Literal["delta"] = "delta"
    step: int
    kind: Literal["thinking", "text"]
    text: str
    start: bool = False


class Question(_Message):
    """A call waits for a person. It is sent again to everyone who connects while it waits."""

    type: Literal["question"] = "question"
    question: int
    step: int
    call: CallData
    why: str
    """What made it a question: the rule, or the default."""
    warnings: list[str] = Field(default_factory=list)
    """What could be overlooked, a sentence each."""
    diff: str = ""
    """What an edit would change, as a unified diff."""
    pixel: tuple[int, int] | None = None
    """Where a click would go, in pixels of the screen."""
    rule: dict[str, Any] = Field(default_factory=dict)
    """What "for this run" would allow from then on, as an item of the setting `rules`."""
    run_warning: str = ""
    """What stands around the run, where that is less than a whole sandbox."""


class QuestionOver(_Message):
    """A question was answered, by this or another client, or has gone with the run's end."""

    type: Literal["question_over"] = "question_over"
    question: int


class Screen(_Message):
    """The live screen, to those who watch it, whenever it has changed."""

    type: Literal["screen"] = "screen"
    width: int
    height: int
    png: str
    """Base64."""
    cursor: tuple[int, int] | None = None


class Done(_Message):
    """A request was carried out."""

    type: Literal["done"] = "done"
    id: int
    note: str = ""


class Refused(_Message):
    """A request was not carried out, in one sentence with the mend."""

    type: Literal["refused"] = "refused"
    id: int
    sentence: str


FromRun = Annotated[
    Hello | State | Delta | Question | QuestionOver | Screen | Done | Refused, Field(discriminator="type")
]
FROM_RUN: TypeAdapter[FromRun] = TypeAdapter(FromRun)


# From a client.


class _Request(_Message):
    id: int = 0


class Control(_Request):
    """Take or give back the control of the run. A controller that is gone has given it back. force: take it
    from another one.
    """

    type: Literal["control"] = "control"
    take: bool = True
    force: bool = False


class WatchScreen(_Request):
    """Begin or end to be sent the live screen, at most `per_second` times a second. Needs no control."""

    type: Literal["watch_screen"] = "watch_screen"
    on: bool = True
    per_second: float = Field(default=4.0, gt=0, le=30)


class Decide(_Request):
    """Answer a question. verdict: `task` allows for this run what the question's rule names. `digest` is the
    SHA-256 of what was shown (`call_digest`), so that what is allowed is what runs. arguments: those to
    execute instead, which are validated first; None runs the call as it is.
    """

    type: Literal["decide"] = "decide"
    question: int
    verdict: Literal["once", "task", "deny"]
    digest: str = ""
    reason: str = ""
    arguments: dict[str, Any] | None = None

    @field_validator("arguments")
    @classmethod
    def _are_json(cls, arguments: dict[str, Any] | None) -> dict[str, Any] | None:
        json.dumps(arguments, allow_nan=False)
        return arguments


class Pause(_Request):
    """Hold before the next step, or go on. single: take one step and hold again."""

    type: Literal["pause"] = "pause"
    on: bool = True
    single: bool = False


class Tell(_Request):
    """A message to the agent; it reads it before its next answer."""

    type: Literal["tell"] = "tell"
    text: str


class StepBack(_Request):
    """Go back to before a step: screen, files and what the model was told. The run is paused then."""

    type: Literal["step_back"] = "step_back"
    step: int


class TakeOver(_Request):
    """Take mouse and keyboard of the sandbox (the run holds meanwhile), or hand them back. note: what the
    agent is told about it besides.
    """

    type: Literal["take_over"] = "take_over"
    on: bool = True
    note: str = ""


class Input(_Request):
    """One thing done with mouse or keyboard by the one who took over. Places are pixels of the screen.

    key: a name or combination as in the computer tool ("ctrl+s", "Return"). text: what is typed.
    """

    type: Literal["input"] = "input"
    action: Literal["move", "click", "double_click", "press", "release", "scroll", "key", "text"]
    x: int | None = None
    y: int | None = None
    button: Literal["left", "middle", "right"] = "left"
    dx: int = 0
    dy: int = 0
    key: str = ""
    text: str = ""


class AddRule(_Request):
    """A rule for this run (an item of the setting `rules`), or with `save` for later ones too."""

    type: Literal["add_rule"] = "add_rule"
    rule: dict[str, Any]
    save: bool = False


class Stop(_Request):
    """End the run in order."""

    type: Literal["stop"] = "stop"


Request = Annotated[
    Control | WatchScreen | Decide | Pause | Tell | StepBack | TakeOver | Input | AddRule | Stop,
    Field(discriminator="type"),
]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
