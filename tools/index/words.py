"""The words of a text, by which it is found: whole names, and the parts of names, without the endings that
plurals and verbs have.
"""

from __future__ import annotations

import re
from collections import Counter

_NAME = re.compile(rb"[A-Za-z_\x80-\xff][\w\x80-\xff]+")
_PART = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[\x80-\xff]+")
_ENDINGS = (b"ing", b"ed", b"es", b"s", b"e")


def words_in(name: bytes) -> tuple[bytes, ...]:
    """The words of one name: itself where it has several parts, and its parts."""
    parts = [_plain(part) for part in _PART.findall(name) if len(part) > 1]
    return (name.lower(), *parts) if len(parts) > 1 else tuple(parts)


def words_of(text: bytes) -> Counter[bytes]:
    """How often each word is in UTF-8 text."""
    found: Counter[bytes] = Counter()
    for name, often in Counter(_NAME.findall(text)).items():
        for word in words_in(name):
            found[word] += often
    return found


def _plain(word: bytes) -> bytes:
    word = word.lower()
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return word[: -len(ending)]
    return word


class Counting:
    """Counts certain words in many texts; what it has learnt of names it keeps."""

    def __init__(self, words: list[bytes]) -> None:
        self._places = {word: place for place, word in enumerate(words)}
        self._known: dict[bytes, tuple[int, ...]] = {}

    def counts(self, text: bytes) -> tuple[int, list[int]]:
        """How many names a text has in all, and how often each word is there."""
        names = Counter(_NAME.findall(text))
        counts = [0] * len(self._places)
        known = self._known
        for name, often in names.items():
            places = known.get(name)
            if places is None:
                places = known[name] = tuple(
                    self._places[word] for word in words_in(name) if word in self._places
                )
            for place in places:
                counts[place] += often
        return names.total(), counts
