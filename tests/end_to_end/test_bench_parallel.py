"""Episodes of a benchmark that are played at once: one model and one log, a sandbox each."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.atif import to_atif
from pilotfish.agent.bench import plan_tasks, run_bench
from pilotfish.agent.replay import build_page
from pilotfish.agent.settings import Settings

TASK = """
instruction: Write it.
tools: [shell]
environment: {kind: shell}
limits: {steps: 9, seconds: 100}
graders: [{kind: file_equals, path: a.txt, text: "a\\n"}]
solution: [%s]
"""


def suite_of(folder: Path, *solutions: str) -> Path:
    folder.mkdir()
    for number, commands in enumerate(solutions):
        (folder / f"t{number}.yaml").write_text(TASK % commands)
    return folder


GOOD = "'true', 'sleep 0.3', 'echo a > a.txt'"


async def test_episodes_are_played_at_once_and_told_apart(tmp_path: Path) -> None:
    suite = suite_of(tmp_path / "suite", *[GOOD] * 5, "'echo b > a.txt'")
    settings = Settings(model="solution", record_dir=tmp_path / "runs")
    told: list[int] = []
    plan = plan_tasks([str(suite)], episodes=1)
    result = await run_bench(plan, settings, parallel=3, progress=lambda place, line: told.append(place))
    assert (result["complete"], sorted(told)) == (True, [1, 2, 3, 4, 5, 6])
    assert [row["success"] for row in result["tasks"]].count(1.0) == 5
    run = log.read_run(Path(result["folder"]))
    assert [event.n for event in run.events] == list(range(1, len(run.events) + 1))
    groups = run.episodes()
    assert len(groups) == 6
    lanes = set()
    for group in groups:
        kinds = [event.type for event in group]
        assert (kinds[0], kinds[-1]) == ("episode_started", "episode_ended")
        (lane,) = {event.lane for event in group}
        lanes.add(lane)
        steps = [event.step for event in group if isinstance(event, log.Resulted)]
        assert steps == list(range(1, len(steps) + 1))
    assert lanes == {1, 2, 3}
    began = [event.lane for event in run.events if isinstance(event, log.EpisodeStarted)]
    ends = [n for n, event in enumerate(run.events) if isinstance(event, log.EpisodeEnded)]
    assert set(began[:3]) == lanes
    assert sum(isinstance(event, log.EpisodeStarted) for event in run.events[: ends[0]]) > 1
    assert len(to_atif(run, 2)["steps"]) == 1 + 4
    assert "suite/t3" in build_page(run)


async def test_one_whose_sandbox_is_killed_harms_no_other(tmp_path: Path) -> None:
    # Who kills all that it can reach ends its own machine; it is played once more, and that is its end.
    suite = suite_of(tmp_path / "suite", GOOD, "'kill -9 -1; kill -9 1', 'echo b > a.txt'", GOOD, GOOD)
    settings = Settings(model="solution", record_dir=tmp_path / "runs")
    result = await run_bench(plan_tasks([str(suite)], episodes=1), settings, parallel=2)
    assert {row["task"]: row["success"] for row in result["tasks"]} == {
        "suite/t0": 1.0,
        "suite/t1": 0.0,
        "suite/t2": 1.0,
        "suite/t3": 1.0,
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_all_are_stopped_together_and_go_on_together(tmp_path: Path, number: signal.Signals) -> None:
    waits = "'sleep 3'"
    suite_of(tmp_path / "suite", GOOD, *[f"{waits}, 'echo a > a.txt'"] * 3)
    words = ["bench", "tasks", "suite", "--model", "solution", "--parallel", "4", "--json"]
    command = [sys.executable, "-m", "pilotfish.agent.cli", *words, "--record-dir", "runs"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        log_of = tmp_path / "runs"
        while running.poll() is None and not any(
            path.read_text().count('"intended"') >= 5 for path in log_of.glob("*/events.jsonl")
        ):
            time.sleep(0.05)
        running.send_signal(number)
        out, _ = running.communicate(timeout=60)
    if number == signal.SIGINT:
        assert running.returncode == 130
        assert json.loads(out)["complete"] is False
    done = subprocess.run(
        [*command, "--resume"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["complete"], result["mean_success"], len(result["tasks"])) == (True, 1.0, 4)
    assert [row["episodes"] for row in result["tasks"]] == [1] * 4
    assert len(list(log_of.iterdir())) == 1
