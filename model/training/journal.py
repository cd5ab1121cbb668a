"""The log of a training run: a line of JSON for every few steps, and a picture of all of them."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pilotfish.model.training.loader import Batch
from pilotfish.model.training.settings import TrainingError

SIZE, MARGIN = (640, 200), 40
CURVES = {"answer": "#1f6fb4", "kl": "#d1603d", "lr": "#888888"}


class NoNumber(TrainingError):
    """A loss is not a number."""


class Journal:
    """Averages what the steps report, writes it to `train.jsonl` and prints every fourth record."""

    def __init__(self, path: Path, every: int):
        self.path, self.every = path, every
        self.pending: list[tuple[int, dict[str, Tensor | float], str]] = []
        self.tokens, self.rows, self.waited = 0, 0, 0.0
        self.lap = time.monotonic()

    def add(self, step: int, values: dict[str, Tensor], batch: Batch, waited: float) -> None:
        """One step's losses; nothing is read from the device yet."""
        self.pending.append((step, {k: v.detach() for k, v in values.items()}, batch.origin))
        self.tokens += batch.ids.numel()
        self.rows += batch.ids.shape[0]
        self.waited += waited

    def check(self) -> list[tuple[int, dict[str, float], str]]:
        """What is pending, in numbers. Raises `TrainingError`, which names the batch, if one is none."""
        # One look at the device for all of them.
        there = [v.float() for _, report, _ in self.pending for v in report.values() if isinstance(v, Tensor)]
        numbers = iter(torch.stack(there).tolist() if there else [])
        read = [
            (n, {k: next(numbers) if isinstance(v, Tensor) else v for k, v in report.items()}, origin)
            for n, report, origin in self.pending
        ]
        for step, values, origin in read:
            if not all(math.isfinite(v) for v in values.values()):
                wrong = ", ".join(f"{k} {v:g}" for k, v in values.items() if not math.isfinite(v))
                raise NoNumber(
                    f"The loss of step {step} is no number ({wrong}); its batch is {origin}. The last "
                    "checkpoint is from before: go on from it with lower rates, or without that shard."
                )
        return read

    def write(self, step: int, seconds: float, rate: float) -> dict[str, Any]:
        """Write and return the record of the steps since the last; raises as `check`, or `TrainingError` when
        there is no room.
        """
        values: dict[str, list[float]] = defaultdict(list)
        for _, report, _ in self.check():
            for k, v in report.items():
                values[k].append(v)
        lap = max(time.monotonic() - self.lap, 1e-9)
        record: dict[str, Any] = {
            "step": step,
            "s": round(seconds, 3),
            "lr": round(rate, 3),
            **{k: round(sum(v) / len(v), 4) for k, v in values.items()},
            "tok_s": int(self.tokens / lap),
            "rows_s": int(self.rows / lap),
            "waited": round(self.waited / lap, 2),
        }
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise TrainingError(
                f"{self.path} cannot be written ({error.strerror}); free some room."
            ) from error
        if step % (4 * self.every) == 0:
            print(json.dumps(record), flush=True)
        self.pending = []
        self.tokens, self.rows, self.waited = 0, 0, 0.0
        self.lap = time.monotonic()
        return record

    def cut(self, step: int) -> None:
        """Forget what was logged behind a step, because training goes on from there."""
        records = [record for record in read_log(self.path) if record["step"] <= step]
        draft = self.path.with_name(f".{self.path.name}")
        draft.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        draft.replace(self.path)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log; a last line that was cut off is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def picture(records: list[dict[str, Any]]) -> str:
    """An SVG of loss, index loss and rate over the steps, a panel each."""
    curves = {k: [(r["step"], r[k]) for r in records if k in r] for k in CURVES}
    shown = {k: points for k, points in curves.items() if len(points) > 1}
    width, height = SIZE[0] + 2 * MARGIN, len(shown) * (SIZE[1] + MARGIN) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        f' font-size="12"><rect width="{width}" height="{height}" fill="white"/>'
    ]
    for i, (name, points) in enumerate(shown.items()):
        parts.append(f'<g transform="translate({MARGIN},{MARGIN + i * (SIZE[1] + MARGIN)})">')
        left, right = points[0][0], points[-1][0]
        top = max(value for _, value in points) or 1.0
        line = " ".join(
            f"{(step - left) / max(1, right - left) * SIZE[0]:.1f},{SIZE[1] * (1 - value / top):.1f}"
            for step, value in points
        )
        parts += [
            f'<rect width="{SIZE[0]}" height="{SIZE[1]}" fill="none" stroke="#cccccc"/>',
            f'<text y="-6">{name}: 0 to {top:g}, last {points[-1][1]:g}; steps {left} to {right}</text>',
            f'<polyline points="{line}" fill="none" stroke="{CURVES[name]}" stroke-width="1.5"/></g>',
        ]
    return "\n".join([*parts, "</svg>\n"])
