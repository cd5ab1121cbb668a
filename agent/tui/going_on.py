"""Resuming a run that was stopped or broken off."""

from __future__ import annotations

from pathlib import Path

from textual.widget import Widget

from pilotfish.agent.control.spawn import StartError, start_supervised
from pilotfish.agent.tui.text import notify, sentence


async def go_on(widget: Widget, folder: Path) -> bool:
    """Start a process that resumes a run, and tell when that cannot be; whether it could."""
    notify(widget, f"Resuming {folder.name}…", timeout=3)
    try:
        await start_supervised(["resume", str(folder)])
    except (StartError, OSError) as error:
        notify(widget, sentence(error), severity="error")
        return False
    return True
