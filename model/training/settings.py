"""What a training run is told: flags, or a TOML file with the same names."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotfish.model.config import TextConfig, VisionConfig
from pilotfish.model.protocol import ModelError


class TrainingError(ModelError):
    """Why a training run cannot begin or go on, in a sentence."""


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
    newest_bias: float = 0.5  # share of draws from the newest tenth of the shards
    corrections: str = ""  # folder of shards in which a model played; see `agent/corrections.py`
    correction_share: float = 0.3  # of the draws of episodes, once that folder holds any
    edits: str = ""  # folder of shards of text episodes; see `agent/edit_episodes.py`
    edit_share: float = 0.3  # of the draws of shards, once that folder holds any
    longest: int = 4_608  # tokens of the longest sequence that is trained on; `tokens` must hold one
    workers: int = 5
    seed: int = 0
    resume: str = ""  # checkpoint to begin a new session with; to go on with one is `--go-on`
    init: str = ""  # folder of an exported model to begin with; the heads and the optimisers start anew
    head_steps: int = 0  # at the start the heads alone are trained, so that they do not disturb the model
    sizes: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # of `text` and `vision`, other than nano's
    width: int = 1008  # pixels of the largest pictures, as the model sees them
    height: int = 1008
    noise: float = 0.02
    log_every: int = 25
    save_every: float = 120.0  # seconds
    device: str = "cuda"
    bf16: bool = True
    deterministic: bool = True  # on a GPU: of equal sums only such as come out the same each time
    compile: bool = False  # what lies between kernels and products by torch's compiler
    patience: float = 120.0  # seconds that a folder of shards may stay empty at the start

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check(name, value)
        if self.resume and self.init:
            raise TrainingError(
                f"resume {self.resume!r} and init {self.init!r} exclude each other; give one."
            )
        if self.longest > max(self.tokens, 4_608):
            raise TrainingError(
                f"longest is {self.longest} and tokens {self.tokens}, so no batch can hold such a sequence; "
                "give more tokens, or less of longest."
            )
        shares = self.question_share + self.text_share + self.copy_share
        if shares > 1:
            raise TrainingError(
                f"question_share, text_share and copy_share are {shares:g} together; give at most 1."
            )


_POSITIVE = {
    "seconds",
    "steps",
    "warmup",
    "tokens",
    "log_every",
    "save_every",
    "width",
    "height",
    "decay_share",
    "longest",
}
_CELL = 28  # pixels per merged cell of a picture
_FIXED_SIZES = {"vocab_size", "bos_token_id", "eos_token_id", "sparse_layers", "moe_layers"}


def check(name: str, value: object) -> None:
    """Raise `TrainingError` for a value that no run can have."""
    wrong = ""
    if isinstance(value, float | int) and not isinstance(value, bool):
        if not math.isfinite(value):
            wrong = "a finite number"
        elif name in _POSITIVE and value <= 0:
            wrong = "a number above 0"
        elif value < 0:
            wrong = "a number of at least 0"
        elif name.endswith(("_share", "_bias")) and value > 1:
            wrong = "a share from 0 to 1"
        elif name in ("width", "height") and value % _CELL:
            wrong = f"a multiple of {_CELL}"
    elif name == "device" and value not in ("cuda", "cpu"):
        wrong = "cuda or cpu"
    elif name == "sizes":
        _check_sizes(value)
    if wrong:
        raise TrainingError(f"{name} is {value!r}; give {wrong}.")


def _check_sizes(sizes: object) -> None:
    parts = {"text": TextConfig, "vision": VisionConfig}
    if not isinstance(sizes, Mapping) or not all(isinstance(part, Mapping) for part in sizes.values()):
        raise TrainingError(f"sizes is {sizes!r}; give tables of sizes.text and sizes.vision.")
    for part, values in sizes.items():
        if part not in parts:
            raise TrainingError(f"sizes has {part!r}; it may have text and vision.")
        known = {f.name for f in dataclasses.fields(parts[part])} - _FIXED_SIZES
        for name, value in values.items():
            if name not in known:
                raise TrainingError(f"sizes.{part} has {name!r}; {nearest(name, known)}.")
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise TrainingError(f"sizes.{part}.{name} is {value!r}; give a number above 0.")


def nearest(name: str, known: set[str]) -> str:
    """Which known name may be meant."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"the nearest is {near[0]!r}" if near else f"known are {', '.join(sorted(known))}"


def read_config(path: Path, **more: Any) -> Settings:
    """The settings of a TOML file, whose keys are the fields of `Settings`; `more` comes on top.

    Raises `TrainingError` with one sentence for anything that is wrong with it.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainingError(f"{path} cannot be read ({error.strerror}); give a TOML file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path} is no TOML ({error}); mend it there.") from error
    fields = {f.name: f for f in dataclasses.fields(Settings)}
    for name, value in data.items():
        if name not in fields:
            raise TrainingError(f"{path} has {name!r}; {nearest(name, set(fields))}.")
        kind = str(fields[name].type)
        if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            data[name] = float(value)
        elif kind in _KINDS and type(value).__name__ != kind:
            raise TrainingError(f"{path} has {name} = {value!r}; give {_KINDS[kind]}.")
    data |= more
    if missing := [name for name in ("shards", "out") if not data.get(name)]:
        raise TrainingError(f"{path} lacks {' and '.join(missing)}; give the folder.")
    try:
        return Settings(**data)
    except TrainingError as error:
        raise TrainingError(f"{path}: {error}") from None


_KINDS = {"str": "a text", "float": "a number", "int": "a whole number", "bool": "true or false"}


def parse_settings(arguments: list[str] | None = None) -> tuple[Settings, bool]:
    """Settings from a command line: a TOML file, flags named after the fields, or both, where flags win; and
    whether to go on with the session in `out`. Raises `TrainingError`.
    """

    def switch(text: str) -> bool:
        return text.lower() in ("1", "true", "yes")

    kinds: dict[str, Callable[[str], Any]] = {"str": str, "float": float, "int": int, "bool": switch}
    parser = argparse.ArgumentParser(description="Train nano, or an M3 of other sizes.")
    parser.add_argument("config", nargs="?", type=Path, help="TOML file whose keys are these flags")
    parser.add_argument("--go-on", action="store_true", help="go on with the session in OUT")
    for name, one in Settings.__dataclass_fields__.items():
        parser.add_argument("--" + name.replace("_", "-"), type=kinds.get(str(one.type), json.loads))
    given = vars(parser.parse_args(arguments))
    config, go_on = given.pop("config"), given.pop("go_on")
    said = {name: value for name, value in given.items() if value is not None}
    if config is not None:
        return read_config(config, **said), go_on
    for name in ("shards", "out"):
        if name not in said:
            raise TrainingError(f"--{name} is missing; give a folder, or a TOML file that has it.")
    return Settings(**said), go_on
