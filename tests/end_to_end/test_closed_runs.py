"""Runs and folders of runs that may not be read: every command says so, and whose they are."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pilotfish.agent import events as log

# Root reads everything, unless it lets go of the power to.
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
OPENING = ("show", "replay", "snapshots", "diff", "restore", "apply", "watch", "resume", "steer")
COMMANDS = """
import contextlib, io, json, sys
from pilotfish.agent.cli import main

said = []
for words in json.load(sys.stdin):
    sys.argv = ["pilotfish", *words]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main()
        except SystemExit as end:
            status = end.code
    said.append([status, output.getvalue()])
print(json.dumps(said))
"""


def said(home: Path, *commands: list[object]) -> list[tuple[int, str]]:
    """The status and all that is said by each command, run by somebody whom modes bind."""
    done = subprocess.run(
        [*POWERLESS, sys.executable, "-c", COMMANDS],
        input=json.dumps([list(map(str, words)) for words in commands]),
        env=os.environ | {"HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    return [(status, text) for status, text in json.loads(done.stdout)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of no steps in the folder where runs are looked for, and one beside it."""
    for name in ("20261129-120000-ab12cd", "other"):
        with log.EventLog(tmp_path / "runs" / name) as events:
            events.append(log.RunStarted(run=name, pilotfish="0", command="run", model="m", options={}))
    return tmp_path / "runs" / "20261129-120000-ab12cd"


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="needs setpriv")
def test_it_is_told_whose_a_run_is_that_may_not_be_read(tmp_path: Path, run: Path) -> None:
    events = run / log.EVENTS

    def closed(shut: Path, read: Path = events) -> str:
        why = f"{shut} is yours and has mode 000, check its permissions"
        return f"Cannot read {read} (Permission denied): {why}."

    run.chmod(0)
    opening: list[list[object]] = [[command, run] for command in OPENING]
    opening[-1].append("status")
    several = said(
        tmp_path,
        *opening,
        ["replay", run.parent / "other", "--with", run],
        ["show", run.name],
        ["runs", "--json"],
        ["runs"],
    )
    assert several[:-3] == [(1, f"pilotfish: {closed(run)}\n")] * (len(OPENING) + 1)
    by_name = closed(run, Path("runs") / run.name / log.EVENTS)
    assert several[-3] == (1, f"pilotfish: {by_name}\n")
    listed = {one["id"]: one["unread"] for one in json.loads(several[-2][1])["runs"]}
    assert listed == {run.name: by_name, "other": ""}
    assert f"{run.name}  unreadable     {by_name}\n" in several[-1][1]
    run.chmod(0o700)
    events.chmod(0)
    for status, sentence in said(tmp_path, ["show", run], ["steer", run, "status"], ["watch", run]):
        assert (status, sentence) == (1, f"pilotfish: {closed(events)}\n")
    run.parent.chmod(0)
    shown, listed_none = said(tmp_path, ["show", run], ["runs"])
    assert shown == (1, f"pilotfish: {closed(run.parent)}\n")
    assert listed_none == (1, f"pilotfish: {closed(run.parent, Path('runs'))}\n")
    run.parent.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(run, 65534, 65534)
        nobody = pwd.getpwuid(65534).pw_name
        ((_, sentence),) = said(tmp_path, ["show", run])
        assert f"{run} belongs to {nobody} and has mode 700, ask them or do it as {nobody}." in sentence
