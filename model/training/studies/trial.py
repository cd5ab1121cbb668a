"""One training of a study: the project's own trainer on samples drawn in process."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file
from torch.utils.data import IterableDataset, get_worker_info

from pilotfish.model.checkpoint import write_json
from pilotfish.model.folder import WEIGHTS
from pilotfish.model.training.journal import read_log
from pilotfish.model.training.loader import Batch, batches, collate
from pilotfish.model.training.places import Places
from pilotfish.model.training.samples import Sample, SampleMaker
from pilotfish.model.training.settings import Settings, TrainingError
from pilotfish.model.training.studies import drawn
from pilotfish.model.training.studies.catalog import Phase, Scale, Variant
from pilotfish.model.training.studies.selection import with_choice
from pilotfish.model.training.train import CHECKPOINT, LOG, Trainer
from pilotfish.model.training.trainee import NANO, Trainee, build, in_bf16

WITHOUT_END = 1e9  # seconds: the steps end a session, so that all variants see the same text
MOST_QUESTIONS = 4
DENSE_SHARE = 0.2  # of a run, at its start
TIMES = "times.json"


@dataclass(frozen=True)
class Feed:
    """What a phase trains on. The n-th row of text and the n-th of the task are the same in every variant."""

    variant: Variant
    scale: Scale
    seed: int
    phase: Phase
    first: int  # step at which the phase begins

    @property
    def task_rows(self) -> int:
        return 0 if self.variant.task == "none" else round(self.phase.tasks * self.scale.task_rows)

    def batch(self, step: int, maker: SampleMaker) -> Batch:
        """The batch of a step: text rows, then rows of the task."""
        rows = range(step * self.scale.text_rows, (step + 1) * self.scale.text_rows)
        samples = [self._text(n, maker) for n in rows]
        begin = (step - self.first) * self.task_rows
        samples += [self._task(n, maker) for n in range(begin, begin + self.task_rows)]
        tokenizer = maker.tokenizer
        batch = collate(samples, tokenizer.eos_id)
        batch.places = Places.of(batch.ids, batch.weights, (tokenizer.image_id, tokenizer.video_id))
        batch.origin = f"step {step} of seed {self.seed}, drawn in process"
        return batch

    def _text(self, n: int, maker: SampleMaker) -> Sample:
        maker.random = random.Random(f"{self.seed}:text:{n}")
        return maker.text(self.scale.length, drawn.text_files(held_out=False))

    def _task(self, n: int, maker: SampleMaker) -> Sample:
        maker.random = random.Random(f"{self.seed}:{self.variant.task}:{n}")
        return task_sample(self.variant, self.scale, maker)


def task_sample(variant: Variant, scale: Scale, maker: SampleMaker, most: int = MOST_QUESTIONS) -> Sample:
    """A row of the variant's task, drawn by the maker's generator."""
    match variant.task:
        case "screens":
            shown = drawn.screen(maker.random, scale.picture)
            sample = maker.questions(shown, most, form="list")
            assert sample is not None
            return sample
        case "motion":
            moving = drawn.motion(maker.random, scale.picture, variant.frames)
            return drawn.motion_sample(maker, moving, variant.segment)
        case _:
            return drawn.facts(maker, scale.length, drawn.text_files(held_out=False)).sample


class Drawn(IterableDataset[Batch]):
    """Endless batches of a feed from a step on, the worker's share of them."""

    def __init__(self, feed: Feed, step: int):
        super().__init__()
        self.feed, self.step = feed, step

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        torch.set_num_threads(1 if info else torch.get_num_threads())
        step, stride = (self.step + info.id, info.num_workers) if info else (self.step, 1)
        maker = SampleMaker(NANO, 0)
        while True:
            yield self.feed.batch(step, maker)
            step += stride


class TrialTrainer(Trainer):
    """The trainer, on a feed that so many processes draw, with the variant's choice of keys and segments."""

    def __init__(self, settings: Settings, feed: Feed, drawing: int, *, go_on: bool = False):
        self.feed, self.drawing = feed, drawing
        super().__init__(settings, go_on=go_on)

    def _build(self) -> Trainee:
        return trainee_of(self.feed.variant, self.feed.scale, self.s.device)

    def _data(self) -> Iterator[Batch]:
        drawn.text_files(held_out=False)  # once, before the processes that draw are copied from this one
        return batches(Drawn(self.feed, self.step), self.drawing)


def trainee_of(variant: Variant, scale: Scale, device: str) -> Trainee:
    """A fresh model of a variant, with its heads; in bf16 on a GPU."""
    trainee = build(*scale.picture, "cpu", False, scale.sizes)
    with_choice(trainee.model, variant.choice)
    trainee.segment = variant.patches
    return in_bf16(trainee).to(device) if device == "cuda" else trainee


@dataclass(frozen=True)
class Trial:
    """One variant with one seed, `steps` long, in a folder of its own; beside: how many there are at once."""

    variant: Variant
    scale: Scale
    seed: int
    steps: int
    folder: Path
    device: str
    beside: int = 1

    def sessions(self) -> list[tuple[Phase, int, int]]:
        """Each phase with the steps [first, end) it has."""
        out, first, done = [], 0, 0.0
        for phase in self.variant.phases:
            done += phase.share
            end = round(done * self.steps)
            out.append((phase, first, end))
            first = end
        return out

    @property
    def model_folder(self) -> Path:
        """Where the finished model lies; it is there when the trial has been trained."""
        return self.folder / "model"

    def train(self) -> None:
        """Train what is left of it; a trial that was stopped goes on from its last checkpoint.

        Raises `Stopped` when a signal ends it, and `TrainingError` as the trainer does.
        """
        if self.model_folder.is_dir():
            self._tidy()
            return
        spent, resume, curve = 0.0, "", list[list[float]]()
        for number in range(len(self.variant.phases)):
            folder = self.folder / f"phase-{number}"
            checkpoint = folder / CHECKPOINT
            if not _is_done(checkpoint):
                if not (go_on := checkpoint.exists()):
                    shutil.rmtree(folder, ignore_errors=True)  # the log of one that never came to save
                trainer = self.trainer(number, folder, resume, go_on=go_on)
                trainer.run()
                if trainer.stopped_by:
                    raise Stopped(trainer.stopped_by)
            records = read_log(folder / LOG)
            spent += sum(_times(records))
            curve += [[record["step"], record["answer"], record["kl"]] for record in records]
            resume = str(checkpoint)
        write_json(folder / TIMES, {"train_s": round(spent, 2), "losses": curve})
        folder.rename(self.model_folder)
        self._tidy()

    def _tidy(self) -> None:
        """Remove what led to the model, now that it is there: whenever this is killed, one of both is."""
        (self.model_folder / CHECKPOINT).unlink(missing_ok=True)
        for number in range(len(self.variant.phases) - 1):
            if (folder := self.folder / f"phase-{number}").is_dir():
                shutil.rmtree(folder)

    def trained(self) -> Trainee:
        """The trained model, ready to be measured, with fresh heads."""
        trainee = trainee_of(self.variant, self.scale, self.device)
        trainee.model.load_state_dict(load_file(self.model_folder / WEIGHTS))
        return trainee.eval().requires_grad_(False)

    def times(self) -> dict[str, Any]:
        """Seconds its steps took, without what came before the first, and its losses on the way."""
        found: dict[str, Any] = json.loads((self.model_folder / TIMES).read_text(encoding="utf-8"))
        return found

    def _dense_share(self, number: int, phase: Phase) -> float:
        """The warm-up of the index branch takes as many steps in every variant."""
        if self.variant.choice == "full":
            return 1.0
        return DENSE_SHARE / phase.share if number == 0 else 0.0

    def trainer(self, number: int, folder: Path, resume: str = "", *, go_on: bool = False) -> TrialTrainer:
        """The trainer of a phase."""
        phase, first, end = self.sessions()[number]
        scale = self.scale
        return TrialTrainer(
            Settings(
                shards="drawn",
                out=str(folder),
                seconds=WITHOUT_END,
                steps=max(1, end - first),
                warmup=scale.warmup if phase.warm else 1,
                decay_share=phase.decay or 1e-9,
                dense_share=self._dense_share(number, phase),
                muon_lr=scale.muon_lr,
                adam_lr=scale.adam_lr,
                kl_weight=self.variant.kl_weight,
                workers=0,  # its own way to draw; how many draw may change when a trial goes on
                seed=self.seed,
                resume=resume,
                sizes={part: dict(values) for part, values in scale.sizes.items()},
                width=scale.picture[0],
                height=scale.picture[1],
                log_every=max(1, min(25, (end - first) // 8)),
                save_every=45.0,
                device=self.device,
                bf16=self.device == "cuda",
            ),
            Feed(self.variant, scale, self.seed, phase, first),
            min(scale.workers, max(1, _cores() // self.beside - 1)) if scale.workers else 0,
            go_on=go_on,
        )


class Stopped(Exception):
    """A signal has ended a training."""

    def __init__(self, signal: int):
        super().__init__(f"signal {signal}")
        self.signal = signal


def _is_done(checkpoint: Path) -> bool:
    if not checkpoint.exists():
        return False
    try:
        return bool(torch.load(checkpoint, map_location="cpu", weights_only=True)["session"]["done"])
    except Exception as error:  # whatever a damaged archive makes its reader raise
        first = str(error).splitlines()[0]
        raise TrainingError(
            f"{checkpoint} is no whole checkpoint ({first}); remove its folder, and this trial begins anew."
        ) from error


def _times(records: list[dict[str, Any]]) -> list[float]:
    """Seconds between records, and as many before the first as its steps would take."""
    if len(records) < 2:
        return [record["s"] for record in records]
    between = [b["s"] - a["s"] for a, b in pairwise(records)]
    steps = [b["step"] - a["step"] for a, b in pairwise(records)]
    first = steps[0] * median(t / n for t, n in zip(between, steps, strict=True))
    return [first, *between]


def _cores() -> int:
    return len(os.sched_getaffinity(0))
