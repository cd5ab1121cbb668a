"""A model measured without a display: the whole command, on the model that ships."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pilotfish.agent.quick_bench import deal, main, read_results, summary
from pilotfish.tasks.episodes.alone import Result
from pilotfish.tasks.miniwob_names import HELD_OUT

_spec = importlib.util.find_spec("miniwob")
MINIWOB = Path(_spec.submodule_search_locations[0]) if _spec and _spec.submodule_search_locations else None
WORDS = ["--miniwob", str(MINIWOB), "--workers", "1", "--pages", "2", "--device", "cpu"]


def test_jobs_are_dealt_whole() -> None:
    jobs = [(f"task-{n}", n) for n in range(11)]
    dealt = deal(jobs, 4)
    assert sorted(job for mine in dealt for job in mine) == sorted(jobs)
    assert {len(mine) for mine in dealt} == {2, 3}


def test_the_table_counts_what_is_in_the_files(tmp_path: Path) -> None:
    held_out = sorted(HELD_OUT)[0]
    lines = [
        Result("click-test", 1_000_000, 0.5, 1, 0.1, "page"),
        Result("click-test", 1_000_001, -1.0, 2, 0.1, "page"),
        Result(held_out, 1_000_000, 0.0, 30, 0.1, "steps"),
    ]
    text = "".join(json.dumps(line.as_json()) + "\n" for line in lines)
    (tmp_path / "results-1-000.jsonl").write_text(text + '{"task": "click-te')
    (tmp_path / "results-1-001.jsonl").write_text(text)
    assert read_results(tmp_path) == lines
    table = "\n".join(summary(lines))
    assert "click-test                     2      50%" in table
    assert "mean success 25.0%" in table
    assert "held out: 0.0%, mean of 1 tasks" in table
    assert summary([]) == ["Nothing was measured: no episode came to its end."]


def test_what_is_wrong_with_the_command_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (["--model", str(tmp_path)], "config.json"),
        (["--tasks", "click-tset"], "click-test"),
        (["--part", "3/2"], "--part is '3/2'; write it like 2/3."),
        (["--each", "0"], "--each"),
    ):
        assert main([*WORDS, "--browser", "none", "--out", str(tmp_path / "out"), *words]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert said in told


def test_a_machine_with_torch_alone_can_measure() -> None:
    code = (
        "import sys, pilotfish.agent.quick_bench, pilotfish.agent.corrections, pilotfish.model.engine\n"
        "print(sorted({'pydantic', 'playwright', 'mss', 'textual', 'httpx2'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(
    MINIWOB is None or shutil.which("chromium-headless-shell") is None,
    reason="needs chromium-headless-shell and the miniwob package",
)
def test_a_model_is_measured_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = [*WORDS, "--out", str(out), "--model", "nano", "--tasks", "click-test,click-dialog-2"]
    assert main([*words, "--each", "1"]) == 0
    assert " 2 of 2 episodes" in capsys.readouterr().out
    first = read_results(out)
    assert {(r.task, r.seed) for r in first} == {("click-test", 1_000_000), ("click-dialog-2", 1_000_000)}
    assert all(r.end == "page" and r.passed for r in first if r.task == "click-test")
    assert main([*words, "--each", "1"]) == 0
    assert "0 of 0 episodes" in capsys.readouterr().out
    assert read_results(out) == first
