"""`pilotfish run --host` with a scripted model: real clicks and keys on a display outside any sandbox."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("scripted_host.py")
START = [sys.executable, str(SCRIPT), "calls.json", "seen.txt", "run", "--host", "--instruction", "Do it."]
DONE = {"action": "done"}


class Command:
    """One `pilotfish run --host` as a process."""

    def __init__(
        self, folder: Path, calls: list[dict[str, Any]], *flags: str, stdin: int | None = None
    ) -> None:
        (folder / "calls.json").write_text(json.dumps(calls))
        self.folder = folder
        self.seen = folder / "seen.txt"
        self.errors = folder / "errors.txt"
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(self.errors.open("w")) if stdin is None else stdin
            self.process = subprocess.Popen(
                [*START, *flags],
                cwd=folder,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def ended(self, seconds: float = 60) -> tuple[int, str]:
        """Exit status and standard output."""
        out, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, out

    def log(self) -> list[dict[str, Any]]:
        (run,) = (self.folder / "runs").iterdir()
        return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]

    def results(self) -> list[dict[str, Any]]:
        return [record for record in self.log() if record["type"] == "resulted"]


def test_a_run_acts_on_the_desktop_and_says_so_everywhere(desktop: Any, tmp_path: Path) -> None:
    window = desktop.cover()
    calls = [
        {"action": "left_click", "coordinate": [0, 0]},
        {"action": "left_click", "coordinate": [500, 500]},
        {"action": "type", "text": "Grüße"},
        {"tool": "shell", "command": "echo from $PWD; ls /home"},
        DONE,
    ]
    try:
        command = Command(tmp_path, calls, "--monitor", "RIGHT", "--yes", "--json")
        status, out = command.ended()
        errors = command.errors.read_text()
        assert status == 0, out + errors
        assert (json.loads(out)["graded"], json.loads(out)["passed"]) == (False, None)
        assert window.presses() == [(2000, 50), (2500, 450)]
    finally:
        window.close()
    warning = (
        f"HOST DESKTOP, NOT SANDBOXED: mouse and keyboard act on your own desktop, display {desktop.name}, "
    )
    warning += "RIGHT (1000x800 pixels at 2000, 50), AND NOBODY IS ASKED (--yes)"
    result = json.loads(out)
    assert result["host_desktop"] == warning
    first, _, shown = errors.partition("\n")
    assert "nano knows only small pages" in first, "the setting, whoever plays here"
    assert shown.startswith(warning + "\nCtrl+Alt+Escape stops the run")
    started, episode = command.log()[:2]
    assert (started["host_desktop"], started["on_host"], started["sandbox_level"]) == (warning, True, 3)
    assert episode["screen"] == [1000, 800]
    assert "The screen is monitor RIGHT of the user's own desktop." in command.seen.read_text()
    texts = [record["text"] for record in command.results()]
    assert texts[:3] == ["ok"] * 3
    assert "from /workspace" in texts[3], "the shell stays in the sandbox"
    frames = command.results()[0]["clip"]["frames"]
    assert len(frames) == 4
    page = subprocess.run(
        [sys.executable, "-m", "pilotfish.agent.cli", "replay", result["folder"]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "HOST DESKTOP, NOT SANDBOXED" in Path(tmp_path / page.stdout.strip()).read_text()
    desktop.wait_for(lambda: desktop.window_named("Pilotfish") is None)


@pytest.mark.parametrize("way", ["hot key", "corner"])
def test_a_person_stops_it_while_the_model_computes(desktop: Any, tmp_path: Path, way: str) -> None:
    calls = [
        {"action": "left_mouse_down", "coordinate": [500, 500]},
        {"think": 60, "action": "left_click", "coordinate": [1, 1]},
    ]
    command = Command(tmp_path, calls, "--yes", "--json")
    desktop.wait_for(lambda: desktop.root.query_pointer().mask & 0x100, 60)
    began_s = time.monotonic()
    if way == "corner":
        desktop.hand_moves(1999, 899)
    else:
        desktop.hand_presses("Control_L", "Alt_L", "Escape")
    desktop.wait_for(lambda: not desktop.root.query_pointer().mask & 0x100)
    print(f"{way}: released {(time.monotonic() - began_s) * 1000:.0f} ms after the person began")
    status, out = command.ended()
    desktop.hand_releases("Control_L", "Alt_L", "Escape")
    assert status == 130
    assert not desktop.is_anything_down()
    why = (
        "The user pushed the pointer into a corner, to 1999, 899."
        if way == "corner"
        else "The user pressed Ctrl+Alt+Escape."
    )
    assert (json.loads(out)["end"], json.loads(out)["reason"]) == ("stopped", why)
    last = command.log()[-1]
    assert (last["type"], last["status"], last["reason"]) == ("run_ended", "interrupted", why)
    again = subprocess.run(
        [sys.executable, "-m", "pilotfish.agent.cli", "resume", json.loads(out)["folder"], "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "start anew with pilotfish run --host" in json.loads(again.stdout)["error"]


def test_kill_9_of_the_run_leaves_nothing_on_the_desktop(desktop: Any, tmp_path: Path) -> None:
    before = desktop.keymap()
    calls = [
        {"action": "type", "text": "测试"},
        {"action": "left_mouse_down", "coordinate": [500, 500]},
        {"think": 60, "action": "left_click", "coordinate": [1, 1]},
    ]
    window = desktop.cover()
    try:
        command = Command(tmp_path, calls, "--yes", "--json")
        desktop.wait_for(lambda: desktop.root.query_pointer().mask & 0x100, 60)
        assert desktop.keymap() != before
        command.process.kill()
        command.ended()
        desktop.wait_for(lambda: not desktop.is_anything_down())
        desktop.wait_for(lambda: desktop.keymap() == before)
        desktop.wait_for(lambda: desktop.window_named("Pilotfish") is None)
    finally:
        window.close()


def test_nothing_is_done_unasked_and_nobody_there_is_no(desktop: Any, tmp_path: Path) -> None:
    window = desktop.cover()
    try:
        calls = [{"action": "left_click", "coordinate": [500, 500]}, {"action": "screenshot"}, DONE]
        command = Command(tmp_path, calls, "--json")
        command.ended()
        assert window.presses() == []
    finally:
        window.close()
    refused, looked, _ = command.results()
    assert "has to be allowed by a person and nobody is there" in refused["text"]
    assert (refused["executed"], looked["text"]) == (False, "ok")


def test_a_person_is_asked_with_the_warning(desktop: Any, tmp_path: Path) -> None:
    window = desktop.cover()
    main, side = pty.openpty()
    calls = [
        {"action": "left_click", "coordinate": [100, 100]},
        {"action": "left_click", "coordinate": [900, 900]},
        DONE,
    ]
    shown = ""
    try:
        # What was typed before there was a question does not answer it.
        os.write(main, b"y\ny\n")
        command = Command(tmp_path, calls, stdin=side)
        for answer in (b"y\n", b"n\n"):
            while not shown.endswith("or why not] "):
                shown += os.read(main, 4096).decode()
            assert "HOST DESKTOP, NOT SANDBOXED" in shown
            shown = ""
            time.sleep(0.1)
            os.write(main, answer)
        command.ended()
        assert window.presses() == [(1100, 90)]
    finally:
        window.close()
        os.close(main)
        os.close(side)


def test_a_monitor_that_changes_between_picture_and_click_is_told(desktop: Any, tmp_path: Path) -> None:
    window = desktop.cover()
    calls = [
        {"action": "mouse_move", "coordinate": [500, 500]},
        {"think": 4, "action": "left_click", "coordinate": [1000, 1000]},
        {"action": "left_click", "coordinate": [1000, 1000]},
        DONE,
    ]
    try:
        command = Command(tmp_path, calls, "--monitor", "RIGHT", "--yes", "--json")
        desktop.wait_for(lambda: desktop.pointer() == (2500, 450), 60)
        desktop.xrandr("--delmonitor", "RIGHT")
        desktop.xrandr("--setmonitor", "RIGHT", "600/260x400/240+2100+100", "none")
        command.ended()
        assert window.presses() == [(2699, 499)]
    finally:
        window.close()
    _, refused, clicked, _ = command.results()
    assert refused["text"].startswith(
        "The screen has changed from 1000x800 pixels at 2000, 50 to 600x400 at 2100"
    )
    assert refused["executed"] is False
    assert clicked["text"] == "ok"
    from PIL import Image

    (run,) = (tmp_path / "runs").iterdir()
    sizes = [Image.open(run / "frames" / f"{name}.png").size for name in refused["clip"]["frames"]]
    assert sizes == [(600, 400)] * 4


def test_a_monitor_that_is_unplugged_ends_the_run_with_a_sentence(desktop: Any, tmp_path: Path) -> None:
    calls = [
        {"action": "mouse_move", "coordinate": [500, 500]},
        {"think": 4, "action": "left_click", "coordinate": [1, 1]},
    ]
    command = Command(tmp_path, calls, "--monitor", "RIGHT", "--yes", "--json")
    desktop.wait_for(lambda: desktop.pointer() == (2500, 450), 60)
    desktop.xrandr("--delmonitor", "RIGHT")
    status, out = command.ended()
    assert status == 1
    assert json.loads(out)["reason"].startswith("There is no monitor 'RIGHT'; choose from")


def test_ctrl_c_lets_go_of_everything(desktop: Any, tmp_path: Path) -> None:
    calls = [
        {"action": "left_mouse_down", "coordinate": [500, 500]},
        {"think": 60, "action": "left_click", "coordinate": [1, 1]},
    ]
    command = Command(tmp_path, calls, "--yes", "--json")
    desktop.wait_for(lambda: desktop.root.query_pointer().mask & 0x100, 60)
    command.process.send_signal(signal.SIGINT)
    status, _ = command.ended()
    assert status == 130
    assert not desktop.is_anything_down()
    assert desktop.window_named("Pilotfish") is None


@pytest.mark.parametrize(
    ("arguments", "variables", "sentence"),
    [
        (["run", "web/sign-in", "--host"], {}, "--host and --tools go with --instruction"),
        (["run", "--instruction", "x", "--host", "--desktop"], {}, "--host is your own"),
        (["run", "--instruction", "x", "--monitor", "1"], {}, "--monitor goes with --host"),
        (["run", "--instruction", "x", "--host"], {"PILOTFISH_YES": "true"}, "does not hold for --host"),
        (["run", "--instruction", "x", "--host"], {}, "DISPLAY is not set"),
        (["run", "--instruction", "x", "--host"], {"WAYLAND_DISPLAY": "wayland-0"}, "a Wayland session"),
    ],
)
def test_what_cannot_be_is_a_sentence(
    tmp_path: Path,
    command_here: Command,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variables: dict[str, str],
    sentence: str,
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = command_here(*arguments, "--json")
    assert said.status in (1, 2)
    assert sentence in json.loads(said.out)["error"]
    assert not (tmp_path / "runs").exists()


def test_only_the_flag_asks_for_the_desktop(tmp_path: Path, command_here: Command) -> None:
    (tmp_path / "pilotfish.toml").write_text("host = true\n")
    said = command_here("run", "--instruction", "x", "--json")
    assert said.status == 2
    assert "There is no setting host (pilotfish.toml, line 1)" in json.loads(said.out)["error"]
