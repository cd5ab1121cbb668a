"""The studies: trainings that differ in one thing, on samples drawn in process, that can be stopped."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from pilotfish.kernels import reference as msa
from pilotfish.model import checkpoint
from pilotfish.model.training.samples import SampleMaker
from pilotfish.model.training.studies import drawn, probe
from pilotfish.model.training.studies.catalog import (
    ADDED_AFTER,
    NATIVE,
    SCALES,
    STUDIES,
    Variant,
    measures_of,
)
from pilotfish.model.training.studies.jobs import Plan, Training
from pilotfish.model.training.studies.measure import shown_to
from pilotfish.model.training.studies.runner import begin
from pilotfish.model.training.studies.selection import best_tokens, with_choice
from pilotfish.model.training.studies.trial import Feed, Stopped, Trial, TrialTrainer, trainee_of
from pilotfish.model.training.study import main
from pilotfish.model.training.trainee import NANO

TINY = SCALES["tiny"]


def study(*given: str) -> int:
    return main([*given, "--device", "cpu", "--seeds", "1"])


def rows(out: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((out / "results").glob("*.json"))}


MEASURES = {
    "native": {"text loss", "clicks in target"},
    "maps": {"mass on vision", "even", "dark heads"},
    "frames": {"text loss", "motion right", "way right", "vision tokens", "pairs", "vision ms"},
    "vit3d": {"text loss", "motion right", "clicks in target"},
    "selection": {"text loss", "facts near", "facts far"},
    "kl": {"text loss", "facts near", "facts far", "mass chosen", "best blocks found"},
}


def test_every_study_trains_measures_and_compares(tmp_path: Path) -> None:
    every = [STUDIES[name] for name in MEASURES]
    given = {"scale": "tiny", "device": "cpu", "seeds": 1, "steps": None, "checkpoints": {}, "resume": False}
    runner = begin(every, tmp_path, **given)  # type: ignore[arg-type]
    for job in runner.jobs():
        job.play(runner.plan, tmp_path)
    runner.report()
    results = rows(tmp_path)
    assert set(results) == {f"{v.arm}-0" for name in MEASURES for v in STUDIES[name].variants}
    for name, row in results.items():
        assert row["train_s"] > 0
        assert len(row["losses"]) >= 4
        assert (tmp_path / "trials" / name / "model" / "model.safetensors").is_file()
    assert not list(tmp_path.rglob("checkpoint.pt"))
    for name, measures in MEASURES.items():
        table = (tmp_path / f"{name}.md").read_text()
        assert STUDIES[name].question in table
        head = next(line for line in table.splitlines() if line.startswith("|  |"))
        assert measures | {"seeds", "training s"} <= {cell.strip() for cell in head.split("|")}
        for variant in STUDIES[name].variants:
            assert f"| {variant.name} | 1 |" in table
        ElementTree.fromstring((tmp_path / f"{name}.svg").read_text())
    assert results["MSA-0"]["values"]["recall"]["recall"]
    assert results["native-0"]["values"]["maps"]["map"]
    assert study("kl", "native", "--resume", "--out", str(tmp_path)) == 0
    assert rows(tmp_path) == results


def test_a_training_that_several_studies_ask_for_is_done_once(tmp_path: Path) -> None:
    arms: dict[str, Variant] = {}
    for one in STUDIES.values():
        for variant in one.variants:
            same = replace(variant, name="")
            assert arms.setdefault(variant.arm, same) == same
    runner = begin(
        [STUDIES["native"], STUDIES["maps"], STUDIES["kl"]],
        tmp_path,
        scale="tiny",
        device="cpu",
        seeds=2,
        steps=None,
        checkpoints={},
        resume=False,
    )
    native = ["text-alone", "native", "added-after-the-decay", "added-before-the-decay"]
    names = [*native, "MSA", "without-KL"]
    assert [job.id for job in runner.jobs()] == [f"{name}-{seed}" for seed in (0, 1) for name in names]
    assert measures_of(NATIVE) == ("text", "screens", "maps", "motion", "sight")


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
    assert 1 <= shown.turn < shown.frames == 8
    boxes = [next(w for w in frame if w.text == shown.mover) for frame in shown.episode.widgets]
    assert len({box[2:] for box in boxes}) == len(boxes) == 2
    dx, dy = (b - a for a, b in zip(boxes[0].centre, boxes[-1].centre, strict=True))
    assert {"left": dx < 0, "right": dx > 0, "up": dy < 0, "down": dy > 0}[shown.way]
    others = [[w for w in frame if w.text != shown.mover] for frame in shown.episode.widgets]
    assert others[0] == others[1]
    sample = drawn.motion_sample(SampleMaker(NANO, 0), shown, 4)
    order = [n for clip in sample.clips for n in clip]
    assert order == [0] * shown.turn + [1] * (8 - shown.turn)


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


KL, NO_KL = STUDIES["kl"].variants
PLAN = Plan("tiny", "cpu", 4, 768, "")


def without_times(out: Path) -> list[dict[str, Any]]:
    return [row | {"train_s": 0} for row in rows(out).values()]


class Killed(BaseException):
    """Ends a training where it is, as a kill does: nothing is saved on its way out."""


def test_a_training_goes_on_after_being_stopped_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotfish.model.training.train.SYNC_EVERY", 1)
    job = Training("added", 0, ADDED_AFTER)
    job.play(PLAN, tmp_path / "whole")
    out, one_step = tmp_path / "parts", TrialTrainer._one_step

    def stop(trainer: TrialTrainer, *given: Any) -> None:
        one_step(trainer, *given)
        if trainer.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def kill(trainer: TrialTrainer, *given: Any) -> None:
        one_step(trainer, *given)
        if trainer.step == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(TrialTrainer, "_one_step", stop)
        with pytest.raises(Stopped):
            job.play(PLAN, out)
    assert (job.folder(out) / "phase-0" / "checkpoint.pt").is_file()
    with monkeypatch.context() as patch:
        patch.setattr(TrialTrainer, "_one_step", kill)
        with pytest.raises(Killed):
            job.play(PLAN, out)
    assert not job.result(out).exists()
    job.play(PLAN, out, beside=2)
    (row,), (whole,) = without_times(out), without_times(tmp_path / "whole")
    assert row == whole | {"beside": 2}


ENDLESS = ["kl", "--steps", "100000", "--parallel", "2"]


def training(out: Path) -> bool:
    """Whether both trainings are at their steps."""
    said = [path.read_text() for path in out.rglob("said.txt")]
    return sum("M parameters" in one for one in said) == 2


def steps(out: Path) -> list[int]:
    """Where the checkpoints stand."""
    paths = sorted(out.rglob("checkpoint.pt"))
    return [torch.load(path, weights_only=True)["step"] for path in paths]


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 150
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_signal_stops_all_trainings_and_the_next_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()

    def stop() -> None:
        until(lambda: over.is_set() or training(tmp_path))
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=stop)
    watcher.start()
    try:
        assert study(*ENDLESS, "--out", str(tmp_path)) == 128 + signal.SIGTERM
    finally:
        over.set()
        watcher.join()
    said = capsys.readouterr().err
    assert said.endswith(f"Stopped; --resume goes on with {tmp_path}.\n")
    before = steps(tmp_path)
    assert len(before) == 2
    assert study(*ENDLESS, "--seconds", "2", "--resume", "--out", str(tmp_path)) == 0
    captured = capsys.readouterr()
    assert f"2 are left; --resume goes on with {tmp_path}." in captured.err
    assert "Nothing is finished yet." in captured.out
    assert all(now >= then for now, then in zip(steps(tmp_path), before, strict=True))


def test_trainings_save_and_end_when_who_began_them_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pilotfish.model.training.study", *ENDLESS, "--device", "cpu"]
    with subprocess.Popen([*command, "--seeds", "1", "--out", str(tmp_path)]) as process:
        try:
            until(lambda: training(tmp_path))
        finally:
            process.kill()

    def ended() -> bool:
        for path in tmp_path.rglob("said.txt"):
            with path.open("a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
        return True

    until(ended)
    assert all(step >= 10 for step in steps(tmp_path))
    assert len(steps(tmp_path)) == 2


def test_a_loss_that_is_no_number_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = TrialTrainer._build

    def broken(self: TrialTrainer) -> Any:
        trainee = build(self)
        with torch.no_grad():
            trainee.model.language_model.lm_head.weight.fill_(float("nan"))
        return trainee

    with monkeypatch.context() as patch:
        patch.setattr(TrialTrainer, "_build", broken)
        Training(KL.arm, 0, KL).play(PLAN, tmp_path)
    assert study("kl", "--out", str(tmp_path)) == 0
    results = rows(tmp_path)
    assert results["MSA-0"]["failed"].startswith("The loss of step 1 is no number (answer nan")
    assert "step 0 of seed 0, drawn in process" in results["MSA-0"]["failed"]
    assert results["without-KL-0"]["values"]["text"]["text loss"] > 0
    assert results["MSA-0"]["failed"] in (tmp_path / "kl.md").read_text()


def test_a_full_disk_keeps_what_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kl.md").symlink_to("/dev/full")
    assert study("kl", "--out", str(tmp_path)) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        f"{tmp_path} cannot be written (No space left on device); free some room. "
        "What is finished stays, and --resume goes on."
    )
    before = rows(tmp_path)
    assert list(before) == ["MSA-0"]
    (tmp_path / "kl.md").unlink()
    assert study("kl", "--resume", "--out", str(tmp_path)) == 0
    assert rows(tmp_path)["MSA-0"] == before["MSA-0"]
    assert len(rows(tmp_path)) == 2


def test_a_training_that_fails_is_named_and_the_others_are_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phase = tmp_path / "trials" / "MSA-0" / "phase-0"
    phase.mkdir(parents=True)
    (phase / "checkpoint.pt").write_text("damaged")
    assert study("kl", "--out", str(tmp_path)) == 1
    said = capsys.readouterr().err
    assert f"  {phase / 'checkpoint.pt'} is no whole checkpoint" in said
    assert said.endswith("MSA-0 failed, as said above; --resume tries again.\n")
    assert list(rows(tmp_path)) == ["without-KL-0"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["kl", "--seeds", "0"], "--seeds is 0; give a number above 0."),
        (["kl", "--parallel", "0"], "--parallel is 0; give a number above 0."),
        (["kl", "--seconds", "nan"], "--seconds is nan; give a number above 0."),
        (["kl"], "holds studies already; --resume goes on with them, or give another --out."),
        (["kl", "--resume", "--steps", "5"], "--steps is 5, and 6 in "),
        (["kl", "--resume", "--scale", "small"], "--scale is 'small', and 'tiny' in "),
        (["kl", "--resume"], "trainings would not meet the same text; go on with the version of Python"),
        (["native", "--checkpoint", "nano"], "--checkpoint is for recall and maps"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = replace(PLAN, steps=6, text="3 files, abc")
    (tmp_path / "plan.json").write_text(json.dumps(asdict(plan)))
    assert main([*flags, "--device", "cpu", "--out", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
