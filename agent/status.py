"""One line of a terminal that is written over: how far something is that takes long."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

from pilotfish.agent.safetext import visible

if TYPE_CHECKING:
    from pilotfish.model.protocol import ProgressChunk  # brings numpy along

LONG_S = 1.0
"""Seconds after which reading a prompt is worth a word."""


class StatusLine:
    """The line, on standard error; `works` says whether there is a terminal that can take one back."""

    def __init__(self) -> None:
        stream = sys.stderr
        self.works = stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_shown = False

    def show(self, text: str) -> None:
        """Put a text in place of what the line holds."""
        if self.works:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[2K{visible(text, one_line=True)[:width]}", end="", file=sys.stderr, flush=True)
            self._is_shown = True

    def clear(self) -> None:
        """Take the line back, so that others may write."""
        if self._is_shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self._is_shown = False


class Reading:
    """Shows on a line how far a model has read its prompt, once that takes long."""

    def __init__(self, line: StatusLine) -> None:
        self._line = line
        self._done = self._total = 0
        self._began_s = 0.0

    def __call__(self, chunk: ProgressChunk) -> None:
        """Take note of how far it is."""
        if self._done >= self._total or chunk.total != self._total or chunk.done < self._done:
            self._began_s = time.monotonic()  # another prompt
        self._done, self._total = chunk.done, chunk.total
        if chunk.done >= chunk.total:
            self._line.clear()
        elif time.monotonic() - self._began_s >= LONG_S:
            self._line.show(f"      reading {chunk.done:,} of {chunk.total:,} tokens")
