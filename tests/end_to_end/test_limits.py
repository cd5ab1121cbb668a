"""Limits of the sandbox from a settings file: they hold in a run, and the model is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Command
from .test_sandbox_level import TASK, run


def test_a_limit_of_the_file_is_told_to_the_model(tmp_path: Path) -> None:
    (tmp_path / "pilotfish.toml").write_text("[limits]\nmemory_mib = 300\n")
    greedy = "  - |\n    python3 -c 'b = bytearray(250 << 20); c = bytearray(250 << 20)'\n"
    (tmp_path / "greedy").mkdir()
    task = tmp_path / "greedy" / "greedy.yaml"
    task.write_text(TASK.replace("solution:\n", f"solution:\n{greedy}"))
    done = run(tmp_path, "run", str(task), "--model", "solution")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    told = [
        event["text"]
        for event in events
        if "limit" in event.get("text", "") or "may hold" in event.get("text", "")
    ]
    assert told
    assert "300 MiB" in told[0]
    assert told[0].endswith("process the data in pieces]")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("memory_mib = 3", "limits.memory_mib (pilotfish.toml, line 2) is 3, but must be 64 or more."),
        (
            "memory = 300",
            "no setting limits.memory (pilotfish.toml, line 2); choose from disk_mib",
        ),
    ],
)
def test_a_wrong_limit_is_one_sentence(tmp_path: Path, command_here: Command, table: str, words: str) -> None:
    (tmp_path / "pilotfish.toml").write_text(f"[limits]\n{table}\n")
    said = command_here("run", "task.yaml", "--model", "solution")
    assert (said.status, said.out) == (2, "")
    assert words in said.err
