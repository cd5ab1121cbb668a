"""What a training step costs: `python -m pilotfish.model.training.bench`, eager and compiled in turn.

The batch is drawn once from a seed, in the sizes of a training: rows of clips, each followed by an answer,
and one row with a picture. No recorded shards are needed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pilotfish.model.training.heads import CELL, LETTERS
from pilotfish.model.training.loader import Batch
from pilotfish.model.training.places import Places
from pilotfish.model.training.settings import Settings, TrainingError
from pilotfish.model.training.train import Trainer

TEXT, ANSWER = 30, 12  # tokens after a clip, and how many of these are trained on
SHOWN_KERNELS = 25


def drawn_batch(trainer: Trainer, tokens: int, length: int, seed: int) -> Batch:
    """Rows of `length` tokens, `tokens` in all, that show new frames of the trainer's size in each clip.

    Raises `TrainingError` when a row is too short for one clip.
    """
    s, c = trainer.s, trainer.model.config
    draw = torch.Generator().manual_seed(seed)
    cells = (s.height // CELL) * (s.width // CELL)
    turn, rows = 2 * cells + TEXT, tokens // length
    if rows < 2 or length < turn:
        raise TrainingError(
            f"tokens is {tokens} and length {length}; give two rows of at least {turn} tokens, for one clip."
        )
    ids = torch.randint(0, min(c.image_token_id, c.video_token_id, 1900), (rows, length), generator=draw)
    weights = torch.zeros(rows, length)
    clips: list[list[int]] = []
    for row, turns in ((r, 1 if r == 0 else length // turn) for r in range(rows)):
        for n in range(turns):
            begin, size = n * turn, cells if row == 0 else 2 * cells
            ids[row, begin : begin + size] = c.image_token_id if row == 0 else c.video_token_id
            weights[row, begin + size + TEXT - ANSWER : begin + size + TEXT] = 1.0
            if row:
                clips.append([max(len(clips), 1), *[len(clips) + 1] * 3])
    frames = 1 + len(clips)
    centre = torch.rand(frames, cells, 2, generator=draw)
    centre[torch.rand(frames, cells, generator=draw) < 0.5] = float("nan")
    return Batch(
        ids,
        weights,
        torch.randint(0, 256, (frames, s.height, s.width, 3), dtype=torch.uint8, generator=draw),
        torch.tensor([[0, 0]]),
        torch.tensor(clips),
        torch.rand(frames, cells, len(LETTERS), generator=draw) < 0.01,
        centre,
        places=Places.of(ids, weights, (c.image_token_id, c.video_token_id)),
    )


@dataclass
class Cost:
    """What the steps of one way took.

    parts: ms of each part of a step, the device idle between them. operators: calls of torch's operators in a
    step, and the bytes these allocated; launches, kernels: of the device. These with `--profile`.
    """

    way: str
    first_s: float
    step_ms: float
    tokens_s: float
    peak_gib: float | None
    loss: float
    operators: int = 0
    allocated_gib: float = 0.0
    launches: int = 0
    kernels: str = ""
    parts: dict[str, float] = field(default_factory=dict)

    def line(self) -> str:
        peak = "" if self.peak_gib is None else f", peak {self.peak_gib:.2f} GiB"
        return (
            f"{self.way}: {self.step_ms:.1f} ms a step, {self.tokens_s:,.0f} tokens/s{peak}, first step "
            f"{self.first_s:.1f} s, loss {self.loss:.4f}"
        )


class Steps:
    """A trainer that trains on one batch."""

    def __init__(self, settings: Settings, length: int, attention: str):
        self.trainer = Trainer(settings)
        batch = drawn_batch(self.trainer, settings.tokens, length, settings.seed)
        self.tokens = batch.ids.numel()
        self.on_gpu = settings.device == "cuda"
        self._data: Iterator[Batch] = itertools.repeat(batch.pin_memory() if self.on_gpu else batch)
        self._progress = 0.0 if attention == "dense" else settings.dense_share

    def seconds(self) -> float:
        """Of one step, to the end of its last kernel."""
        began = time.perf_counter()
        self.trainer._one_step(self._data, self._progress)
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def parts(self, steps: int) -> dict[str, float]:
        """Median ms of each part of a step, when all of the one before is done on the device."""
        taken: dict[str, list[float]] = {}
        last = 0.0

        def told(part: str) -> None:
            nonlocal last
            if self.on_gpu:
                torch.cuda.synchronize()
            now = time.perf_counter()
            taken.setdefault(part, []).append((now - last) * 1e3)
            last = now

        before = self.trainer.trainee.told
        self.trainer.trainee.told = told
        try:
            for _ in range(steps):
                last = time.perf_counter()
                self.seconds()
        finally:
            self.trainer.trainee.told = before
        return {part: median(times) for part, times in taken.items()}


def measure(settings: Settings, length: int, attention: str, steps: int, profiled: bool) -> Cost:
    """Train a few steps and forget them."""
    torch.compiler.reset()
    one = Steps(settings, length, attention)
    first = one.seconds()
    one.seconds()
    if one.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    taken = median(one.seconds() for _ in range(steps))
    cost = Cost(
        "compiled" if settings.compile else "eager",
        first,
        taken * 1e3,
        one.tokens / taken,
        torch.cuda.max_memory_allocated() / 2**30 if one.on_gpu else None,
        float(one.trainer.journal.pending[-1][1]["answer"]),
    )
    cost.parts = one.parts(steps)
    if profiled:
        add_profile(cost, one)
    return cost


def add_profile(cost: Cost, one: Steps) -> None:
    """One more step under torch's profiler."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if one.on_gpu else [])]
    with profile(activities=activities, profile_memory=True) as seen:
        one.seconds()
    events: list[Any] = list(seen.key_averages())
    own = [e for e in events if e.key.startswith("aten::")]
    cost.operators = sum(e.count for e in own)
    sizes = ((e.self_device_memory_usage if one.on_gpu else e.self_cpu_memory_usage) for e in events)
    cost.allocated_gib = sum(size for size in sizes if size > 0) / 2**30
    launches = ("cudaLaunchKernel", "cuLaunchKernel")
    cost.launches = sum(e.count for e in events if e.key.startswith(launches))
    order = "self_device_time_total" if one.on_gpu else "self_cpu_time_total"
    cost.kernels = seen.key_averages().table(sort_by=order, row_limit=SHOWN_KERNELS, max_name_column_width=72)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure a training step, eager and compiled.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=98_304, help="of a batch")
    parser.add_argument("--length", type=int, default=3072, help="tokens of a row")
    parser.add_argument("--width", type=int, default=336, help="pixels of a frame")
    parser.add_argument("--height", type=int, default=420)
    parser.add_argument("--steps", type=int, default=5, help="that are timed; two come before")
    parser.add_argument("--attention", choices=("sparse", "dense"), default="sparse")
    parser.add_argument("--ways", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    parser.add_argument("--fp32", action="store_true", help="instead of bf16")
    parser.add_argument("--not-deterministic", action="store_true", help="let torch take any kernel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="the dearest kernels, and how many launches")
    given = parser.parse_args(arguments)
    costs = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for way in given.ways:
                settings = Settings(
                    shards=folder,
                    out=str(Path(folder) / way),
                    tokens=given.tokens,
                    longest=min(given.tokens, 4608),
                    width=given.width,
                    height=given.height,
                    device=given.device,
                    bf16=not given.fp32,
                    deterministic=not given.not_deterministic,
                    seed=given.seed,
                    compile=way == "compiled",
                )
                cost = measure(settings, given.length, given.attention, given.steps, given.profile)
                costs.append(cost)
                print(cost.line(), flush=True)
                print("  " + ", ".join(f"{part} {ms:.1f}" for part, ms in cost.parts.items()), flush=True)
                if given.profile:
                    print(
                        f"{cost.operators:,} operator calls and {cost.allocated_gib:.2f} GiB allocated"
                        f" a step, {cost.launches:,} launches on the GPU\n{cost.kernels}",
                        flush=True,
                    )
    except TrainingError as error:
        print(error, file=sys.stderr)
        return 1
    if len(costs) == 2:
        one, two = costs
        print(
            f"{two.way} : {one.way} = {two.step_ms / one.step_ms:.2f} : 1 in time, "
            f"compiling {max(0.0, two.first_s - one.first_s):.1f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
