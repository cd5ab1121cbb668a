"""From recorded episodes to token sequences.

Three kinds of sequence, mixed from the first step on:
- episodes, or stretches of long ones, in the agent's words: clip, instruction, call, result, clip, call ...
- questions about one screen: many answers per picture ("Locate", "Read", and clicks in the call grammar);
- plain text.
"""

from __future__ import annotations

import functools
import random
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pilotfish.model.chat import ChatFormat, TrainingText
from pilotfish.model.images import CLIP_RULE, IMAGE_RULE, clip_grid, smart_resize
from pilotfish.model.protocol import Clip, Message, ToolCall, ToolSpec
from pilotfish.model.protocol import Image as Picture
from pilotfish.model.tokenizer import Tokenizer
from pilotfish.model.training.shards import Episode, Widget
from pilotfish.model.training.texts import TextEpisode
from pilotfish.model.training.words import training_words

GRID = 1000
DIGIT_WEIGHT = 2.0
TEXT_WEIGHT = 0.5
PASSIVE = ("text", "word", "label")  # kinds of widget that are there to be read
READING = (  # {0} is where the text to type stands
    "Type the text at {0}.",
    "Type what is written at {0}",
    "Read {0} and type it.",
    "Enter the text at {0} into the text field.",
)
FORMS = {  # of questions about a screen, and how often each is drawn
    "calls": 12,  # click on each, in the call grammar
    "types": 18,  # type what stands at each place, in the call grammar
    "pairs": 10,  # one question, one answer, several times
    "list": 22,  # where many things are
    "reads": 24,  # what stands at many places
    "all": 14,  # everything, and where it is
}


@dataclass
class Sample:
    """One sequence. weights[i] is the weight of predicting ids[i].

    clips index into frames: four each for clips, one twice for a picture; a sequence has either or neither.
    """

    ids: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    episode: Episode | None = None
    frames: list[int] = field(default_factory=list)  # indices into the episode's frames
    clips: list[tuple[int, ...]] = field(default_factory=list)  # indices into `frames`

    @property
    def is_picture(self) -> bool:
        return bool(self.clips) and len(self.clips[0]) == 2

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width in pixels at which the model sees the pictures; None where there are none."""
        if self.episode is None or not self.clips:
            return None
        rule = IMAGE_RULE if self.is_picture else CLIP_RULE
        return smart_resize(self.episode.height, self.episode.width, rule)


def grid_point(x: float, y: float, width: int, height: int) -> list[int]:
    """The grid value whose pixel is (x, y): the middle of the pixel, so that rounding cannot leave it."""
    return [min(GRID - 1, max(0, round((int(v) + 0.5) * GRID / n))) for v, n in ((x, width), (y, height))]


class SampleMaker:
    """Draws sequences from episodes with one random generator."""

    def __init__(self, folder: Path, seed: int):
        self.tokenizer = Tokenizer.from_folder(folder)
        self.chat = ChatFormat.from_folder(folder, self.tokenizer, clip_grid)
        self.random = random.Random(seed)
        words = training_words()
        self.developer = Message("developer", (words.developer,))
        self.tools = [words.tool]
        self.pruned_clip = words.pruned_clip
        self.max_clips, self.clip_block = words.max_clips, words.clip_block
        self.digits = {self.tokenizer.encode(str(d))[0] for d in range(10)}
        self._fake: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}

    def episode(self, ep: Episode, steps: int | None = None) -> Sample:
        """A stretch of an episode as the agent lives it: the steps between two prunings of its conversation.

        What came before is told, its clips as far as the agent still has them, but only the stretch is
        trained on. A step with `taken` has a label that was not what was done: with the label the sequence
        ends, otherwise what was done stands there and is not trained on. `steps` ends the episode there and
        takes its last stretch; left out, one is drawn.
        """
        until = len(ep.steps) if steps is None else steps
        at = until - 1 if steps else self._draw_step(ep)
        pruned, begin, end = self._stretch(at)
        if "taken" in ep.steps[at]:
            until = at + 1  # its label is not what was done, so nothing follows on it
        turns: list[Message] = [self.developer]
        frames: list[int] = []
        clips: list[tuple[int, ...]] = []
        trained: list[bool] = []
        for n, step in enumerate(ep.steps[: min(end, until)]):
            now = step["frame"]
            before = ep.steps[n - 1]["frame"] if n else now
            shown: Clip | str = self.pruned_clip
            word = "unchanged" if ep.frames[before] == ep.frames[now] else "settled"
            if not 1 <= n <= pruned:
                shown, word = self._clip(ep, before, now, frames, clips)
            if n == 0:
                turns.append(Message("user", (shown, ep.instruction)))
            else:
                turns.append(Message("tool", (f"ok\n{word}", shown)))
            another = "taken" in step and n != until - 1
            call = ToolCall(str(n), "computer", step["taken"] if another else self.arguments(ep, step))
            turns.append(Message("assistant", (), None, (call,)))
            trained.append(n >= begin and not another and bool(step.get("train", True)))
        return self._sample(turns, self.tools, trained, ep, frames, clips)

    def _draw_step(self, ep: Episode) -> int:
        """The step whose stretch is shown; half the time one where something else was done than is right."""
        corrected = [n for n, step in enumerate(ep.steps) if "taken" in step and step.get("train", True)]
        if corrected and self.random.random() < 0.5:
            return self.random.choice(corrected)
        return self.random.randrange(len(ep.steps))

    def _stretch(self, step: int) -> tuple[int, int, int]:
        """How many clips behind the first are gone at a step, and the steps [begin, end) that share this."""
        if step < self.max_clips:
            return 0, 0, self.max_clips
        times = (step - self.max_clips) // self.clip_block + 1
        end = self.max_clips + times * self.clip_block
        return times * self.clip_block, end - self.clip_block, end

    def questions(self, ep: Episode, most: int = 16, form: str = "") -> Sample | None:
        """Several questions about one screen of the episode; None when nothing on it can be named.

        Half of them show the screen as a single picture, which costs half the vision tokens of a clip in
        which nothing moves. form: one of `FORMS`; left out, one is drawn.
        """
        n = self.random.randrange(len(ep.frames))
        named = unambiguous(ep.widgets[n])
        if not named:
            return None
        self.random.shuffle(named)
        named = named[:most]
        form = form or self.random.choices(tuple(FORMS), tuple(FORMS.values()))[0]
        frames: list[int] = []
        clips: list[tuple[int, ...]] = []
        shown = self._picture(ep, n, frames, clips)
        called = form in ("calls", "types")
        turns: list[Message] = [self.developer] if called or self.random.random() < 0.2 else []
        match form:
            case "reads":
                places = "\n".join(self._place(ep, w) for w in named)
                turns += self._list_turns(ep, f"Read\n{places}", named, shown, place_first=True)
            case "list":
                turns += self._list_turns(ep, "Locate\n" + "\n".join(w.text for w in named), named, shown)
            case "all":
                named.sort(key=lambda w: (round(w.y0 / 8), w.x0))
                turns += self._list_turns(ep, "List the screen", named, shown)
            case _:
                for i, widget in enumerate(named[: most // 2]):
                    pair = self._call_pair(ep, i, widget, form) if called else self._plain_pair(ep, widget)
                    turns.append(Message("user", (shown, pair[0]) if i == 0 else (pair[0],)))
                    turns.append(pair[1])
        trained = [True] * len(turns)
        return self._sample(turns, self.tools if called else [], trained, ep, frames, clips)

    def _picture(
        self, ep: Episode, frame: int, frames: list[int], clips: list[tuple[int, ...]]
    ) -> Clip | Picture:
        """One screen, as a picture or as a clip in which nothing moves."""
        if self.random.random() < 0.5:
            return self._clip(ep, frame, frame, frames, clips)[0]
        frames.append(frame)
        clips.append((0, 0))
        return Picture(self._blank(ep)[0])

    def _list_turns(
        self,
        ep: Episode,
        question: str,
        named: list[Widget],
        shown: Clip | Picture,
        *,
        place_first: bool = False,
    ) -> list[Message]:
        """One question about many widgets; the answer gives each one's name and place, in that order or the
        other: what is asked for comes last.
        """
        lines = []
        for widget in named:
            place = self._place(ep, widget)
            lines.append(f"{place} {widget.text}" if place_first else f"{widget.text} {place}")
        return [Message("user", (shown, question)), Message("assistant", ("\n".join(lines),))]

    def text(self, length: int, files: Sequence[Path] = ()) -> Sample:
        """So many tokens of the standard library's sources (PSF licence), or of `files`; each is a target."""
        ids: list[int] = []
        while len(ids) < length:
            path = self.random.choice(files or sources())
            text = path.read_text(encoding="utf-8", errors="replace")
            begin = self.random.randrange(max(1, len(text) - 4 * length))
            ids += self.tokenizer.encode(text[begin : begin + 4 * length])
        return Sample(np.asarray(ids[:length], np.int32), np.full(length, TEXT_WEIGHT, np.float32))

    def talk(self, turns: list[Message], trained: list[bool]) -> Sample:
        """A conversation without pictures; trained: of each turn of the model's, whether it is a target."""
        rendered = self.chat.render_training(turns, self.tools)
        return Sample(np.asarray(rendered.ids, np.int32), self._weights(rendered, trained))

    def dialogue(self, ep: TextEpisode) -> Sample:
        """A recorded conversation without pictures: its turns to be imitated count."""
        rendered = self.chat.render_training(ep.turns, ep.tools)
        return Sample(np.asarray(rendered.ids, np.int32), self._weights(rendered, ep.trained))

    @staticmethod
    def _place(ep: Episode, widget: Widget) -> str:
        gx, gy = grid_point(*widget.centre, ep.width, ep.height)
        return f"{gx:03d} {gy:03d}"

    def _plain_pair(self, ep: Episode, widget: Widget) -> tuple[str, Message]:
        place = self._place(ep, widget)
        if self.random.random() < 0.65:
            return f"Locate {widget.text}", Message("assistant", (place,))
        return f"Read {place}", Message("assistant", (widget.text,))

    def _call_pair(self, ep: Episode, n: int, widget: Widget, form: str) -> tuple[str, Message]:
        if form == "types":
            call = ToolCall(str(n), "computer", {"action": "type", "text": widget.text})
            question = self.random.choice(READING).format(self._place(ep, widget))
            return question, Message("assistant", (), None, (call,))
        wordings = ('Click on "{}".', 'Click "{}".', 'Click on the "{}" {kind}.', "Click {}", 'Press "{}".')
        question = self.random.choice(wordings).format(widget.text, kind=widget.kind)
        coordinate = grid_point(*widget.centre, ep.width, ep.height)
        call = ToolCall(str(n), "computer", {"action": "left_click", "coordinate": coordinate})
        return question, Message("assistant", (), None, (call,))

    def arguments(self, ep: Episode, step: dict[str, Any]) -> dict[str, Any]:
        arguments = dict(step["action"])
        box = step.get("box")
        if box and "coordinate" in arguments and "start_coordinate" not in arguments:
            x0, y0, x1, y1 = box
            x0, x1 = max(0, x0), min(ep.width, x1)
            y0, y1 = max(0, y0), min(ep.height, y1)
            arguments["coordinate"] = grid_point((x0 + x1) / 2, (y0 + y1) / 2, ep.width, ep.height)
        return arguments

    def _clip(
        self,
        ep: Episode,
        before: int,
        now: int,
        frames: list[int],
        clips: list[tuple[int, ...]],
    ) -> tuple[Clip, str]:
        """A clip that shows `before` turn into `now` at a random moment, and the observation word."""

        def slot(frame: int) -> int:
            if frame not in frames:
                frames.append(frame)
            return frames.index(frame)

        a, b = slot(before), slot(now)
        turned, times = turning(self.random)
        clips.append((a, *(b if now_shown else a for now_shown in turned), b))
        same = before == now or ep.frames[before] == ep.frames[now]
        word = "unchanged" if same else "settled"
        if self.random.random() < 0.02:
            word = "unsettled"
        return Clip(self._blank(ep), times), word

    def _blank(self, ep: Episode) -> npt.NDArray[np.uint8]:
        """Stands for pixels in a rendered conversation, where only sizes count."""
        size = (ep.height, ep.width)
        if size not in self._fake:
            self._fake[size] = np.broadcast_to(np.uint8(0), (4, *size, 3))
        return self._fake[size]

    def _sample(
        self,
        turns: list[Message],
        tools: list[ToolSpec],
        trained: list[bool],
        ep: Episode,
        frames: list[int],
        clips: list[tuple[int, ...]],
    ) -> Sample:
        text = self.chat.render_training(turns, tools)
        weights = self._weights(text, trained)
        return Sample(np.asarray(text.ids, np.int32), weights, ep, frames, clips)

    def _weights(self, text: TrainingText, trained: list[bool]) -> npt.NDArray[np.float32]:
        """Weight of every token: the model's own turns that are to be imitated, digits more than the rest."""
        weights = np.zeros(len(text.ids), np.float32)
        turn, inside = -1, False
        for i, target in enumerate(text.is_target):
            if target and not inside:
                turn += 1
            inside = target
            if target and trained[turn]:
                weights[i] = DIGIT_WEIGHT if text.ids[i] in self.digits else 1.0
        return weights


def turning(draw: random.Random) -> tuple[tuple[bool, bool], tuple[float, float, float, float]]:
    """When one screen turns into another during a clip: which of its two middle frames show the new one
    already, and the times of all four in seconds."""
    turned = draw.choice((1, 1, 2, 3))
    t = sorted(draw.uniform(0.01, draw.choice((0.2, 0.5, 1.5))) for _ in range(3))
    return (turned <= 1, turned <= 2), (0.0, t[0], t[1], t[2])


def unambiguous(widgets: Sequence[Widget]) -> list[Widget]:
    """What a short name means on a screen, one widget a name.

    Where a name stands for several, the one that can be used is meant, not its caption or a word about it;
    of two that lie over one another, the smaller. What is still ambiguous is left out.
    """
    by_name: dict[str, list[Widget]] = {}
    for widget in widgets:
        if widget.text.strip() and len(widget.text) <= 40:
            by_name.setdefault(widget.text, []).append(widget)
    found = []
    for named in by_name.values():
        usable = [w for w in named if w.kind not in PASSIVE] or named
        widget = min(usable, key=lambda w: (w.x1 - w.x0) * (w.y1 - w.y0))
        x, y = widget.centre
        if all(w.x0 <= x <= w.x1 and w.y0 <= y <= w.y1 for w in usable):
            found.append(widget)
    return found


@functools.cache
def sources() -> list[Path]:
    """The standard library's source files, without its tests."""
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    return [f for f in files if "site-packages" not in f.parts and "test" not in f.parts]
