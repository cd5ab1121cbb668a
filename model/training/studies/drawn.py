"""What the studies train and are measured on, drawn in process: screens, moving things, facts to find again.

Nothing is read but Python's own sources for text, and every sample follows from a name, so that all variants
of a study, and a run that was stopped, meet the same samples.
"""

from __future__ import annotations

import functools
import hashlib
import io
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pilotfish.model.protocol import Clip, Message
from pilotfish.model.training.heads import CELL
from pilotfish.model.training.samples import TEXT_WEIGHT, Sample, SampleMaker, grid_point, sources
from pilotfish.model.training.shards import Episode, Widget

_WORDS = (
    "Add Back Bold Close Copy Cut Done Edit Exit File Find Fold Go Help Home Hide Join Keep Last Left "
    "Link List Load Lock Mail Mark Menu Move New Next Note Open Page Play Plus Quit Read Save Send Show "
    "Skip Stop Tab Undo View Wait Yes Zoom"
)
WORDS = tuple(_WORDS.split())
WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
KEYS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
HELD_OUT = 10  # every so many-th source file is never trained on
Size = tuple[int, int]  # width, height in pixels


@functools.cache
def text_files(held_out: bool) -> tuple[Path, ...]:
    """Python's sources that are kept for measuring, or the others; the same on every machine."""

    def kept(path: Path) -> bool:
        return hashlib.sha256(path.name.encode()).digest()[0] % HELD_OUT == 0

    return tuple(path for path in sources() if kept(path) == held_out)


def screen(draw: random.Random, size: Size, most: int = 4, steps: int = 1) -> Episode:
    """A picture of up to `most` labelled buttons, and clicks on one of them; a new picture for each step."""
    episode = Episode("drawn", 0, "", [], [], [], [], *size)
    for n in range(steps):
        image = Image.new("RGB", size, _light(draw))
        widgets = _place(draw, size, draw.randint(min(2, most), most))
        letters: list[tuple[str, int, int]] = []
        for widget, font in widgets:
            letters += _button(ImageDraw.Draw(image), draw, widget, font)
        _append(episode, image, [widget for widget, _ in widgets], letters)
        target = draw.choice(episode.widgets[n])
        point = grid_point(*target.centre, *size)
        click = {"action": "left_click", "coordinate": point}
        episode.steps.append({"frame": n, "action": click, "train": True, "box": list(target[2:])})
        episode.instruction = episode.instruction or f"Click {target.text}."
    return episode


@dataclass
class Motion:
    """`frames` frames in which one labelled button moves: the episode's first screen up to frame `turn`, its
    second from there on; and the right words: where to, and which one."""

    episode: Episode
    frames: int
    turn: int
    way: str
    mover: str

    @property
    def answer(self) -> str:
        return f"{self.way} {self.mover}"


def motion(draw: random.Random, size: Size, frames: int) -> Motion:
    """Buttons of which one jumps once, between any two frames; no single frame tells which, nor where to."""
    placed = _place(draw, size, 3)
    (mover, font), still = placed[0], placed[1:]
    way = draw.choice(list(WAYS))
    ahead = max(14, min(size) // 5)
    dx, dy = (side * ahead for side in WAYS[way])
    back, inks = _light(draw), random.Random(draw.random()).getstate()
    episode = Episode("moving", 0, "", [], [], [], [], *size)
    for share in (-0.5, 0.5):
        inked = random.Random()
        inked.setstate(inks)  # the same colours in every frame
        image = Image.new("RGB", size, back)
        x0, y0 = mover.x0 + share * dx, mover.y0 + share * dy
        moved = Widget(mover.text, mover.kind, x0, y0, x0 + mover.x1 - mover.x0, y0 + mover.y1 - mover.y0)
        letters: list[tuple[str, int, int]] = []
        for widget, its_font in [*still, (moved, font)]:
            letters += _button(ImageDraw.Draw(image), inked, widget, its_font)
        _append(episode, image, [*(widget for widget, _ in still), moved], letters)
    return Motion(episode, frames, draw.randrange(1, frames), way, mover.text)


def motion_sample(maker: SampleMaker, shown: Motion, segment: int) -> Sample:
    """The moving things as clips of four frames and the question. With a segment of one frame every frame
    stands twice, as a single picture does, which takes twice the vision tokens."""
    order = [int(n >= shown.turn) for n in range(shown.frames) for _ in range(2 if segment == 1 else 1)]
    clips = [tuple(order[i : i + 4]) for i in range(0, len(order), 4)]
    size = (4, shown.episode.height, shown.episode.width, 3)
    blank = np.broadcast_to(np.uint8(0), size)
    parts = tuple(Clip(blank, (0.0, 0.1, 0.2, 0.3)) for _ in clips)
    turns = [Message("user", (*parts, "What moves?")), Message("assistant", (shown.answer,))]
    text = maker.chat.render_training(turns)
    weights = np.asarray(text.is_target, np.float32)
    return Sample(np.asarray(text.ids, np.int32), weights, shown.episode, [0, 1], clips)


@dataclass
class Facts:
    """Text with facts in it that are asked for at its end: for each question the places of the answer's
    tokens, and how many tokens lie between the fact and the question."""

    sample: Sample
    answers: list[tuple[list[int], int]]


def facts(maker: SampleMaker, length: int, files: tuple[Path, ...], asked: int = 4) -> Facts:
    """`length` tokens of source text with lines such as `@K=47` strewn in, some of them asked for again."""
    draw, encode = maker.random, maker.tokenizer.encode
    told = {key: f"{draw.randrange(100):02d}" for key in draw.sample(KEYS, 2 * asked)}
    queries = draw.sample(list(told), asked)
    questions = [(key, encode(f"\n@{key}="), encode(told[key])) for key in queries]
    tail = sum(len(question) + len(answer) for _, question, answer in questions)
    lines = {key: encode(f"\n@{key}={value}\n") for key, value in told.items()}
    body = maker.text(max(1, length - tail - sum(map(len, lines.values()))), files).ids.tolist()
    cuts = sorted(draw.randrange(len(body) + 1) for _ in told)
    ids: list[int] = []
    at: dict[str, int] = {}
    for (key, line), start, end in zip(lines.items(), cuts, [*cuts[1:], len(body)], strict=True):
        ids += body[:start] if not ids else []
        at[key] = len(ids)
        ids += line + body[start:end]
    weights = [TEXT_WEIGHT] * len(ids)
    answers = []
    for key, question, answer in questions:
        ids += question
        answers.append((list(range(len(ids), len(ids) + len(answer))), len(ids) - at[key]))
        ids += answer
        weights += [0.0] * len(question) + [1.0] * len(answer)
    return Facts(Sample(np.asarray(ids, np.int32), np.asarray(weights, np.float32)), answers)


def _place(draw: random.Random, size: Size, count: int) -> list[tuple[Widget, float]]:
    """Up to `count` buttons that do not touch, and the size of their letters; at least one."""
    placed: list[tuple[Widget, float]] = []
    names = draw.sample(WORDS, count)
    for _ in range(40 * count):
        if len(placed) == count:
            break
        name, font = names[len(placed)], draw.randint(11, 15)
        w = _length(name, font) + draw.randint(6, 20)
        h = font + draw.randint(6, 14)
        x, y = draw.uniform(2, max(3, size[0] - w - 2)), draw.uniform(2, max(3, size[1] - h - 2))
        box = Widget(name, "button", round(x), round(y), round(x + w), round(y + h))
        apart = all(
            box.x1 + 4 < b.x0 or b.x1 + 4 < box.x0 or box.y1 + 4 < b.y0 or b.y1 + 4 < box.y0
            for b, _ in placed
        )
        if apart:
            placed.append((box, font))
    return placed


def _button(
    paper: ImageDraw.ImageDraw, draw: random.Random, widget: Widget, size: float
) -> list[tuple[str, int, int]]:
    """Draw a button; its letters and their centres."""
    ink = "#222222" if draw.random() < 0.7 else "#7a1f1f"
    paper.rectangle(tuple(widget[2:]), fill=_light(draw), outline="#555555")
    font, (cx, cy) = _font(size), widget.centre
    left = cx - _length(widget.text, size) / 2
    paper.text((left, cy), widget.text, fill=ink, font=font, anchor="lm")
    letters = []
    for i, char in enumerate(widget.text):
        ends = [_length(widget.text[:n], size) for n in (i, i + 1)]
        letters.append((char, int(left + sum(ends) / 2), int(cy)))
    return letters


@functools.cache
def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


@functools.cache
def _length(text: str, size: float) -> float:
    return _font(size).getlength(text)


def _light(draw: random.Random) -> tuple[int, int, int]:
    return draw.randint(190, 255), draw.randint(190, 255), draw.randint(190, 255)


def _append(
    episode: Episode, image: Image.Image, widgets: list[Widget], letters: list[tuple[str, int, int]]
) -> None:
    file = io.BytesIO()
    image.save(file, "PPM")  # as it is: compressing would take longer than drawing
    episode.frames.append(file.getvalue())
    episode.widgets.append(widgets)
    episode.letters.append(letters)


def cells(size: Size) -> int:
    """Vision tokens of one temporal patch."""
    return (size[0] // CELL) * (size[1] // CELL)
