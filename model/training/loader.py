"""Batches for the trainer, made by worker processes from a folder of shards that may still be growing."""

from __future__ import annotations

import io
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from pilotfish.model.images import resize_frames
from pilotfish.model.training.drills import drilled
from pilotfish.model.training.heads import CELL, LETTERS
from pilotfish.model.training.places import Places
from pilotfish.model.training.samples import Sample, SampleMaker
from pilotfish.model.training.shards import HEIGHT, WIDTH, Episode, read_shard
from pilotfish.model.training.texts import TEXT_SHARDS, TextEpisode, read_texts

BUCKETS = (384, 512, 640, 896, 1152, 1536, 2048, 2560, 3072, 3584, 4096, 4608)
LONGER = (6144, 8192, 10240, 12288, 14336, 16384, 20480, 24576, 28672, 32768)
"""More lengths; of all those that `Mix.longest` allows count."""
TEXT_LENGTH = 640  # tokens of a row of plain text
LETTER_IDS = {letter: i for i, letter in enumerate(LETTERS)}


Cursor = dict[str, Any]
"""Where a stream stands: its visit of a shard, the place in it, the next sequence, and which ones wait."""


class Origin(NamedTuple):
    """Where a sequence comes from: the episode at a place in a shard, and its number in its stream."""

    shard: str
    place: int
    sequence: int


class Kind(NamedTuple):
    """What the sequences of a batch share: the length they are padded to at most, the size of pictures."""

    length: int
    height: int
    width: int


@dataclass
class Batch:
    """One training step's data; B rows padded to T tokens, F frames, I pictures, C clips, S cells of a frame.

    All frames of a batch have one size, that at which the model sees them. Rows with pictures come before
    rows with clips; a row never has both.

    frames: uint8 [F, height, width, 3]; image_frames: [I, 2] (one frame twice) and clip_frames: [C, 4] into
    frames; letters: bool [F, S, L];
    centre: float [F, S, 2] in 0..1, NaN where no widget covers the cell. origin: in words, what it was made
    of; stream, cursor: whose it is, and where that stream stands behind it. places: where the loss looks, if
    that has been counted.
    """

    ids: Tensor
    weights: Tensor
    frames: Tensor
    image_frames: Tensor
    clip_frames: Tensor
    letters: Tensor
    centre: Tensor
    origin: str = ""
    stream: int = 0
    cursor: Cursor = field(default_factory=dict)
    places: Places | None = None

    def to(self, device: str) -> Batch:
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        if self.places is not None:
            changed["places"] = Places(*map(change, self.places))
        return replace(self, **changed)


@dataclass(frozen=True)
class Mix:
    """What a batch is made of. Shares are of sequences; `tokens` bounds rows x padded length."""

    tokens: int = 98_304
    question_share: float = 0.5
    text_share: float = 0.06
    copy_share: float = 0.1
    newest_bias: float = 0.5  # share of draws from the newest tenth of the shards
    correction_share: float = 0.3  # share of draws from the folder of corrections, once it holds any
    edit_share: float = 0.3  # share of draws of shards from the folder of text episodes, once it holds any
    longest: int = BUCKETS[-1]  # tokens of the longest sequence
    largest: tuple[int, int] = (HEIGHT, WIDTH)  # height and width of the largest pictures, as they are seen

    def buckets(self) -> tuple[int, ...]:
        """The lengths that sequences are padded to at most."""
        return *(size for size in BUCKETS + LONGER if size < self.longest), self.longest


class EpisodeBatches(IterableDataset[Batch]):
    """Endless batches; each worker has a stream of its own.

    A stream is made so that it can go on anywhere: the n-th sequence is drawn with a generator of its own
    from an episode that is named by shard and place, and `Batch.cursor` says where the stream stands and
    which sequences wait for a batch of their length to be full.
    """

    def __init__(
        self,
        shards: Path,
        folder: Path,
        mix: Mix,
        seed: int,
        corrections: Path | None = None,
        cursors: Mapping[int, Cursor] | None = None,
        first: int = 0,
        edits: Path | None = None,
    ):
        """cursors: where streams stood; first: the stream whose batch comes first; edits: a folder of text
        episodes.
        """
        super().__init__()
        self.edits = edits
        self.shards, self.folder, self.mix, self.seed = shards, folder, mix, seed
        self.corrections, self.cursors, self.first = corrections, dict(cursors or {}), first

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        torch.set_num_threads(1)
        if info is not None:  # a signal to the whole group is the session's to answer, with these alive
            for signalled in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signalled, signal.SIG_IGN)
        number = (info.id + self.first) % info.num_workers if info else 0
        return Stream(self, number).batches()


class Stream:
    """The batches of one worker."""

    def __init__(self, data: EpisodeBatches, number: int) -> None:
        self.data, self.number = data, number
        self.seed = data.seed * 1000 + number
        self.maker = SampleMaker(data.folder, self.seed)
        self.visit, self.at, self.sequence = 0, 0, 0
        self.shard = ""  # that is being visited; '' before a visit
        self.buckets = data.mix.buckets()
        self.waiting: dict[Kind, list[tuple[Origin, Sample]]] = {}
        self._episodes: dict[str, Sequence[Episode | TextEpisode]] = {}
        self._bad: set[str] = set()
        if (cursor := data.cursors.get(number)) is not None:
            self._go_to(cursor)

    def batches(self) -> Iterator[Batch]:
        """Endless."""
        while True:
            episodes = self._visit()
            order = list(range(len(episodes)))
            random.Random(f"{self.seed}:order:{self.visit}").shuffle(order)
            while self.at < len(order):
                origin = Origin(self.shard, order[self.at], self.sequence)
                self.at, self.sequence = self.at + 1, self.sequence + 1
                if (sample := self._sample(origin)) is None:
                    continue
                kind = self._kind(sample)
                if kind is None:
                    continue
                full = self.waiting.setdefault(kind, [])
                full.append((origin, sample))
                if len(full) >= self.data.mix.tokens // kind.length:
                    self.waiting[kind] = []
                    yield self._batch(full)
            self.visit, self.at, self.shard = self.visit + 1, 0, ""

    def _kind(self, sample: Sample) -> Kind | None:
        """What batch a sequence waits for; None for one that is too long, or shows too large a picture. Text
        goes with small pictures.
        """
        length = next((b for b in self.buckets if len(sample.ids) <= b), None)
        (height, width), most = sample.size or (HEIGHT, WIDTH), self.data.mix.largest
        if length is None or (sample.size is not None and (height > most[0] or width > most[1])):
            return None
        return Kind(length, height, width)

    def _batch(self, full: list[tuple[Origin, Sample]]) -> Batch:
        tokenizer = self.maker.tokenizer
        batch = collate([sample for _, sample in full], tokenizer.eos_id)
        batch.places = Places.of(batch.ids, batch.weights, (tokenizer.image_id, tokenizer.video_id))
        shards = sorted({Path(origin.shard).name for origin, _ in full})
        named = f"{', '.join(shards[:3])}{' and others' if len(shards) > 3 else ''}"
        first, last = full[0][0].sequence, full[-1][0].sequence
        batch.origin = f"of stream {self.number}, sequences {first} to {last}, made of {named}"
        batch.stream = self.number
        batch.cursor = {
            "visit": self.visit,
            "at": self.at,
            "sequence": self.sequence,
            "shard": self.shard,
            "waiting": [list(origin) for some in self.waiting.values() for origin, _ in some],
        }
        return batch

    def _go_to(self, cursor: Cursor) -> None:
        self.visit, self.at, self.sequence = cursor["visit"], cursor["at"], cursor["sequence"]
        self.shard = cursor["shard"]
        for origin in (Origin(*fields) for fields in cursor["waiting"]):
            if (sample := self._sample(origin)) is not None and (kind := self._kind(sample)) is not None:
                self.waiting.setdefault(kind, []).append((origin, sample))

    def _visit(self) -> Sequence[Episode | TextEpisode]:
        """The episodes of the shard that is visited; another one is chosen when none is."""
        draw = random.Random(f"{self.seed}:visit:{self.visit}")
        if not self.shard:
            mix = self.data.mix
            paths: list[Path] = []
            if self.data.corrections is not None and draw.random() < mix.correction_share:
                paths = by_age(self.data.corrections)
            if self.data.edits is not None and draw.random() < mix.edit_share:
                paths = by_age(self.data.edits, TEXT_SHARDS)
            paths = paths or by_age(self.data.shards)
            if not paths and self.data.edits is not None:
                paths = by_age(self.data.edits, TEXT_SHARDS)
            paths = [path for path in paths if str(path) not in self._bad]
            if not paths:
                time.sleep(0.5)
                return []
            newest = draw.random() < mix.newest_bias
            self.shard = str(draw.choice(paths[-max(1, len(paths) // 10) :] if newest else paths))
        return self._read(self.shard)

    def _read(self, shard: str) -> Sequence[Episode | TextEpisode]:
        """The episodes of a shard; one that is damaged or gone is told and has none."""
        if shard not in self._episodes:
            while len(self._episodes) >= 2:
                self._episodes.pop(next(iter(self._episodes)))
            try:
                if Path(shard).match(TEXT_SHARDS):
                    self._episodes[shard] = read_texts(shard)
                else:
                    self._episodes[shard] = [episode for episode in read_shard(shard) if episode.steps]
            except (ValueError, OSError) as error:
                if shard not in self._bad:
                    print(f"left out: {error}", file=sys.stderr, flush=True)
                self._bad.add(shard)
                return []
        return self._episodes[shard]

    def _sample(self, origin: Origin) -> Sample | None:
        episodes, maker, mix = self._read(origin.shard), self.maker, self.data.mix
        if origin.place >= len(episodes):
            return None
        episode = episodes[origin.place]
        if isinstance(episode, TextEpisode):
            return maker.dialogue(episode)
        maker.random = random.Random(f"{self.seed}:{origin.sequence}")
        roll = maker.random.random()
        if roll < mix.text_share:
            return maker.text(TEXT_LENGTH)
        if roll < mix.text_share + mix.copy_share:
            return drilled(maker)
        if roll < mix.text_share + mix.copy_share + mix.question_share:
            return maker.questions(episode)
        return maker.episode(episode)


def by_age(folder: Path, pattern: str = "shard-*.bin") -> list[Path]:
    """The shards in a folder, oldest first."""
    return sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


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
    sizes = {size for sample in samples if (size := sample.size) is not None}
    if len(sizes) > 1:
        raise ValueError(f"pictures of the sizes {sorted(sizes)} cannot be in one batch; give those of one")
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = sample.ids
        weights[row, : len(sample.ids)] = sample.weights
        members = image_frames if sample.is_picture else clip_frames
        members += [tuple(len(frames) + i for i in clip) for clip in sample.clips]
        for n in sample.frames:
            assert sample.episode is not None
            (size,) = sizes
            frames.append(resize_frames(decode(sample.episode.frames[n])[None], *size)[0])
            letters.append(letter_cells(sample.episode, n, size))
            centres.append(widget_cells(sample.episode, n, size))
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


def letter_cells(ep: Episode, frame: int, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Which letters have their centre in each merged cell, bool [S, L], cells row by row in token order.

    size: height and width in pixels at which the frame is seen.
    """
    rows, columns = size[0] // CELL, size[1] // CELL
    high, wide = CELL * ep.height / size[0], CELL * ep.width / size[1]  # of a cell, in the frame's own pixels
    cells = np.zeros((rows * columns, len(LETTERS)), np.bool_)
    for char, x, y in ep.letters[frame]:
        column, row = int(x // wide), int(y // high)
        if (i := LETTER_IDS.get(char)) is not None and 0 <= row < rows and 0 <= column < columns:
            cells[row * columns + column, i] = True
    return cells


def widget_cells(ep: Episode, frame: int, size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Centre (0..1) of the smallest widget under the middle of each cell, float [S, 2]; NaN where there is
    none. size: as of `letter_cells`."""
    rows, columns = size[0] // CELL, size[1] // CELL
    high, wide = CELL * ep.height / size[0], CELL * ep.width / size[1]
    out = np.full((rows, columns, 2), np.nan, np.float32)
    by_size = sorted(ep.widgets[frame], key=lambda w: -(w.x1 - w.x0) * (w.y1 - w.y0))
    for w in by_size:
        c0, c1 = max(0, int(w.x0 // wide)), min(columns - 1, int(w.x1 // wide))
        r0, r1 = max(0, int(w.y0 // high)), min(rows - 1, int(w.y1 // high))
        x, y = w.centre
        out[r0 : r1 + 1, c0 : c1 + 1] = (x / ep.width, y / ep.height)
    return out.reshape(rows * columns, 2)


def batches(data: IterableDataset[Batch], workers: int) -> Iterator[Batch]:
    """Endless batches from `workers` processes in turn, in pinned memory when there is a GPU."""
    loader = DataLoader(
        data,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
        generator=torch.Generator(),  # or it would draw from that of the training noise
    )
    return iter(loader)


class Onto:
    """Copies batches to a device: on a GPU beside what it computes, at most `AHEAD` steps early."""

    AHEAD = 2

    def __init__(self, device: str):
        self.device = device
        self._stream = torch.cuda.Stream() if device == "cuda" else None
        self._begun: deque[torch.cuda.Event] = deque()

    def __call__(self, batch: Batch) -> Batch:
        if self._stream is None:
            return batch.to(self.device)
        computing = torch.cuda.current_stream()
        self._begun.append(computing.record_event())
        if len(self._begun) > self.AHEAD:
            self._begun.popleft().synchronize()
        with torch.cuda.stream(self._stream):
            copied = batch.to(self.device)
        computing.wait_stream(self._stream)

        def used_by_both(tensor: Tensor) -> Tensor:
            tensor.record_stream(computing)
            return tensor

        return copied._each(used_by_both)
