"""How a run begins: what cannot begin is told before anything heavy, and a signal is heeded at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.agent import events as log
from pilotfish.tasks.format import Task

from ..processes import living_in_session
from ..waiting import wait_for

PILOTFISH = [sys.executable, "-m", "pilotfish.agent.cli"]


def without(program: str, folder: Path) -> dict[str, str]:
    """An environment whose PATH has a few programs, but not this one."""
    folder.mkdir()
    for name in {"bash", "bwrap", "Xvfb", "openbox"} - {program}:
        (folder / name).symlink_to(shutil.which(name) or "")
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["web/sign-in", "--model", "no/such/model"], {}, "there is no model 'no/such/model'; give nano, a"),
        (["web/sign-in", "--model", "half"], {}, "half holds no tokenizer.json"),
        (["web/sign-in", "--record-dir", "file/runs"], {}, "Cannot write file/runs (Not a directory)"),
        (["web/sign-in", "--sandbox-level", "2"], {}, "There is no display with --sandbox-level 2"),
        (["web/sign-in"], {"PILOTFISH_SANDBOX_LEVEL": "2"}, "no display with PILOTFISH_SANDBOX_LEVEL 2"),
        (["web/sign-in"], {"without": "Xvfb"}, "Xvfb is missing"),
        (["web/sign-in"], {"PILOTFISH_CHROMIUM": "/no/browser"}, "PILOTFISH_CHROMIUM is '/no/browser'"),
        (["--instruction", "x"], {"without": "bwrap"}, "bwrap is missing"),
        (["--instruction", "x", "--host"], {"DISPLAY": ""}, "DISPLAY is not set"),
        (["--instruction", "x", "--workspace", "/sys"], {}, "'/sys' holds the kernel's files"),
        (["--instruction", "x", "--workspace", "/proc/self", "--review"], {}, "holds the kernel's files"),
        (["--instruction", "x", "--workspace", "closed"], {}, "cannot be written; change that"),
    ],
)
def test_what_cannot_begin_is_told_before_a_model_is_loaded(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], says: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "half").mkdir()
    (tmp_path / "closed").mkdir(mode=0o555)
    import pilotfish.model

    shutil.copy(Path(pilotfish.model.__path__[0]) / "nano" / "config.json", tmp_path / "half")
    if (program := environment.pop("without", None)) is not None:
        environment = without(program, tmp_path / "programs")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *PILOTFISH[1:], "run", *arguments],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert len(said) == 1
    assert says in said[0]
    assert " torch\n" not in done.stderr, "the model's library was loaded"
    assert not (tmp_path / "runs").exists()


def loads_torch(process: subprocess.Popen[str], folder: Path) -> bool:
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def has_begun(process: subprocess.Popen[str], folder: Path) -> bool:
    return any(folder.glob("runs/*/events.jsonl"))


@pytest.mark.parametrize(
    ("moment", "arguments", "number"),
    [
        (loads_torch, ["miniwob/click-test"], signal.SIGINT),
        (loads_torch, ["miniwob/click-test"], signal.SIGTERM),
        (has_begun, ["suite/two-buttons", "--model", "solution"], signal.SIGINT),
        (has_begun, ["suite/two-buttons", "--model", "solution"], signal.SIGTERM),
    ],
)
@pytest.mark.parametrize("later_s", [0, 0.4])
def test_a_signal_at_the_beginning_ends_it_and_leaves_nothing(
    tmp_path: Path,
    web_task: Task,
    moment: Callable[[subprocess.Popen[str], Path], bool],
    arguments: list[str],
    number: signal.Signals,
    later_s: float,
) -> None:
    process = subprocess.Popen(
        [*PILOTFISH, "run", *arguments, "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.poll() is None and not moment(process, tmp_path):
        time.sleep(0.005)
    time.sleep(later_s)
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    found = json.loads(out)
    if moment is loads_torch and "error" in found:
        assert errors.splitlines()[-1] == "pilotfish: The command was interrupted."
        assert not (tmp_path / "runs").exists()
        return
    assert (found["end"], found["graded"]) == ("stopped", False)
    run = log.read_run(Path(tmp_path / found["folder"]))
    assert run.ended is not None
    assert run.ended.status == "interrupted"
    # All that a run starts is in its session or in namespaces that end with what is there. What has only just
    # been started when the signal comes is told to end and not waited for.
    wait_for(lambda: not living_in_session(process.pid))


def test_ctrl_c_while_modules_are_imported_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "pilotfish.agent.entry", "demo"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if " typer." in line)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    said = [line for line in errors.splitlines() if not line.startswith("import time:")]
    assert said == ["pilotfish: The command was interrupted."]
    assert not (tmp_path / "runs").exists()


def test_nano_is_warned_of_and_what_has_no_grader_is_not_graded(tmp_path: Path) -> None:
    flags = ["--instruction", "Mend the test.", "--json"]
    environment = os.environ | {"PILOTFISH_MAX_STEP": "3", "PILOTFISH_MAX_TOKENS": "1"}
    done = subprocess.run(
        [*PILOTFISH, "run", *flags],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["end"] == "token_limit"
    assert (result["graded"], result["passed"], result["score"]) == (False, None, None)
    assert "not graded" in done.stderr
    assert done.stderr.count("nano knows only small pages") == 1
    near = "PILOTFISH_MAX_STEP is no setting and was ignored; the nearest is PILOTFISH_MAX_STEPS."
    assert done.stderr.count(near) == 1
