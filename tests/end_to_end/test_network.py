"""A run reaches the hosts that its person allowed, whatever its task file says; the log has every attempt."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.events import AttemptData, EventLog, LogError, Networked, RunEnded, read_run
from pilotfish.agent.networking import NetworkRecorder
from pilotfish.sandbox import Attempt

from .conftest import Command

TASK = """
instruction: Fetch the word.
tools: [shell]
environment: {kind: shell, network: [ok.test:80]}
limits: {steps: 4, seconds: 60}
graders: [{kind: file_matches, path: word.txt, pattern: "^served$"}]
solution:
  - curl -sS http://ok.test/ > word.txt; curl -sS http://evil.test/; true
"""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"served\n")

    def log_message(self, format: str, *words: object) -> None: ...


@pytest.fixture
def host() -> Iterator[str]:
    """The pattern that allows the server of this test."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ok.test:80=127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def pilotfish(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "task.yaml").write_text(TASK)
    command = [sys.executable, "-m", "pilotfish.agent.cli", *arguments]
    nothing = subprocess.DEVNULL
    return subprocess.run(command, cwd=folder, stdin=nothing, capture_output=True, text=True, timeout=90)


RUN = ("run", "task.yaml", "--model", "solution")


def test_a_run_with_a_host_that_was_allowed(tmp_path: Path, host: str) -> None:
    done = pilotfish(tmp_path, *RUN, "--allow-host", host, "--allow-host", "other.test:443")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"network: {host}, other.test:443"
    assert "net   GET ok.test:80 allowed" in lines
    refused = "evil.test:80 is not allowed here; the user can allow it with --allow-host evil.test:80."
    assert any(line.startswith("net   GET evil.test:80 refused: evil.test:80 is not") for line in lines)
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_run(folder)
    assert run.started.network == [host, "other.test:443"]
    assert isinstance(run.events[-1], RunEnded)
    assert not run.warnings
    attempts = [one for event in run.events if isinstance(event, Networked) for one in event.attempts]
    told = [(one.host, one.verdict, one.over) for one in attempts]
    assert told == [
        ("ok.test", "allowed", False),
        ("ok.test", "allowed", True),
        ("evil.test", "refused", True),
    ]
    assert attempts[1].received > 0
    assert attempts[2].why == refused
    assert pilotfish(tmp_path, "replay", str(folder)).returncode == 0
    page = next(folder.glob("*.html")).read_text()
    assert f"network: {host}, other.test:443" in page
    assert "GET evil.test:80 refused" in page


@pytest.mark.parametrize("source", ["file", "variable"])
def test_settings_allow_hosts_too(
    tmp_path: Path, host: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "file":
        (tmp_path / "pilotfish.toml").write_text(f"network = [{host!r}]\n")
    else:
        monkeypatch.setenv("PILOTFISH_NETWORK", json.dumps([host]))
    done = pilotfish(tmp_path, *RUN, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["network"] == [host]


def test_a_task_file_allows_nothing_by_itself(tmp_path: Path, command_here: Command) -> None:
    (tmp_path / "task.yaml").write_text(TASK)
    sentence = "needs ok.test:80 of the network; if it may have that, give --allow-host ok.test:80 "
    for arguments in (RUN, (*RUN, "--allow-host", "ok.test:443")):
        said = command_here(*arguments)
        assert said.status == 2
        assert sentence in said.err
        assert not (tmp_path / "runs").exists()
    said = command_here("bench", "tasks", str(tmp_path), "--model", "solution")
    assert said.status == 2
    assert "--allow-host ok.test:80" in said.err


def test_a_bench_shows_its_network(tmp_path: Path, host: str) -> None:
    (tmp_path / "pilotfish.toml").write_text(f"network = [{host!r}]\n")
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "fetch.yaml").write_text(TASK)
    done = pilotfish(tmp_path, "bench", "tasks", str(suite), "--model", "solution")
    assert done.returncode == 0, done.stderr
    assert "100%" in done.stdout
    assert f"network: {host}" in done.stdout


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("'*'", "has no port"),
        ("ok.test:80=127.0.0.1:80", "says where a name leads, which is for the person who runs the task"),
    ],
)
def test_what_a_task_file_may_not_name(tmp_path: Path, command_here: Command, named: str, words: str) -> None:
    (tmp_path / "task.yaml").write_text(TASK.replace("ok.test:80]", f"{named}]"))
    said = command_here(*RUN)
    assert said.status == 2
    assert words in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--allow-host", "example.com"), "network host 'example.com' has no port"),
        (("--allow-host", "ok.test:80", "--sandbox-level", "2"), "sandbox level 2 has no sockets at all"),
        (("--allow-host", "ok.test:80", "--sandbox-level", "0"), "sandbox level 0 cannot hold programs"),
    ],
)
def test_flags_that_cannot_be_met(
    tmp_path: Path, command_here: Command, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "task.yaml").write_text(TASK)
    said = command_here(*RUN, *arguments)
    assert said.status == 2
    assert f"--allow-host cannot be used: {words}" in said.err
    assert not (tmp_path / "runs").exists()


def attempt(number: int, **changes: Any) -> Attempt:
    fields: dict[str, Any] = {
        "number": number,
        "began": 0.0,
        "method": "GET",
        "host": "a.test",
        "port": 80,
        "verdict": "refused",
        "why": "no.",
        "sent": 0,
        "received": 0,
        "seconds": 0.0,
        "over": True,
    }
    return Attempt(**fields | changes)


def test_attempts_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    class Full(EventLog):
        """A log whose disk is full for a while."""

        full = True

        def _write(self, data: bytes) -> None:
            if self.full:
                raise LogError("No space; free some.")
            super()._write(data)

    with Full(tmp_path / "run") as events:
        recorder = NetworkRecorder(events)
        recorder([attempt(1)], "")
        recorder([], "the proxy has ended.")
        with pytest.raises(LogError):
            recorder.flush()
        events.full = False
        recorder([attempt(2)], "")
    found = read_run(tmp_path / "run").events
    assert [event.note for event in found if isinstance(event, Networked)] == ["", "the proxy has ended.", ""]
    numbers = [one.number for event in found if isinstance(event, Networked) for one in event.attempts]
    assert numbers == [1, 2]
    assert AttemptData.model_fields.keys() == vars(attempt(1)).keys()
