"""What the page shows at one place: an entry, and the words and numbers in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from pilotfish.agent import events as log
from pilotfish.agent.accounts import in_words
from pilotfish.agent.safetext import shortened, visible

Kind = Literal["start", "step", "said", "retry", "tests", "person", "steering", "resumed", "end"]
Tag = Literal["failed", "denied", "asked", "undone", "subtask", "person", "network", "waiting"]

# The arguments that the page draws on the frame.
_MARKS = (
    "action",
    "coordinate",
    "start_coordinate",
    "region",
    "text",
    "scroll_direction",
    "scroll_amount",
)
_COSTS = ("input_tokens", "cached_tokens", "output_tokens", "queue_s", "vision_s", "prefill_s", "decode_s")


@dataclass
class Entry:
    """One thing to look at. All text is spelt out by `visible`.

    t: Unix time at which it began, seconds: wall time it took, answer and call together.
    frames: names in the frame store; without a clip of its own, the last frame there was.
    notes: pairs of a name and a text. cost: what its answer cost, as `Usage` names it; what is not known is
    not there. plan: status and title of each item, where the plan changed here.
    """

    kind: Kind
    title: str
    t: float = 0.0
    step: int | None = None
    seconds: float = 0.0
    frames: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    image: str = ""
    marks: dict[str, Any] = field(default_factory=dict)
    notes: list[list[str]] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    cost: dict[str, float] = field(default_factory=dict)
    plan: list[list[str]] = field(default_factory=list)
    tags: list[Tag] = field(default_factory=list)
    call: str = ""
    """The call as it ran, to compare runs by."""

    def note(self, name: str, text: str) -> None:
        """Add a text, unless there is none."""
        if text:
            self.notes.append([name, visible(text)])

    def tag(self, tag: Tag) -> None:
        """Mark it, once."""
        if tag not in self.tags:
            self.tags.append(tag)

    def untag(self, tag: Tag) -> None:
        """Take a mark away, if it is there."""
        if tag in self.tags:
            self.tags.remove(tag)

    def show(self, clip: log.ClipData | None) -> None:
        """Show a clip of its own."""
        if clip is not None:
            self.frames, self.times = list(clip.frames), list(clip.times_s)
            self.facts.append(clip.word)

    def account(self, reply: log.Answered) -> None:
        """Add what an answer cost."""
        known = {name: getattr(reply.usage, name) for name in _COSTS}
        self.cost = {name: value for name, value in known.items() if value is not None}
        self.cost["answer_s"] = reply.seconds
        self.facts += in_words(reply.usage)
        self.seconds += reply.seconds

    def set_call(self, call: log.CallData, arguments: dict[str, Any]) -> None:
        """Draw a call with these arguments, and name the entry by it."""
        self.marks = {name: arguments[name] for name in _MARKS if name in arguments}
        self.call = json.dumps([call.name, arguments], sort_keys=True, ensure_ascii=False)
        self.title = call_title(call, arguments)

    def stamp(self) -> tuple[object, ...]:
        """Another value after whatever a record has changed of it."""
        lists = (len(self.notes), len(self.facts), len(self.plan), tuple(self.tags), tuple(self.frames))
        return (self.title, self.seconds, self.image, self.call, len(self.cost), *lists)

    def as_json(self) -> dict[str, Any]:
        """As the page reads it: empty fields left out."""
        return {name: value for name, value in vars(self).items() if value not in ("", [], {}, None)}


def call_title(call: log.CallData, arguments: dict[str, Any]) -> str:
    """A call in a few words: the action and its place, or the tool and its command."""
    if "action" not in arguments:
        told = (str(arguments[name]) for name in ("command", "path", "url", "text") if arguments.get(name))
        what, how = call.name, " ".join(told)
    else:
        place, what = arguments.get("coordinate"), str(arguments["action"])
        how = " ".join(map(str, place)) if isinstance(place, list) else str(arguments.get("text", ""))
    sure = "" if call.confidence is None else f" ({call.confidence:.2f})"
    return f"{shortened(what, 40)} {shortened(how, 60)}".strip() + sure
