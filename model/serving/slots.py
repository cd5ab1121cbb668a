"""How many requests are taken at once, and how much memory they may hold together."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.model.protocol import Image, Message
from pilotfish.model.serving.wire import RequestError

MAX_WAITING = 32
MAX_HELD = 2 * 1024**3
"""Bytes that the bodies and pictures of all requests may have together; one request's may come on top."""


class Slots:
    """Places for requests, taken before their bodies are read; requests beyond are turned away."""

    def __init__(self) -> None:
        self.taken, self.held = 0, 0

    def take(self) -> Slot:
        """A place for one request; raises RequestError when there is none."""
        if self.taken >= MAX_WAITING:
            raise RequestError(f"{self.taken} requests are being answered or wait; try again.", status=429)
        return Slot(self)


class Slot:
    """One request's place, until it is left."""

    def __init__(self, slots: Slots) -> None:
        self._slots, self._held, self._left = slots, 0, False
        slots.taken += 1

    def hold(self, count: int) -> None:
        """Count so many bytes more as this request's; raises RequestError when all together are too many."""
        if self._slots.held + count > MAX_HELD:
            raise RequestError(
                f"The requests being answered hold {self._slots.held >> 20} MiB; try again.", status=429
            )
        self._slots.held += count
        self._held += count

    def hold_pictures(self, conversation: Sequence[Message]) -> None:
        """Count the pictures of a conversation; raises RequestError as `hold` does."""
        pictures = [part for turn in conversation for part in turn.parts if isinstance(part, Image)]
        self.hold(sum(picture.pixels.nbytes for picture in pictures))

    def leave(self) -> None:
        """Give the place back; may be called again."""
        if not self._left:
            self._left = True
            self._slots.taken -= 1
            self._slots.held -= self._held
