"""One self-contained page that replays a run: frames with the actions drawn on them, and every word said.

Everything of the run travels as data, in one JSON block whose `<` are escaped, and the page puts it on the
screen as text only; a content security policy forbids it the network.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.accounts import in_words, totals
from pilotfish.agent.show import (
    attempt_line,
    call_line,
    plan_state,
    run_note,
    stepped_back_words,
    tests_went,
    verdict,
)

_TEMPLATE = Path(__file__).with_name("replay_page.html")
_DATA_MARK = "{}/*run*/"
PAGE = "replay.html"


def write_replay(run: log.RunLog, path: Path | None = None, *, episodes: Sequence[int] | None = None) -> Path:
    """Write the page of a run, by default beside its log, and return its path.

    episodes: which ones to show, by number; None shows all. Raises `log.LogError` when the page cannot be
    written.
    """
    path = run.folder / PAGE if path is None else path
    html = build_page(run, episodes=episodes)
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise log.LogError(
            f"Cannot write {path} ({error.strerror}); choose another file with --out."
        ) from error
    return path


def build_page(run: log.RunLog, *, episodes: Sequence[int] | None = None) -> str:
    """The page as text. Raises `log.LogError` when none of the wanted episodes is there."""
    wanted = None if episodes is None else set(episodes)
    groups = [group for group in run.episodes() if wanted is None or _number(group) in wanted]
    if wanted and not groups:
        numbers = ", ".join(map(str, sorted(wanted)))
        message = f"The run {run.folder} has no episode {numbers}; it has {len(run.episodes())} episodes."
        raise log.LogError(message)
    shown = [_episode(group) for group in groups]
    used = {name for episode in shown for step in episode["steps"] for name in step["frames"]}
    data = {
        "run": run.started.run,
        "model": run.started.model,
        "command": run.started.command,
        "sandbox": run_note(run.started),
        "status": run.ended.status if run.ended else "open",
        "usage": in_words(totals(run.events)),
        "episodes": shown,
        "frames": _embedded(run.frames, used),
        "warnings": list(run.warnings),
    }
    text = json.dumps(data).replace("<", "\\u003c")
    before, after = _TEMPLATE.read_text(encoding="utf-8").split(_DATA_MARK)
    return before + text + after


def _number(group: Sequence[log.Event]) -> int:
    start = group[0]
    assert isinstance(start, log.EpisodeStarted)
    return start.episode


def _embedded(store: log.FrameStore, names: Iterable[str]) -> dict[str, str]:
    """Data URIs of the frames that are there; one that is missing shows as a gap."""
    found = {}
    for name in sorted(names):
        path = store.path(name)
        if path.is_file():
            found[name] = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
    return found


def _episode(group: Sequence[log.Event]) -> dict[str, Any]:
    """An episode as the page reads it: what it was, and one entry per thing to look at."""
    start = group[0]
    assert isinstance(start, log.EpisodeStarted)
    steps: list[dict[str, Any]] = [
        _entry("start", "start", start.clip, [], notes=[["instruction", start.instruction]])
    ]
    replies: dict[tuple[int, int], log.Answered] = {}
    network: list[list[str]] = []  # what was tried since the last entry belongs to the next one
    gone = log.undone(group)
    for event in group[1:]:
        shown = len(steps)
        match event:
            case log.Answered(kept=True):
                replies[event.parent, event.step] = event
            case log.Answered():
                steps.append(_entry("retry", "sampled again", None, steps[-1]["frames"], notes=_said(event)))
            case log.Told():
                steps[-1]["notes"].append(["told", event.text])
            case log.Tested():
                notes = [["command", event.command], ["output", event.output], ["note", event.note]]
                entry = _entry("tests", f"tests: {tests_went(event)}", None, steps[-1]["frames"], notes=notes)
                steps.append(entry | {"ok": event.status == 0})
            case log.Planned():
                listed = "\n".join(f"{item.status:<8}{item.title}" for item in event.items)
                steps[-1]["notes"].append(["plan", f"{plan_state(event.items)}\n{listed}"])
            case log.EpisodeStarted():
                notes = [["instruction", event.instruction]]
                steps.append(_entry("start", "sub-task: start", None, steps[-1]["frames"], notes=notes))
            case log.EpisodeEnded() if event.parent:
                notes = [["answer", event.answer], ["reason", event.reason]]
                steps.append(_entry("end", f"sub-task: {event.end}", None, steps[-1]["frames"], notes=notes))
            case log.SentBack():
                steps[-1]["notes"].append(["sent back", event.text])
            case log.HandedBack():
                paths = "\n".join(f"{how} {path}" for how, path, _ in event.changed) or "nothing was changed"
                found = {"changed": paths, "patch": event.patch, "branch": event.branch}
                steps[-1]["notes"] += [[name, text] for name, text in found.items() if text]
                steps[-1]["notes"] += [["note", note] for note in event.notes]
            case log.Networked():
                lines = [attempt_line(one) for one in event.attempts if one.over]
                lines += [event.note] if event.note else []
                network += [["network", line] for line in lines]
            case log.Resulted():
                steps.append(_result(event, replies.get((event.parent, event.step)), steps[-1]["frames"]))
            case log.Resumed():
                steps.append(
                    _entry("resumed", "resumed", None, steps[-1]["frames"], notes=[["note", event.note]])
                )
            case log.EpisodeEnded():
                notes = [["answer", event.answer], ["reason", event.reason]]
                score = "" if event.passed is None else f", score {event.score:g}"
                title = f"{event.end}: {verdict(event.passed)}{score}"
                entry = _entry("end", title, None, steps[-1]["frames"], notes=notes)
                facts = in_words(totals(group))
                steps.append(entry | {"ok": event.passed is not False, "facts": facts})
            case log.SteppedBack(over=True):
                notes = [["note", stepped_back_words(event)]]
                title = f"back to before step {event.to}"
                steps.append(_entry("back", title, event.clip, steps[-1]["frames"], notes=notes))
        for entry in steps[shown:]:
            if event.n in gone:
                entry |= {"undone": True, "title": f"undone: {entry['title']}"}
        if isinstance(event, log.Resulted | log.EpisodeEnded):
            steps[-1]["notes"] += network
            network = []
    steps[-1]["notes"] += network  # what was logged after the end
    return {
        "episode": start.episode,
        "task": start.task,
        "seed": start.seed,
        "screen": list(start.screen or (1, 1)),
        "steps": steps,
    }


def _result(event: log.Resulted, reply: log.Answered | None, before: Sequence[str]) -> dict[str, Any]:
    call = next((call for call in reply.calls if call.id == event.call_id), None) if reply else None
    notes = _said(reply) if reply else []
    if call is not None:
        notes.append(["call", call_line(call)])
    notes.append(["result", event.text])
    title = _title(call) if call else "call"
    title = f"sub-task: {title}" if event.parent else title
    entry = _entry("step", title, event.clip, before, notes=notes)
    arguments = call.arguments if call else {}
    marks = {name: arguments[name] for name in _MARKS if name in arguments}
    return entry | {
        "step": event.step,
        "ok": event.ok,
        "marks": marks,
        "facts": [
            *entry["facts"],
            f"{(reply.seconds if reply else 0.0) + event.seconds:.3f} s",
            *(in_words(reply.usage) if reply else []),
        ],
    }


# The arguments that the page draws on the frame.
_MARKS = (
    "action",
    "coordinate",
    "start_coordinate",
    "region",
    "text",
    "scroll_direction",
    "scroll_amount",
)


def _title(call: log.CallData) -> str:
    """A call in a few words: the action and its place, or the tool and its command."""
    arguments = call.arguments
    if "action" not in arguments:
        what, how = call.name, str(arguments.get("command", ""))[:60]
    else:
        place, what = arguments.get("coordinate"), str(arguments["action"])
        how = " ".join(map(str, place)) if isinstance(place, list) else str(arguments.get("text", ""))[:30]
    return f"{what} {how}".strip() + (f" ({call.confidence:.2f})" if call.confidence is not None else "")


def _said(reply: log.Answered) -> list[list[str]]:
    pairs = [["thinking", reply.reasoning or ""], ["text", reply.text]]
    return [pair for pair in pairs if pair[1]]


def _entry(
    kind: str, title: str, clip: log.ClipData | None, before: Sequence[str], *, notes: list[list[str]]
) -> dict[str, Any]:
    """One thing to look at. Without a clip of its own it shows the last frame there was."""
    return {
        "kind": kind,
        "title": title,
        "frames": list(clip.frames) if clip else list(before[-1:]),
        "times": list(clip.times_s) if clip else [],
        "facts": [clip.word] if clip else [],
        "notes": [pair for pair in notes if pair[1]],
        "marks": {},
        "ok": True,
        "undone": False,
    }
