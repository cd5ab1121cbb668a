"""Edits recorded as conversations, from the recorder to one step of training."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from pilotfish.agent import prompt
from pilotfish.agent.code import TOOLS
from pilotfish.agent.edit_episodes import Settings as Recorder
from pilotfish.agent.edit_episodes import Stage, main
from pilotfish.agent.querying import specs_of
from pilotfish.model.protocol import Message
from pilotfish.model.tokenizer import Tokenizer
from pilotfish.model.training.journal import read_log
from pilotfish.model.training.loader import Batch, EpisodeBatches, Mix
from pilotfish.model.training.samples import SampleMaker
from pilotfish.model.training.settings import Settings, TrainingError
from pilotfish.model.training.texts import TextEpisode, read_texts, write_texts
from pilotfish.model.training.train import Trainer
from pilotfish.model.training.trainee import NANO
from pilotfish.tasks.edits.family import make_ground, make_task
from pilotfish.tasks.edits.sources import read_package
from pilotfish.tasks.episodes.record import record
from pilotfish.tools.registry import make_tools

SIZES = {
    "text": {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 2, "head_dim": 16}
    | {"rotary_dim": 8, "dense_intermediate_size": 32, "num_local_experts": 4, "topk_blocks": 2}
    | {"index_dim": 16},
    "vision": {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards or more of a real recorder's."""
    folder = tmp_path_factory.mktemp("edits")
    flags = "--workers 1 --packages json,html --episodes 40 --shard-episodes 16 --slips 0.5"
    command = [sys.executable, "-m", "pilotfish.agent.edit_episodes", "--out", str(folder)]
    limits = ["--index-tokens", "1500", "--seconds", "140"]
    done = subprocess.run([*command, *flags.split(), *limits], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return folder


def read_all(folder: Path) -> list[TextEpisode]:
    return [episode for path in sorted(folder.glob("texts-*.bin")) for episode in read_texts(path)]


def text_of(turn: Message) -> str:
    return "".join(part for part in turn.parts if isinstance(part, str))


def test_what_is_recorded_is_what_the_agent_says(recorded: Path) -> None:
    episodes = read_all(recorded)
    assert len(episodes) >= 40
    assert {episode.task for episode in episodes} == {"edit-rename", "edit-value", "edit-mend"}
    roles = ["developer", "user", "assistant"]
    slips = 0
    for episode in episodes:
        assert [turn.role for turn in episode.turns[:3]] == roles
        assert episode.turns[0] == prompt.developer_turn()
        assert episode.tools == specs_of(make_tools(TOOLS))
        laid, asked = episode.turns[1].parts
        assert str(laid).startswith("The repository as it was when this work began")
        assert "How to work:" in str(asked)
        answers = [turn for turn in episode.turns if turn.role == "assistant"]
        assert [len(turn.tool_calls) for turn in answers] == [1] * (len(answers) - 1) + [0]
        assert len(answers) == len(episode.trained)
        assert episode.trained[-1]
        slips += episode.trained.count(False)
        used = {call.name for turn in answers for call in turn.tool_calls}
        assert used == {"index", "edit"}
    assert slips > len(episodes) // 10
    refused = [turn for episode in episodes for turn in episode.turns if text_of(turn).startswith("edit: ")]
    assert refused  # slips that the real tool refused


def test_the_same_seed_plays_the_same_conversation() -> None:
    tokenizer = Tokenizer.from_folder(NANO)

    def played() -> list[TextEpisode | None]:
        ground = make_ground("json", read_package("json"), 3)
        with Stage(ground, lambda text: len(tokenizer.encode(text)), random.Random(5)) as stage:
            layout = stage.lay_out(40_000)
            assert layout.files
            return [stage.play(make_task(ground, seed), seed, layout, 40_000, slips=0.5) for seed in range(6)]

    first = played()
    assert first == played()
    for episode in first:
        assert episode is not None
        told = [
            turn for turn in episode.turns[3:] if "Files that were laid out have changed" in text_of(turn)
        ]
        assert told  # all files stand before the task, so each change of one is told


def test_only_turns_to_be_imitated_have_weight(recorded: Path) -> None:
    maker = SampleMaker(NANO, 0)
    episode = next(one for one in read_all(recorded) if False in one.trained)
    sample = maker.dialogue(episode)
    text = maker.tokenizer.decode([int(n) for n, w in zip(sample.ids, sample.weights, strict=True) if w > 0])
    calls = [turn.tool_calls[0] for turn in episode.turns if turn.tool_calls]
    for call, right in zip(calls, episode.trained, strict=False):
        words = [str(value) for value in call.arguments.values()]
        if right:
            assert all(word in text for word in words if "[" not in word and word != "True")
    assert text_of(episode.turns[-1]) in text
    assert "The repository as it was" not in text


def test_a_shard_that_is_damaged_is_named(recorded: Path, tmp_path: Path) -> None:
    whole = next(iter(sorted(recorded.glob("texts-*.bin")))).read_bytes()
    path = tmp_path / "texts-x.bin"
    for data in (whole[:-9], whole[:2000], whole[:30] + b"\0" + whole[31:], b"", b"PFSHARD1" + bytes(20)):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"texts-x\.bin is (cut short|no shard)"):
            read_texts(path)
    write_texts(path, read_all(recorded)[:3])
    assert read_texts(path) == read_all(recorded)[:3]


def stream(folder: Path, cursors: dict[int, Any] | None = None) -> Iterator[Batch]:
    mix = Mix(9_000, edit_share=1.0, longest=8_192)
    return iter(EpisodeBatches(folder, NANO, mix, 3, None, cursors, 0, folder))


def test_batches_of_long_sequences_go_on_where_they_stopped(recorded: Path) -> None:
    first = list(islice(stream(recorded), 7))
    assert all(batch.ids.shape[1] <= 8_192 for batch in first)
    again = list(islice(stream(recorded, {0: first[2].cursor}), 4))
    for one, other in zip(first[3:], again, strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.weights, other.weights)
        assert one.cursor == other.cursor
        assert "texts-000-" in one.origin


@pytest.mark.parametrize(("longest", "last"), [(1_000, 896), (4_608, 4_096), (40_000, 32_768)])
def test_no_sequence_is_longer_than_the_longest(longest: int, last: int) -> None:
    assert Mix(longest=longest).buckets()[-2:] == (last, longest)


def test_a_step_is_trained_on_them(recorded: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    few.mkdir()
    maker = SampleMaker(NANO, 0)
    short = sorted(read_all(recorded), key=lambda episode: len(maker.dialogue(episode).ids))[:4]
    write_texts(few / "texts-0-0.bin", short)
    out = tmp_path / "out"
    settings = Settings(
        str(few),
        str(out),
        edits=str(few),
        edit_share=1.0,
        longest=8_192,
        tokens=8_192,
        sizes=SIZES,
        device="cpu",
        bf16=False,
        workers=0,
        steps=2,
        seconds=1e6,
        log_every=1,
        width=84,
        height=56,
    )
    Trainer(settings).run()
    records = read_log(out / "train.jsonl")
    assert [record["step"] for record in records] == [1, 2]
    assert all(0 < record["answer"] < 20 for record in records)


def test_a_batch_that_could_hold_no_sequence_is_refused() -> None:
    with pytest.raises(TrainingError, match="longest is 16384 and tokens 8192"):
        Settings("shards", "out", tokens=8_192, longest=16_384)


@dataclass(frozen=True)
class Slow:
    """A worker that is told to stop while it is made."""

    number: int
    settings: Recorder
    report: Connection

    def __post_init__(self) -> None:
        time.sleep(30)

    async def run(self) -> None:
        (self.settings.out / "began").touch()


def test_a_worker_that_is_stopped_before_it_records_never_does(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, (), 500, 0.0, 0, 1)
    assert record(recorder, 1, 0.1, None, make=Slow).kept == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--packages", "jinja2"], "jinja2 is or holds jinja2, which is kept for measuring"),
        (["--packages", "json,starlette"], "starlette is or holds starlette"),
        (["--packages", str(Path(__file__).parent / "tui" / "pictures")], "holds no Python source"),
        (["--packages", "no_such_thing"], "There is no package 'no_such_thing' here"),
        (["--index-tokens", "20"], "--index-tokens is 20; give at least 500."),
        (["--slips", "2"], "--slips is 2; give a share from 0 to 1."),
        (["--workers", "0"], "--workers is 0; give at least 1."),
    ],
)
def test_what_cannot_be_recorded_is_refused(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(tmp_path / "out"), *flags]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_package_without_a_place_for_an_edit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "a.py").write_text("x = []\n")
    out = tmp_path / "out"
    assert main(["--out", str(out), "--seconds", "1", "--packages", str(tmp_path / "tiny")]) == 2
    assert "tiny has no place for an edit; name a larger package." in capsys.readouterr().err


def test_the_packages_are_listed_with_their_licences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| package | version | licence | files |"
    assert any(line.startswith("| h11 | ") and "| MIT" in line for line in lines)
    assert not any(line.startswith(("| jinja2 ", "| click ", "| starlette ")) for line in lines)
