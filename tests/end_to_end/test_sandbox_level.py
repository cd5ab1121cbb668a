"""A level below 3 is asked for, and shown wherever the run is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TASK = """
instruction: Write it down.
tools: [shell]
environment: {kind: shell}
limits: {steps: 4, seconds: 60}
graders: [{kind: file_matches, path: done.txt, pattern: "^1$"}]
solution:
  - echo 1 > done.txt
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "task.yaml").write_text(TASK)
    command = [sys.executable, "-m", "pilotfish.agent.cli", *arguments]
    nothing = subprocess.DEVNULL
    return subprocess.run(command, cwd=folder, stdin=nothing, capture_output=True, text=True, timeout=90)


@pytest.mark.parametrize(
    ("level", "shown"), [("2", "sandbox level 2 of 3"), ("0", "NOT SANDBOXED"), ("3", "")]
)
def test_the_level_is_shown(tmp_path: Path, level: str, shown: str) -> None:
    done = run(tmp_path, "run", "task.yaml", "--model", "solution", "--sandbox-level", level)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(shown or "task ")
    (folder,) = (tmp_path / "runs").iterdir()
    started = json.loads((folder / "events.jsonl").read_text().splitlines()[0])
    assert (started["sandbox_level"], started["on_host"]) == (int(level), level == "0")
    page = run(tmp_path, "replay", str(folder))
    assert page.returncode == 0, page.stderr
    text = next(folder.glob("*.html")).read_text()
    assert (shown in text) if shown else ("NOT SANDBOXED" not in text)


def test_the_report_says_it_too(tmp_path: Path) -> None:
    done = run(tmp_path, "run", "task.yaml", "--model", "solution", "--sandbox-level", "2", "--json")
    assert json.loads(done.stdout)["sandbox_level"] == 2


def test_other_levels_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "run", "task.yaml", "--model", "solution", "--sandbox-level", "1")
    assert done.returncode != 0
    assert "--sandbox-level is 1, but must be 3, 2 or 0." in done.stderr


def test_no_sandbox_takes_the_flag(tmp_path: Path) -> None:
    """A file or a variable that somebody forgot must not do it."""
    (tmp_path / "pilotfish.toml").write_text("sandbox_level = 0\n")
    done = run(tmp_path, "run", "task.yaml", "--model", "solution")
    assert done.returncode != 0
    assert "only the flag --sandbox-level 0 can say so" in done.stderr
