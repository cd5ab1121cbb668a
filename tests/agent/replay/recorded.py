"""Runs as their logs tell them, for the replay page to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pilotfish.agent import events as log
from pilotfish.model.protocol import Usage

SCREEN = (170, 210)
USAGE = Usage(
    input_tokens=30,
    cached_tokens=20,
    output_tokens=5,
    queue_s=0.25,
    vision_s=0.75,
    prefill_s=1.5,
    decode_s=0.5,
    cache_bytes=3 << 20,
    device="cpu",
    sequences=2,
)


class Recording:
    """Writes a run step by step."""

    def __init__(self, events: log.EventLog) -> None:
        self.events = events
        self._frame = self.frame(0)

    def frame(self, shade: int) -> str:
        """A frame of one colour with a square in it, whose place tells the shade too."""
        pixels = np.full((SCREEN[1], SCREEN[0], 3), shade % 256, np.uint8)
        pixels[shade % 150 : shade % 150 + 20, shade % 120 : shade % 120 + 20] = (200, 40, shade // 256 % 256)
        return self.events.frames.put(pixels)

    def clip(self, shade: int, word: Any = "settled") -> log.ClipData:
        """From the frame there was to one of a new shade."""
        before, middle, after = self._frame, self.frame(shade - 1), self.frame(shade)
        self._frame = after
        times = (0.0, 0.1, 0.2, 0.3)
        return log.ClipData(frames=(before, middle, after, after), times_s=times, settled=True, word=word)

    def start(self, text: str = "Click it.", **more: Any) -> None:
        """The run and its first episode."""
        self.events.append(log.RunStarted(run=text, pilotfish="1", command="run", model=text, **more))
        self.events.append(
            log.EpisodeStarted(
                episode=0, task=text, seed=7, instruction=text, screen=SCREEN, clip=self.clip(1, "unchanged")
            )
        )

    def answer(self, step: int, arguments: dict[str, Any], *, text: str = "", name: str = "computer") -> None:
        """A call, as the model makes it."""
        call = log.CallData(id=f"c{step}", name=name, arguments=arguments, confidence=0.934)
        said = log.Answered(step=step, text=text, reasoning=text, calls=[call], usage=USAGE, seconds=3)
        self.events.append(said)

    def result(self, step: int, shade: int, *, ok: bool = True, text: str = "done", **more: Any) -> None:
        """What became of it."""
        clip = self.clip(shade)
        self.events.append(
            log.Resulted(step=step, call_id=f"c{step}", ok=ok, text=text, clip=clip, seconds=0.5, **more)
        )

    def click(self, step: int, x: int, y: int, shade: int, **more: Any) -> None:
        """A click from its thinking to its result."""
        self.answer(step, {"action": "left_click", "coordinate": [x, y]}, text=f"I click {x}.")
        self.result(step, shade, **more)

    def end(self, **more: Any) -> None:
        """The end of the episode and of the run."""
        self.events.append(log.EpisodeEnded(episode=0, end="done", passed=True, score=1, **more))
        self.events.append(log.RunEnded(status="finished"))


@contextmanager
def recording(folder: Path) -> Iterator[Recording]:
    """A run that is being written into a folder."""
    with log.EventLog(folder) as events:
        yield Recording(events)


def recorded(folder: Path, write: Callable[[Recording], None]) -> log.RunLog:
    """A run that was written."""
    with recording(folder) as run:
        write(run)
    return log.read_run(folder)


def steered(run: Recording) -> None:
    """Everything that a person can do to a run, and the model's own ways to be busy."""
    run.start()
    run.click(1, 500, 250, 40)
    run.answer(2, {"command": "rm -rf build"}, text="I clean up.", name="shell")
    call = log.CallData(id="c2", name="shell", arguments={"command": "rm -rf build"})
    run.events.append(log.Asked(step=2, call=call, why="the rule shell rm *"))
    run.events.append(log.Decided(step=2, call_id="c2", verdict="deny", reason="not now"))
    run.result(2, 41, ok=False, text="The user refused it.", executed=False)
    run.answer(3, {"action": "left_click_drag", "start_coordinate": [100, 100], "coordinate": [800, 700]})
    run.events.append(log.Asked(step=3, call=log.CallData(id="c3", name="computer"), why="by default"))
    edited = {"action": "left_click_drag", "start_coordinate": [100, 100], "coordinate": [300, 300]}
    run.events.append(log.Decided(step=3, call_id="c3", verdict="once", arguments=edited))
    run.result(3, 90)
    run.answer(
        4, {"action": "scroll", "coordinate": [500, 500], "scroll_direction": "down", "scroll_amount": 3}
    )
    run.result(4, 120, ok=False, text="nothing scrolls here")
    run.events.append(log.SteppedBack(step=5, to=3, note="all came back", clip=run.clip(41)))
    run.events.append(log.Paused(step=3, on=True))
    run.events.append(log.Spoken(step=3, text="Use the other button."))
    run.events.append(log.TookOver(step=3))
    run.events.append(
        log.GaveBack(
            step=3,
            text="A person has used it.",
            clip=run.clip(60),
            inputs=4,
            seconds=2.5,
            did=("clicked at (5, 5)", "typed 3 characters"),
        )
    )
    run.events.append(log.RuleAdded(rule={"tool": "shell", "verdict": "deny"}, saved=True))
    run.events.append(log.Paused(step=3, on=False))
    edit = {"command": "replace", "path": "a.py", "old_text": "a = 1\nb = 2", "new_text": "a = 1\nb = 3"}
    run.answer(3, edit, name="edit")
    run.result(3, 61)
    items = [log.PlanItem(title="Look", status="done"), log.PlanItem(title="Mend", status="doing")]
    run.events.append(log.Planned(step=3, items=items))
    run.answer(4, {"action": "zoom", "region": [100, 100, 400, 400]})
    run.result(4, 62, image=run.frame(99))
    run.answer(5, {"action": "type", "text": "hello"})
    run.result(5, 63)
    run.events.append(
        log.Networked(attempts=[log.AttemptData(number=1, host="evil.test", port=80, verdict="refused")])
    )
    run.events.append(log.Tested(command="pytest -q", status=1, failed=["test_a"], output="1 failed"))
    run.click(6, 900, 900, 64)
    run.end(answer="It is done.")
