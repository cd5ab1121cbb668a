"""The network of a run: only what a person has allowed, and all that was tried in the event log."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict

from pilotfish.agent import events as log
from pilotfish.agent.settings import Settings
from pilotfish.sandbox import Attempt, Network
from pilotfish.tasks.format import Task
from pilotfish.tasks.reader import TaskError


def check_hosts(task: Task, settings: Settings) -> None:
    """Raise `TaskError` unless the person has allowed the hosts that a task file names: it is only data."""
    lacking = Network(settings.network).lacks(task.hosts)
    if lacking:
        flags = " ".join(f"--allow-host {host}" for host in lacking)
        raise TaskError(
            f"{task.name} needs {', '.join(lacking)} of the network; if it may have that, give {flags} or "
            "the setting network."
        )


class NetworkRecorder:
    """Writes what the sandbox's proxy tells into the log of a run."""

    def __init__(self, events: log.EventLog) -> None:
        self._events = events
        self._waiting: list[log.Networked] = []

    def __call__(self, attempts: Sequence[Attempt], note: str) -> None:
        """Take what is new. A log that cannot be written just now gets it later, at the latest by `flush`."""
        data = [log.AttemptData(**asdict(attempt)) for attempt in attempts]
        self._waiting.append(log.Networked(attempts=data, note=note))
        with contextlib.suppress(log.LogError):
            self.flush()

    def flush(self) -> None:
        """Write what could not be written yet. Raises `LogError`."""
        while self._waiting:
            self._events.append(self._waiting[0])
            del self._waiting[0]
