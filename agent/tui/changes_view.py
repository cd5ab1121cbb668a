"""The pane that shows what a run changed in its workspace."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from pilotfish.agent import events as log
from pilotfish.agent.tui.text_view import TextView
from pilotfish.agent.tui.words import Part

_REST_S = 0.5
_MAY_CHANGE = (
    log.Resulted | log.SnapshotTaken | log.SteppedBack | log.GaveBack | log.HandedBack | log.RunEnded
)
"""Records after which files may be other ones."""


class ChangesView(TextView):
    """The difference from the first snapshot to now. It is found out in a thread, one look at a time and with
    a rest after each as long as it took, since the run waits for the snapshots meanwhile.
    """

    def __init__(self, folder: Path, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._folder = folder
        self._wanted: list[log.Event] | None = None
        self._looking = False

    def look(self, events: Sequence[log.Event]) -> None:
        """Find out anew, soon. events: the run's own so far."""
        self._wanted = list(events)
        if not self._looking:
            self._looking = True
            self.run_worker(self._look())

    async def _look(self) -> None:
        try:
            while self._wanted is not None:
                events, self._wanted = self._wanted, None
                if self.document.rows == 0:
                    self.show([Part("", "Comparing the workspace with what it was before the run…", "faint")])
                began = time.monotonic()
                text = await asyncio.to_thread(changes_text, log.RunLog(self._folder, events))
                self.show([Part("", text)], keep_place=True)
                await asyncio.sleep(max(_REST_S, time.monotonic() - began))
        finally:
            self._looking = False


def may_change_files(events: Iterable[log.Event]) -> bool:
    """Whether files may be other ones after these records."""
    return any(isinstance(event, _MAY_CHANGE) for event in events)


def changes_text(run: log.RunLog) -> str:
    """What a run changed in its workspace, or why that is not known."""
    from pilotfish.agent.changes import Changes, diff_lines
    from pilotfish.sandbox import SandboxError

    try:
        return "\n".join(diff_lines(Changes(run).diff(None, None), text=True))
    except (SandboxError, log.LogError) as error:
        said = str(error)
        return said[:1].upper() + said[1:]
    except (OSError, json.JSONDecodeError) as error:
        return f"The workspace cannot be compared: {error}."
