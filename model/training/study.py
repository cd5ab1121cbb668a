"""Studies of how M3 is trained: `python -m pilotfish.model.training.study NAME ... --out FOLDER`.

docs/studies.md says what each asks and measures. Studies that were stopped, killed or ran out of time or room
go on with `--resume`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from pilotfish.model.protocol import ModelError
from pilotfish.model.training.settings import TrainingError
from pilotfish.model.training.studies.catalog import SCALES, STUDIES
from pilotfish.model.training.studies.runner import Runner, begin
from pilotfish.model.training.studies.trial import Stopped


def main(arguments: list[str] | None = None) -> int:
    """The command line; what is wrong is one sentence on standard error."""
    parser = argparse.ArgumentParser(
        description="Train small M3s that differ in one thing, and compare them."
    )
    parser.add_argument(
        "studies", nargs="+", choices=sorted(STUDIES), metavar="STUDY", help=", ".join(STUDIES)
    )
    parser.add_argument("--out", type=Path, help="folder of the studies (default: runs/studies)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each variant (default: 3)")
    parser.add_argument(
        "--seconds", type=float, help="stop after so many; --resume goes on (default: no end)"
    )
    parser.add_argument("--parallel", type=int, default=1, help="trainings at once (default: 1)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, help="of each training (default: small 600, tiny 4)")
    length.add_argument("--text-tokens", type=int, help="instead: tokens of text of each training")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPU if there is one")
    parser.add_argument("--scale", choices=sorted(SCALES), help="default: small on a GPU, tiny on a CPU")
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="FOLDER",
        help="for recall and maps: look at this model (nano, or a folder), train none; repeatable",
    )
    parser.add_argument("--resume", action="store_true", help="go on with what is in the folder")
    said = parser.parse_args(arguments)
    out = said.out or Path("runs") / "studies"
    try:
        runner = _begin(said, out)
        runner.run(said.parallel, said.seconds)
    except Stopped as stop:
        print(f"Stopped; --resume goes on with {out}.", file=sys.stderr)
        return 128 + stop.signal
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    for study in runner.studies:
        print((out / f"{study.name}.md").read_text(encoding="utf-8"))
    return 0


def _begin(said: argparse.Namespace, out: Path) -> Runner:
    for name in ("seeds", "seconds", "parallel", "steps", "text-tokens"):
        value = getattr(said, name.replace("-", "_"))
        if value is not None and not value > 0:
            raise TrainingError(f"--{name} is {value:g}; give a number above 0.")
    device = said.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise TrainingError("--device is 'cuda', and there is no GPU here; give cpu.")
    studies = [STUDIES[name] for name in dict.fromkeys(said.studies)]
    looking = {study.name for study in studies if study.measures in (("maps",), ("recall",))}
    if said.checkpoint and not looking:
        raise TrainingError(
            f"--checkpoint is for recall and maps, and the study is {studies[0].name!r}; leave it out."
        )
    scale = said.scale or ("small" if device == "cuda" else "tiny")
    rows = SCALES[scale].text_rows * SCALES[scale].length
    steps = said.steps if said.text_tokens is None else -(-said.text_tokens // rows)
    return begin(
        studies,
        out,
        scale=scale,
        device=device,
        seeds=said.seeds,
        steps=steps,
        checkpoints={
            study.name: tuple(said.checkpoint or ["nano"])
            for study in studies
            if study.name in looking and (said.checkpoint or not study.variants)
        },
        resume=said.resume,
    )


if __name__ == "__main__":
    sys.exit(main())
