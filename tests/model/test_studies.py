"""The studies: trainings that differ in one thing, on samples drawn in process, that can be stopped."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from pilotfish.kernels import reference as msa
from pilotfish.model import checkpoint
from pilotfish.model.training.journal import read_log
from pilotfish.model.training.samples import SampleMaker
from pilotfish.model.training.studies import drawn, probe
from pilotfish.model.training.studies.catalog import ADDED_AFTER, NATIVE, SCALES, STUDIES, Variant
from pilotfish.model.training.studies.measure import shown_to
from pilotfish.model.training.studies.selection import best_tokens, with_choice
from pilotfish.model.training.studies.trial import Feed, Trial, TrialTrainer, trainee_of
from pilotfish.model.training.study import main
from pilotfish.model.training.trainee import NANO

TINY = SCALES["tiny"]


def study(name: str, out: Path, *more: str) -> int:
    return main([name, "--device", "cpu", "--seeds", "1", "--out", str(out), *more])


def rows(out: Path) -> list[dict[str, Any]]:
    return read_log(out / "results.jsonl")


@pytest.mark.parametrize(
    ("name", "measures"),
    [
        ("native", {"text loss", "clicks in target"}),
        ("maps", {"mass on vision", "even", "dark heads", "map"}),
        ("frames", {"text loss", "motion right", "way right", "vision tokens", "pairs", "vision ms"}),
        ("vit3d", {"text loss"}),
        ("selection", {"text loss", "facts near", "facts far"}),
        ("kl", {"text loss", "facts near", "facts far", "mass chosen", "best blocks found", "recall"}),
    ],
)
def test_it_trains_and_compares(name: str, measures: set[str], tmp_path: Path) -> None:
    assert study(name, tmp_path) == 0
    results = rows(tmp_path)
    assert [row["variant"] for row in results] == [v.name for v in STUDIES[name].variants]
    for row, variant in zip(results, STUDIES[name].variants, strict=True):
        assert measures <= set(row["values"]), row
        assert row["train_s"] > 0
        own = tmp_path / "trials" / f"{variant.name.replace(' ', '-').replace(',', '')}-0"
        assert (own / "model" / "model.safetensors").is_file()
        assert not list(own.rglob("checkpoint.pt"))
    table = (tmp_path / "table.md").read_text()
    assert STUDIES[name].question in table
    assert all(f"| {v.name} | 1 |" in table for v in STUDIES[name].variants)
    ElementTree.fromstring((tmp_path / "picture.svg").read_text())


def test_recall_of_the_model_that_ships_on_a_short_sequence() -> None:
    model, _ = checkpoint.load(NANO)
    maker = SampleMaker(NANO, 0)
    found = probe.recall(model, *shown_to(model, maker.text(640), maker, "cpu"))
    assert [one.layer for one in found] == [2, 3, 4, 5, 6, 7]
    for one in found:
        assert one.even < one.chosen <= one.best + 1e-5 <= 1 + 2e-5
        assert 0 < one.blocks <= 1


def feeds(variant: Variant) -> list[tuple[Feed, range]]:
    trial = Trial(variant, TINY, 5, 8, Path(), "cpu")
    return [
        (Feed(variant, TINY, 5, phase, first), range(first, end)) for phase, first, end in trial.sessions()
    ]


def test_all_variants_meet_the_same_text_and_as_many_of_the_same_screens() -> None:
    maker = SampleMaker(NANO, 0)

    def met(variant: Variant) -> tuple[list[list[int]], list[list[int]]]:
        text, screens = [], []
        for feed, steps in feeds(variant):
            for step in steps:
                batch = feed.batch(step, maker)
                shows = (batch.ids == maker.tokenizer.image_id) | (batch.ids == maker.tokenizer.video_id)
                for row, is_screen in zip(batch.ids, shows.any(1), strict=True):
                    if is_screen:
                        ids = row.tolist()
                        screens.append(ids[: len(ids) - ids[::-1].index(maker.tokenizer.eos_id)])
                    else:
                        text.append(row[: TINY.length].tolist())
        return text, sorted(screens)

    native_text, native_screens = met(NATIVE)
    other_text, other_screens = met(ADDED_AFTER)
    assert len(native_text) == 8 * TINY.text_rows
    assert len(native_screens) == 8 * TINY.task_rows
    assert native_text == other_text
    strip = {maker.tokenizer.eos_id}
    assert [[i for i in ids if i not in strip] for ids in native_screens] == [
        [i for i in ids if i not in strip] for ids in other_screens
    ]


def test_text_that_is_measured_is_never_trained_on() -> None:
    kept, trained = drawn.text_files(held_out=True), drawn.text_files(held_out=False)
    assert len(kept) > 20
    assert not set(kept) & set(trained)


def test_facts_stand_where_they_are_said_to() -> None:
    maker = SampleMaker(NANO, 0)
    maker.random = random.Random("facts")
    told = drawn.facts(maker, 200, drawn.text_files(held_out=False))
    ids = told.sample.ids.tolist()
    assert len(ids) == 200
    for places, distance in told.answers:
        asked = maker.tokenizer.decode(ids[: places[0]])[-3:]
        answer = maker.tokenizer.decode([ids[n] for n in places])
        line = maker.tokenizer.decode(ids[places[0] - distance : places[0] - distance + 20])
        assert line.startswith(f"\n{asked}{answer}\n")
        assert asked[0] == "@"


def test_only_the_frames_together_tell_what_moves() -> None:
    shown = drawn.motion(random.Random(3), (84, 84), 8)
    way, name = shown.answer.split(" ")
    boxes = [next(w for w in frame if w.text == name) for frame in shown.episode.widgets]
    assert len({box[2:] for box in boxes}) == 2
    dx, dy = (b - a for a, b in zip(boxes[0].centre, boxes[-1].centre, strict=True))
    assert {"left": dx < 0, "right": dx > 0, "up": dy < 0, "down": dy > 0}[way]
    others = [[w for w in frame if w.text != name] for frame in shown.episode.widgets]
    assert all(frame == others[0] for frame in others)


def test_patches_attend_within_their_segment_alone() -> None:
    maker = SampleMaker(NANO, 0)
    variant = replace(NATIVE, task="motion", frames=8)
    trainee = trainee_of(variant, TINY, "cpu").eval()
    torch.manual_seed(0)
    for parameter in trainee.model.vision_tower.parameters():
        if parameter.ndim > 1:  # wide enough that every patch shows
            torch.nn.init.normal_(parameter, std=0.3)
    moving = drawn.motion(random.Random(1), TINY.picture, 8)
    sample = drawn.motion_sample(maker, moving, 4)
    cells = drawn.cells(TINY.picture)

    def vision(segment: int, sample: Any) -> torch.Tensor:
        with torch.no_grad():
            found = shown_to(trainee.model, sample, maker, "cpu", segment)[1]
        assert found is not None
        return found.unflatten(0, (-1, cells))

    alone, clips, whole = (vision(n, sample) for n in (1, 2, 4))
    moved = replace(sample, clips=[sample.clips[0], (0, 0, 0, 0)])
    for segment, before in ((1, alone), (2, clips), (4, whole)):
        after = vision(segment, moved)
        kept = [bool(torch.allclose(before[n], after[n], atol=1e-5)) for n in range(2)]
        assert kept == [segment < 4] * 2
    assert not torch.allclose(alone[0], clips[0], atol=1e-5)


def test_other_choices_of_keys() -> None:
    scores = torch.rand(2, 40, 40)
    seen = torch.ones(40, 40, dtype=torch.bool).tril()
    keep = best_tokens(scores, seen, 8)
    assert keep.sum(-1).tolist() == [[min(n + 1, 8) for n in range(40)]] * 2
    assert not (keep & ~seen).any()
    assert scores[0, 39][keep[0, 39]].min() >= scores[0, 39][~keep[0, 39]].max()

    torch.manual_seed(0)
    plain = trainee_of(NATIVE, TINY, "cpu").model.eval()
    ids = torch.randint(0, 256, (1, 60))
    chosen: dict[str, torch.Tensor] = {}
    for choice in ("msa", "shared blocks", "tokens"):
        model = with_choice(plain, choice)  # type: ignore[arg-type]

        def look(seen: probe.Seen, name: str = choice) -> None:
            if seen.layer == 2 and seen.index is not None:
                qi, ki = seen.index
                chosen[name] = msa.choose_blocks(qi, ki, 0, 16, 2)

        with torch.no_grad(), probe.watching(model, look):
            model(ids)
    assert not torch.equal(chosen["msa"][:, 0], chosen["msa"][:, 1])
    assert torch.equal(chosen["shared blocks"][:, 0], chosen["shared blocks"][:, 1])
    short = ids[:, :32]  # no longer than the budget: every choice is full attention
    with torch.no_grad():
        assert torch.allclose(model(short), model(short, attention="dense"), atol=1e-5)
        assert not torch.allclose(model(ids), model(ids, attention="dense"), atol=1e-5)


def test_the_loss_of_a_choice_of_tokens_trains_its_index_branch_alone() -> None:
    variant = next(v for v in STUDIES["selection"].variants if v.choice == "tokens")
    trainee = trainee_of(variant, TINY, "cpu")
    (feed, _), *_ = feeds(variant)
    losses = trainee.losses(feed.batch(0, SampleMaker(NANO, 0)), 0.0)
    losses["kl"].backward()
    moved = {name.rsplit(".", 2)[-2] for name, p in trainee.named_parameters() if p.grad is not None}
    assert moved == {"index_q_proj", "index_k_proj", "index_q_norm", "index_k_norm", "index_weight_proj"}


def stable(out: Path) -> list[dict[str, Any]]:
    """The results without times."""
    return [
        row | {"train_s": 0, "values": {k: v for k, v in row["values"].items() if k != "vision ms"}}
        for row in rows(out)
    ]


class Killed(BaseException):
    """Ends a study where it is, as a kill does: nothing is saved on its way out."""


def test_it_goes_on_after_being_stopped_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pilotfish.model.training.train.SYNC_EVERY", 1)
    assert study("kl", tmp_path / "whole") == 0
    out, one_step = tmp_path / "parts", TrialTrainer._one_step

    def stop(trainer: TrialTrainer, *given: Any) -> None:
        one_step(trainer, *given)
        if trainer.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    def kill(trainer: TrialTrainer, *given: Any) -> None:
        one_step(trainer, *given)
        if trainer.feed.variant.name == "without KL" and trainer.step == 2:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(TrialTrainer, "_one_step", stop)
        assert study("kl", out) == 128 + signal.SIGTERM
    assert capsys.readouterr().err.endswith(f"Stopped; --resume goes on with {out}.\n")
    assert (out / "trials" / "with-KL-0" / "phase-0" / "checkpoint.pt").is_file()
    with monkeypatch.context() as patch:
        patch.setattr(TrialTrainer, "_one_step", kill)
        with pytest.raises(Killed):
            study("kl", out, "--resume")
    assert [row["variant"] for row in rows(out)] == ["with KL"]
    with (out / "results.jsonl").open("a") as file:
        file.write('{"variant": "without KL", "se')
    assert study("kl", out, "--resume") == 0
    assert stable(out) == stable(tmp_path / "whole")


def test_a_loss_that_is_no_number_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = TrialTrainer._build

    def broken(self: TrialTrainer) -> Any:
        trainee = build(self)
        if self.feed.variant.name == "with KL":
            with torch.no_grad():
                trainee.model.language_model.lm_head.weight.fill_(float("nan"))
        return trainee

    monkeypatch.setattr(TrialTrainer, "_build", broken)
    assert study("kl", tmp_path) == 0
    first, second = rows(tmp_path)
    assert first["failed"].startswith("The loss of step 1 is no number (answer nan")
    assert "step 0 of seed 0, drawn in process" in first["failed"]
    assert second["values"]["text loss"] > 0
    assert first["failed"] in (tmp_path / "table.md").read_text()


def test_a_full_disk_keeps_what_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.md").symlink_to("/dev/full")
    assert study("kl", tmp_path) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        f"{tmp_path} cannot be written (No space left on device); free some room. "
        "What is finished stays, and --resume goes on."
    )
    before = rows(tmp_path)
    assert [row["variant"] for row in before] == ["with KL"]
    (tmp_path / "table.md").unlink()
    assert study("kl", tmp_path, "--resume") == 0
    assert rows(tmp_path)[0] == before[0]
    assert len(rows(tmp_path)) == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["kl", "--seeds", "0"], "--seeds is 0; give a number above 0."),
        (["kl", "--seconds", "nan"], "--seconds is nan; give a number above 0."),
        (["kl"], "holds the study 'native', not 'kl'; give another --out."),
        (["native"], "holds this study already; --resume goes on with it, or give another --out."),
        (["native", "--resume", "--seeds", "2"], "--seeds is 2, and 3 in "),
        (["native", "--checkpoint", "nano"], "--checkpoint is for recall and maps"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {"study": "native", "scale": "tiny", "device": "cpu", "seeds": 3, "steps": 6, "text_tokens": 6}
    (tmp_path / "plan.json").write_text(json.dumps(plan | {"checkpoints": []}))
    assert main([*flags, "--device", "cpu", "--out", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_seconds_become_steps(capsys: pytest.CaptureFixture[str]) -> None:
    from pilotfish.model.training.settings import TrainingError
    from pilotfish.model.training.studies.runner import steps_within

    kl = replace(STUDIES["kl"], variants=STUDIES["kl"].variants[:1])
    assert steps_within(1e5, kl, "tiny", "cpu", 1) > 100
    with pytest.raises(TrainingError, match=r"^--seconds is 0\.1, and \d+ are needed here; give those, or"):
        steps_within(0.1, kl, "tiny", "cpu", 1)
