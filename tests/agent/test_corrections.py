"""A model plays pages and its expert says what is right: the whole command, on the model that ships."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

import pytest

from pilotfish.agent.corrections import Corrector, Teaching, doable, main
from pilotfish.model.training.loader import EpisodeBatches, Mix
from pilotfish.model.training.trainee import NANO
from pilotfish.tasks.episodes.corrections import Mixture
from pilotfish.tasks.episodes.expert_tools import EXPERTS
from pilotfish.tasks.episodes.play import Options
from pilotfish.tasks.episodes.record import settings_of
from pilotfish.tasks.episodes.shards import read_shard

_spec = importlib.util.find_spec("miniwob")
MINIWOB = Path(_spec.submodule_search_locations[0]) if _spec and _spec.submodule_search_locations else None
WORDS = ["--miniwob", str(MINIWOB), "--workers", "1"]


def test_only_whole_actions_are_done() -> None:
    assert doable({"action": "left_click", "coordinate": [1, 1000]}) is not None
    assert doable({"action": "wait"}) == {"action": "wait"}
    for arguments in (
        {},
        {"action": "zoom"},
        {"action": "left_click"},
        {"action": "left_click", "coordinate": [1, 1001]},
        {"action": "left_click", "coordinate": [1]},
        {"action": "left_click_drag", "coordinate": [1, 1]},
        {"action": "scroll", "coordinate": [1, 1]},
        {"action": "type"},
    ):
        assert doable(arguments) is None


def test_what_is_wrong_with_the_command_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (["--model", str(tmp_path)], "config.json"),
        (["--model", "nono"], "there is no model 'nono'; give nano, or the folder of a checkpoint."),
        (["--model", "nano", "--expert", "2"], "--expert is 2; give a share from 0 to 1."),
    ):
        assert main([*WORDS, "--browser", "none", "--out", str(tmp_path / "out"), *words]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert said in told


@pytest.mark.skipif(
    MINIWOB is None or shutil.which("chromium-headless-shell") is None,
    reason="needs chromium-headless-shell and the miniwob package",
)
def test_a_model_plays_and_its_shards_are_read_by_the_trainer(tmp_path: Path) -> None:
    mix, out = tmp_path / "mix.json", tmp_path / "out"
    mix.write_text(json.dumps({"click-button": 1, "enter-text": 1, "page-fill": 1}))
    words = ["--out", str(out), "--mix", str(mix), "--shard-episodes", "1", "--keep-right", "1"]
    words += ["--device", "cpu", "--pages", "2", "--wrong", "1"]
    env = os.environ | {"DISPLAY": ""}
    done = subprocess.run(
        [sys.executable, "-m", "pilotfish.agent.corrections", *WORDS, *words, "--episodes", "1"],
        capture_output=True,
        text=True,
        timeout=170,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "as the expert" in done.stdout
    shards = sorted(out.glob("shard-c000-*.bin"))
    episodes_kept = [episode for path in shards for episode in read_shard(path)]
    assert len(episodes_kept) > 0
    assert len({(episode.task, episode.seed) for episode in episodes_kept}) == len(episodes_kept)
    drawn = json.loads((out / "drawn-c000.json").read_text())["drawn"]
    assert drawn > 0
    # The same command goes on behind what is there, and another seed begins anew beside it.
    for seed, begin in ((0, drawn), (1, 0)):
        given = argparse.Namespace(
            browser="none",
            bundle=None,
            miniwob=MINIWOB,
            out=out,
            mix=mix,
            seed=seed,
            pages=1,
            shard_episodes=1,
            max_shards=0,
            validation=False,
        )
        teaching = Teaching(NANO, "cpu", "sparse", 0.0, Mixture(), 1.0, follow=False)
        worker = Corrector(teaching, 0, settings_of(given, Options()), Pipe()[1])
        assert (worker._drawn, worker._shards) == (begin, len(shards))
    assert {episode.task for episode in episodes_kept} <= {*EXPERTS, "page-fill"}
    data = EpisodeBatches(out, NANO, Mix(tokens=4608, question_share=0, text_share=0, copy_share=0), 0)
    batch = next(iter(data))
    assert batch.weights.sum() > 0
