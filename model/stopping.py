"""Stop strings: an answer's text ends where one of them begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pilotfish.model.parser import Event
from pilotfish.model.protocol import ModelError, TextChunk

MAX_STOPS, MAX_LENGTH = 16, 1024


class StopFilter:
    """Passes an answer's events on up to the first stop string in its text, not in its thinking or calls.

    found: the one that was met; nothing comes after it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ModelError for an empty string, one too long, or too many."""
        if len(stops) > MAX_STOPS:
            raise ModelError(f"There are {len(stops)} stop strings; give at most {MAX_STOPS}.")
        for stop in stops:
            if not 0 < len(stop) <= MAX_LENGTH:
                raise ModelError(
                    f"A stop string has {len(stop)} characters; give strings of 1 to {MAX_LENGTH:,}."
                )
        self.found: str | None = None
        self._stops = tuple(stops)
        self._held = ""

    def filter(self, events: Sequence[Event]) -> Iterator[Event]:
        """The events that are certain not to lie behind a stop string."""
        for event in events:
            if self.found is not None:
                return
            if isinstance(event, TextChunk):
                yield from self._text(event.text)
            else:
                yield from self.close()
                yield event

    def close(self) -> Iterator[Event]:
        """The text that was held back because a stop string might have begun in it."""
        held, self._held = self._held, ""
        if held and self.found is None:
            yield TextChunk(held)

    def _text(self, text: str) -> Iterator[Event]:
        text = self._held + text
        met = [(start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if met:
            start, self.found = min(met)
            self._held, text = "", text[:start]
        else:
            begun = max((_begun(text, stop) for stop in self._stops), default=0)
            self._held = text[len(text) - begun :]
            text = text[: len(text) - begun]
        if text:
            yield TextChunk(text)


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of a text could begin the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
