"""What `make demo` runs: the model that ships, a real page in a real browser, from pixels to success."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pilotfish.agent import events as log

from .test_command_line import PILOTFISH

pytestmark = pytest.mark.timeout(300)


def test_nano_solves_its_demonstration_call_by_call(tmp_path: Path) -> None:
    command = [*PILOTFISH, "demo", "--record-dir", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["passed"] is True
    run = log.read_run(Path(result["folder"]))
    faults = [fault for event in run.events for fault in getattr(event, "faults", ())]
    assert faults == []
    assert Path(result["replay"]).stat().st_size > 10_000
