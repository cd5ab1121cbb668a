"""The page as one file: its parts joined, the runs in it as data, and a policy that forbids it the network.

Everything of a run travels as data, in JSON whose `<` are escaped, and the page puts it on the screen as
text only. Scripts and styles are allowed by their hashes; there is nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.accounts import in_words, totals
from pilotfish.agent.outcome import outcome_of
from pilotfish.agent.replay.compare import beside, parting
from pilotfish.agent.replay.diffs import Workspace
from pilotfish.agent.replay.entries import Entry
from pilotfish.agent.replay.frames import Embedding
from pilotfish.agent.replay.story import Episode, Story
from pilotfish.agent.safetext import visible
from pilotfish.agent.show import run_note
from pilotfish.agent.whole_file import write_whole

PAGE = "replay.html"
_PARTS = Path(__file__).with_name("parts")
_SCRIPTS = (
    "data", "text", "marks", "stage", "steps", "details", "costs", "timeline", "search", "keys", "compare",
    "print", "live", "main",
)  # fmt: skip


def write_replay(
    run: log.RunLog,
    path: Path | None = None,
    *,
    episodes: Sequence[int] | None = None,
    other: log.RunLog | None = None,
    max_mib: float = math.inf,
) -> Path:
    """Write the page of a run, by default beside its log, and return its path.

    episodes: which ones to show, by number; None shows all. other: a run to show beside it. max_mib: of
    frames; what is beyond is left out, spread evenly. Raises `log.LogError` when the page cannot be written.
    """
    path = run.folder / PAGE if path is None else path
    pieces = _pieces(run, episodes, other, max_mib)
    try:
        write_whole(path, (piece.encode() for piece in pieces))
    except OSError as error:
        raise log.LogError(
            f"Cannot write {path} ({error.strerror}); choose another file with --out."
        ) from error
    return path


def build_page(
    run: log.RunLog,
    *,
    episodes: Sequence[int] | None = None,
    other: log.RunLog | None = None,
    max_mib: float = math.inf,
) -> str:
    """The page as text. Raises `log.LogError` when none of the wanted episodes is there."""
    return "".join(_pieces(run, episodes, other, max_mib))


def shell(boot: dict[str, Any], *, connects: bool = False) -> tuple[str, str, str]:
    """The page around its frames: what stands before them, what behind, and its content security policy.

    boot: what the script starts from. connects: whether it may ask the server it came from.
    """
    style = "\n" + (_PARTS / "page.css").read_text(encoding="utf-8")
    names = [_PARTS / f"{name}.js" for name in _SCRIPTS]
    script = '\n"use strict";\n' + "".join(name.read_text(encoding="utf-8") for name in names)
    images = "data: blob:" if connects else "data:"
    policy = (
        f"default-src 'none'; img-src {images}; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    policy += "; connect-src 'self'" if connects else ""
    html = (_PARTS / "page.html").read_text(encoding="utf-8")
    filled = {"policy": escape(policy), "style": style, "data": as_script(boot), "script": script}
    for name, text in filled.items():
        html = html.replace(f"<!--{name}-->", text, 1)
    before, after = html.split("<!--frames-->")
    return before, after, policy


def as_script(data: Any) -> str:
    """Data as JSON that no HTML in it can break out of."""
    return as_json(data).replace("<", "\\u003c")


def as_json(data: Any) -> str:
    """Data as JSON that a browser reads; it knows no NaN and no infinity, which are null there."""
    try:
        return json.dumps(data, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(data), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_data(run: log.RunLog) -> dict[str, Any]:
    """What the page says of a run as a whole."""
    started = run.started
    return {
        "run": visible(started.run, one_line=True),
        "model": visible(started.model, one_line=True),
        "command": started.command,
        "sandbox": visible(run_note(started), one_line=True),
        "status": outcome_of(run.events) if run.ended else "open",
        "reason": visible(run.ended.reason) if run.ended else "",
        "usage": in_words(totals(run.events)),
        "warnings": [visible(warning, one_line=True) for warning in run.warnings],
    }


def _pieces(
    run: log.RunLog, episodes: Sequence[int] | None, other: log.RunLog | None, max_mib: float
) -> Iterator[str]:
    runs = [run] if other is None else [run, other]
    stories = [told(one, episodes) for one in runs]
    frames = Embedding(
        [(one.frames, all_entries(story)) for one, story in zip(runs, stories, strict=True)],
        max_mib * 2**20,
    )
    boot: dict[str, Any] = {
        "runs": [
            run_data(one) | {"episodes": [episode_data(episode) for episode in story.episodes]}
            for one, story in zip(runs, stories, strict=True)
        ],
        "absent": frames.absent,
    }
    if frames.left_out:
        boot["runs"][0]["warnings"].append(
            f"{frames.left_out:,} of {frames.of:,} frames were left out to keep the page below "
            f"{max_mib:g} MiB; --max-mib raises that."
        )
    if other is not None:
        rows = beside(*stories)
        boot |= {"rows": rows, "parting": parting(rows)}
    before, after, _ = shell(boot)
    yield before
    for name, uri in frames.uris():
        yield f'<script type="text/plain" id="f-{name}">{uri}</script>\n'
    yield after


def told(run: log.RunLog, episodes: Sequence[int] | None = None) -> Story:
    """A run's story, or that of these episodes. Raises `log.LogError` when none of them is there."""
    story = Story(Workspace(run).between)
    for event in run.events:
        story.feed(event)
    wanted = None if episodes is None else set(episodes)
    count = len(story.episodes)
    story.episodes = [one for one in story.episodes if wanted is None or one.start.episode in wanted]
    if wanted and not story.episodes:
        numbers = ", ".join(map(str, sorted(wanted)))
        raise log.LogError(f"The run {run.folder} has no episode {numbers}; it has {count} episodes.")
    if story.episodes:
        story.episodes[-1].close()
    return story


def all_entries(story: Story) -> list[Entry]:
    """The entries of all episodes."""
    return [entry for episode in story.episodes for entry in episode.entries]


def episode_data(episode: Episode) -> dict[str, Any]:
    """An episode with its entries, as the page reads it."""
    return episode.as_json() | {"entries": [entry.as_json() for entry in episode.entries]}


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
