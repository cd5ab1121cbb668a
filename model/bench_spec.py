"""What the bench asks of a process that measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Side = Literal["ours", "theirs"]


@dataclass(frozen=True)
class Spec:
    """One measurement. It crosses to the process as JSON."""

    job: str
    folder: str
    side: Side = "ours"
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 2
    tokens: int = 0
    """New ones; to decode, or to write greedily: how many."""
    before: int = 0
    """Tokens that are in the cache."""
    screen: tuple[int, int] = (1280, 800)
    seconds: float = 15.0
    """After so many no further run begins."""
