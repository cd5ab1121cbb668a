"""What the model has been told so far. It grows only at its end, so that the model's cached prefix stays
valid.

Clips are what fills a context. When there are too many, the oldest block of them is replaced by a short
text all at once: the prefix changes once per block rather than once per step. The instruction and the first
clip stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pilotfish.agent.prompt import PRUNED_CLIP
from pilotfish.agent.safetext import all_encodable
from pilotfish.model.protocol import Clip, Image, Message, ToolCall


class Conversation:
    """An append-only list of messages with block pruning of clips and pictures."""

    def __init__(self, messages: Iterable[Message] = (), *, max_clips: int = 12, block: int = 8) -> None:
        """max_clips: clips and pictures kept, the first one included. block: how many go at once.

        Raises ValueError when a block could reach the first clip or would be empty.
        """
        if not 1 <= block < max_clips:
            raise ValueError(
                f"a block of {block} clips cannot be dropped from {max_clips}; choose 1 to {max_clips - 1}"
            )
        self.max_clips = max_clips
        self.block = block
        self.prunings = 0
        self._messages: list[Message] = []
        for message in messages:
            self.append(message)

    @property
    def messages(self) -> tuple[Message, ...]:
        """What to send, oldest first."""
        return tuple(self._messages)

    def append(self, message: Message) -> None:
        """Add a turn. Raises ValueError for an assistant turn that says and does nothing: it would poison
        the rest.
        """
        if message.role == "assistant" and not message.tool_calls and not "".join(_texts(message)).strip():
            raise ValueError("an empty assistant turn cannot be appended; sample the model again")
        self._messages.append(_encodable(message))
        if self._clips() > self.max_clips:
            self._drop_block()

    def _clips(self) -> int:
        return sum(isinstance(part, Clip | Image) for message in self._messages for part in message.parts)

    def _drop_block(self) -> None:
        self.prunings += 1
        seen = 0
        for index, message in enumerate(self._messages):
            parts = list(message.parts)
            for place, part in enumerate(parts):
                if isinstance(part, Clip | Image):
                    if 1 <= seen <= self.block:
                        parts[place] = PRUNED_CLIP
                    seen += 1
            self._messages[index] = replace(message, parts=tuple(parts))


def _encodable(message: Message) -> Message:
    """A turn whose texts a tokenizer or a server can take."""
    calls = tuple(
        ToolCall(*(all_encodable(field) for field in (call.id, call.name, call.arguments)))
        for call in message.tool_calls
    )
    parts = tuple(all_encodable(part) if isinstance(part, str) else part for part in message.parts)
    return Message(message.role, parts, all_encodable(message.reasoning), calls)


def _texts(message: Message) -> list[str]:
    return [part for part in message.parts if isinstance(part, str)]
