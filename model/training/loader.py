"""Batches for the trainer, made by worker processes from a folder of shards that may still be growing."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from pilotfish.model.training.heads import CELL, LETTERS
from pilotfish.model.training.samples import Sample, SampleMaker, text_stream
from pilotfish.model.training.shards import Episode, read_shard

BUCKETS = (384, 512, 640, 896, 1152, 1536, 2048, 2560, 3072, 3584, 4096, 4608)
TEXT_LENGTH = 640  # tokens of a row of plain text
LETTER_IDS = {letter: i for i, letter in enumerate(LETTERS)}


@dataclass
class Batch:
    """One training step's data; B rows padded to T tokens, F frames, I pictures, C clips, S cells of a frame.

    Rows with pictures come before rows with clips; a row never has both.

    frames: uint8 [F, height, width, 3]; image_frames: [I, 2] (one frame twice) and clip_frames: [C, 4] into
    frames; letters: bool [F, S, L];
    centre: float [F, S, 2] in 0..1, NaN where no widget covers the cell.
    """

    ids: Tensor
    weights: Tensor
    frames: Tensor
    image_frames: Tensor
    clip_frames: Tensor
    letters: Tensor
    centre: Tensor

    def to(self, device: str) -> Batch:
        return Batch(**{k: v.to(device, non_blocking=True) for k, v in vars(self).items()})

    def pin_memory(self) -> Batch:
        return Batch(**{k: v.pin_memory() for k, v in vars(self).items()})


@dataclass(frozen=True)
class Mix:
    """What a batch is made of. Shares are of sequences; `tokens` bounds rows x padded length."""

    tokens: int = 98_304
    question_share: float = 0.5
    text_share: float = 0.06
    copy_share: float = 0.1
    newest_bias: float = 0.5  # share of draws from the newest tenth of the shards
    correction_share: float = 0.3  # share of draws from the folder of corrections, once it holds any


class EpisodeBatches(IterableDataset[Batch]):
    """Endless batches; each worker draws its own shards."""

    def __init__(self, shards: Path, folder: Path, mix: Mix, seed: int, corrections: Path | None = None):
        super().__init__()
        self.shards, self.folder, self.mix, self.seed = shards, folder, mix, seed
        self.corrections = corrections

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        torch.set_num_threads(1)
        seed = self.seed * 1000 + (info.id if info else 0)
        maker, draw = SampleMaker(self.folder, seed), random.Random(seed)
        waiting: dict[int, list[Sample]] = {size: [] for size in BUCKETS}
        for sample in self._samples(maker, draw, seed):
            size = next((b for b in BUCKETS if len(sample.ids) <= b), None)
            if size is None:
                continue
            waiting[size].append(sample)
            if len(waiting[size]) >= self.mix.tokens // size:
                yield collate(waiting[size], maker.tokenizer.eos_id)
                waiting[size] = []

    def _samples(self, maker: SampleMaker, draw: random.Random, seed: int) -> Iterator[Sample]:
        text = text_stream(maker.tokenizer, TEXT_LENGTH, seed)
        while True:
            for ep in self._episodes(draw):
                roll = draw.random()
                if roll < self.mix.text_share:
                    yield maker.text(next(text))
                elif roll < self.mix.text_share + self.mix.copy_share:
                    yield maker.copies()
                elif roll < self.mix.text_share + self.mix.copy_share + self.mix.question_share:
                    if (sample := maker.questions(ep)) is not None:
                        yield sample
                else:
                    yield maker.episode(ep)

    def _episodes(self, draw: random.Random) -> list[Episode]:
        paths: list[Path] = []
        if self.corrections is not None and draw.random() < self.mix.correction_share:
            paths = by_age(self.corrections)
        paths = paths or by_age(self.shards)
        if not paths:
            time.sleep(0.5)
            return []
        newest = draw.random() < self.mix.newest_bias
        path = draw.choice(paths[-max(1, len(paths) // 10) :] if newest else paths)
        episodes = [e for e in read_shard(path) if e.steps]
        draw.shuffle(episodes)
        return episodes


def by_age(folder: Path) -> list[Path]:
    """The shards in a folder, oldest first."""
    return sorted(folder.glob("shard-*.bin"), key=lambda path: path.stat().st_mtime)


def collate(samples: list[Sample], pad: int) -> Batch:
    """Pad rows to the longest and gather the pictures they show."""
    length = -(-max(len(s.ids) for s in samples) // 64) * 64
    ids = np.full((len(samples), length), pad, np.int64)
    weights = np.zeros((len(samples), length), np.float32)
    frames: list[npt.NDArray[np.uint8]] = []
    letters: list[npt.NDArray[np.bool_]] = []
    centres: list[npt.NDArray[np.float32]] = []
    image_frames: list[tuple[int, ...]] = []
    clip_frames: list[tuple[int, ...]] = []
    samples = sorted(samples, key=lambda sample: not sample.is_picture)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = sample.ids
        weights[row, : len(sample.ids)] = sample.weights
        members = image_frames if sample.is_picture else clip_frames
        members += [tuple(len(frames) + i for i in clip) for clip in sample.clips]
        for n in sample.frames:
            assert sample.episode is not None
            frames.append(decode(sample.episode.frames[n]))
            letters.append(letter_cells(sample.episode, n))
            centres.append(widget_cells(sample.episode, n))
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(weights),
        torch.from_numpy(np.stack(frames)) if frames else torch.zeros(0, CELL, CELL, 3, dtype=torch.uint8),
        torch.tensor(image_frames, dtype=torch.int64).reshape(-1, 2),
        torch.tensor(clip_frames, dtype=torch.int64).reshape(-1, 4),
        torch.from_numpy(np.stack(letters)) if letters else torch.zeros(0, 1, len(LETTERS), dtype=torch.bool),
        torch.from_numpy(np.stack(centres)) if centres else torch.zeros(0, 1, 2),
    )


def decode(png: bytes) -> npt.NDArray[np.uint8]:
    """RGB pixels [height, width, 3]."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def letter_cells(ep: Episode, frame: int) -> npt.NDArray[np.bool_]:
    """Which letters have their centre in each merged cell, bool [S, L], cells row by row in token order."""
    rows, columns = ep.height // CELL, ep.width // CELL
    cells = np.zeros((rows * columns, len(LETTERS)), np.bool_)
    for char, x, y in ep.letters[frame]:
        column, row = int(x) // CELL, int(y) // CELL
        if (i := LETTER_IDS.get(char)) is not None and 0 <= row < rows and 0 <= column < columns:
            cells[row * columns + column, i] = True
    return cells


def widget_cells(ep: Episode, frame: int) -> npt.NDArray[np.float32]:
    """Centre (0..1) of the smallest widget under the middle of each cell, float [S, 2]; NaN where there is
    none."""
    rows, columns = ep.height // CELL, ep.width // CELL
    out = np.full((rows, columns, 2), np.nan, np.float32)
    by_size = sorted(ep.widgets[frame], key=lambda w: -(w.x1 - w.x0) * (w.y1 - w.y0))
    for w in by_size:
        c0, c1 = max(0, int(w.x0) // CELL), min(columns - 1, int(w.x1) // CELL)
        r0, r1 = max(0, int(w.y0) // CELL), min(rows - 1, int(w.y1) // CELL)
        x, y = w.centre
        out[r0 : r1 + 1, c0 : c1 + 1] = (x / ep.width, y / ep.height)
    return out.reshape(rows * columns, 2)


def batches(
    shards: Path, folder: Path, mix: Mix, seed: int, workers: int, corrections: Path | None = None
) -> Iterator[Batch]:
    """Endless batches from `workers` processes, in pinned memory when there is a GPU."""
    data = EpisodeBatches(shards, folder, mix, seed, corrections)
    loader = DataLoader(
        data,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
    )
    return iter(loader)
