"""The ATIF export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotfish.agent import events as log
from pilotfish.agent.atif import to_atif
from pilotfish.model.protocol import Usage

USAGE = Usage(
    input_tokens=30,
    cached_tokens=20,
    output_tokens=5,
    queue_s=0.25,
    prefill_s=1.5,
    decode_s=0.5,
    cache_bytes=3 << 20,
    device="cpu",
    sequences=2,
)


def record(folder: Path, text: str) -> log.RunLog:
    """A run of one step whose clip has three different frames."""
    with log.EventLog(folder) as events:
        frames = [events.frames.put(np.full((42, 34, 3), shade, np.uint8)) for shade in (0, 128, 255)]
        before = _clip(frames[0], frames[0], frames[0], frames[0], "unchanged")
        after = _clip(frames[0], frames[1], frames[2], frames[2], "settled")
        call = log.CallData(
            id="c1",
            name="computer",
            arguments={"action": "type", "coordinate": [500, 250], "text": text},
            confidence=0.934,
        )
        events.append(log.RunStarted(run=text, pilotfish="1", command="run", model=text))
        events.append(
            log.EpisodeStarted(
                episode=0,
                task=text,
                seed=7,
                instruction=text,
                screen=(34, 42),
                clip=before,
                tools=[{"name": "computer"}],
            )
        )
        events.append(log.Answered(step=1, text="hm", kept=False))
        events.append(log.Told(step=1, text=text))
        events.append(
            log.Answered(
                step=1,
                text=text,
                reasoning=text,
                calls=[call],
                usage=USAGE,
                logprobs=[-0.5, -0.25],
                seconds=3,
            )
        )
        events.append(log.Intended(step=1, call=call))
        events.append(log.Resulted(step=1, call_id="c1", ok=True, text=text, clip=after))
        events.append(log.EpisodeEnded(episode=0, end="done", passed=True, score=1, reason=text, steps=1))
        events.append(log.RunEnded(status="finished"))
    return log.read_run(folder)


def _clip(a: str, b: str, c: str, d: str, word: Any) -> log.ClipData:
    return log.ClipData(frames=(a, b, c, d), times_s=(0.0, 0.1, 0.2, 0.3), settled=True, word=word)


def test_atif(tmp_path: Path) -> None:
    document = json.loads(json.dumps(to_atif(record(tmp_path, "Type it"))))
    assert document["schema_version"] == "ATIF-v1.8"
    assert document["agent"]["tool_definitions"][0]["function"]["name"] == "computer"
    steps = document["steps"]
    assert [step["step_id"] for step in steps] == [1, 2, 3]
    assert [step["source"] for step in steps] == ["user", "user", "agent"]
    agent = steps[2]
    assert agent["reasoning_content"] == "Type it"
    assert agent["tool_calls"] == [
        {
            "tool_call_id": "c1",
            "function_name": "computer",
            "arguments": {"action": "type", "coordinate": [500, 250], "text": "Type it"},
            "extra": {"confidence": 0.934},
        }
    ]
    rest = {"queue_s": 0.25, "prefill_s": 1.5, "decode_s": 0.5, "cache_bytes": 3 << 20, "sequences": 2}
    assert agent["metrics"] == {
        "prompt_tokens": 30,
        "completion_tokens": 5,
        "cached_tokens": 20,
        "logprobs": [-0.5, -0.25],
        "extra": rest | {"device": "cpu", "retries": 0, "seconds": 3},
    }
    totals = document["final_metrics"]
    assert (totals["total_prompt_tokens"], totals["total_cached_tokens"]) == (30, 20)
    assert totals["extra"] == rest | {"answers": 2, "devices": ["cpu"], "retries": 0, "seconds": 3}
    (result,) = agent["observation"]["results"]
    assert result["source_call_id"] == "c1"
    text, *images = result["content"]
    assert text == {"type": "text", "text": "Type it\nsettled"}
    assert all((tmp_path / image["source"]["path"]).is_file() for image in images)
    assert document["extra"]["end"]["passed"] is True


def test_an_episode_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(log.LogError, match="no episode 3"):
        to_atif(record(tmp_path, "x"), 3)


def test_what_is_not_known_is_left_out_of_atif(tmp_path: Path) -> None:
    with log.EventLog(tmp_path) as events:
        events.append(log.RunStarted(run="r", pilotfish="1", command="run", model="m"))
        events.append(log.EpisodeStarted(episode=0, task="t", instruction="i"))
        call = log.CallData(id="a", name="shell")
        events.append(log.Answered(step=1, calls=[call], usage=Usage(output_tokens=4)))
    document = to_atif(log.read_run(tmp_path))
    agent = document["steps"][1]
    assert agent["metrics"] == {"completion_tokens": 4, "extra": {"retries": 0, "seconds": 0.0}}
    assert "extra" not in agent["tool_calls"][0]
    assert "total_prompt_tokens" not in document["final_metrics"]


def test_atif_tells_what_a_person_said_and_decided(tmp_path: Path) -> None:
    call = log.CallData(id="c1", name="shell", arguments={"command": "ls"})
    with log.EventLog(tmp_path) as events:
        events.append(log.RunStarted(run="r", pilotfish="1", command="run", model="m"))
        events.append(log.EpisodeStarted(episode=0, task="t", instruction="Look"))
        events.append(log.Spoken(step=1, text="Be quick."))
        events.append(log.Answered(step=1, calls=[call]))
        events.append(log.Asked(step=1, call=call))
        edited = {"command": "ls -l"}
        events.append(log.Decided(step=1, call_id="c1", verdict="once", arguments=edited))
        events.append(log.Intended(step=1, call=call.model_copy(update={"arguments": edited})))
        events.append(log.Resulted(step=1, call_id="c1", ok=True, text="x"))
        events.append(log.GaveBack(step=2, text="The user clicked."))
    steps = to_atif(log.read_run(tmp_path))["steps"]
    assert [(step["source"], step["message"]) for step in steps] == [
        ("user", "Look"),
        ("user", "Be quick."),
        ("agent", ""),
        ("user", "The user clicked."),
    ]
    decided = {"call_id": "c1", "verdict": "once", "reason": "", "arguments": edited}
    assert steps[2]["extra"]["decisions"] == [decided]
