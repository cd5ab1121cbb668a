"""Run folders whose logs the real writer has written, without a run."""

from __future__ import annotations

from pathlib import Path

from pilotfish.agent import events as log
from pilotfish.model.protocol import Usage

SHELL = {"name": "shell", "description": "", "parameters": {}}
NASTY = "[/] [@click=app.quit]x[/] build[a-z]* \x1b[31mred\x1b]52;c;eA==\x07 \u202e\u200b d['k'][/a]"


def step(number: int, command: str, result: str, *, ok: bool = True, thinking: str = "") -> list[log.Event]:
    """The records of one step with the shell."""
    call = log.CallData(id=f"c{number}", name="shell", arguments={"command": command})
    usage = Usage(input_tokens=1000 + number, cached_tokens=950, output_tokens=40)
    return [
        log.Answered(step=number, text="", reasoning=thinking, calls=[call], usage=usage, seconds=1.2),
        log.Intended(step=number, call=call),
        log.Resulted(step=number, call_id=call.id, ok=ok, text=result, seconds=0.3),
    ]


def start(folder: Path, instruction: str = "Mend the failing test.") -> list[log.Event]:
    """The first records of a run."""
    return [
        log.RunStarted(
            run=folder.name,
            pilotfish="0.1.0",
            command="run",
            model="nano",
            options={"target": {"workspace": None}, "settings": {}},
        ),
        log.EpisodeStarted(
            episode=1, task="instruction", model="nano", instruction=instruction, tools=[SHELL]
        ),
    ]


def end(steps: int) -> list[log.Event]:
    """The last records of a run."""
    return [
        log.EpisodeEnded(
            episode=1, end="answered", answer="It was a typo.", passed=None, steps=steps, seconds=9.0
        ),
        log.RunEnded(status="finished"),
    ]


def write(folder: Path, *groups: list[log.Event]) -> Path:
    """Add records to the log of a folder."""
    with log.EventLog(folder) as events:
        for group in groups:
            for event in group:
                events.append(event)
    return folder


def finished(folder: Path, steps: int = 3, instruction: str = "Mend the failing test.") -> Path:
    """A run that has ended."""
    middle = [step(number, f"pytest tests/test_{number}.py", "1 passed") for number in range(1, steps + 1)]
    return write(folder, start(folder, instruction), *middle, end(steps))
