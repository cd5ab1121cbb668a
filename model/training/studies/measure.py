"""What is measured of a trained variant, on samples that no training draws."""

from __future__ import annotations

import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from pilotfish.model import checkpoint
from pilotfish.model.device import pick_dtype
from pilotfish.model.m3 import M3
from pilotfish.model.text import AttentionKind
from pilotfish.model.training.evaluate import answers
from pilotfish.model.training.loader import collate
from pilotfish.model.training.samples import Sample, SampleMaker
from pilotfish.model.training.studies import drawn, probe
from pilotfish.model.training.studies.catalog import Measure, Scale, Variant
from pilotfish.model.training.studies.trial import task_sample
from pilotfish.model.training.trainee import NANO, PATCHES, see

POINT = re.compile(r"(\d{3}) (\d{3})$", re.ASCII)
SIGHTS, SIGHT_TRIES = 32, 12  # whose cost is measured at once, and how often: the best counts
CONVERSATION = (336, 420)  # pixels of the screens that a checkpoint is shown
CONVERSATION_STEPS = 6  # as many clips as an agent keeps
TEXT_TOKENS = 4096

Values = dict[str, Any]
T = TypeVar("T")


class Measured:
    """A trained model and what it takes to measure it."""

    def __init__(self, model: M3, variant: Variant, scale: Scale, device: str):
        self.model, self.variant, self.scale, self.device = model, variant, scale, device
        self.maker = SampleMaker(NANO, 0)
        self.kind: AttentionKind = "dense" if variant.choice == "full" else "sparse"

    def all(self, measures: Sequence[Measure]) -> dict[str, Values]:
        """The values of every measure that makes sense for the variant, by its name."""
        known: dict[Measure, Callable[[], Values]] = {
            "text": self.text, "screens": self.screens, "motion": self.motion, "facts": self.facts,
            "maps": self.maps, "recall": self.recall, "sight": self.sight,
        }  # fmt: skip
        tasks = {"screens": ("screens", "none"), "motion": ("motion",), "facts": ("facts",)}
        return {
            measure: known[measure]()
            for measure in measures
            if self.variant.task in tasks.get(measure, (self.variant.task,))
        }

    def text(self) -> Values:
        """Loss on files that are never trained on, in nat per token."""
        files = drawn.text_files(held_out=True)
        samples = [self.maker.text(self.scale.length, files) for _ in self._named("text")]
        total, tokens = 0.0, 0
        for part in _parts(samples, self.scale.at_once):
            logits, ids = self._logits(part)
            total += float(
                F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
            )
            tokens += ids[:, 1:].numel()
        return {"text loss": total / tokens}

    def screens(self) -> Values:
        """Share of clicks that fall inside the button named, on new screens."""
        shown: dict[bool, list[tuple[Sample, tuple[float, ...]]]] = {True: [], False: []}
        for _ in self._named("screens"):
            screen = drawn.screen(self.maker.random, self.scale.picture)
            sample = self.maker.questions(screen, 1, form="list")
            assert sample is not None
            name = self.maker.tokenizer.decode(sample.ids[sample.weights > 0].tolist()).rsplit(" ", 2)[0]
            box = next(w[2:] for w in screen.widgets[0] if w.text == name)
            shown[sample.is_picture].append((_asked(sample), box))
        hits = []
        for pairs in shown.values():
            said = self._answers([sample for sample, _ in pairs], most=16)
            hits += [_inside(one, box, self.scale.picture) for one, (_, box) in zip(said, pairs, strict=True)]
        return {"clicks in target": sum(hits) / len(hits)}

    def motion(self) -> Values:
        """Share of right answers to what has moved and where to, both."""
        frames, segment = self.variant.frames, self.variant.segment
        moving = [drawn.motion(self.maker.random, self.scale.picture, frames) for _ in self._named("motion")]
        whole, ways = 0, 0
        for part in _parts(moving, self.scale.at_once):
            samples = [drawn.motion_sample(self.maker, one, segment) for one in part]
            for one, right in zip(part, self._right(samples), strict=True):
                way = len(self.maker.tokenizer.encode(one.way))
                whole, ways = whole + all(right), ways + all(right[:way])
        return {"motion right": whole / len(moving), "way right": ways / len(moving)}

    def facts(self) -> Values:
        """Share of facts found again, by whether they lie within as many tokens as keys are kept."""
        files, text = drawn.text_files(held_out=True), self.model.config.text
        told = [drawn.facts(self.maker, self.scale.length, files) for _ in self._named("facts")]
        right: dict[str, list[bool]] = defaultdict(list)
        for part in _parts(told, self.scale.at_once):
            logits, ids = self._logits([one.sample for one in part])
            found = logits[:, :-1].argmax(-1) == ids[:, 1:]
            for row, one in enumerate(part):
                for places, distance in one.answers:
                    near = distance <= text.topk_blocks * text.block_size
                    hit = bool(found[row, [place - 1 for place in places]].all())
                    right["facts near" if near else "facts far"].append(hit)
        return {name: sum(hits) / len(hits) for name, hits in sorted(right.items(), reverse=True)}

    def sight(self) -> Values:
        """What a moving thing costs the vision tower: tokens, pairs of patches, milliseconds here."""
        frames, segment = self.variant.frames, self.variant.segment
        if self.variant.task != "motion":
            return {}
        self.maker.random = random.Random("sight")
        moving = drawn.motion(self.maker.random, self.scale.picture, frames)
        batch = collate([drawn.motion_sample(self.maker, moving, segment)] * SIGHTS, 0).to(self.device)
        patches = len(batch.clip_frames) * 2 // SIGHTS
        cells, own = 4 * drawn.cells(self.scale.picture), self.variant.patches
        times = []
        with torch.no_grad():
            for _ in range(SIGHT_TRIES):
                self._wait()
                begun = time.perf_counter()
                see(self.model, batch, 0.0, own)
                self._wait()
                times.append(time.perf_counter() - begun)
        return {
            "vision tokens": patches * drawn.cells(self.scale.picture),
            "pairs": patches // own * (own * cells) ** 2,
            "vision ms": round(min(times) / SIGHTS * 1e3, 4),
        }

    def maps(self) -> Values:
        """Attention of text tokens on vision tokens, layer by head."""
        sums: list[torch.Tensor] = []
        for _ in range(min(32, self.scale.cases)):
            self.maker.random = random.Random(f"held out:maps:{len(sums)}")
            sample = task_sample(self.variant, self.scale, self.maker)
            sums.append(probe.vision_mass(self.model, *self._one(sample)))
        return _map_values(sums)

    def recall(self) -> Values:
        """What the index branch finds of the attention mass."""
        found: list[probe.Recall] = []
        files = drawn.text_files(held_out=True)
        for n in range(min(16, self.scale.cases)):
            self.maker.random = random.Random(f"held out:recall:{n}")
            told = drawn.facts(self.maker, self.scale.length, files).sample
            found += probe.recall(self.model, *self._one(told))
        return recall_values(found)

    def _named(self, what: str) -> Iterator[int]:
        """Numbers of cases; for each the maker draws by a name of its own."""
        for n in range(self.scale.cases):
            self.maker.random = random.Random(f"held out:{what}:{n}")
            yield n

    @torch.no_grad()
    def _logits(self, samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [B, T, vocab] and ids of rows of one length."""
        ids = torch.stack([torch.from_numpy(sample.ids).long() for sample in samples]).to(self.device)
        return self.model(ids, attention=self.kind).float(), ids

    @torch.no_grad()
    def _right(self, samples: Sequence[Sample]) -> list[list[bool]]:
        """Of each sample's answer, token by token, whether the model says it after the right ones before."""
        batch = collate(list(samples), self.maker.tokenizer.eos_id).to(self.device)
        media = see(self.model, batch, 0.0, self.variant.patches)
        hidden = self.model.hidden(batch.ids, media=media, attention=self.kind)[:, :-1]
        wanted = batch.weights[:, 1:] > 0
        found = self.model.language_model.lm_head(hidden[wanted]).argmax(-1) == batch.ids[:, 1:][wanted]
        return [part.tolist() for part in found.cpu().split(wanted.sum(1).tolist())]

    def _answers(self, samples: Sequence[Sample], most: int) -> list[str]:
        said: list[str] = []
        for part in _parts(samples, self.scale.at_once):
            said += answers(self.model, self.maker, part, self.device, self.kind, most, self.variant.patches)
        return [one.partition("[e~[")[0] for one in said]

    @torch.no_grad()
    def _one(self, sample: Sample) -> tuple[torch.Tensor, torch.Tensor | None]:
        return shown_to(self.model, sample, self.maker, self.device, self.variant.patches)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


class Checkpoint:
    """Any model in its folder, to be looked at. Raises ModelError for a folder that is no checkpoint."""

    def __init__(self, folder: Path, device: str):
        self.device = device
        self.model, self.config = checkpoint.load(folder, device, pick_dtype("auto", torch.device(device)))
        self.maker = SampleMaker(folder, 0)

    def measured(self, measure: Measure, what: str, seed: int, sequences: int) -> Values:
        """Recall or maps over what it reads: "screens", in the agent's words, or "text"."""
        found: list[Any] = []
        look = probe.vision_mass if measure == "maps" else probe.recall
        for n in range(sequences):
            self.maker.random = random.Random(f"checkpoint:{seed}:{n}")
            sample = self._screens() if what == "screens" else self._text()
            found.append(look(self.model, *shown_to(self.model, sample, self.maker, self.device)))
        return _map_values(found) if measure == "maps" else recall_values([x for one in found for x in one])

    def _screens(self) -> Sample:
        shown = drawn.screen(self.maker.random, CONVERSATION, most=8, steps=CONVERSATION_STEPS)
        return self.maker.episode(shown, CONVERSATION_STEPS)

    def _text(self) -> Sample:
        return self.maker.text(min(TEXT_TOKENS, self.config.text.max_position_embeddings))


@torch.no_grad()
def shown_to(
    model: M3, sample: Sample, maker: SampleMaker, device: str, segment: int = PATCHES
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The ids [1, T] and the vision tokens of one sample, without padding."""
    batch = collate([sample], maker.tokenizer.eos_id).to(device)
    return batch.ids[:, : len(sample.ids)], see(model, batch, 0.0, segment)


def recall_values(found: Sequence[probe.Recall]) -> Values:
    """Means over layers and sequences, and by layer and length, each token counting the same."""
    groups: dict[tuple[int, int], list[probe.Recall]] = defaultdict(list)
    for one in found:
        groups[one.layer, one.keys].append(one)
    if not found:
        return {}
    return {
        "mass chosen": _mean(found, "chosen"),
        "mass best": _mean(found, "best"),
        "mass even": _mean(found, "even"),
        "best blocks found": _mean(found, "blocks"),
        "recall": [
            {"layer": layer, "keys": keys, "tokens": sum(one.tokens for one in some)}
            | {name: round(_mean(some, name), 4) for name in ("chosen", "best", "window", "even", "blocks")}
            for (layer, keys), some in sorted(groups.items())
        ],
    }


def _mean(found: Sequence[probe.Recall], name: str) -> float:
    return sum(getattr(one, name) * one.tokens for one in found) / sum(one.tokens for one in found)


def _map_values(found: Sequence[torch.Tensor]) -> Values:
    mass = torch.stack(list(found)).mean(0)
    heads, even = mass[:, :-1], float(mass[0, -1])
    return {
        "mass on vision": float(heads.mean()),
        "even": even,
        "dark heads": float((heads < DARK * even).float().mean()),
        "map": [[round(value, 4) for value in row] for row in heads.tolist()],
    }


DARK = 0.25
"""A head is dark when it gives vision less than this share of what even attention would."""


def _asked(sample: Sample) -> Sample:
    """The sample up to its answer."""
    start = int((sample.weights > 0).argmax())
    return Sample(sample.ids[:start], sample.weights[:start], sample.episode, sample.frames, sample.clips)


def _inside(answer: str, box: tuple[float, ...], size: tuple[int, int]) -> bool:
    if (found := POINT.search(answer.strip())) is None:
        return False
    x, y = (int(part) * side / 1000 for part, side in zip(found.groups(), size, strict=True))
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for i in range(0, len(items), size):
        yield items[i : i + size]
