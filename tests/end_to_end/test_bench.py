"""Benchmarks: a suite played for real, MiniWoB++ episodes in numbers, and the report's arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.bench import find_unfinished, plan_miniwob, plan_tasks, run_bench, slots
from pilotfish.agent.bench_report import Plan, report, seconds_per_step, table
from pilotfish.agent.settings import Settings
from pilotfish.agent.solution import RANDOM
from pilotfish.model.protocol import Usage
from pilotfish.tasks.miniwob_names import FIRST_MEASURED_SEED
from pilotfish.tasks.reader import TaskError

SOLVABLE = """
instruction: Write it.
tools: [shell]
environment: {kind: shell}
graders: [{kind: file_equals, path: a.txt, text: "a\\n"}]
solution: [echo a > a.txt]
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Two tasks, of which the solution solves one."""
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "good.yaml").write_text(SOLVABLE)
    (folder / "bad.yaml").write_text(SOLVABLE.replace("echo a >", "echo b >"))
    return folder


async def test_a_suite_is_measured(tmp_path: Path, suite: Path) -> None:
    settings = Settings(model="solution", record_dir=tmp_path / "runs")
    plan = plan_tasks([str(suite)], episodes=2)
    told: list[tuple[int, str]] = []
    result = await run_bench(plan, settings, progress=lambda *place_and_line: told.append(place_and_line))
    assert result == json.loads(json.dumps(result))
    assert (result["model"], result["attention"], result["limits"]) == ("solution", None, "untimed")
    bad, good = result["tasks"]
    assert (bad["task"], good["task"]) == ("suite/bad", "suite/good")
    assert (bad["success"], good["success"], result["mean_success"]) == (0.0, 1.0, 0.5)
    assert (good["episodes"], good["graded"], good["score"], bad["score"]) == (2, 2, 1.0, 0.0)
    assert 0 < good["ci_low"] < 1 == good["ci_high"]
    assert good["steps"] == 1.0
    assert 0 < good["seconds_per_step_p50"] <= good["seconds_per_step_p95"]
    assert result["complete"] is True
    assert [place for place, _ in told] == [1, 2, 3, 4]
    assert told[-1][1].startswith("suite/good seed 1 solution: passed")


def test_tasks_are_chosen_by_name(suite: Path) -> None:
    assert plan_tasks([str(suite)], ["good"], episodes=1).tasks == (f"{suite}/good",)
    assert plan_tasks([str(suite)], [f"{suite}/bad"], episodes=1).tasks == (f"{suite}/bad",)
    assert plan_tasks(["repository", "code"], ["off-by-one", "fix-shuffle"], episodes=1).tasks == (
        "repository/fix-shuffle",
        "code/off-by-one",
    )
    with pytest.raises(TaskError, match=r"^There is no task 'goood' in .*suite; the nearest is 'good'\.$"):
        plan_tasks([str(suite)], ["bad", "goood"], episodes=1)


async def test_nano_is_warned_of_once(tmp_path: Path, suite: Path) -> None:
    settings = Settings(model="nano", record_dir=tmp_path / "runs", max_steps=1, max_seconds=0.5)
    told: list[str] = []
    result = await run_bench(plan_tasks([str(suite)], episodes=1), settings, warn=told.append)
    assert result["complete"]
    (warning,) = told
    assert "will hardly do tasks such as suite/bad; give --model" in warning


async def test_a_measurement_goes_on_where_it_broke_off(tmp_path: Path, suite: Path) -> None:
    settings = Settings(model="solution", record_dir=tmp_path / "runs")
    plan = plan_tasks([str(suite)], episodes=2)
    whole = await run_bench(plan, settings)
    path = Path(whole["folder"]) / log.EVENTS
    lines = path.read_text().splitlines(keepends=True)
    started = [n for n, line in enumerate(lines) if '"type": "episode_started"' in line]
    path.write_text("".join(lines[: started[2] + 2]))
    folder = find_unfinished(plan, settings)
    assert folder == path.parent
    assert find_unfinished(plan_tasks([str(suite)], episodes=3), settings) is None
    told: list[int] = []
    result = await run_bench(plan, settings, folder=folder, progress=lambda place, line: told.append(place))
    assert told == [3, 4], "two of four episodes had an end"
    assert [row["episodes"] for row in result["tasks"]] == [2, 2]
    assert result["mean_success"] == 0.5
    assert find_unfinished(plan, settings) is None


def test_runs_whose_logs_were_changed_are_passed_over(tmp_path: Path) -> None:
    for name, options in {
        "a": {"plan": asdict(plan_miniwob([], episodes=1))},
        "b": {},
        "c": {"plan": 5},
    }.items():
        with log.EventLog(tmp_path / name) as events:
            events.append(
                log.RunStarted(
                    run=name,
                    pilotfish="0",
                    command="bench",
                    model="nano",
                    attention="sparse",
                    options=options,
                )
            )
    (tmp_path / "d" / log.EVENTS).mkdir(parents=True)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / log.EVENTS).touch()
    settings = Settings(record_dir=tmp_path)
    assert find_unfinished(plan_miniwob([], episodes=1), settings) == tmp_path / "a"


def test_miniwob_plans_use_seeds_that_training_never_used() -> None:
    plan = plan_miniwob(["click-test", "enter-text"], episodes=2, seed=None, limits="classic", baseline=True)
    found = [(slot.task.name, slot.seed, slot.baseline) for slot in slots(plan, Settings())]
    first = FIRST_MEASURED_SEED
    assert found[:4] == [
        ("miniwob/click-test", first, False),
        ("miniwob/click-test", first + 1, False),
        ("miniwob/click-test", first, True),
        ("miniwob/click-test", first + 1, True),
    ]
    assert len(found) == 8
    task = next(iter(slots(plan, Settings()))).task
    assert task.environment.kind == "miniwob"
    assert task.environment.time_limit == "classic"
    assert len(plan_miniwob([], episodes=1).tasks) > 100


def test_the_report_is_read_from_the_log(tmp_path: Path) -> None:
    plan = Plan("miniwob", ("click-test",), episodes=4, seed=0, baseline=True)
    options = {"plan": json.loads(json.dumps(plan.__dict__))}
    with log.EventLog(tmp_path) as events:
        events.append(
            log.RunStarted(
                run="r", pilotfish="0", command="bench", model="nano", attention="dense", options=options
            )
        )
        for seed in range(4):
            for model in ("nano", RANDOM):
                passed = seed < (3 if model == "nano" else 1)
                events.append(
                    log.EpisodeStarted(
                        episode=seed, task="miniwob/click-test", seed=seed, model=model, instruction="x"
                    )
                )
                usage = Usage(input_tokens=1000, output_tokens=10, decode_s=0.5)
                events.append(log.Answered(step=1, usage=usage, seconds=1))
                events.append(log.EpisodeEnded(episode=seed, end="finished", passed=passed, steps=seed))
        events.append(log.EpisodeStarted(episode=9, task="miniwob/click-test", seed=9, instruction="cut off"))
        events.append(log.RunEnded(status="interrupted"))
    result = report(log.read_run(tmp_path))
    (row,) = result["tasks"]
    assert (row["task"], row["episodes"], row["success"], row["steps"]) == ("click-test", 4, 0.75, 1.5)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((0.3006, 0.9544), abs=1e-4)
    assert row["baseline_success"] == 0.25
    for usage in (row["usage"], result["usage"]):
        assert (usage["answers"], usage["input_tokens"], usage["cached_tokens"]) == (4, 4000, None), "its own"
        assert (usage["decode_s"], usage["prefill_s"]) == (2, None)
    assert (result["attention"], result["complete"], result["baseline_mean_success"]) == (
        "dense",
        False,
        0.25,
    )
    nothing = report(replace(log.read_run(tmp_path), events=log.read_run(tmp_path).events[:2]))
    assert (nothing["mean_success"], nothing["baseline_mean_success"]) == (None, None)
    assert "Nothing was measured" in table(nothing)
    assert "%" not in table(nothing).replace("95 %", "")
    text = table(result)
    assert "click-test" in text
    assert "random clicks" in text
    assert "75.0%" in text
    assert "used: 4,000 tokens in, 40 out, decode 2.00 s" in text


def test_seconds_per_step_are_wall_time_between_results() -> None:
    group: list[log.Event] = [
        log.EpisodeStarted(episode=0, task="t", instruction="", t=10.0),
        log.Answered(step=1, t=11.0),
        log.Resulted(step=1, call_id="a", ok=True, text="", t=11.5),
        log.Resulted(step=1, call_id="b", ok=False, text="", t=11.6),
        log.Resumed(t=100.0),
        log.Resulted(step=2, call_id="c", ok=True, text="", t=102.0),
    ]
    assert seconds_per_step(group) == [1.5, 2.0]


def test_thirty_episodes_leave_nothing_behind(tmp_path: Path) -> None:
    """In a process of its own: what other tests left in this one's memory is no measure."""
    command = [sys.executable, "-m", "pilotfish.agent.soak", "--episodes", "20"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing grew\n")
