"""The commands on real terminals: where there is none, and after an interface was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from pilotfish.agent.tui.bench import Terminal, on_terminal

from . import made_runs


@pytest.mark.parametrize("command", [["tui"], ["attach", "run"]])
def test_without_a_terminal_a_sentence_says_what_to_use(tmp_path: Path, command: list[str]) -> None:
    made_runs.finished(tmp_path / "run")
    words = [sys.executable, "-m", "pilotfish.agent.entry", *command]
    done = subprocess.run(words, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"pilotfish: `pilotfish {command[0]}` needs a terminal; `pilotfish show RUN`"
    )
    assert len(done.stderr.splitlines()) == 1


def test_no_other_command_imports_the_interface() -> None:
    code = (
        "import sys; import pilotfish.agent.cli; print({m for m in sys.modules if m.startswith('textual')})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_next_start_puts_a_terminal_in_order_that_a_killed_interface_left(tmp_path: Path) -> None:
    folder = made_runs.finished(tmp_path / "run")
    log = (folder / "events.jsonl").read_bytes()
    with on_terminal("attach", str(folder)) as terminal:
        terminal.wait("The run finished")
        os.kill(terminal.process.pid, signal.SIGKILL)
        terminal.process.wait()
        again = Terminal(["attach", str(folder)], on=terminal)
        again.wait("The run finished")
        raw = again.raw
        assert raw.index(b"\x1b[?1003l") < raw.index(b"\x1b[?1049l") < raw.index(b"\x1b[?1049h")
        follower = os.open(terminal.name, os.O_RDWR | os.O_NOCTTY)
        assert not termios.tcgetattr(follower)[3] & termios.ECHO
        again.press("q")
        again.wait_for_end()
        assert again.process.returncode == 0
        assert (
            termios.tcgetattr(follower)[3] & (termios.ECHO | termios.ICANON) == termios.ECHO | termios.ICANON
        )
        os.close(follower)
    assert (folder / "events.jsonl").read_bytes() == log
