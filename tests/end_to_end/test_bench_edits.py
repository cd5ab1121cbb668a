"""`pilotfish bench edits`: small edits of real packages, played in real sandboxes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.bench import find_unfinished, run_bench
from pilotfish.agent.edit_work import LAYOUTS, Room, edits_task, plan_edits
from pilotfish.agent.prefix import LAYOUT
from pilotfish.agent.settings import Settings
from pilotfish.model.protocol import ModelError
from pilotfish.sandbox import Sandbox
from pilotfish.tasks.edits.environment import measured_ground, task_of
from pilotfish.tasks.environment import End
from pilotfish.tasks.environment_fields import EditsEnvironment
from pilotfish.tasks.environments import environment_for
from pilotfish.tasks.reader import TaskError


async def test_the_solution_passes_and_all_begin_with_the_same_bytes(tmp_path: Path) -> None:
    settings = Settings(model="solution", record_dir=tmp_path / "runs")
    plan = plan_edits(["json"], episodes=1, seed=4, tokens=3_000)
    assert plan.tasks == ("json/rename", "json/value", "json/mend")
    result = await run_bench(plan, settings)
    assert [(row["task"], row["success"], row["graded"]) for row in result["tasks"]] == [
        ("edits/json-rename", 1.0, 1),
        ("edits/json-value", 1.0, 1),
        ("edits/json-mend", 1.0, 1),
    ]
    folder = Path(result["folder"])
    run = log.read_run(folder)
    laid = [event for event in run.events if isinstance(event, log.LaidOut)]
    assert len(laid) == 3
    assert len({event.digest for event in laid}) == 1
    assert 1_000 < laid[0].tokens <= 3_000
    assert [path.name for path in (folder / LAYOUTS).iterdir()] == [f"{laid[0].digest}.json"]
    starts = [event for event in run.events if isinstance(event, log.EpisodeStarted)]
    assert all("How to work:" in start.instruction for start in starts)
    assert [tool["name"] for tool in starts[0].tools] == ["shell", "edit", "index", "plan"]
    assert find_unfinished(plan, settings) is None  # it has finished


def test_a_run_folder_that_cannot_take_what_was_laid_out_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / LAYOUTS).write_text("in the way")
    with Room.make() as room:
        room.keep_layout(tmp_path)  # nothing was laid out
        (room.kept / LAYOUT).write_text("{}")
        with pytest.raises(log.LogError, match=r"^Cannot write .*/layouts/\w+\.json \(File exists\); free"):
            room.keep_layout(tmp_path)
    assert not room.folder.exists()


async def test_what_is_not_the_edit_fails() -> None:
    task = edits_task("json/rename", 0).with_seed(4)
    assert isinstance(task.environment, EditsEnvironment)
    wanted = measured_ground("json").wanted(task_of(task.environment))
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        instruction = await environment.start(box)
        assert instruction == task_of(task.environment).instruction
        assert not (await environment.grade(box, End("done", "Done."))).passed
        for path, text in wanted.items():
            box.files.write_bytes(path, text.encode())
        assert (await environment.grade(box, End("done", "Done."))).passed
        done = await box.shell.run("mkdir -p json/__pycache__ && touch json/__pycache__/x.pyc")
        assert done.exit_code == 0
        assert (await environment.grade(box, End("limit", ""))).passed
        for change in ("touch json/new.py", "rm json/new.py json/tool.py", "ln -s /etc/passwd json/tool.py"):
            assert (await box.shell.run(change)).exit_code == 0
            assert not (await environment.grade(box, End("done", "Done."))).passed


async def test_the_model_reads_the_package_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = Settings(model="nano", record_dir=tmp_path / "runs", max_steps=1, answer_tokens=2)
    plan = replace(plan_edits(["json"], episodes=2, seed=0, tokens=700), tasks=("json/value",))
    result = await run_bench(plan, settings)
    (row,) = result["tasks"]
    assert (row["episodes"], row["success"]) == (2, 0.0)
    run = log.read_run(Path(result["folder"]))
    first, second = [event for event in run.events if isinstance(event, log.Prefilled)]
    assert first.tokens == second.tokens > 700
    usage = [event.usage for event in run.events if isinstance(event, log.Answered) and event.usage]
    assert all(one.cached_tokens for one in usage)


def test_a_package_of_any_name_has_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_private", "my package"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("LIMIT = 3\n")
    monkeypatch.chdir(tmp_path / "my package")
    for package, task_id in (("../_private/", "private-value"), (".", "my-package-value")):
        (name,) = plan_edits([package], episodes=1, seed=0, tokens=0).tasks
        assert edits_task(name, 0).id == task_id


async def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="There is no package 'no_such_thing' here"):
        plan_edits(["no_such_thing"], episodes=1, seed=0, tokens=0)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.py").write_text("x = []\n")
    with pytest.raises(TaskError, match="has no place for an edit"):
        plan_edits([str(tmp_path / "empty")], episodes=1, seed=0, tokens=0)
    with pytest.raises(TaskError, match="Two packages are called json"):
        plan_edits(["json", "json"], episodes=1, seed=0, tokens=0)
    settings = Settings(model="nano", record_dir=tmp_path / "runs")
    plan = plan_edits(["json"], episodes=1, seed=0, tokens=60_000)
    with pytest.raises(ModelError, match="--context-tokens is 60000, and nano reads 32768 tokens"):
        await run_bench(plan, settings)
