"""Resuming a run that was stopped or broken off."""

from __future__ import annotations

from pathlib import Path

from textual.widget import Widget

from pilotfish.agent.control.spawn import StartError, start_supervised
from pilotfish.agent.tui.text import notify, sentence


async def go_on(widget: Widget, folder: Path) -> bool:
    """Start a process that resumes a run, and tell when that cannot be; whether it could."""

    def tell(what: str) -> None:
        notify(widget, f"{folder.name} is resumed, which waits for {what}.", timeout=5)

    try:
        await start_supervised(["resume", str(folder)], on_wait=tell)
    except (StartError, OSError) as error:
        notify(widget, sentence(error), severity="error")
        return False
    return True
