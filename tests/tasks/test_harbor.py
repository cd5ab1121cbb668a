"""Task folders of Harbor's form: those that need no building are played, the others refused in a sentence."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from pilotfish.agent.bench import plan_tasks, run_bench
from pilotfish.agent.settings import Settings
from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec
from pilotfish.tasks.environment import End
from pilotfish.tasks.environments import environment_for, skip_reason
from pilotfish.tasks.format import Task
from pilotfish.tasks.harbor import reward_of
from pilotfish.tasks.load import find_task, load_suite
from pilotfish.tasks.reader import TaskError

FILES = {
    "task.toml": """
schema_version = "1.4"
[task]
name = "sea/count"
[agent]
timeout_sec = 120
[verifier]
timeout_sec = 60
[verifier.env]
WANTED = "3"
""",
    "instruction.md": "Write the number of ships in /app/data/ships.txt to /app/count.txt.\n",
    "environment/Dockerfile": """# syntax=docker/dockerfile:1
FROM debian:bookworm-slim
WORKDIR /app
ENV UNIT=ships \\
    EMPTY=""
COPY ships.txt data/
COPY tools /srv/tools
CMD ["bash"]
""",
    "environment/ships.txt": "a\nb\nc\n",
    "environment/tools/deep/count.sh": "wc -l < /app/data/ships.txt\n",
    "solution/solve.sh": "bash /srv/tools/deep/count.sh > count.txt; cat /solution/note.txt\n",
    "solution/note.txt": "done\n",
    "tests/test.sh": """
[ "$UNIT" = ships ] || exit 9
if [ "$(cat /app/count.txt)" = "$WANTED" ]; then echo 1; else echo 0.25; fi > /logs/verifier/reward.txt
""",
}


def written(folder: Path, **changes: str | None) -> Path:
    """A task folder; in the names of changes, `__` stands for a slash and `_` for a dot."""
    files: dict[str, str | None] = dict(FILES)
    files |= {name.replace("__", "/").replace("_", "."): text for name, text in changes.items()}
    for name, text in files.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


def task_of(folder: Path, **changes: str | None) -> Task:
    return find_task(str(written(folder / "count", **changes)))


async def test_a_suite_is_measured_and_what_cannot_be_played_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path / "count")
    written(tmp_path / "wrong", solution__solve_sh="echo 4 > count.txt\n")
    written(tmp_path / "built", environment__Dockerfile="FROM ubuntu:24.04\nRUN apt-get update\n")
    settings = Settings(model="solution", record_dir=tmp_path / "runs")
    told: list[str] = []
    plan = plan_tasks([str(tmp_path)], episodes=1)
    result = await run_bench(plan, settings, progress=lambda _, line: told.append(line))
    rows = {row["task"].rpartition("/")[2]: (row["success"], row["score"]) for row in result["tasks"]}
    assert rows == {"count": (1.0, 1.0), "wrong": (0.0, 0.25)}
    (skipped,) = (line for line in told if line.startswith("skipped"))
    assert "Dockerfile: line 2 needs RUN, which is not done here; only COPY, WORKDIR and ENV are." in skipped


async def test_folders_of_the_root_and_tests_that_nobody_sees(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    assert (task.name, task.limits.seconds) == (f"{task.suite}/count", 120)
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        told = await environment.start(box)
        assert told.endswith(
            "In the workspace, which the edit tool works in, /app is the folder app, /srv is the folder srv."
        )
        look = (
            "cat /app/data/ships.txt /srv/tools/deep/count.sh; ls /tests /logs; echo $UNIT-$EMPTY-; touch /x"
        )
        said = (await box.shell.run(look)).output
        assert "a\nb\nc\nwc -l" in said
        assert "ships--" in said
        assert "test.sh" not in said
        assert "Read-only" in said
        assert box.files.read_text("app/data/ships.txt") == "a\nb\nc\n"
        # A reward that the model left, and tests that it wrote, are not what is read.
        await box.shell.run(
            "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json"
        )
        await box.shell.run("rm -rf /tmp/harbor/tests; ln -s /workspace /tmp/harbor/tests")
        grade = await environment.grade(box, End())
        assert (grade.score, grade.passed, grade.reason) == (0.25, False, "The reward was 0.25.")
        assert not box.files.exists("test.sh")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sleep 600", "tests/test.sh took longer than 2 s and was ended."),
        ("exit 3", "tests/test.sh wrote no reward.txt or reward.json; it ended with status 3."),
        ("echo yes > /logs/verifier/reward.txt", "reward.txt holds 'yes'; it must be one number."),
        ("echo nan > /logs/verifier/reward.txt", "reward.txt holds 'nan'; it must be one number."),
        ("echo '{}' > /logs/verifier/reward.json", "reward.json holds a map; it must be a map of numbers."),
    ],
)
async def test_verdicts_of_nonsense(tmp_path: Path, script: str, reason: str) -> None:
    toml = FILES["task.toml"].replace(
        "timeout_sec = 60", "timeout_sec = 2" if "sleep" in script else "timeout_sec = 60"
    )
    environment = environment_for(task_of(tmp_path, tests__test_sh=script, task_toml=toml))
    async with Sandbox.open(environment.sandbox_spec()) as box:
        await environment.start(box)
        grade = await environment.grade(box, End())
        assert (grade.passed, grade.reason) == (False, reason)
        assert (await box.shell.run("pgrep -x sleep")).output == ""


def test_rewards() -> None:
    assert reward_of("txt", " 0.5\n") == 0.5
    assert reward_of("json", '{"style": 0.2, "reward": 1}') == 1
    assert reward_of("json", '{"style": 0.2, "speed": 1}') == 0.2
    for kind, text in (
        ("json", "[1]"),
        ("json", '{"a": true}'),
        ("json", '{"a": NaN}'),
        ("json", "{"),
        ("txt", ""),
    ):
        with pytest.raises(ValueError, match=r"holds|is not JSON"):
            reward_of(kind, text)


@pytest.mark.parametrize(
    ("dockerfile", "sentence"),
    [
        ("FROM alpine:3\n", "line 1 is built on 'alpine:3'; only debian, ubuntu, python are known here."),
        ("FROM python:3.2-slim\n", f"and the Python here is 3.{sys.version_info.minor}."),
        ("FROM debian\nFROM debian\n", "line 2 starts a second stage; only one is taken."),
        ("WORKDIR /app\n", "line 1 comes before FROM"),
        ("FROM debian\nCOPY nowhere /app/\n", "line 2 copies 'nowhere', which is not there."),
        (
            "FROM debian\nCOPY ../task.toml /app/\n",
            "line 2 copies '../task.toml' from outside of the folder.",
        ),
        ("FROM debian\nCOPY ships.txt /etc/\n", "line 2 writes to /etc, which cannot be written here"),
        ("FROM debian\nWORKDIR /tests\n", "line 2 writes to /tests"),
        ("FROM debian\nCOPY --from=x ships.txt /app/\n", "line 2 copies in a way that is not done here"),
        ("FROM debian\nCOPY $X /app/\n", "line 2 uses a variable"),
        ("FROM debian\nCOPY ['a /app\n", "line 2 "),
        ("FROM debian\n\n# a\nWORKDIR \\\n  'x\n", "line 4 "),
        ("", "there is no FROM"),
    ],
)
def test_what_would_have_to_be_built_is_refused(tmp_path: Path, dockerfile: str, sentence: str) -> None:
    reason = skip_reason(task_of(tmp_path, environment__Dockerfile=dockerfile))
    assert reason is not None
    assert sentence in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("[environment]\ngpus = 1\n", "the task needs a GPU, which is not done here."),
        ("[[steps]]\nname = 'a'\n", "the task has several steps"),
        ("[verifier.env]\nKEY = '${KEY}'\n", "verifier.env must be a map of plain texts."),
    ],
)
def test_tasks_that_need_more_are_refused(tmp_path: Path, toml: str, sentence: str) -> None:
    assert sentence in str(skip_reason(task_of(tmp_path, task_toml=toml)))


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("[agent\n", "task.toml: not TOML"),
        ("agent = 3\n", "'agent' is 3; it must be a table."),
        ("[agent]\ntimeout_sec = 'long'\n", "'agent.timeout_sec' is 'long'; it must be a number of seconds."),
        ("[agent]\nallowed_hosts = ['a b']\n", "'environment.network[0]'"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, toml: str, sentence: str) -> None:
    with pytest.raises(TaskError, match=re.escape(sentence)):
        task_of(tmp_path, task_toml=toml)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "task.toml").write_text("")
    with pytest.raises(TaskError, match=r"instruction\.md: cannot be read"):
        load_suite(tmp_path / "bare")


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("/usr", "/workspace/a"),
        ("/usr/a", "/workspace"),
        ("/a/../b", "/workspace"),
        ("/home", "/workspace"),
        ("/app", "/etc"),
    ],
)
def test_links_of_a_sandbox_lead_to_its_own_folders(link: str, target: str) -> None:
    with pytest.raises(SandboxError, match=re.escape(f"link {link!r} to {target!r} cannot be made")):
        SandboxSpec(desktop=False, links={link: target})


def test_links_out_of_a_task_bring_nothing_in(tmp_path: Path) -> None:
    """Files of the machine that a task's folder only leads to are neither shown nor laid out."""
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "secret").write_text("secret\n")
    for number, (place, target) in enumerate(
        {
            "tests/data.txt": "secret",
            "solution/data.txt": "secret",
            "environment/ships.txt": "secret",
            "environment/tools": "more",
        }.items()
    ):
        folder = written(tmp_path / f"t{number}")
        if (folder / place).is_dir():
            shutil.rmtree(folder / place)
        (folder / place).unlink(missing_ok=True)
        (folder / place).symlink_to(tmp_path / target)
        task = find_task(str(folder))
        assert "a link that leads out of the" in str(skip_reason(task)), place
        assert "c2VjcmV0" not in str(task.solution), "what is secret was packed"
    shutil.rmtree(tmp_path / "t0" / "tests")
    (tmp_path / "t0" / "tests").symlink_to(tmp_path / "more")
    assert "a link that leads out of the" in str(skip_reason(find_task(str(tmp_path / "t0"))))
    for name in ("instruction.md", "task.toml"):
        folder = written(tmp_path / name)
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "secret")
        with pytest.raises(
            TaskError, match=r"a link that leads out of the task's folder; put the file there"
        ):
            find_task(str(folder))


def test_texts_that_would_not_end_and_files_too_many_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "count")
    (folder / "instruction.md").unlink()
    os.mkfifo(folder / "instruction.md")
    with pytest.raises(TaskError, match="not a regular file"):
        find_task(str(folder))
    (folder / "instruction.md").unlink()
    with (folder / "instruction.md").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TaskError, match="larger than 1048576 bytes"):
        find_task(str(folder))
    (folder / "instruction.md").write_text("Do.\n")
    os.mkfifo(folder / "tests" / "pipe")
    (folder / "tests" / "loop").symlink_to("loop")
    (folder / "tests" / "up").symlink_to("..")
    assert skip_reason(find_task(str(folder))) is None
    for place in ("tests/huge", "environment/tools/huge", "solution/huge", "environment/Dockerfile"):
        with (folder / place).open("ab") as file:
            file.truncate(1 << 40)
        assert "count" in str(reason := skip_reason(find_task(str(folder))))
        assert "MiB" in str(reason) or "larger" in str(reason)
        (folder / place).unlink()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("task_toml", "a = " + "[" * 50_000),
        ("task_toml", '[environment.env]\nA = "\\u0000"\n'),
        ("task_toml", '[environment.env]\n"A=B" = "1"\n'),
        ("task_toml", '[verifier.env]\nA = "\\u0000"\n'),
        ("instruction_md", "a\0b"),
        ("environment__Dockerfile", "FROM debian\nCOPY " + "[" * 50_000 + "\n"),
        ("environment__Dockerfile", "FROM debian\nENV A=\0\n"),
        ("environment__Dockerfile", "FROM debian\nENV 'A B'=1\n"),
        ("environment__Dockerfile", "FROM debian\nWORKDIR /app/\0\n"),
        ("environment__Dockerfile", "FROM debian\nCOPY ships.txt /app/\0\n"),
        ("environment__Dockerfile", "FROM debian\nCOPY ships\0.txt /app/\n"),
        ("environment__Dockerfile", "FROM debian\nWORKDIR " + "/a" * 3000 + "\n"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(tmp_path: Path, name: str, text: str) -> None:
    try:
        reason = skip_reason(task_of(tmp_path, **{name: text}))
    except TaskError as error:
        reason = str(error)
    assert reason
    assert "\n" not in reason
    assert "\0" not in reason


async def test_what_a_test_leaves_running_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    script = "setsid sleep 600 & (nohup sleep 600 &) ; echo 1 > /logs/verifier/reward.txt\n"
    environment = environment_for(task_of(tmp_path, tests__test_sh=script))
    async with Sandbox.open(environment.sandbox_spec()) as box:
        await environment.start(box)
        grade = await environment.grade(box, End())
        assert (grade.passed, grade.reason) == (True, "The reward was 1.")
        assert (await box.shell.run("pgrep -x sleep")).output == ""
