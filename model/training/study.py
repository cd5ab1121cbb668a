"""One study of how M3 is trained: `python -m pilotfish.model.training.study NAME --out FOLDER`.

docs/studies.md says what each asks and measures. A study that was stopped, killed or ran out of room goes on
with `--resume`, from the last checkpoint of the training it was at.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from pilotfish.model.protocol import ModelError
from pilotfish.model.training.settings import TrainingError
from pilotfish.model.training.studies.catalog import SCALES, STUDIES
from pilotfish.model.training.studies.runner import TABLE, begin
from pilotfish.model.training.studies.trial import Stopped

SECONDS = 300.0  # of a study on a GPU, unless it is told otherwise


def main(arguments: list[str] | None = None) -> int:
    """The command line; what is wrong is one sentence on standard error."""
    parser = argparse.ArgumentParser(
        description="Train small M3s that differ in one thing, and compare them."
    )
    parser.add_argument("study", choices=sorted(STUDIES))
    parser.add_argument("--out", type=Path, help="folder of the study (default: studies/NAME)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each variant (default: 3)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help="of the whole study (default on a GPU: 300)")
    length.add_argument("--text-tokens", type=int, help="tokens of text of each training")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPU if there is one")
    parser.add_argument("--scale", choices=sorted(SCALES), help="default: small on a GPU, tiny on a CPU")
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="FOLDER",
        help="for recall and maps: look at this model (nano, or a folder), train none; repeatable",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the study in the folder")
    said = parser.parse_args(arguments)
    study = STUDIES[said.study]
    device = said.device or ("cuda" if torch.cuda.is_available() else "cpu")
    out = said.out or Path("studies") / study.name
    try:
        for name, value in (
            ("seeds", said.seeds),
            ("seconds", said.seconds),
            ("text-tokens", said.text_tokens),
        ):
            if value is not None and not value > 0:
                raise TrainingError(f"--{name} is {value:g}; give a number above 0.")
        if device == "cuda" and not torch.cuda.is_available():
            raise TrainingError("--device is 'cuda', and there is no GPU here; give cpu.")
        if said.checkpoint and study.measures not in (("maps",), ("recall",)):
            raise TrainingError(
                f"--checkpoint is for recall and maps, and the study is {study.name!r}; leave it out."
            )
        seconds = said.seconds
        if seconds is None and said.text_tokens is None and device == "cuda":
            seconds = SECONDS
        runner = begin(
            study,
            out,
            scale=said.scale or ("small" if device == "cuda" else "tiny"),
            device=device,
            seeds=said.seeds,
            seconds=seconds,
            text_tokens=said.text_tokens,
            checkpoints=tuple(said.checkpoint or ([] if study.variants else ["nano"])),
            resume=said.resume,
        )
        runner.run()
    except Stopped as stop:
        print(f"Stopped; --resume goes on with {out}.", file=sys.stderr)
        return 128 + stop.signal
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    print((out / TABLE).read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
