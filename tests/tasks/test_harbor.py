"""Task folders of Harbor's form: those that need no building are played, the others refused in a sentence."""

from __future__ import annotations

import re
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
    ("link", "target"), [("/usr", "/workspace/a"), ("/a/b", "/workspace"), ("/app", "/etc")]
)
def test_links_of_a_sandbox_lead_to_its_own_folders(link: str, target: str) -> None:
    with pytest.raises(SandboxError, match=re.escape(f"link {link!r} to {target!r} cannot be made")):
        SandboxSpec(desktop=False, links={link: target})
