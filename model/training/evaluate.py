"""How often the model's next action is right on recorded episodes it has not seen.

A click counts when it falls inside the target's box; typed text and keys count when they are equal. This is
the quick measure during training; the benchmark in a real browser is the one that is reported.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pilotfish.model.m3 import M3
from pilotfish.model.training.loader import collate
from pilotfish.model.training.samples import Sample, SampleMaker
from pilotfish.model.training.shards import Episode, read_shard
from pilotfish.model.training.trainee import PATCHES, see

MAX_ANSWER = 64


@dataclass
class Case:
    """One decision: everything up to it, and what would be right."""

    task: str
    sample: Sample
    action: dict[str, Any]
    box: tuple[float, float, float, float] | None
    size: tuple[int, int]


def cases(maker: SampleMaker, episodes: list[Episode], per_task: int) -> list[Case]:
    """One random decision from each of up to `per_task` episodes of every task."""
    draw = random.Random(0)
    count: dict[str, int] = defaultdict(int)
    out = []
    for ep in episodes:
        usable = [n for n, step in enumerate(ep.steps) if step.get("train", True)]
        if count[ep.task] >= per_task or not usable:
            continue
        count[ep.task] += 1
        n = draw.choice(usable)
        sample = maker.episode(ep, n + 1)
        target = sample.weights > 0
        last = len(target) - 1
        while last > 0 and not target[last]:
            last -= 1
        start = last
        while start > 0 and target[start - 1]:
            start -= 1
        sample.ids, sample.weights = sample.ids[:start], sample.weights[:start]
        step = ep.steps[n]
        out.append(Case(ep.task, sample, maker.arguments(ep, step), step.get("box"), (ep.width, ep.height)))
    return out


@torch.no_grad()
def answers(
    model: M3,
    maker: SampleMaker,
    samples: Sequence[Sample],
    device: str,
    attention: str = "sparse",
    most: int = MAX_ANSWER,
    segment: int = PATCHES,
) -> list[str]:
    """Greedy answers of up to `most` tokens, all rows at once, recomputed whole at every token.

    The samples show clips, all of them, or pictures; segment: as in `see`.
    """
    batch = collate(list(samples), maker.tokenizer.eos_id).to(device)
    lengths = torch.tensor([len(sample.ids) for sample in samples], device=device)
    rows = torch.arange(len(samples), device=device)
    pad = torch.full((len(samples), most), maker.tokenizer.eos_id, device=device)
    ids = torch.cat((batch.ids, pad), dim=1)
    done = torch.zeros(len(samples), dtype=torch.bool, device=device)
    pieces: list[Tensor] = []
    media = see(model, batch, 0.0, segment)
    for _ in range(most):
        hidden = model.hidden(ids, media=media, attention=attention)  # type: ignore[arg-type]
        token = model.language_model.lm_head(hidden[rows, lengths - 1]).float().argmax(-1)
        token = torch.where(done, maker.tokenizer.eos_id, token)
        ids[rows, lengths] = token
        lengths = lengths + 1
        pieces.append(token)
        done |= token == maker.tokenizer.eos_id
        if bool(done.all()):
            break
    return [maker.tokenizer.decode(row) for row in torch.stack(pieces, 1).tolist()]


def is_right(answer: str, case: Case) -> bool:
    """Whether the answer is the action wanted, told from its text."""
    wanted = case.action
    if f"<action>{wanted['action']}]" not in answer:
        return False
    if "text" in wanted:
        return f"<text>{wanted['text']}]<]" in answer
    if "coordinate" not in wanted:
        return True
    numbers = [part.split("]")[0] for part in answer.split("<item>")[1:]]
    if len(numbers) < 2 or not all(n.isdecimal() for n in numbers[-2:]):
        return False
    x, y = (int(n) * size / 1000 for n, size in zip(numbers[-2:], case.size, strict=True))
    if case.box is None:
        wx, wy = (v * size / 1000 for v, size in zip(wanted["coordinate"], case.size, strict=True))
        return abs(x - wx) < 12 and abs(y - wy) < 12
    x0, y0, x1, y1 = case.box
    return x0 <= x <= x1 and y0 <= y <= y1


def evaluate(
    model: M3, folder: Path, shards: Path, per_task: int = 64, device: str = "cuda", attention: str = "sparse"
) -> dict[str, float]:
    """Share of right decisions per task over the validation shards; prints a few wrong answers."""
    was_training = model.training
    model.eval()
    maker = SampleMaker(folder, 1)
    episodes = [ep for path in sorted(shards.glob("shard-*.bin")) for ep in read_shard(path)]
    todo = cases(maker, episodes, per_task)
    todo.sort(key=lambda case: (case.sample.size or (0, 0), len(case.sample.ids)))
    parts: list[list[Case]] = []
    for _, sized in groupby(todo, lambda case: case.sample.size):
        alike = list(sized)
        parts += [alike[i : i + 64] for i in range(0, len(alike), 64)]
    right: dict[str, list[bool]] = defaultdict(list)
    for part in parts:
        given = answers(model, maker, [case.sample for case in part], device, attention)
        for case, answer in zip(part, given, strict=True):
            ok = is_right(answer, case)
            right[case.task].append(ok)
            if not ok and len(right[case.task]) - sum(right[case.task]) <= 2:
                asked = case.sample.episode.instruction[:60] if case.sample.episode else ""
                print(
                    f"  {case.task}: {asked!r} wanted {case.action} box {case.box} got {answer[-160:]!r}",
                    flush=True,
                )
    model.train(was_training)
    return {task: sum(hits) / len(hits) for task, hits in sorted(right.items())}
