"""Train nano from step zero: `python -m pilotfish.model.training.train --shards DIR --out DIR --seconds S`.

Text and clips share every step. The schedule follows whichever is further along, steps or seconds, so that
a run on lent time ends with its learning rate at zero. A checkpoint holds model, optimisers and step;
`--resume` goes on from it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pilotfish.model.m3 import M3, count_parameters, initialise
from pilotfish.model.text import AttentionKind, IndexLoss, MoE
from pilotfish.model.tokenizer import Tokenizer
from pilotfish.model.training.heads import CELL, DenseHeads, Targets
from pilotfish.model.training.loader import Batch, Mix, batches
from pilotfish.model.training.muon import Muon, split_parameters
from pilotfish.model.training.nano import nano_config

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
NANO = Path(__file__).parent.parent / "nano"


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
    workers: int = 5
    seed: int = 0
    resume: str = ""
    start_from: str = ""  # a model.safetensors to begin with, optimisers anew
    width: int = 336
    height: int = 420
    noise: float = 0.02
    log_every: int = 25
    device: str = "cuda"
    bf16: bool = True


class Masters:
    """fp32 copies of a bf16 module's parameters; the optimisers see these, the forward pass the module.

    Half the traffic of autocast, and what is trained is what ships: the exported tensors are the
    module's own.
    """

    def __init__(self, module: nn.Module):
        self.live = dict(module.named_parameters())
        self.named = {name: nn.Parameter(p.detach().float().clone()) for name, p in self.live.items()}

    def take_gradients(self) -> Tensor:
        """Move the module's gradients here and clip them; returns their norm before clipping."""
        for name, p in self.live.items():
            self.named[name].grad = None if p.grad is None else p.grad.float()
            p.grad = None
        return nn.utils.clip_grad_norm_(self.named.values(), 1.0)

    @torch.no_grad()
    def publish(self) -> None:
        """Write the updated values back into the module."""
        live: list[Tensor] = list(self.live.values())
        torch._foreach_copy_(live, list(self.named.values()))


class Trainee(nn.Module):
    """The model and the heads that teach it to read screens."""

    def __init__(self, model: M3, rows: int, columns: int):
        super().__init__()
        self.model = model
        self.heads = DenseHeads(model.config, rows, columns)

    def losses(self, batch: Batch, noise: float, attention: AttentionKind = "sparse") -> dict[str, Tensor]:
        """Every part of the loss, unweighted. `attention` is the main branch's; "dense" is the warm-up."""
        c = self.model.config
        out: dict[str, Tensor] = {}
        media = self.see(batch, noise)
        index_loss = IndexLoss()
        hidden = self.model.hidden(batch.ids, media=media, attention=attention, index_loss=index_loss)
        wanted = batch.weights[:, 1:] > 0
        logits = self.model.language_model.lm_head(hidden[:, :-1][wanted]).float()
        per_token = F.cross_entropy(logits, batch.ids[:, 1:][wanted], reduction="none")
        weights = batch.weights[:, 1:][wanted]
        out["answer"] = (per_token * weights).sum() / weights.sum()
        out["kl"] = index_loss.total()
        if media is not None:
            place = (batch.ids == c.image_token_id) | (batch.ids == c.video_token_id)
            shown = torch.cat((batch.image_frames[:, 0], batch.clip_frames[:, (0, 3)].flatten()))
            targets = Targets(batch.letters[shown].flatten(0, 1), batch.centre[shown].flatten(0, 1))
            out |= self.heads.loss(media, hidden[place], targets)
        return out

    def see(self, batch: Batch, noise: float) -> Tensor | None:
        """Vision tokens of the batch's pictures, then of its clips; None for text alone."""
        parts = []
        for members in (batch.image_frames, batch.clip_frames):
            if len(members):
                patches, grid = frame_patches(batch.frames, members, noise)
                parts.append(self.model.encode_media(patches, [grid] * len(members)))
        return torch.cat(parts) if parts else None


def frame_patches(frames: Tensor, members: Tensor, noise: float) -> tuple[Tensor, tuple[int, int, int]]:
    """Patch vectors [M*P, 1176] of M pictures (members [M, 2]) or clips ([M, 4]), and the grid of each.

    On the device; the order and values of `images.clip_patches`.
    """
    height, width = frames.shape[1:3]
    if height % CELL or width % CELL:
        raise ValueError(f"training frames are {width}x{height}; both sides must be multiples of {CELL}")
    mean = torch.tensor(MEAN, device=frames.device)
    std = torch.tensor(STD, device=frames.device)
    pixels = (frames.float() / 255 - mean) / std
    if frames.is_cuda:
        pixels = pixels.bfloat16()
    if noise:
        pixels = pixels + noise * torch.randn_like(pixels)
    x = pixels[members]  # [M, frames, height, width, 3]
    M, t, h, w = members.shape[0], members.shape[1] // 2, height // 14, width // 14
    x = x.view(M, t, 2, h // 2, 2, 14, w // 2, 2, 14, 3)
    x = x.permute(0, 1, 3, 6, 4, 7, 9, 2, 5, 8)  # M, t, row, column, 2, 2, channel, time, 14, 14
    return x.reshape(M * t * h * w, -1), (t, h, w)


def schedule(progress: float, step: int, s: Settings) -> float:
    """Linear warm-up, constant, linear decay to zero over the last `decay_share`."""
    warm = min(1.0, (step + 1) / s.warmup)
    return warm * min(1.0, max(0.0, (1 - progress) / s.decay_share))


def balance(model: M3, rate: float) -> None:
    """Nudge each router's selection bias toward equal load (its only use; weights never see it)."""
    for module in model.modules():
        if isinstance(module, MoE) and module.load is not None:
            module.e_score_correction_bias.add_(rate * (module.load.mean() - module.load).sign())


def save(
    trainee: Trainee, masters: Masters, optimisers: list[torch.optim.Optimizer], step: int, s: Settings
) -> None:
    """Write a training checkpoint (atomically) that `--resume` takes."""
    out = Path(s.out)
    out.mkdir(parents=True, exist_ok=True)
    state = {
        "trainee": trainee.state_dict(),
        "masters": {name: p.detach() for name, p in masters.named.items()},
        "optimisers": [o.state_dict() for o in optimisers],
        "step": step,
        "settings": asdict(s),
    }
    torch.save(state, out / "checkpoint.tmp")
    (out / "checkpoint.tmp").replace(out / "checkpoint.pt")


def export_bf16(model: M3, path: Path) -> None:
    """The shipped tensors under their published names."""
    tensors = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt"})


def build(s: Settings) -> Trainee:
    """A nano with random weights and its heads, in bf16 except the router biases (fp32)."""
    model = M3(nano_config(Tokenizer.from_folder(NANO)))
    initialise(model)
    trainee = Trainee(model, s.height // CELL, s.width // CELL).to(s.device).train()
    if s.bf16:
        trainee.bfloat16()
        for module in model.modules():
            if isinstance(module, MoE):
                module.e_score_correction_bias.data = module.e_score_correction_bias.float()
    return trainee


def train(s: Settings) -> Trainee:
    """Run one training session; returns the trained model with its heads."""
    begin = time.monotonic()
    torch.manual_seed(s.seed)
    torch.set_float32_matmul_precision("high")
    trainee = build(s)
    model = trainee.model
    print(f"{count_parameters(model) / 1e6:.2f} M parameters", flush=True)
    if s.start_from:
        model.load_state_dict(load_file(s.start_from))
    masters = Masters(trainee)
    matrices, rest = split_parameters(masters.named.items())
    optimisers: list[torch.optim.Optimizer] = [
        Muon(matrices, s.muon_lr, s.weight_decay),
        torch.optim.AdamW(
            rest, s.adam_lr, betas=(0.9, 0.98), weight_decay=s.weight_decay, fused=s.device == "cuda"
        ),
    ]
    bases = [s.muon_lr, s.adam_lr]
    step = first = 0
    if s.resume:
        state = torch.load(s.resume, map_location=s.device, weights_only=False)
        trainee.load_state_dict(state["trainee"])
        for name, value in state["masters"].items():
            masters.named[name].data.copy_(value)
        for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        step = first = state["step"]
    mix = Mix(s.tokens, s.question_share, s.text_share, s.copy_share)
    data = batches(Path(s.shards), NANO, mix, s.seed + step, s.workers)
    log = Path(s.out)
    log.mkdir(parents=True, exist_ok=True)
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    tokens, rows, lap, waited = 0, 0, time.monotonic(), 0.0
    pending: list[dict[str, Tensor]] = []
    with (log / "train.jsonl").open("a", encoding="utf-8") as journal:
        while True:
            progress = max((step - first) / s.steps, (time.monotonic() - begin) / s.seconds)
            if progress >= 1:
                break
            wait = time.monotonic()
            batch = next(data).to(s.device)
            waited += time.monotonic() - wait
            rate = schedule(progress, step - first, s)
            for optimiser, base in zip(optimisers, bases, strict=True):
                for group in optimiser.param_groups:
                    group["lr"] = base * rate
            parts = trainee.losses(batch, s.noise, "dense" if progress < s.dense_share else "sparse")
            loss = parts["answer"] + s.kl_weight * parts["kl"]
            loss = loss + s.head_weight * sum(parts[k] for k in ("letters", "place", "centre") if k in parts)
            loss.backward()
            norm = masters.take_gradients()
            for optimiser in optimisers:
                optimiser.step()
            masters.publish()
            balance(model, s.balance_rate * rate)
            pending.append({k: v.detach() for k, v in parts.items()} | {"norm": norm.detach()})
            tokens += batch.ids.numel()
            rows += batch.ids.shape[0]
            step += 1
            if step % s.log_every == 0:
                for values in pending:
                    for k, v in values.items():
                        sums[k] += v.item()
                        counts[k] += 1
                pending.clear()
                means = {k: sums[k] / counts[k] for k in sums}
                if not math.isfinite(means["answer"]):
                    raise RuntimeError(
                        f"the loss is {means['answer']} at step {step}; the last checkpoint is intact"
                    )
                seconds = time.monotonic() - lap
                record: dict[str, Any] = {
                    "step": step,
                    "s": round(time.monotonic() - begin, 1),
                    "lr": round(rate, 3),
                    **{k: round(v, 4) for k, v in means.items()},
                    "tok_s": int(tokens / seconds),
                    "rows_s": int(rows / seconds),
                    "waited": round(waited / seconds, 2),
                }
                journal.write(json.dumps(record) + "\n")
                journal.flush()
                if step % (4 * s.log_every) == 0:
                    print(json.dumps(record), flush=True)
                sums.clear()
                counts.clear()
                tokens, rows, lap, waited = 0, 0, time.monotonic(), 0.0
    save(trainee, masters, optimisers, step, s)
    export_bf16(model, Path(s.out) / "model.safetensors")
    return trainee


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
    train(parse_settings())
