"""Train nano from step zero: `python -m pilotfish.model.training.train --shards DIR --out DIR --seconds S`.

Text and clips share every step. The schedule follows whichever is further along, steps or seconds, so that
a run on limited time ends with its learning rate at zero. A checkpoint holds model, optimisers and step;
`--resume` goes on from it. `--init FOLDER` begins with an exported model instead of random weights.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pilotfish.model.m3 import M3, count_parameters
from pilotfish.model.text import MoE
from pilotfish.model.training.loader import Batch, Mix, batches
from pilotfish.model.training.muon import Muon, split_parameters
from pilotfish.model.training.parallel import Group
from pilotfish.model.training.trainee import NANO, Masters, build

SYNC_EVERY = 10  # steps between looks at the clock, which all processes must read alike


@dataclass
class Settings:
    """One training run. Seconds are wall time of the whole run, start-up included."""

    shards: str
    out: str
    seconds: float = 500.0
    steps: int = 1_000_000
    warmup: int = 100
    decay_share: float = 0.35
    dense_share: float = 0.3  # of the run, at its start: full attention in the main branch
    muon_lr: float = 1.5e-3
    adam_lr: float = 1e-3
    weight_decay: float = 0.01
    kl_weight: float = 0.1
    head_weight: float = 1.0
    balance_rate: float = 1e-3
    tokens: int = 98_304
    question_share: float = 0.5
    text_share: float = 0.06
    copy_share: float = 0.1
    corrections: str = ""  # folder of shards in which a model played; see `agent/corrections.py`
    correction_share: float = 0.3  # of the draws of episodes, once that folder holds any
    workers: int = 5
    seed: int = 0
    resume: str = ""
    init: str = ""  # folder of an exported model to begin with; the heads and the optimisers start anew
    head_steps: int = 0  # at the start the heads alone are trained, so that they do not disturb the model
    width: int = 336
    height: int = 420
    noise: float = 0.02
    log_every: int = 25
    save_every: float = 120.0  # seconds
    device: str = "cuda"
    bf16: bool = True


def schedule(progress: float, step: int, s: Settings) -> float:
    """Linear warm-up, constant, linear decay to zero over the last `decay_share`."""
    warm = min(1.0, (step + 1) / s.warmup)
    return warm * min(1.0, max(0.0, (1 - progress) / s.decay_share))


def balance(model: M3, rate: float, group: Group) -> None:
    """Nudge each router's selection bias toward equal load (its only use; weights never see it)."""
    for module in model.modules():
        if isinstance(module, MoE) and module.load is not None:
            load = group.average(module.load)
            module.e_score_correction_bias.add_(rate * (load.mean() - load).sign())


def export_bf16(model: M3, path: Path) -> None:
    """The shipped tensors under their published names."""
    tensors = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt"})


class Journal:
    """Averages what the steps report, writes it to `train.jsonl` and prints every fourth record."""

    def __init__(self, path: Path, every: int):
        self.path, self.every = path, every
        self.pending: list[dict[str, Tensor]] = []
        self.tokens, self.rows, self.waited = 0, 0, 0.0
        self.lap = time.monotonic()

    def add(self, values: dict[str, Tensor], batch: Batch, waited: float) -> None:
        """One step's losses; nothing is read from the device yet."""
        self.pending.append({k: v.detach() for k, v in values.items()})
        self.tokens += batch.ids.numel()
        self.rows += batch.ids.shape[0]
        self.waited += waited

    def write(self, step: int, seconds: float, rate: float) -> dict[str, Any]:
        """Write and return the record of the steps since the last; raises `FloatingPointError` for NaN."""
        values: dict[str, list[float]] = defaultdict(list)
        for report in self.pending:
            for k, v in report.items():
                values[k].append(v.item())
        means = {k: round(sum(v) / len(v), 4) for k, v in values.items()}
        lap = time.monotonic() - self.lap
        record: dict[str, Any] = {
            "step": step,
            "s": round(seconds, 1),
            "lr": round(rate, 3),
            **means,
            "tok_s": int(self.tokens / lap),
            "rows_s": int(self.rows / lap),
            "waited": round(self.waited / lap, 2),
        }
        if not all(math.isfinite(v) for v in means.values()):
            raise FloatingPointError(
                f"the losses of the {len(self.pending)} steps before step {step} are {means}; "
                f"the last checkpoint is intact, go on from it with --resume and lower rates"
            )
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if step % (4 * self.every) == 0:
            print(json.dumps(record), flush=True)
        self.pending = []
        self.tokens, self.rows, self.waited = 0, 0, 0.0
        self.lap = time.monotonic()
        return record


class Trainer:
    """One training session."""

    def __init__(self, settings: Settings):
        self.s = s = settings
        self.begun = time.monotonic()
        self.stopping = False
        self.group = Group.from_environment(s.device)
        torch.manual_seed(s.seed)
        torch.set_float32_matmul_precision("high")
        self.trainee = build(s.width, s.height, s.device, s.bf16)
        self.model = self.trainee.model
        if s.init:
            self.model.load_state_dict(load_file(Path(s.init) / "model.safetensors"))
        self.masters = Masters(self.trainee)
        matrices, rest = split_parameters(self.masters.named.items())
        fused = s.device == "cuda"
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, s.muon_lr, s.weight_decay),
            torch.optim.AdamW(rest, s.adam_lr, betas=(0.9, 0.98), weight_decay=s.weight_decay, fused=fused),
        ]
        self.step = self.first = 0
        if s.resume:
            self._resume(Path(s.resume))
        self.out = Path(s.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(self.out / "train.jsonl", s.log_every)

    def run(self) -> None:
        """Train until the steps or the seconds are used up, or SIGTERM comes; then save and export."""
        s = self.s
        previous = signal.signal(signal.SIGTERM, self._halt)
        mix = Mix(s.tokens, s.question_share, s.text_share, s.copy_share, correction_share=s.correction_share)
        corrections = Path(s.corrections) if s.corrections else None
        seed = (s.seed + self.step) * 64 + self.group.rank
        data = batches(Path(s.shards), NANO, mix, seed, s.workers, corrections)
        if self.group.leads:
            print(f"{count_parameters(self.model) / 1e6:.2f} M parameters", flush=True)
        progress, saved = self._progress(), time.monotonic()
        while progress < 1:
            self._one_step(data, progress)
            if self.step % SYNC_EVERY == 0:
                progress = self._progress()
            if self.step % s.log_every == 0 and self.group.leads:
                rate = schedule(progress, self.step - self.first, s)
                self.journal.write(self.step, time.monotonic() - self.begun, rate)
                if time.monotonic() - saved > s.save_every:
                    self.save()
                    saved = time.monotonic()
        if self.group.leads:
            self.save()
            export_bf16(self.model, self.out / "model.safetensors")
        signal.signal(signal.SIGTERM, previous)
        self.group.close()

    def save(self) -> None:
        """Write a training checkpoint (atomically) that `--resume` takes."""
        state = {
            "trainee": self.trainee.state_dict(),
            "masters": {name: p.detach() for name, p in self.masters.named.items()},
            "optimisers": [o.state_dict() for o in self.optimisers],
            "step": self.step,
            "settings": asdict(self.s),
        }
        torch.save(state, self.out / "checkpoint.tmp")
        (self.out / "checkpoint.tmp").replace(self.out / "checkpoint.pt")

    def _resume(self, path: Path) -> None:
        state = torch.load(path, map_location=self.s.device, weights_only=True)
        self.trainee.load_state_dict(state["trainee"])
        for name, value in state["masters"].items():
            self.masters.named[name].data.copy_(value)
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step = self.first = state["step"]

    def _halt(self, _signal: int, _frame: FrameType | None) -> None:
        self.stopping = True

    def _progress(self) -> float:
        """How much of the session is over, 0 to 1; the same in every process."""
        passed = max(
            (self.step - self.first) / self.s.steps, (time.monotonic() - self.begun) / self.s.seconds
        )
        return self.group.agree(1.0 if self.stopping else passed, self.s.device)

    def _one_step(self, data: Iterator[Batch], progress: float) -> None:
        s = self.s
        wait = time.monotonic()
        batch = next(data).to(s.device)
        waited = time.monotonic() - wait
        rate = schedule(progress, self.step - self.first, s)
        for optimiser, base in zip(self.optimisers, (s.muon_lr, s.adam_lr), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = base * rate
        parts = self.trainee.losses(batch, s.noise, "dense" if progress < s.dense_share else "sparse")
        loss = parts["answer"] + s.kl_weight * parts["kl"]
        loss = loss + s.head_weight * sum(parts[k] for k in ("letters", "place", "centre") if k in parts)
        loss.backward()
        heads_only = self.step - self.first < s.head_steps
        norm = self.masters.take_gradients(self.group, "heads." if heads_only else "")
        for optimiser in self.optimisers:
            optimiser.step()
        self.masters.publish()
        if not heads_only:
            balance(self.model, s.balance_rate * rate, self.group)
        self.journal.add(parts | {"norm": norm}, batch, waited)
        self.step += 1


def parse_settings(arguments: list[str] | None = None) -> Settings:
    """Flags named after the fields of `Settings`."""

    def switch(text: str) -> bool:
        return text.lower() in ("1", "true", "yes")

    kinds: dict[str, Callable[[str], Any]] = {"str": str, "float": float, "int": int, "bool": switch}
    parser = argparse.ArgumentParser(description=__doc__)
    for name, field in Settings.__dataclass_fields__.items():
        required = name in ("shards", "out")
        parser.add_argument(
            "--" + name.replace("_", "-"),
            type=kinds[str(field.type)],
            required=required,
            default=None if required else field.default,
        )
    return Settings(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    Trainer(parse_settings()).run()
