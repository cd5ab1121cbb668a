"""Sequences of episodes in which something else was done than is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pilotfish.agent.prompt import PRUNED_CLIP
from pilotfish.model.training.loader import EpisodeBatches, Mix, Stream
from pilotfish.model.training.samples import Sample, SampleMaker
from pilotfish.model.training.shards import read_shard
from pilotfish.model.training.trainee import NANO
from pilotfish.tasks.episodes.shards import Episode, write_shard


def typed(text: str) -> dict[str, object]:
    return {"action": "type", "text": text}


def corrected(steps: int, wrong: set[int]) -> Episode:
    """An episode whose labels are r0, r1, ... and where w<n> was done instead at the wrong steps."""
    episode = Episode(
        "t", 0, "Do it.", True, [b"png%d" % n for n in range(steps)], [[]] * steps, [[]] * steps
    )
    for n in range(steps):
        row = {"frame": n, "action": typed(f"r{n}"), "train": True, "box": None}
        episode.steps.append(row | ({"taken": typed(f"w{n}")} if n in wrong else {}))
    return episode


@pytest.fixture(scope="module")
def maker() -> SampleMaker:
    return SampleMaker(NANO, 0)


def said(maker: SampleMaker, sample: Sample) -> tuple[str, str]:
    """The whole text, and what of it is trained on."""
    ids = np.asarray(sample.ids)
    target = np.asarray(sample.weights) > 0
    return maker.tokenizer.decode(ids.tolist()), maker.tokenizer.decode(ids[target].tolist())


def test_a_label_ends_its_sequence_and_what_was_done_is_context_only(
    maker: SampleMaker, tmp_path: Path
) -> None:
    write_shard(tmp_path / "shard-c000-000000.bin", [corrected(4, {1, 2})])
    (episode,) = read_shard(tmp_path / "shard-c000-000000.bin")
    text, trained = said(maker, maker.episode(episode, 3))
    for word in ("r0", "w1", "r2"):
        assert f"<text>{word}]" in text
    assert "w2" not in text
    assert "r3" not in text
    assert "r0" in trained
    assert "r2" in trained
    assert "w1" not in trained
    assert "r1" not in text
    text, trained = said(maker, maker.episode(episode, 4))
    assert [word in trained for word in ("r0", "r1", "r2", "r3", "w1", "w2")] == [
        True,
        *[False] * 2,
        True,
        *[False] * 2,
    ]
    assert [word in text for word in ("w1", "w2")] == [True, True]
    kinds = {said(maker, maker.episode(episode))[1].count("<text>") for _ in range(40)}
    assert kinds == {2}


def test_wrong_steps_before_a_pruning_stay_in_the_context(maker: SampleMaker, tmp_path: Path) -> None:
    write_shard(tmp_path / "shard-c000-000000.bin", [corrected(9, {0, 7})])
    (episode,) = read_shard(tmp_path / "shard-c000-000000.bin")
    text, trained = said(maker, maker.episode(episode, 8))
    assert text.count(PRUNED_CLIP) == 4
    assert "w0" in text
    assert "r0" not in text
    assert [f"r{n}" in trained for n in range(8)] == [False] * 6 + [True, True]


def test_corrections_get_their_share_of_the_draws(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a", tmp_path / "b"
    for folder, task in ((ours, "own"), (theirs, "corrected")):
        folder.mkdir()
        write_shard(folder / "shard-0-0.bin", [corrected(2, set())])
        episode = corrected(2, {0})
        episode.task = task
        write_shard(folder / "shard-0-0.bin", [episode])
    data = EpisodeBatches(ours, NANO, Mix(correction_share=0.25), 0, theirs)
    stream = Stream(data, 0)

    def visit() -> str:
        stream.visit, stream.shard = stream.visit + 1, ""
        return stream._visit()[0].task

    tasks = [visit() for _ in range(400)]
    assert 60 < tasks.count("corrected") < 140
    theirs.joinpath("shard-0-0.bin").unlink()
    assert {visit() for _ in range(20)} == {"own"}
