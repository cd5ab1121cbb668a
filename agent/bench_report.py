"""What a benchmark run measured, read from its log alone: rates, times, a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pilotfish.agent import events as log
from pilotfish.agent.accounts import Totals, in_words, totals
from pilotfish.agent.show import sandbox_note
from pilotfish.agent.solution import RANDOM
from pilotfish.agent.stats import percentile, wilson
from pilotfish.tasks.miniwob_names import SUITE


@dataclass(frozen=True)
class Plan:
    """What is measured. `tasks` are ids for MiniWoB++, and otherwise a suite or folder, a slash, an id."""

    suite: str
    tasks: tuple[str, ...]
    episodes: int
    seed: int
    limits: Literal["classic", "untimed"] = "untimed"
    baseline: bool = False
    tokens: int = 0
    """What the repository may take of the context before each task."""


def episode_key(group: Sequence[log.Event]) -> tuple[str, int | None, bool]:
    """Task, seed and whether random clicks played it: what tells the episodes of a plan apart."""
    start = group[0]
    assert isinstance(start, log.EpisodeStarted)
    return start.task, start.seed, start.model == RANDOM


def plan_of(started: log.RunStarted) -> Plan:
    """The plan a benchmark run was started with. Raises `log.LogError` when its log does not say."""
    options = log.option_of(started, "plan")
    try:
        return Plan(**options | {"tasks": tuple(options["tasks"])})
    except (KeyError, TypeError):
        raise log.LogError(log.cannot_go_on(started)) from None


def report(run: log.RunLog) -> dict[str, Any]:
    """What `--json` prints: rates and times per task, read from the run's log alone."""
    started = run.started
    plan = plan_of(started)
    groups: dict[tuple[str, int | None, bool], Sequence[log.Event]] = {
        episode_key(group): group for group in run.episodes() if log.has_ended(group)
    }
    rows = []
    played: list[log.Event] = []
    for name in dict.fromkeys(key[0] for key in groups):
        mine = [group for key, group in groups.items() if key[0] == name and not key[2]]
        if not mine:
            continue
        played += (event for group in mine for event in group)
        row = {"task": name.removeprefix(f"{SUITE}/"), **_row(mine)}
        if plan.baseline:
            theirs = [group for key, group in groups.items() if key[0] == name and key[2]]
            row["baseline_success"] = _row(theirs)["success"] if theirs else None
        rows.append(row)
    result = {
        "suite": plan.suite,
        "model": started.model,
        "attention": started.attention or None,
        "sandbox_level": started.sandbox_level,
        "network": started.network,
        "limits": plan.limits,
        "tasks": rows,
        "mean_success": _mean([row["success"] for row in rows]) if rows else None,
        "usage": totals(played).as_json(),
        "run": started.run,
        "folder": str(run.folder),
        "complete": run.ended is not None and run.ended.status == "finished",
    }
    if plan.baseline:
        known = [row["baseline_success"] for row in rows if row["baseline_success"] is not None]
        result["baseline_mean_success"] = _mean(known) if known else None
    return result


def _row(groups: Sequence[Sequence[log.Event]]) -> dict[str, Any]:
    every = (event for group in groups for event in log.live(group))
    ends = [event for event in every if isinstance(event, log.EpisodeEnded) and not event.parent]
    judged = [end for end in ends if end.passed is not None]
    passed = sum(end.passed is True for end in judged)
    low, high = wilson(passed, len(judged))
    seconds = [value for group in groups for value in seconds_per_step(group)]
    return {
        "episodes": len(ends),
        "graded": len(judged),
        "success": passed / len(judged) if judged else 0.0,
        "score": _mean([end.score for end in judged]),
        "ci_low": low,
        "ci_high": high,
        "steps": _mean([float(end.steps) for end in ends]),
        "seconds_per_step_p50": round(percentile(seconds, 0.5), 4),
        "seconds_per_step_p95": round(percentile(seconds, 0.95), 4),
        "usage": totals(event for group in groups for event in group).as_json(),
    }


def seconds_per_step(group: Sequence[log.Event]) -> list[float]:
    """Wall seconds from the end of one step to the end of the next, the first one from the model's first
    look.
    """
    seconds = []
    last_s, last_step = group[0].t, 0
    for event in log.live(group):
        if isinstance(event, log.Resulted) and event.step != last_step:
            seconds.append(event.t - last_s)
            last_s, last_step = event.t, event.step
        elif isinstance(event, log.Resumed | log.SteppedBack):
            last_s = event.t
    return seconds


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _share(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def table(result: dict[str, Any]) -> str:
    """The report as a table of plain text."""
    baseline = "baseline_mean_success" in result
    head = ["task", "n", "success", "95 % interval", "steps", "s/step p50", "p95"]
    rows = [head + (["random clicks"] if baseline else [])]
    for row in result["tasks"]:
        cells = [
            row["task"],
            str(row["episodes"]),
            f"{row['success']:.0%}",
            f"{row['ci_low']:.0%} to {row['ci_high']:.0%}",
            f"{row['steps']:.1f}",
            f"{row['seconds_per_step_p50']:.2f}",
            f"{row['seconds_per_step_p95']:.2f}",
        ]
        rows.append(cells + ([_share(row["baseline_success"], 0)] if baseline else []))
    mean = ["mean", "", _share(result["mean_success"], 1), "", "", "", ""]
    rows.append(mean + ([_share(result["baseline_mean_success"], 1)] if baseline else []))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    lines.insert(-1, lines[1])
    if not result["tasks"]:
        lines.append("Nothing was measured: no episode came to its end.")
    if words := in_words(Totals(**result["usage"])):
        lines.append(f"used: {', '.join(words)}")
    if note := sandbox_note(result["sandbox_level"], result["network"]):
        lines.append(note)
    return "\n".join(lines)
