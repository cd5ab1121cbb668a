"""A kill at the end of a study's training: what was trained is not trained again, nothing is left over."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotfish.model.checkpoint import WEIGHTS
from pilotfish.model.m3 import M3
from pilotfish.model.training.studies.catalog import ADDED_AFTER, SCALES
from pilotfish.model.training.studies.trial import Trial, TrialTrainer
from pilotfish.model.training.train import export

TINY = SCALES["tiny"]


class Killed(BaseException):
    """Ends a training where it is, as a kill does."""


def killing(act: Callable[..., object], when: str) -> Callable[..., object]:
    """An act on a path that a kill comes before, in the middle of, or after."""

    def killed(path: Path, *given: Any, **named: Any) -> object:
        if when == "middle":
            (path / "checkpoint.pt").replace(path.parent / "gone")
        elif when == "after":
            act(path, *given, **named)
        raise Killed

    return killed


def test_a_kill_at_the_end_of_a_training_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotfish.model.training.train.SYNC_EVERY", 1)
    acts: dict[str, tuple[str, Callable[..., object]]] = {
        "rename": ("pathlib.Path.rename", Path.rename),
        "unlink": ("pathlib.Path.unlink", Path.unlink),
        "rmtree": ("pilotfish.model.training.studies.trial.shutil.rmtree", shutil.rmtree),
    }
    model = Path("model", WEIGHTS)

    def trial(name: str) -> Trial:
        return Trial(ADDED_AFTER, TINY, 0, 4, tmp_path / name, "cpu")

    def last_unexported(model: M3, folder: Path) -> None:
        if folder.name == "phase-1":
            raise Killed
        export(model, folder)

    with monkeypatch.context() as patch:
        patch.setattr("pilotfish.model.training.train.export", last_unexported)
        with pytest.raises(Killed):
            trial("unexported").train()
    trial("unexported").train()  # a checkpoint that is done has its model beside it
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killing(Path.rename, "before"))
        with pytest.raises(Killed):
            trial("trained").train()
    shutil.copytree(tmp_path / "trained", tmp_path / "whole")
    trial("whole").train()
    weights = (tmp_path / "whole" / model).read_bytes()
    assert (tmp_path / "unexported" / model).read_bytes() == weights

    def untrained(trainer: TrialTrainer, *given: Any) -> None:
        raise AssertionError("it had been trained")

    for name, when in itertools.product(acts, ("before", "middle", "after")):
        if when == "middle" and name != "rmtree":
            continue  # there is none
        folder = tmp_path / f"{name}-{when}"
        shutil.copytree(tmp_path / "trained", folder)
        with monkeypatch.context() as patch:
            where, act = acts[name]
            patch.setattr(where, killing(act, when))
            with pytest.raises(Killed):
                trial(folder.name).train()
        with monkeypatch.context() as patch:
            patch.setattr(TrialTrainer, "_one_step", untrained)
            trial(folder.name).train()
        assert (folder / model).read_bytes() == weights
        assert [path.name for path in folder.iterdir() if path.name != "gone"] == ["model"]
        assert not (folder / "model" / "checkpoint.pt").exists()
