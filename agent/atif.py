"""A run as an Agent Trajectory Interchange Format document, version 1.8.

Source: the ATIF v1.8 description of the Harbor benchmark harness. One episode is one trajectory. Frames are
referenced as files beside the log, so the document is small and belongs next to its run folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.accounts import totals
from pilotfish.agent.show import run_note, stepped_back_words

SCHEMA = "ATIF-v1.8"


def to_atif(run: log.RunLog, episode: int | None = None) -> dict[str, Any]:
    """The trajectory of one episode, by default the first. Raises `log.LogError` when there is no such
    episode.
    """
    groups = run.episodes()
    wanted = [
        group
        for group in groups
        if isinstance(group[0], log.EpisodeStarted) and episode in (None, group[0].episode)
    ]
    if not wanted:
        if not groups:
            raise log.LogError(f"The run {run.folder} has no episode: it ended before one had begun.")
        raise log.LogError(f"The run {run.folder} has no episode {episode}; it has {len(groups)} episodes.")
    group = wanted[-1] if episode is not None else wanted[0]
    start = group[0]
    assert isinstance(start, log.EpisodeStarted)
    steps = [_step(1, start.t, "user", start.instruction, clip=start.clip)]
    for event in log.live(group)[1:]:
        _add(steps, event, run.started.model)
    used = totals(group)
    ends = [event for event in log.live(group) if isinstance(event, log.EpisodeEnded) and not event.parent]
    return {
        "schema_version": SCHEMA,
        "session_id": f"{run.started.run}-{start.episode}",
        "agent": {
            "name": "pilotfish",
            "version": run.started.pilotfish,
            "model_name": run.started.model,
            "tool_definitions": [{"type": "function", "function": tool} for tool in start.tools],
        },
        "steps": steps,
        "final_metrics": _known(
            {
                "total_prompt_tokens": used.input_tokens,
                "total_completion_tokens": used.output_tokens,
                "total_cached_tokens": used.cached_tokens,
                "total_steps": len(steps),
                "extra": _without_tokens(used.as_json()),
            }
        ),
        "extra": {
            "sandbox": run_note(run.started),
            "task": start.task,
            "seed": start.seed,
            "end": ends[-1].model_dump() if ends else None,
        },
    }


def _add(steps: list[dict[str, Any]], event: log.Event, model: str) -> None:
    number = len(steps) + 1
    if event.parent:  # what a sub-task did; its summary is the result of the call
        return
    match event:
        case log.Answered(kept=True):
            step = _step(number, event.t, "agent", event.text)
            step["model_name"] = model
            if event.reasoning:
                step["reasoning_content"] = event.reasoning
            step["tool_calls"] = [
                {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments}
                | ({} if call.confidence is None else {"extra": {"confidence": call.confidence}})
                for call in event.calls
            ]
            step["metrics"] = _metrics(event)
            steps.append(step)
        case log.Resulted():
            agent = next((step for step in reversed(steps) if step["source"] == "agent"), None)
            if agent is not None:
                text = event.text if event.clip is None else f"{event.text}\n{event.clip.word}"
                content = _content(text, event.clip)
                results = agent.setdefault("observation", {"results": []})["results"]
                results.append({"source_call_id": event.call_id, "content": content})
        case log.Decided():
            agent = next((step for step in reversed(steps) if step["source"] == "agent"), None)
            if agent is not None:
                said = event.model_dump(include={"call_id", "verdict", "reason", "arguments"})
                agent.setdefault("extra", {}).setdefault("decisions", []).append(_known(said))
        case log.GaveBack(text=text) if text:
            steps.append(_step(number, event.t, "user", text, clip=event.clip))
        case log.Told() | log.SentBack() | log.Spoken():
            steps.append(_step(number, event.t, "user", event.text))
        case log.Resumed(note=note) if note:
            steps.append(_step(number, event.t, "system", note))
        case log.SteppedBack(over=True):
            steps.append(_step(number, event.t, "system", stepped_back_words(event)))


def _metrics(answer: log.Answered) -> dict[str, Any]:
    """What an answer cost. What is not known is left out, and what ATIF has no name for is in `extra`."""
    usage = answer.usage
    return _known(
        {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "logprobs": answer.logprobs,
            "extra": _without_tokens(vars(usage)) | {"seconds": answer.seconds},
        }
    )


def _without_tokens(account: dict[str, Any]) -> dict[str, Any]:
    return _known({name: value for name, value in account.items() if "tokens" not in name})


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _step(
    number: int, at: float, source: str, text: str, *, clip: log.ClipData | None = None
) -> dict[str, Any]:
    when = datetime.fromtimestamp(at, UTC).isoformat()
    return {"step_id": number, "timestamp": when, "source": source, "message": _content(text, clip)}


def _content(text: str, clip: log.ClipData | None) -> str | Sequence[dict[str, Any]]:
    if clip is None:
        return text
    images = [
        {"type": "image", "source": {"media_type": "image/png", "path": f"{log.FRAMES}/{name}.png"}}
        for name in clip.frames
    ]
    return [{"type": "text", "text": text}, *images]
