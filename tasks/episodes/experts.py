"""Scripted experts for MiniWoB++ tasks: they read the document and act with mouse and keyboard only.

An expert is an async generator of `Step`s over a `Screen`; it looks again after every step, so it goes on
correctly after a deliberate slip. `EXPERTS` maps task names to experts.
"""

from __future__ import annotations

from pilotfish.tasks.episodes import (
    experts_clicks,
    experts_pickers,
    experts_places,
    experts_scrolling,
    experts_sections,
    experts_travel,
)
from pilotfish.tasks.episodes.expert_tools import EXPERTS

__all__ = [
    "EXPERTS",
    "experts_clicks",
    "experts_pickers",
    "experts_places",
    "experts_scrolling",
    "experts_sections",
    "experts_travel",
]
