"""What `make demo` runs: the model that ships, a real page in a real browser, from pixels to success."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from pilotfish.agent import events as log

from .test_command_line import PILOTFISH

pytestmark = pytest.mark.timeout(300)


def test_nano_solves_its_demonstration_call_by_call(tmp_path: Path) -> None:
    command = [*PILOTFISH, "demo", "--record-dir", str(tmp_path), "--json"]
    wants = os.environ | {"PILOTFISH_LOGPROBS": "true"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=wants)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["passed"] is True
    run = log.read_run(Path(result["folder"]))
    faults = [fault for event in run.events for fault in getattr(event, "faults", ())]
    assert faults == []
    assert Path(result["replay"]).stat().st_size > 10_000
    answers = [event for event in run.events if isinstance(event, log.Answered)]
    for answer in answers:
        unknown = [name for name, value in dataclasses.asdict(answer.usage).items() if value is None]
        assert unknown == [], "the engine knows all of its answer"
        assert len(answer.logprobs or ()) == answer.usage.output_tokens > 0
    called = [event.call for event in run.events if isinstance(event, log.Intended)]
    assert len(called) > 1
    assert all(call.confidence is not None and 0 < call.confidence <= 1 for call in called)
    first, *later = (answer.usage for answer in answers)
    assert all(usage.cached_tokens for usage in later), "the conversation is read once"
    assert first.vision_s
    assert result["usage"]["answers"] == len(answers)
    assert result["usage"]["output_tokens"] == sum(answer.usage.output_tokens for answer in answers)
