"""What `pilotfish replay --check` prints, and the pictures that it writes beside the log."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.check import Checked, check, scene_of
from pilotfish.agent.reenact import Compared
from pilotfish.agent.safetext import counted, shortened, visible
from pilotfish.agent.show import call_line, say
from pilotfish.agent.stopping import stop_on_signals

PICTURES = "check"
"""The folder in a run's folder for pictures of frames that differ."""
_CALL, _TEXT = 60, 30
CANNOT = (
    "Clocks, process numbers, the network, pages that roll dice without a seed and the machine's pace are "
    "not set again; a caret in another phase is no difference."
)


def check_run(run: log.RunLog, episode: int | None, *, as_json: bool) -> dict[str, Any]:
    """Check an episode, telling each step as it is done unless JSON is wanted, and return the report.

    Raises `LogError`, `TaskError`, `SandboxError` or `CaptureError`, each one sentence.
    """
    scene = scene_of(run, episode)
    number = scene.start.episode
    folder = run.folder / PICTURES
    for old in folder.glob(f"{number}-*.png"):
        old.unlink()
    steps: list[dict[str, Any]] = []

    def heard(compared: Compared) -> None:
        steps.append(_data(compared, _write(compared, folder, f"{number}-{len(steps):04}")))
        if not as_json:
            say(step_line(compared))

    async def whole() -> Checked:
        with stop_on_signals() as stop:
            return await check(run, scene, stop, heard)

    checked = asyncio.run(whole())
    return {
        "run": run.started.run,
        "folder": str(run.folder),
        "episode": number,
        "task": scene.start.task,
        "equal": not checked.differences and not checked.stopped,
        "stopped": checked.stopped,
        "compared": len(checked.compared),
        "differing": len(checked.differences),
        "steps": steps,
        "notes": [*checked.notes, CANNOT],
    }


def step_line(compared: Compared) -> str:
    """One thing that was done again, in a line."""
    where = f"{compared.step:>4}" if not compared.parent else f"   |  {compared.step:>4}"
    what = shortened(call_line(compared.call), _CALL) if compared.call else "the screen"
    return f"{where}  {_verdict(compared):<7}  {what}" + "".join(f"; {word}" for word in _words(compared))


def report_lines(report: dict[str, Any]) -> list[str]:
    """The end of a report: a table of what differs, and what has to be known of it."""
    differing = [step for step in report["steps"] if not step["equal"]]
    lines = []
    if differing:
        rows = [["step", "call", "screen", "text, recorded", "now"]]
        for step in differing:
            frame, text = step["frame"], step["text"] or {"recorded": "-", "now": "-"}
            what = step["call"] or {"name": "", "arguments": {}}
            name = f"{what['name']} {what['arguments'].get('action', '')}".strip()
            words = frame["words"] if frame else "-"
            texts = [_short(text[side]) for side in ("recorded", "now")]
            rows.append([str(step["step"]), visible(name, one_line=True) or "-", words, *texts])
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        if any(step["frame"] for step in differing):
            lines.append(f"pictures  {Path(report['folder']) / PICTURES}")
    done = f"{report['differing']} of {counted(report['compared'], 'comparison')} differ"
    if report["equal"]:
        done = f"all of {counted(report['compared'], 'comparison')} are equal"
    lines.append(f"{'stopped: ' if report['stopped'] else ''}{done}")
    return lines + report["notes"]


def _verdict(compared: Compared) -> str:
    return "equal" if compared.equal else "differs" if compared.done else "left"


def _words(compared: Compared) -> list[str]:
    words = [compared.frame.words] if compared.frame else []
    if compared.blinked:
        words.append("a caret in another phase")
    if compared.text:
        words.append(f"said {_short(compared.text[1])}, not {_short(compared.text[0])}")
    return words + ([compared.note] if compared.note else [])


def _short(text: str) -> str:
    return repr(shortened(text, _TEXT))


def _data(compared: Compared, pictures: dict[str, str]) -> dict[str, Any]:
    frame, call = compared.frame, compared.call
    found = None
    if frame is not None:
        box = frame.box and [frame.box.x, frame.box.y, frame.box.width, frame.box.height]
        found = {"pixels": frame.pixels, "box": box, "words": frame.words, "pictures": pictures}
    return {
        "step": compared.step,
        "part_of": compared.parent or None,
        "call": call and {"name": call.name, "arguments": call.arguments},
        "equal": compared.equal,
        "executed": compared.done,
        "frame_compared": compared.has_frame,
        "frame": found,
        "blinked": compared.blinked,
        "text": compared.text and dict(zip(("recorded", "now"), compared.text, strict=True)),
        "note": compared.note,
    }


def _write(compared: Compared, folder: Path, name: str) -> dict[str, str]:
    """Write the recorded frame, the one there is now and their difference. Raises `LogError`."""
    frame = compared.frame
    if frame is None:
        return {}
    from PIL import Image

    paths = {}
    pictures = {"recorded": frame.recorded, "now": frame.now, "difference": frame.picture()}
    for what, picture in pictures.items():
        path = folder / f"{name}-{what}.png"
        try:
            folder.mkdir(exist_ok=True)
            Image.fromarray(picture).save(path, compress_level=1)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise log.LogError(
                f"Cannot write {path} ({error.strerror}); free some space and check again."
            ) from error
        paths[what] = str(path)
    return paths
