"""The studies: what each asks, which trainings it compares, and how large they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pilotfish.model.training.studies.selection import Choice

Task = Literal["none", "screens", "motion", "facts"]
Measure = Literal["text", "screens", "motion", "facts", "maps", "recall", "sight"]


@dataclass(frozen=True)
class Phase:
    """One session of a training. Shares are of the run's steps."""

    share: float = 1.0
    tasks: float = 1.0  # rows with the task in a step, in units of the scale's
    warm: bool = True  # whether the rate begins with a warm-up
    decay: float = 0.4  # share of the phase at its end in which the rate falls to zero; 0: it stays


@dataclass(frozen=True)
class Variant:
    """One of the trainings that a study compares. Text rows are the same in all of them, step by step."""

    name: str
    task: Task = "screens"
    phases: tuple[Phase, ...] = (Phase(),)
    choice: Choice = "msa"
    frames: int = 4  # that a moving thing is shown in
    segment: int = 4  # frames that attend to each other in the vision tower
    kl_weight: float = 0.1

    @property
    def patches(self) -> int:
        """Temporal patches of a segment; a frame by itself fills one, as a picture does."""
        return max(1, self.segment // 2)

    @property
    def arm(self) -> str:
        """What this training is called on disk. Studies that ask for the same one share it."""
        same = replace(self, name="")
        for study in STUDIES.values():
            for other in study.variants:
                if replace(other, name="") == same:
                    return slug(other.name)
        return slug(self.name)


@dataclass(frozen=True)
class Study:
    """A question, the trainings that answer it and what is measured of each."""

    name: str
    question: str
    variants: tuple[Variant, ...]
    measures: tuple[Measure, ...]


def slug(name: str) -> str:
    """A name as part of a file's."""
    return name.replace(" ", "-").replace(",", "")


def measures_of(variant: Variant) -> tuple[Measure, ...]:
    """What any study measures of this training: all is measured at once, so that it never has to be loaded
    again."""
    found: dict[Measure, None] = {}
    for study in STUDIES.values():
        if any(other.arm == variant.arm for other in study.variants):
            found |= dict.fromkeys(study.measures)
    return tuple(found)


@dataclass(frozen=True)
class Scale:
    """How large the trainings of a study are."""

    name: str
    sizes: Mapping[str, Mapping[str, Any]]
    picture: tuple[int, int]  # width, height in pixels
    text_rows: int
    length: int  # tokens of a row of text
    task_rows: int
    cases: int  # that are measured of each kind
    at_once: int  # of them are given to the model in one pass
    warmup: int
    workers: int  # processes that draw for one training, at most
    steps: int  # of each training, unless it is told otherwise
    muon_lr: float = 3e-3
    adam_lr: float = 2e-3


_TEXT = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 64}
_TEXT |= {"intermediate_size": 96, "shared_intermediate_size": 160, "dense_intermediate_size": 768}
_TEXT |= {"num_local_experts": 4, "topk_blocks": 4, "block_size": 16}
_VISION = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 512}
_TINY_TEXT = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "head_dim": 32}
_TINY_TEXT |= {"rotary_dim": 16, "intermediate_size": 32, "shared_intermediate_size": 32, "index_dim": 32}
_TINY_TEXT |= {"dense_intermediate_size": 64, "num_local_experts": 4, "topk_blocks": 2, "block_size": 16}
_TINY_VISION = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}

SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "small", {"text": _TEXT, "vision": _VISION}, (168, 168), text_rows=32, length=256, task_rows=96,
            cases=512, at_once=256, warmup=30, workers=4, steps=600,
        ),
        Scale(
            "tiny", {"text": _TINY_TEXT, "vision": _TINY_VISION}, (84, 84), text_rows=2, length=96,
            task_rows=4, cases=4, at_once=64, warmup=2, workers=0, steps=4,
        ),
    )
}  # fmt: skip

_BEFORE = Phase(0.5, 0.0)
NATIVE = Variant("native")
ADDED_AFTER = Variant("added after the decay", phases=(_BEFORE, Phase(0.5, 2.0)))

STUDIES = {
    study.name: study
    for study in (
        Study(
            "native",
            "Does text suffer when vision is trained with it from step zero, and does vision that is added"
            " later catch up?",
            (
                Variant("text alone", "none"),
                NATIVE,
                ADDED_AFTER,
                Variant(
                    "added before the decay",
                    phases=(Phase(0.5, 0.0, decay=0.0), Phase(0.5, 2.0, warm=False)),
                ),
            ),
            ("text", "screens"),
        ),
        Study(
            "maps",
            "Do text tokens look at vision tokens less in a model to which vision was added late?",
            (NATIVE, ADDED_AFTER),
            ("maps",),
        ),
        Study(
            "frames",
            "How many frames should attend to each other in the vision tower, and what do they cost?",
            tuple(Variant(f"{n} frame{'s' * (n > 1)}", "motion", frames=8, segment=n) for n in (1, 2, 4, 8)),
            ("text", "motion", "sight"),
        ),
        Study(
            "vit3d",
            "Does attention over all frames of a clip serve motion, and single screens, better than attention"
            " within a patch of two frames?",
            (
                Variant("3-D, motion", "motion", frames=8),
                Variant("per patch, motion", "motion", frames=8, segment=2),
                Variant("per frame, motion", "motion", frames=8, segment=1),
                Variant("3-D, screens"),
                Variant("per patch, screens", segment=2),
            ),
            ("text", "motion", "screens", "sight"),
        ),
        Study(
            "selection",
            "At an equal budget of keys, do blocks chosen per group lose against full attention, against one"
            " choice of blocks for all groups, and against one of single tokens?",
            (
                Variant("MSA", "facts"),
                Variant("full attention", "facts", choice="full", kl_weight=0.0),
                Variant("blocks for all groups", "facts", choice="shared blocks"),
                Variant("tokens for all groups", "facts", choice="tokens"),
            ),
            ("text", "facts"),
        ),
        Study(
            "kl",
            "What does the KL loss of the index branch do?",
            (Variant("with KL", "facts"), Variant("without KL", "facts", kl_weight=0.0)),
            ("text", "facts", "recall"),
        ),
        Study(
            "recall",
            "How much of the attention mass lies in the blocks that the index branch chooses?",
            (),
            ("recall",),
        ),
    )
}
