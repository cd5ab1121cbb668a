# ruff: noqa: ASYNC240 - nothing else runs in these event loops
"""A run's workspace is kept before each call; `diff`, `restore`, `snapshots` and `apply` for people."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent import cli
from pilotfish.agent import events as log
from pilotfish.agent.changes import diff_lines, restored_lines, ways_back
from pilotfish.agent.keeping import may_write
from pilotfish.agent.player import Player
from pilotfish.agent.policy import Policy
from pilotfish.agent.run import Target, resolve
from pilotfish.agent.settings import Settings
from pilotfish.model.protocol import Message
from pilotfish.model.scripted import ScriptedModel
from pilotfish.sandbox import Snapshots

from .conftest import call, shell, turn

PILOTFISH = [sys.executable, "-m", "pilotfish.agent.cli"]


def pilotfish(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command, in this process: it starts in no time."""
    output, errors, before = io.StringIO(), io.StringIO(), sys.argv
    status: object = 0
    sys.argv = ["pilotfish", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            cli.main()
    except SystemExit as ended:
        status = ended.code
    finally:
        sys.argv = before
    assert isinstance(status, int)
    return subprocess.CompletedProcess(["pilotfish"], status, output.getvalue(), errors.getvalue())


def by_process(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command as people start it."""
    return subprocess.run(
        [*PILOTFISH, *map(str, arguments)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=90,
        cwd=cwd,
        check=False,
    )


def as_json(*arguments: object) -> dict[str, Any]:
    done = pilotfish(*arguments, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"status": done.returncode}


async def play(target: Target, folder: Path, script: Sequence[Message]) -> log.RunLog:
    """A run as `pilotfish run` makes it, played by a script."""
    job_for, _ = resolve(target, Settings())
    settings = Settings()
    with log.EventLog(folder) as events:
        options = json.loads(
            json.dumps({"target": asdict(target), "settings": settings.model_dump(mode="json")})
        )
        started = log.RunStarted(
            run=folder.name, pilotfish="0", command="run", model="scripted", options=options
        )
        events.append(started)
        async with Player(settings, events, Policy(), asyncio.Event()) as player:
            await player.play(job_for(folder, None), ScriptedModel(list(script)))
        events.append(log.RunEnded(status="finished"))
    return log.read_run(folder)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of the user's."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.py").write_text("one\ntwo\n")
    (folder / "b.py").write_text("b\n")
    return folder


SCRIPT = [
    turn(call("edit", command="view", path="a.py")),
    turn(call("edit", command="replace", path="a.py", old_text="two", new_text="2")),
    shell("rm b.py; mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; echo done"),
    shell("echo again > c.txt"),
    turn(text="Finished."),
]


async def test_each_writing_call_can_be_gone_back_on(project: Path, tmp_path: Path) -> None:
    target = Target(instruction="Work.", workspace=str(project))
    run = await play(target, tmp_path / "runs" / "r", SCRIPT)
    taken = [event for event in run.events if isinstance(event, log.SnapshotTaken)]
    assert [(event.step, event.snapshot, event.files, event.note) for event in taken] == [
        (2, "1", 2, ""),
        (3, "2", 2, ""),
        (4, "3", 2, ""),
    ]
    kinds = [event.type for event in run.events]
    assert kinds[kinds.index("snapshot_taken") + 1] == "intended"

    listed = as_json("snapshots", run.folder)["snapshots"]
    assert [one["label"] for one in listed] == [
        "before step 2, edit",
        "before step 3, shell",
        "before step 4, shell",
    ]
    found = as_json("diff", run.folder)
    assert {one["path"]: (one["how"], one["runs"]) for one in found["changes"]} == {
        ".git": ("added", "git"),
        ".git/hooks": ("added", "git"),
        ".git/hooks/pre-commit": ("added", "git"),
        "a.py": ("changed", ""),
        "b.py": ("removed", ""),
        "c.txt": ("added", ""),
    }
    shown = pilotfish("diff", run.folder, 2, 3).stdout
    assert shown.startswith("Look at these first, as they are run or obeyed by themselves")
    assert "\n-b\n" in shown
    assert "a.py" not in shown

    (project / "mine.txt").write_text("written after the run")
    done = as_json("restore", run.folder, 2)
    assert (done["status"], done["before"], done["problems"]) == (0, "4", [])
    assert done["done"] == [
        {"path": ".git/", "how": "removed"},
        {"path": "b.py", "how": "written"},
        {"path": "c.txt", "how": "removed"},
        {"path": "mine.txt", "how": "removed"},
    ]
    assert sorted(path.name for path in project.iterdir()) == ["a.py", "b.py"]
    assert (project / "a.py").read_text() == "one\n2\n"
    told = pilotfish("restore", run.folder)
    assert told.returncode == 0
    assert told.stdout.splitlines() == [
        f"{project} is as in snapshot 1 again; 1 file or folder was written or removed:",
        "  written   a.py",
        "What was there before is snapshot 5.",
    ]
    told = pilotfish("restore", run.folder)
    assert told.stdout == f"{project} was as in snapshot 1 already; nothing was changed.\n"
    assert (project / "a.py").read_text() == "one\ntwo\n"
    assert as_json("restore", run.folder, 4)["status"] == 0
    assert (project / "mine.txt").read_text() == "written after the run"
    assert (project / ".git" / "hooks" / "pre-commit").read_text() == "evil\n"

    assert len(as_json("snapshots", run.folder, "--remove", 1)["snapshots"]) == 5
    assert as_json("snapshots", run.folder, "--remove", "all")["snapshots"] == []
    assert "has no snapshots any more" in as_json("diff", run.folder)["error"]


async def test_review_leaves_the_folder_alone_until_it_is_applied(project: Path, tmp_path: Path) -> None:
    target = Target(instruction="Work.", workspace=str(project), review=True)
    run = await play(target, tmp_path / "runs" / "r", SCRIPT)
    assert sorted(path.name for path in project.iterdir()) == ["a.py", "b.py"]
    assert (project / "a.py").read_text() == "one\ntwo\n"
    assert {one["path"] for one in as_json("diff", run.folder)["changes"]} >= {"a.py", "b.py", "c.txt"}
    assert ways_back(run)[-1] == f"Bring it over with: pilotfish apply {run.folder}"

    (project / "a.py").write_text("mine\n")
    (project / "own.txt").write_text("mine")
    refused = as_json("apply", run.folder)
    assert (refused["status"], refused["applied"], refused["conflicts"]) == (1, False, ["a.py"])
    assert (project / "b.py").exists()
    done = as_json("apply", run.folder, "--overwrite")
    assert (done["status"], done["conflicts"]) == (0, ["a.py"])
    assert (project / "a.py").read_text() == "one\n2\n"
    assert not (project / "b.py").exists()
    assert (project / "own.txt").read_text() == "mine"
    again = as_json("apply", run.folder)
    assert (again["status"], again["changed"]) == (0, 0)

    labels = {one["label"]: one["id"] for one in as_json("snapshots", run.folder)["snapshots"]}
    assert as_json("restore", run.folder, labels["before it was brought over"])["changed"] > 0
    assert (project / "b.py").exists()
    assert as_json("restore", run.folder)["folder"] == str(project)
    assert sorted(path.name for path in project.iterdir()) == ["a.py", "b.py"]


async def test_a_run_goes_on_when_nothing_can_be_kept(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs" / "r"
    folder.mkdir(parents=True)
    (folder / "snapshots").write_text("a file is in the way")
    run = await play(Target(instruction="Work.", workspace=str(project)), folder, SCRIPT)
    taken = [event for event in run.events if isinstance(event, log.SnapshotTaken)]
    assert len(taken) == 1, "said once"
    assert taken[0].note.startswith("Steps from here on cannot be gone back on: snapshots cannot be kept in")
    assert "has no snapshots: snapshots cannot be kept in" in as_json("restore", run.folder)["error"]
    assert (project / "c.txt").exists()


def test_a_run_folder_in_the_workspace_is_refused(project: Path) -> None:
    inside = ("--record-dir", "kept/runs")
    done = by_process("run", "--instruction", "x", "--workspace", ".", *inside, "--json", cwd=project)
    assert done.returncode == 2
    assert "choose another place with --record-dir" in json.loads(done.stdout)["error"]
    assert not (project / "kept").exists()


async def test_what_has_nothing_to_go_back_to_says_so(project: Path, tmp_path: Path) -> None:
    run = await play(
        Target(instruction="Say.", workspace=str(project)), tmp_path / "r", [turn(text="Hello.")]
    )
    for command in ("diff", "restore", "snapshots", "apply"):
        done = as_json(command, run.folder)
        assert (done["status"], "has no snapshots" in done["error"]) == (1, True)
        assert "no call of it could have written" in done["error"]
    assert ways_back(run) == []
    with log.EventLog(tmp_path / "t") as events:
        options = {"target": {"workspace": str(project)}}
        events.append(log.RunStarted(run="t", pilotfish="0", command="run", model="nano", options=options))
    assert "has no snapshots: it ended before it had begun" in as_json("restore", tmp_path / "t")["error"]
    run = await play(Target(instruction="Work.", workspace=str(project)), tmp_path / "s", SCRIPT)
    assert "start a run with --review" in as_json("apply", run.folder)["error"]
    assert ways_back(run) == [
        f"See its work with: pilotfish diff {run.folder}",
        f"Undo it with: pilotfish restore {run.folder}",
    ]
    assert "there is no snapshot '9', there are 1 to 3" in as_json("restore", run.folder, 9)["error"]


async def test_nobody_goes_back_under_a_run(project: Path, tmp_path: Path) -> None:
    run = await play(Target(instruction="Work.", workspace=str(project)), tmp_path / "r", SCRIPT)
    with log.EventLog(run.folder):
        done = as_json("restore", run.folder)
    assert "is being written by another process" in done["error"]
    assert (project / "c.txt").exists()


async def test_a_run_is_named_by_its_id_alone(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await play(
        Target(instruction="Work.", workspace=str(project)), tmp_path / "runs" / "r", SCRIPT[1:2]
    )
    by_id = by_process("snapshots", "r", "--json", cwd=tmp_path)
    assert json.loads(by_id.stdout)["snapshots"][0]["label"] == "before step 1, edit"
    monkeypatch.chdir(tmp_path)
    assert as_json("replay", "r")["path"] == "runs/r/replay.html"
    assert as_json("diff", run.folder)["changes"] == as_json("diff", "r")["changes"]
    assert "The run r has finished" in as_json("resume", "r")["error"]
    sentence = "There is no run '{}' (no events.jsonl in {}); {}."
    lists = "`pilotfish runs` lists those there are"
    for command in ("snapshots", "diff", "restore", "apply", "replay", "resume"):
        unknown = as_json(command, "x")
        assert (unknown["status"], unknown["error"]) == (
            1,
            sentence.format("x", "x and none in runs/x", lists),
        )
    assert as_json("diff", "a/x")["error"] == sentence.format("a/x", "a/x", lists)
    monkeypatch.chdir(project)
    assert as_json("diff", "r")["error"].endswith("runs/r); no runs are in runs yet.")


async def test_a_copied_run_acts_on_its_own_files(tmp_path: Path) -> None:
    run = await play(Target(instruction="Work."), tmp_path / "runs" / "r", [shell("echo 1 > a"), *SCRIPT[3:]])
    copied, moved = tmp_path / "elsewhere" / "copy", tmp_path / "moved"
    shutil.copytree(run.folder, copied, symlinks=True)
    done = as_json("restore", copied, 2)
    assert (done["status"], done["folder"]) == (0, str(copied / "workspace"))
    assert [path.name for path in (copied / "workspace").iterdir()] == ["a"]
    assert sorted(path.name for path in (run.folder / "workspace").iterdir()) == ["a", "c.txt"]
    run.folder.rename(moved)
    assert as_json("restore", moved)["folder"] == str(moved / "workspace")
    assert list((moved / "workspace").iterdir()) == []
    assert not run.folder.exists()


async def test_a_folder_that_is_another_by_now_is_refused(project: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(project)
    run = await play(Target(instruction="Work.", workspace=str(link)), tmp_path / "r", SCRIPT)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("mine")
    link.unlink()
    link.symlink_to("other")
    assert as_json("restore", run.folder)["error"] == (
        f"snapshot '1' is one of {str(project)!r}, and {str(link)!r} leads to another folder by now: let it "
        "lead there again."
    )
    assert (tmp_path / "other" / "mine").read_text() == "mine"
    link.unlink()
    link.symlink_to(project)
    assert as_json("restore", run.folder)["status"] == 0
    assert sorted(path.name for path in project.iterdir()) == ["a.py", "b.py"]


async def test_what_is_not_kept_is_named(project: Path, tmp_path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as theirs:
        theirs.bind(str(project / "sock"))
        for review in (False, True):
            folder = tmp_path / f"review {review}"
            target = Target(instruction="Work.", workspace=str(project), review=review)
            run = await play(target, folder, [SCRIPT[1], *SCRIPT[4:]])
            taken = next(event for event in run.events if isinstance(event, log.SnapshotTaken))
            start = next(event for event in run.events if isinstance(event, log.EpisodeStarted))
            missing = "sock (a socket or device)"
            note = f"Not kept, and so not to be gone back on: {missing}."
            assert taken.note == ("" if review else note)
            if review:
                copy = f"Work.\n\nThe workspace is a copy of the user's folder, without {missing}."
                assert start.instruction == copy
                assert [one["path"] for one in as_json("diff", folder)["changes"]] == ["a.py"]
                assert as_json("apply", folder)["status"] == 0
            listed = pilotfish("snapshots", folder).stdout.splitlines()
            assert listed[0].endswith(f", without {missing}")
            assert " 2 files " in listed[0]
            (project / "a.py").write_text("one\ntwo\n")
    assert (project / "sock").is_socket()


@pytest.mark.parametrize(
    ("name", "arguments", "may"),
    [
        ("shell", {"command": "ls"}, True),
        ("edit", {"command": "create"}, True),
        ("edit", {"command": "view"}, False),
        ("edit", {"command": "undo"}, True),
        ("computer", {"action": "left_click"}, True),
        ("computer", {"action": "key"}, True),
        ("computer", {"action": "screenshot"}, False),
        ("computer", {"action": "mouse_move"}, False),
        ("something else", {}, True),
    ],
)
def test_which_calls_may_write(name: str, arguments: dict[str, str], may: bool) -> None:
    assert may_write(call(name, **arguments)) is may


def test_caches_are_counted_and_not_listed(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    kept = Snapshots(project, tmp_path / "store")
    first = kept.take()
    (project / "a.py").write_text("one\n")
    for name in ("__pycache__/a.cpython-311.pyc", "sub/__pycache__/b.pyc", ".pytest_cache/README.md"):
        (project / name).parent.mkdir(parents=True)
        (project / name).write_text("cached\n")
    lines = diff_lines(kept.diff(first, text=True), text=True)
    assert lines[:5] == [
        "A a.py",
        "A sub",
        "and 2 changes in .pytest_cache; --json has all.",
        "and 4 changes in __pycache__, which Python runs; --json has all.",
        "--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+one",
    ]
    assert len(lines) == 5


def test_records_of_git_are_counted_and_what_it_obeys_is_listed(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run(["git", "init", "-q", project], check=True)
    kept = Snapshots(project, tmp_path / "store")
    first = kept.take()
    (project / "a.py").write_text("one\n")
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    subprocess.run([*git, "config", "core.pager", "evil"], check=True)
    (project / ".git" / "hooks" / "pre-commit").write_text("evil\n")
    (project / ".git" / "payload").write_text("evil\n")
    (project / ".git" / "ORIG_HEAD").symlink_to("/etc/passwd")
    found = kept.diff(first, text=True)
    lines = diff_lines(found, text=False)
    assert lines[0].endswith("(2):")
    assert sorted(lines[1:3]) == ["  .git/config  (git)", "  .git/hooks/pre-commit  (git)"]
    assert lines[3:-1] == [
        "A .git/ORIG_HEAD  (link to /etc/passwd)",
        "M .git/config",
        "A .git/hooks/pre-commit",
        "A .git/payload",
        "A a.py",
    ]
    assert lines[-1] == f"and {len(found.changes) - 5} changes in .git, git's own records; --json has all."
    assert not [line for line in diff_lines(found, text=True) if "index" in line]


def test_names_do_not_forge_lines_of_a_diff(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    kept = Snapshots(project, tmp_path / "store")
    first = kept.take()
    (project / "x\nM README.md").write_text("one\n")
    (project / "\udcff").write_text("one\n")
    lines = diff_lines(kept.diff(first, text=True), text=True)
    assert not [line for line in "\n".join(lines).splitlines() if line.startswith("M README.md")]
    done = kept.restore(first)
    told = {"folder": "\n", "snapshot": first, "changed": 2, "done": [], "before": "2"}
    told["done"] = [{"path": path, "how": how} for path, how in sorted(done.done)]
    shown = restored_lines(told | {"problems": ["x\nM README.md was changed meanwhile"]})
    assert [line.encode() for line in shown if "\n" in line] == []
    assert shown[1:] == [
        "  removed   x\\nM README.md",
        "  removed   \\udcff",
        "What was there before is snapshot 2.",
        "But x\\nM README.md was changed meanwhile.",
    ]
