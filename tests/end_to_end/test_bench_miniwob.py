"""The whole of MiniWoB++ in one report: what is held out, what others report, several at once, a page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.bench_miniwob import add_miniwob, in_sentences
from pilotfish.agent.bench_page import page
from pilotfish.tasks.miniwob_names import HELD_OUT, MINIWOB_TASKS
from pilotfish.tasks.miniwob_published import Published, read_published
from pilotfish.tasks.reader import TaskError

COMMAND = [sys.executable, "-m", "pilotfish.agent.cli", "bench", "miniwob"]


def bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=170, check=False
    )


def result_of(success: dict[str, float]) -> dict[str, Any]:
    rows = [
        {"task": task, "episodes": 4, "success": share, "ci_low": 0.1, "ci_high": 0.9, "steps": 1.0}
        | {"seconds_per_step_p50": 0.5, "seconds_per_step_p95": 0.7, "baseline_success": 0.25}
        for task, share in success.items()
    ]
    about = {"model": "<b>m</b>", "attention": "sparse", "limits": "untimed", "run": "r", "complete": True}
    about |= {"sandbox_level": 1, "network": [], "baseline_mean_success": 0.25}
    return about | {"tasks": rows, "mean_success": 0.5}


def test_what_is_held_out_and_how_many_reach_peoples_mean() -> None:
    published = Published(read_published().means, 0.95)
    found = add_miniwob(
        result_of({"click-test": 1.0, "enter-text": 0.9, "click-color": 0.5, "login-user-popup": 0.0}),
        published,
    )
    by_name = {row["task"]: row for row in found["tasks"]}
    assert by_name["click-color"]["held_out"]
    assert not by_name["click-test"]["held_out"]
    summary = found["miniwob"]
    assert (summary["good"], summary["at_peoples_mean"]) == (2, 1)
    assert (summary["held_out"], summary["held_out_mean_success"]) == (2, 0.25)
    assert in_sentences(found) == [
        "2 of 4 tasks at 90% or more (125 are registered)",
        "held out: 25.0%, mean of 2 tasks",
        "1 at people's mean, 95.0%, or more",
    ]
    text = page(found)
    assert text.count("held out</span>") == 2
    assert "<b>m</b>" not in text
    assert not re.search(r"(src|href)=|https?://", text)
    assert all(mean.source.replace("'", "&#x27;") in text for mean in published.means)


def test_published_figures_have_a_source_and_are_shares(tmp_path: Path) -> None:
    published = read_published()
    assert all(0 < mean.low <= mean.high <= 1 and "arXiv:" in mean.source for mean in published.means)
    path = tmp_path / "published.yaml"
    mean = '{who: people, of: 2 tasks, low: 95, high: 95, source: "arXiv:1"}'
    path.write_text(f"means:\n  - {mean}\n")
    with pytest.raises(TaskError, match="has the figure 95; write shares from 0 to 1"):
        read_published(path)
    path.write_text("means: []\n")
    with pytest.raises(TaskError, match="no mean of people; write one"):
        read_published(path)
    assert len(MINIWOB_TASKS) == 125
    assert len(HELD_OUT) == 10


def test_all_and_some_tasks_contradict_each_other(tmp_path: Path) -> None:
    words = ["--all", "--tasks", "click-test", "--record-dir", "runs"]
    done = subprocess.run(
        [*COMMAND, *words], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 2
    assert "--all and --tasks click-test contradict each other; give one" in done.stderr


def test_two_at_once_are_reported_on_a_page(tmp_path: Path) -> None:
    words = ["--tasks", "click-test,click-color", "--episodes", "1", "--max-steps", "1"]
    words += ["--parallel", "2", "--record-dir", "runs", "--json"]
    done = subprocess.run(
        [*COMMAND, *words], cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [row["episodes"] for row in result["tasks"]] == [1, 1]
    assert result["miniwob"]["held_out"] == 1
    text = (tmp_path / result["page"]).read_text()
    assert "click-color" in text
    lanes = {
        json.loads(line).get("lane")
        for line in Path(tmp_path, result["folder"], "events.jsonl").read_text().splitlines()
    }
    assert {1, 2} <= lanes
