"""HumanEval's problems: read, played, graded by their own test, handed in as samples."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.bench import find_unfinished, plan_tasks, run_bench
from pilotfish.agent.settings import Settings
from pilotfish.sandbox import Sandbox
from pilotfish.tasks.environment import End
from pilotfish.tasks.environments import environment_for
from pilotfish.tasks.humaneval import completion_of
from pilotfish.tasks.load import find_task, load_suite
from pilotfish.tasks.reader import TaskError

ADD = {
    "task_id": "HumanEval/0",
    "prompt": 'def add(a: int, b: int) -> int:\n    """The sum of two numbers."""\n',
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n",
}


def data_set(folder: Path, *records: dict[str, Any], name: str = "HumanEval.jsonl.gz") -> Path:
    path = folder / name
    with gzip.open(path, "wt") if name.endswith(".gz") else path.open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def lines_of(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def numbered(count: int) -> list[dict[str, Any]]:
    return [ADD | {"task_id": f"HumanEval/{number}"} for number in range(count)]


async def test_problems_are_measured_and_handed_in(tmp_path: Path) -> None:
    wrong = "    return a - b\n"
    path = data_set(tmp_path, ADD | {"task_id": "HumanEval/2", "canonical_solution": wrong}, ADD)
    settings = Settings(model="solution", record_dir=tmp_path / "runs")
    result = await run_bench(plan_tasks([str(path)], episodes=2), settings)
    rows = [(row["task"], row["success"], row["episodes"]) for row in result["tasks"]]
    assert rows == [("HumanEval/HumanEval-0", 1.0, 2), ("HumanEval/HumanEval-2", 0.0, 2)]
    (samples,) = result["predictions"]
    lines = [json.loads(line) for line in lines_of(samples)]
    assert lines == [
        {"task_id": problem, "completion": completion}
        for problem, completion in (
            ("HumanEval/0", "    return a + b\n"),
            ("HumanEval/2", "    return a - b\n"),
        )
        for _ in range(2)
    ]
    ended = [event for event in log.read_run(Path(result["folder"])).events if event.type == "episode_ended"]
    assert "The test failed: AssertionError" in ended[-1].reason


async def test_a_measurement_goes_on_and_hands_in_everything(tmp_path: Path) -> None:
    path = data_set(tmp_path, *numbered(2))
    settings = Settings(model="solution", record_dir=tmp_path / "runs")
    plan = plan_tasks([str(path)], episodes=1)
    whole = await run_bench(plan, settings)
    events = Path(whole["folder"]) / log.EVENTS
    lines = events.read_text().splitlines(keepends=True)
    second = [n for n, line in enumerate(lines) if '"type": "episode_started"' in line][1]
    events.write_text("".join(lines[: second + 1]))
    again = await run_bench(plan, settings, folder=find_unfinished(plan, settings))
    assert again["complete"]
    assert len(lines_of(again["predictions"][0])) == 2


async def test_what_is_written_is_judged_by_the_test_alone(tmp_path: Path) -> None:
    task = find_task(str(data_set(tmp_path, ADD)))
    assert task.name == "HumanEval/HumanEval-0"
    told = task.visible_to_model()["instruction"]
    assert "solution.py" in told
    assert "return a + b" not in told
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        assert await environment.start(box) == told
        nothing = await environment.grade(box, End())
        assert (nothing.passed, nothing.product) == (False, {})
        assert "solution.py" in nothing.reason
        for text, passed, reason in (
            ("import os\nos._exit(0)\n", False, "it ended before its end"),
            ("def add(a, b): return a +\n", False, "SyntaxError"),
            ("def sub(a, b):\n    return a - b\n", False, "The test failed"),
            ("from operator import add\n", True, "The test passed."),
            (ADD["prompt"] + "    return sum((a, b))\n", True, "The test passed."),
        ):
            box.files.write_text("solution.py", text)
            grade = await environment.grade(box, End())
            assert (grade.passed, grade.score) == (passed, float(passed)), grade.reason
            assert reason in grade.reason
            assert grade.product["task_id"] == "HumanEval/0"


def test_completions_follow_the_prompt() -> None:
    prompt = "def f():\n    '''One.'''\n"
    assert completion_of(prompt, prompt + "    return 1\n") == "    return 1\n"
    for written in ("def f():\n    return 1\n", "x = 1\ndef f(): return x"):
        space: dict[str, Any] = {}
        exec(prompt + completion_of(prompt, written), space)
        assert space["f"]() == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the data set has no record"),
        (json.dumps(ADD)[:-9], "line 1 is not JSON"),
        ("\n" + json.dumps(ADD) + "\n{}\n", "line 3: neither SWE-bench's fields"),
        ("[1, 2]\n", "line 1: a record is a map of fields, not a list"),
        (json.dumps(ADD | {"test": None}), "line 1: 'test' is missing; add it."),
        (json.dumps(ADD | {"prompt": 7}), "line 1: 'prompt' is 7; it must be text."),
        (json.dumps(ADD | {"prompt": "\ud800"}), "'prompt' holds half a character"),
        (
            json.dumps(ADD | {"entry_point": "a; b"}),
            "'entry_point' is 'a; b'; it must be the name of a",
        ),
        (json.dumps(ADD | {"task_id": "../x"}), "'id' is '..-x'"),
        (json.dumps(ADD) + "\n" + json.dumps(ADD), "line 2: the id 'HumanEval-0' was there before"),
        ("[" * 100_000, "nested too deeply"),
        ('{"task_id": ' + "9" * 5000 + "}", "line 1 is not JSON"),
    ],
)
def test_bad_data_sets_are_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(TaskError) as refused:
        load_suite(path)
    assert sentence in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_damaged_archives_and_unknown_problems(tmp_path: Path) -> None:
    path = data_set(tmp_path, *numbered(12))
    assert [task.id for task in load_suite(path)][:3] == ["HumanEval-0", "HumanEval-1", "HumanEval-2"]
    assert find_task(f"{path}/HumanEval-11").id == "HumanEval-11"
    with pytest.raises(TaskError, match=r"has no task 'HumanEval-12'; the nearest"):
        find_task(f"{path}/HumanEval-12")
    with pytest.raises(TaskError, match=r"holds 12 tasks; name one, as .*HumanEval-0"):
        find_task(str(path))
    whole = path.read_bytes()
    for damage in (whole[:-20], b"\x1f\x8b\x08", b"plain"):
        path.write_bytes(damage)
        with pytest.raises(TaskError, match=r"HumanEval\.jsonl\.gz: "):
            load_suite(path)
    (tmp_path / "utf.jsonl").write_bytes(b'{"task_id": "\xff"}')
    with pytest.raises(TaskError, match="byte 13 is not UTF-8"):
        load_suite(tmp_path / "utf.jsonl")
    (tmp_path / "utf.jsonl").write_text("\ufeff" + json.dumps(ADD) + "\r\n")
    assert [task.name for task in load_suite(tmp_path / "utf.jsonl")] == ["utf/HumanEval-0"]
    (tmp_path / "list.json").write_text("\ufeff" + json.dumps([ADD]))
    assert [task.name for task in load_suite(tmp_path / "list.json")] == ["list/HumanEval-0"]
