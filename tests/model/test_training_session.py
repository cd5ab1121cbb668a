"""A training session that goes on as if it had never stopped, and what it says where it cannot."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file

from pilotfish.model.checkpoint import load
from pilotfish.model.training.journal import picture, read_log
from pilotfish.model.training.loader import EpisodeBatches, Mix
from pilotfish.model.training.settings import Settings, TrainingError, read_config
from pilotfish.model.training.train import Trainer, export, main
from pilotfish.model.training.trainee import NANO
from pilotfish.tasks.episodes.shards import Episode, write_shard

SIZES = {
    "text": {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 2, "head_dim": 32}
    | {"rotary_dim": 16, "dense_intermediate_size": 64, "num_local_experts": 4, "topk_blocks": 2}
    | {"index_dim": 32},
    "vision": {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32},
}
TINY: dict[str, Any] = {
    "sizes": SIZES,
    "device": "cpu",
    "bf16": False,
    "tokens": 1300,
    "workers": 0,
    "steps": 8,
}
TINY |= {"seconds": 1e6, "warmup": 2, "log_every": 2, "width": 84, "height": 56, "dense_share": 0.4}


def drawn(seed: int) -> Episode:
    draw = random.Random(seed)
    episode = Episode("drawn", seed, f"Click {seed}.", True, width=84, height=56)
    for n in range(1 + seed % 3):
        shown = Image.new("RGB", (84, 56), "white")
        x, y = draw.randrange(40), draw.randrange(30)
        ImageDraw.Draw(shown).rectangle((x, y, x + 30, y + 14), fill="#999")
        png = io.BytesIO()
        shown.save(png, "PNG")
        episode.frames.append(png.getvalue())
        episode.widgets.append([(f"w{seed}", "button", x, y, x + 30, y + 14)])
        episode.letters.append([("w", x + 5, y + 7)])
        click = {"action": "left_click", "coordinate": [x * 11, y * 17]}
        episode.steps.append({"frame": n, "action": click, "train": True, "box": [x, y, x + 30, y + 14]})
    return episode


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        write_shard(folder / f"shard-0-{number}.bin", [drawn(10 * number + n) for n in range(10)])
    return folder


def losses(folder: Path) -> list[dict[str, Any]]:
    clock = ("s", "tok_s", "rows_s", "waited")
    return [
        {k: v for k, v in record.items() if k not in clock} for record in read_log(folder / "train.jsonl")
    ]


@pytest.mark.parametrize("stop", [3, 4])
def test_it_goes_on_with_the_same_losses(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    monkeypatch.setattr("pilotfish.model.training.train.SYNC_EVERY", 1)
    given = tmp_path / "given"
    given.mkdir()
    export(Trainer(Settings(str(shards), str(given), **TINY)).model, given)
    Trainer(Settings(str(shards), str(tmp_path / "whole"), init=str(given), **TINY)).run()
    parts = Settings(str(shards), str(tmp_path / "parts"), init=str(given), **TINY)
    first = Trainer(parts)
    one_step = first._one_step

    def then_stop(*arguments: Any) -> None:
        one_step(*arguments)
        first.stopping = first.step == stop

    monkeypatch.setattr(first, "_one_step", then_stop)
    first.run()
    with (tmp_path / "parts" / "train.jsonl").open("a") as file:
        file.write('{"step": 7, "answer": 9.0}\n{"step": 8, "ans')  # of a process that was killed later
    shutil.rmtree(given)  # which only a session that begins reads
    Trainer(parts, go_on=True).run()
    whole = losses(tmp_path / "whole")
    assert [record["step"] for record in whole] == [2, 4, 6, 8]
    assert losses(tmp_path / "parts") == whole
    one, two = (torch.load(tmp_path / name / "checkpoint.pt") for name in ("whole", "parts"))
    assert all(torch.equal(value, two["masters"][name]) for name, value in one["masters"].items())
    assert (tmp_path / "parts" / "train.svg").read_text().count("<polyline") == 3
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / "parts" / name).is_file()
    with pytest.raises(TrainingError, match=r"has finished; give another out, or begin a new one"):
        Trainer(parts, go_on=True)


def test_a_model_goes_on_with_more_positions(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Settings(str(shards), str(tmp_path / "first"), **TINY | {"steps": 1})
    Trainer(first).run()
    text = SIZES["text"] | {"max_position_embeddings": 131_072}
    longer = TINY | {"sizes": SIZES | {"text": text}, "steps": 1}
    given = Trainer(Settings(str(shards), str(tmp_path / "longer"), init=str(tmp_path / "first"), **longer))
    state = load_file(tmp_path / "first" / "model.safetensors")
    for name, value in given.model.state_dict().items():
        assert torch.equal(value.bfloat16(), state[name]), name
    given.run()
    written = json.loads((tmp_path / "longer" / "config.json").read_text())
    assert written["text_config"]["max_position_embeddings"] == 131_072
    assert load(tmp_path / "longer", torch.device("cpu"))[0].config.text.max_position_embeddings == 131_072


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_losses_twice_and_after_a_kill(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotfish.model.training.train.SYNC_EVERY", 1)
    text = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "rotary_dim": 32}
    sizes = {"text": SIZES["text"] | text | {"index_dim": 64}, "vision": SIZES["vision"]}
    gpu = TINY | {"device": "cuda", "bf16": True, "sizes": sizes, "log_every": 1, "steps": 12}
    for name in ("once", "twice"):
        Trainer(Settings(str(shards), str(tmp_path / name), **gpu)).run()
    whole = losses(tmp_path / "once")
    assert len(whole) == 12
    assert losses(tmp_path / "twice") == whole
    given = Settings(str(shards), str(tmp_path / "killed"), **gpu)
    first = Trainer(given)
    one_step = first._one_step

    def then_die(*arguments: Any) -> None:
        if first.step == 7:
            raise KeyboardInterrupt  # nothing is saved on the way out
        one_step(*arguments)
        if first.step == 5:
            first.save(done=False)

    monkeypatch.setattr(first, "_one_step", then_die)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    Trainer(given, go_on=True).run()
    assert losses(tmp_path / "killed") == whole


def test_streams_go_on_where_they_stood_in_several_processes(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pilotfish.model.training.loader import batches

    mix = Mix(tokens=1300, question_share=0.4, text_share=0.2, copy_share=0.2)
    whole = batches(EpisodeBatches(shards, NANO, mix, 5), 2)
    taken = [next(whole) for _ in range(9)]
    assert [batch.stream for batch in taken] == [0, 1] * 4 + [0]
    cursors = {batch.stream: batch.cursor for batch in taken[:5]}
    again = batches(EpisodeBatches(shards, NANO, mix, 5, cursors=cursors, first=1), 2)
    for expected in taken[5:]:
        batch = next(again)
        assert (batch.stream, batch.cursor) == (expected.stream, expected.cursor)
        assert torch.equal(batch.ids, expected.ids)
        assert torch.equal(batch.weights, expected.weights)


def test_a_damaged_shard_is_left_out_and_told_once(
    shards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 1):
        path = shards / f"shard-0-{number}.bin"
        path.write_bytes(path.read_bytes()[: 60 if number else -5])
    stream = iter(EpisodeBatches(shards, NANO, Mix(tokens=1300), 1))
    for _ in range(30):
        assert "shard-0-2.bin" in next(stream).origin
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert all(line.startswith("left out: ") and line.endswith("record it again.") for line in told)


def test_a_full_disk_keeps_the_last_checkpoint(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    settings = Settings(str(shards), str(out), **TINY | {"steps": 2})
    trainer = Trainer(settings)
    trainer.save(done=False)
    before = (out / "checkpoint.pt").read_bytes()
    (out / "checkpoint.tmp").symlink_to("/dev/full")
    said = r"checkpoint\.tmp cannot be written \(No space left on device\); .* The checkpoint of step 0"
    with pytest.raises(TrainingError, match=said):
        trainer.run()
    assert (out / "checkpoint.pt").read_bytes() == before
    assert not (out / "checkpoint.tmp").exists()


def test_a_loss_that_is_no_number_names_its_batch_and_keeps_the_checkpoint(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(Settings(str(shards), str(tmp_path / "out"), **TINY))
    trainer.save(done=False)
    kept = (tmp_path / "out" / "checkpoint.pt").read_bytes()
    with torch.no_grad():
        trainer.model.language_model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(TrainingError, match=r"step 1 is no number \(answer nan.*stream 0, .*shard-0-\d\.bin"):
        trainer.run()
    assert (tmp_path / "out" / "checkpoint.pt").read_bytes() == kept


def test_what_a_session_cannot_begin_with_is_one_sentence(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(TrainingError, match=r"There is no checkpoint .*; begin without it"):
        Trainer(Settings(str(shards), str(out), **TINY), go_on=True)
    Trainer(Settings(str(shards), str(out), **TINY)).save(done=False)
    larger = {"sizes": {**SIZES, "text": {**SIZES["text"], "hidden_size": 96}}}
    with pytest.raises(TrainingError, match=r"is of a model of other sizes: .* instead of"):
        Trainer(Settings(str(shards), str(out), **TINY | larger), go_on=True)
    with pytest.raises(TrainingError, match=r"^muon_lr is 0\.5, and 0\.0015 in the session in"):
        Trainer(Settings(str(shards), str(out), **TINY | {"muon_lr": 0.5}), go_on=True)
    impossible = {"sizes": {**SIZES, "text": {**SIZES["text"], "num_key_value_heads": 7}}}
    with pytest.raises(TrainingError, match=r"make no model \(2 query heads are no multiple of 7"):
        Trainer(Settings(str(shards), str(out), **TINY | impossible))
    (out / "checkpoint.pt").write_bytes(b"PK half")
    with pytest.raises(TrainingError, match="is no whole checkpoint"):
        Trainer(Settings(str(shards), str(out), **TINY), go_on=True)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(TrainingError, match="There is no folder of shards"):
        Trainer(Settings(str(tmp_path / "none"), str(out), **TINY)).run()
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrainingError, match=r"holds no shard after 0\.1 s"):
        Trainer(Settings(str(tmp_path / "empty"), str(out), **TINY, patience=0.1)).run()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shards = ", "is no TOML"),
        ('out = "o"', "lacks shards"),
        ('shards = "s"\nout = "o"\nstep = 3', "has 'step'; the nearest is 'steps'"),
        ('shards = "s"\nout = "o"\nsteps = "3"', "has steps = '3'; give a whole number"),
        ('shards = "s"\nout = "o"\nsteps = 0', "steps is 0; give a number above 0"),
        ('shards = "s"\nout = "o"\nmuon_lr = nan', "muon_lr is nan; give a finite number"),
        ('shards = "s"\nout = "o"\ncopy_share = 1.5', "copy_share is 1.5; give a share from 0 to 1"),
        ('shards = "s"\nout = "o"\ncopy_share = 0.9', "are 1.46 together; give at most 1"),
        ('shards = "s"\nout = "o"\nwidth = 300', "width is 300; give a multiple of 28"),
        ('shards = "s"\nout = "o"\ndevice = "gpu"', "device is 'gpu'; give cuda or cpu"),
        ('shards = "s"\nout = "o"\n[sizes.text]\nhiden_size = 8', "the nearest is 'hidden_size'"),
        ('shards = "s"\nout = "o"\n[sizes.text]\nhidden_size = -8', "sizes.text.hidden_size is -8"),
        ('shards = "s"\nout = "o"\n[sizes.audio]\na = 8', "sizes has 'audio'; it may have text and vision"),
        ('shards = "s"\nout = "o"\nresume = "a"\ninit = "b"', "exclude each other"),
    ],
)
def test_a_config_that_is_wrong_is_one_sentence(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.toml"
    path.write_text(text)
    assert main([str(path)]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert str(path) in told


def test_true_is_no_number_in_a_config(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    numbers = {name: value for name, value in vars(Settings("s", "o")).items() if type(value) in (int, float)}
    assert len(numbers) > 25
    for name, value in numbers.items():
        for word in ("true", "false"):
            path.write_text(f'shards = "s"\nout = "o"\n{name} = {word}')
            wants = "a whole number" if isinstance(value, int) else "a number"
            with pytest.raises(TrainingError, match=rf"has {name} = {word.title()}; give {wants}\."):
                read_config(path)
    for name in ("bf16", "compile", "deterministic"):
        path.write_text(f'shards = "s"\nout = "o"\n{name} = 1')
        with pytest.raises(TrainingError, match=f"has {name} = 1; give true or false"):
            read_config(path)
    path.write_text('shards = "s"\nout = "o"\n[sizes.text]\nhidden_size = true')
    with pytest.raises(TrainingError, match=r"sizes\.text\.hidden_size is True; give a number above 0"):
        read_config(path)


def test_a_config_has_a_field_for_every_flag(tmp_path: Path) -> None:
    fields = {**vars(Settings("s", "o")), "sizes": SIZES}
    lines = [f"{k} = {json.dumps(v)}" for k, v in fields.items() if k != "sizes"]
    for part, values in SIZES.items():
        lines += [f"[sizes.{part}]", *(f"{k} = {v}" for k, v in values.items())]
    (tmp_path / "train.toml").write_text("\n".join(lines))
    assert vars(read_config(tmp_path / "train.toml")) == fields
    page = (Path(__file__).parents[2] / "docs" / "model.md").read_text("utf-8")
    assert [name for name in fields if f"`{name}`" not in page and name != "sizes"] == []
    assert "polyline" not in picture([])


def test_the_command_trains_and_goes_on(shards: Path, tmp_path: Path) -> None:
    config = tmp_path / "train.toml"
    keys = {**TINY, "shards": str(shards), "out": str(tmp_path / "out"), "copy_share": 1.0}
    keys |= {"question_share": 0, "text_share": 0, "log_every": 1, "steps": 5000, "workers": 1}
    lines = [f"{k} = {json.dumps(v)}" for k, v in keys.items() if k != "sizes"]
    for part, values in SIZES.items():
        lines += [f"[sizes.{part}]", *(f"{k} = {v}" for k, v in values.items())]
    config.write_text("\n".join(lines))
    command = [sys.executable, "-m", "pilotfish.agent.cli", "train", str(config)]
    steps = []
    for number in (signal.SIGINT, signal.SIGTERM):
        log = tmp_path / "out" / "train.jsonl"
        began = len(read_log(log))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 200
        while len(read_log(log)) < began + 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        os.killpg(process.pid, number)  # as a terminal, `timeout` or a service manager does
        assert process.wait(200) == 128 + number
        steps.append(torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)["step"])
    assert steps[1] > steps[0] > 0
    assert [record["step"] for record in read_log(log)] == list(range(1, steps[1] + 1))


def test_the_config_that_ships_is_read() -> None:
    path = NANO.parent / "training" / "data" / "train_v2.toml"
    assert read_config(path, seconds=300.0).seconds == 300
    assert read_config(path).init == "model/nano"
