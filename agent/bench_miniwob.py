"""What a report on MiniWoB++ says beside each task's figures: what is held out, and what others report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pilotfish.tasks.miniwob_names import HELD_OUT, MINIWOB_TASKS
from pilotfish.tasks.miniwob_published import Published, read_published

GOOD = 0.9
"""Success from which on a task counts as one that the model can do."""


def add_miniwob(result: dict[str, Any], published: Published | None = None) -> dict[str, Any]:
    """The report with `class` and `held_out` in each row, and a `miniwob` with the counts over all."""
    published = published or read_published()
    rows = [
        row
        | {
            "class": MINIWOB_TASKS[row["task"]],
            "held_out": row["task"] in HELD_OUT,
        }
        for row in result["tasks"]
    ]
    held_out = [row["success"] for row in rows if row["held_out"]]
    summary = {
        "tasks": len(rows),
        "registered": len(MINIWOB_TASKS),
        "good": sum(row["success"] >= GOOD for row in rows),
        "held_out": len(held_out),
        "held_out_mean_success": _mean(held_out),
        "people": published.people,
        "at_peoples_mean": sum(row["success"] >= published.people for row in rows),
        "published": [vars(mean) for mean in published.means],
    }
    return result | {"tasks": rows, "miniwob": summary}


def in_sentences(result: dict[str, Any]) -> list[str]:
    """The counts, a line each."""
    found = result["miniwob"]
    lines = [f"{found['good']} of {found['tasks']} tasks at {GOOD:.0%} or more"]
    if found["tasks"] < found["registered"]:
        lines[0] += f" ({found['registered']} are registered)"
    if found["held_out"]:
        lines.append(f"held out: {found['held_out_mean_success']:.1%}, mean of {found['held_out']} tasks")
    lines.append(f"{found['at_peoples_mean']} at people's mean, {found['people']:.1%}, or more")
    return lines


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
