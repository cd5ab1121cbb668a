"""What changed, as lines with a sign before them: by a call of the edit tool, and in the workspace."""

from __future__ import annotations

import contextlib
import difflib
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.changes import Changes, diff_lines
from pilotfish.sandbox import SandboxError

_COMPARED = 2_000
"""Lines; longer texts are shown as taken out and put in whole, as finding what they share takes minutes."""
_MOST_TEXT = 16 << 20
"""Characters of changes in the workspace that one page holds."""


def edit_diff(arguments: dict[str, Any]) -> str:
    """What a call of the edit tool asked for; '' where that is no change of lines."""
    command, new = arguments.get("command"), _text(arguments.get("new_text"))
    match command:
        case "create":
            return _signed("+", new)
        case "insert":
            return f"@@ after line {arguments.get('line')} @@\n{_signed('+', new)}"
        case "patch":
            return _text(arguments.get("patch"))
        case "replace":
            edits = arguments.get("edits")
            pairs = edits if isinstance(edits, list) else [arguments]
            told = [_replaced(pair) for pair in pairs if isinstance(pair, dict)]
            return "\n".join(told)
    return ""


def _replaced(pair: dict[str, Any]) -> str:
    old, new = _text(pair.get("old_text")).split("\n"), _text(pair.get("new_text")).split("\n")
    every = "every match" if pair.get("replace_all") is True else "one match"
    every += " of a whole word" if pair.get("whole_word") is True else ""
    every += f" on line {pair['line']}" if pair.get("line") is not None else ""
    if max(len(old), len(new)) > _COMPARED:
        lines = [f"-{line}" for line in old] + [f"+{line}" for line in new]
    else:
        lines = list(difflib.unified_diff(old, new, lineterm="", n=3))[3:]
    return "\n".join([f"@@ {every} @@", *lines])


def _signed(sign: str, text: str) -> str:
    return "\n".join(f"{sign}{line}" for line in text.split("\n"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


class Workspace:
    """What changed in a run's workspace between its snapshots, as far as they are still there."""

    def __init__(self, run: log.RunLog) -> None:
        self._changes: Changes | None = None
        self._left = _MOST_TEXT
        with contextlib.suppress(SandboxError, log.LogError):  # none were taken, or none are left
            self._changes = Changes(run)

    def between(self, before: str, after: str | None) -> str:
        """The changes from one snapshot to another, or to now; '' for none."""
        if self._changes is None:
            return ""
        if self._left <= 0:
            return f"Too much changed for one page; `pilotfish diff RUN {before} {after or ''}` shows it."
        try:
            found = self._changes.diff(before, after)
        except (SandboxError, OSError) as error:
            return f"The workspace of then cannot be compared: {error}"
        text = "\n".join(diff_lines(found, text=True)) if found.changes else ""
        self._left -= len(text)
        return text
