"""Training sessions: several processes, resuming, stopping, a loss that is no number."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pilotfish.model.training.drills import copies
from pilotfish.model.training.journal import Journal
from pilotfish.model.training.loader import collate
from pilotfish.model.training.parallel import Group
from pilotfish.model.training.samples import SampleMaker
from pilotfish.model.training.settings import Settings, TrainingError, parse_settings
from pilotfish.model.training.train import Trainer, schedule
from pilotfish.model.training.trainee import NANO
from pilotfish.tasks.episodes import shards as recorder_shards

TINY = {"tokens": 700, "workers": 0, "device": "cpu", "warmup": 1, "log_every": 1, "text_share": 0.0}
TINY |= {"copy_share": 1.0, "question_share": 0.0}


@pytest.fixture(scope="module")
def shard_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One episode: copying asks for nothing of it, but a folder of shards may not be empty."""
    folder = tmp_path_factory.mktemp("shards")
    step = {"frame": 0, "action": {"action": "done"}, "train": True, "box": None}
    episode = recorder_shards.Episode("t", 0, "", True, [b"png"], [[]], [[]], [step])
    recorder_shards.write_shard(folder / "shard-0-0.bin", [episode])
    return folder


MEMBER = """
import json, torch
from pilotfish.model.training.parallel import Group
group = Group.from_environment("cpu")
both, one = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2))
both.grad = torch.full((3,), float(group.rank + 1))
if group.rank == 1:
    one.grad = torch.ones(2, 2)
group.average_gradients([both, one])
agreed = group.agree(float(group.rank + 5), "cpu")
print(json.dumps([both.grad.tolist(), one.grad.tolist(), agreed, group.leads]))
group.close()
"""


def test_two_processes_share_the_mean_gradient_and_the_clock() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER],
            env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    first, second = (json.loads(member.communicate(timeout=100)[0]) for member in members)
    assert first == [[1.5, 1.5, 1.5], [[0.5, 0.5], [0.5, 0.5]], 5.0, True]
    assert second == [*first[:3], False]


def test_a_session_resumes_where_it_stopped(shard_folder: Path, tmp_path: Path) -> None:
    first = Trainer(Settings(str(shard_folder), str(tmp_path / "a"), steps=10, **TINY))
    first.run()
    resumed = Trainer(
        Settings(
            str(shard_folder), str(tmp_path / "b"), steps=10, resume=str(tmp_path / "a/checkpoint.pt"), **TINY
        )
    )
    assert resumed.step == 10
    for name, p in resumed.masters.named.items():
        torch.testing.assert_close(p, first.masters.named[name])
    for ours, theirs in zip(resumed.optimisers, first.optimisers, strict=True):
        assert str(ours.state_dict()["state"].keys()) == str(theirs.state_dict()["state"].keys())
    exported = load_file(tmp_path / "a" / "model.safetensors")
    assert all(v.dtype == torch.bfloat16 for v in exported.values())
    lines = [json.loads(line) for line in (tmp_path / "a/train.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 11))


def test_a_session_begins_with_an_exported_model_and_its_heads_first(
    shard_folder: Path, tmp_path: Path
) -> None:
    trainer = Trainer(Settings(str(shard_folder), str(tmp_path), init=str(NANO), **TINY))
    for name, value in load_file(NANO / "model.safetensors").items():
        ours = trainer.masters.named.get(f"model.{name}", trainer.model.state_dict()[name])
        assert torch.equal(ours.float(), value.float()), name
    for part in ("heads.", ""):
        for p in trainer.masters.live.values():
            p.grad = torch.ones_like(p)
        trainer.masters.take_gradients(Group(), part)
        moved = {name for name, p in trainer.masters.named.items() if p.grad is not None}
        assert moved == {name for name in trainer.masters.named if name.startswith(part)}
        assert moved


def test_a_signal_ends_a_session_with_a_checkpoint(shard_folder: Path, tmp_path: Path) -> None:
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in TINY.items()]
    command = [sys.executable, "-m", "pilotfish.model.training.train", *flags]
    command += ["--shards", str(shard_folder), "--out", str(tmp_path), "--seconds", "600"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (tmp_path / "train.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(90) == 0
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["step"] >= 1


def test_a_loss_that_is_no_number_stops_before_anything_is_saved(tmp_path: Path) -> None:
    maker = SampleMaker(NANO, 0)
    journal = Journal(tmp_path / "train.jsonl", 25)
    batch = collate([copies(maker, 1)], maker.tokenizer.eos_id)
    batch.origin = "of stream 3, sequences 1 to 9, made of shard-0-0.bin"
    journal.add(6, {"answer": torch.tensor(1.0)}, batch, 0.0)
    journal.add(7, {"answer": torch.tensor(float("nan")), "kl": torch.tensor(2.0)}, batch, 0.0)
    said = r"step 7 is no number \(answer nan\); its batch is of stream 3, .*shard-0-0\.bin"
    with pytest.raises(TrainingError, match=said):
        journal.write(7, 1.0, 0.1)
    assert not (tmp_path / "train.jsonl").exists()


def test_the_rate_warms_up_and_decays_to_zero() -> None:
    s = Settings("", "", warmup=10, decay_share=0.5)
    assert schedule(0.0, 0, s) == pytest.approx(0.1)
    assert schedule(0.4, 100, s) == 1.0
    assert schedule(0.75, 100, s) == pytest.approx(0.5)
    assert schedule(1.0, 100, s) == 0.0


def test_flags_set_the_fields_of_the_same_name() -> None:
    words = ["--shards", "a", "--out", "b", "--muon-lr", "0.5", "--bf16", "false", "--steps", "3"]
    s, go_on = parse_settings(words)
    assert not go_on
    assert (s.shards, s.out, s.muon_lr, s.bf16, s.steps) == ("a", "b", 0.5, False, 3)
