"""Writing the replay page of a run, from the interface."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from textual.screen import Screen

from pilotfish.agent.events import LogError, read_run
from pilotfish.agent.tui.dialogs import Reader
from pilotfish.agent.tui.text import notify, sentence
from pilotfish.agent.tui.words import Part

_GROUP = "replay page"


def write_page(screen: Screen[Any], folder: Path) -> None:
    """Write the page of a run, say where it is, and open it where there is a browser to do that."""
    if any(worker.group == _GROUP and not worker.is_finished for worker in screen.workers):
        notify(screen, "The replay page is being written already.", timeout=2)
    else:
        screen.run_worker(_write(screen, folder), group=_GROUP)


async def _write(screen: Screen[Any], folder: Path) -> None:
    from pilotfish.agent.replay import write_replay

    notify(screen, "Writing the replay page…", timeout=2)
    try:
        path = await asyncio.to_thread(lambda: write_replay(read_run(folder)))
    except LogError as error:
        notify(screen, sentence(error), severity="error")
        return
    said = "Your browser is asked to open it" if _opened(path) else "Open it in a browser"
    where = Part("The replay page of this run", str(path.absolute()))
    screen.app.push_screen(Reader([where, Part("", f"{said}; it needs no network.")]))


def _opened(path: Path) -> bool:
    """Ask the desktop to open a file, where there is one."""
    opener = shutil.which("xdg-open")
    if opener is None or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    none = subprocess.DEVNULL
    subprocess.Popen([opener, str(path)], stdin=none, stdout=none, stderr=none, start_new_session=True)
    return True
