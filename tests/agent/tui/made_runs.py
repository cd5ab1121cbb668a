"""Run folders whose logs the real writer has written, without a run."""

from __future__ import annotations

from pathlib import Path

from pilotfish.agent import events as log
from pilotfish.agent.events import FrameStore
from pilotfish.model.protocol import Usage

from .screens import desktop

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


def at_fixed_times(folder: Path, *groups: list[log.Event], began: float = 1_767_225_600.0) -> Path:
    """A log whose records are a second apart, whenever it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    events = [event for group in groups for event in group]
    with (folder / log.EVENTS).open("w") as file:
        for number, event in enumerate(events, 1):
            file.write(event.model_copy(update={"n": number, "t": began + number}).model_dump_json() + "\n")
    return folder


def eventful(folder: Path, *, ended: bool = True) -> Path:
    """A run on a desktop in which a good deal happens."""
    frames = FrameStore(folder / log.FRAMES)
    folder.mkdir(parents=True, exist_ok=True)
    names = [frames.put(desktop(320, 200 + 8 * number)) for number in range(4)]
    clip = log.ClipData(
        frames=(names[0], names[1], names[2], names[3]),
        times_s=(0.0, 0.2, 0.4, 0.9),
        settled=True,
        word="settled",
    )
    begun, task = start(folder)
    plan = [
        log.PlanItem(title="Find the test that fails", status="done"),
        log.PlanItem(title="Mend it", status="doing"),
        log.PlanItem(title="Run all tests"),
    ]
    click = log.CallData(
        id="c2",
        name="computer",
        arguments={"action": "left_click", "coordinate": [500, 500]},
        confidence=0.97,
    )
    usage = Usage(input_tokens=3100, cached_tokens=3000, output_tokens=25)
    clicked: list[log.Event] = [
        log.Answered(step=2, text="I press the button.", calls=[click], usage=usage, seconds=2.5),
        log.Asked(step=2, call=click, why="default_verdict is ask"),
        log.Decided(step=2, call_id="c2", verdict="once"),
        log.Intended(step=2, call=click),
        log.Resulted(step=2, call_id="c2", ok=True, text="clicked at 160, 112", clip=clip, seconds=0.9),
    ]
    groups = [
        [begun, task.model_copy(update={"clip": clip})],
        [
            *step(1, "pytest -q", "1 failed, 12 passed", thinking="First I look which test fails."),
            log.Planned(step=1, items=plan),
        ],
        clicked,
        step(3, "sed -i s/a/b/ tests/test_a.py", "sed: cannot read tests/test_a.py", ok=False),
        [log.SteppedBack(step=4, to=3)],
        [log.Spoken(step=3, text="Do not change the test; the fault is in the code.")],
        step(3, "sed -i s/teh/the/ src/words.py && pytest -q", "13 passed", thinking=NASTY),
    ]
    return at_fixed_times(folder, *groups, *([end(3)] if ended else []))
