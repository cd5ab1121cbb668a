"""`pilotfish snapshots`, `diff`, `restore` and `apply`: what a run did to its workspace, and going back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.run_folder import SNAPSHOTS, WORKSPACE
from pilotfish.agent.safetext import visible
from pilotfish.sandbox import Change, Diff, SandboxError, Snapshot, Snapshots
from pilotfish.sandbox.review import bring_over

_LISTED = 200
_KEPT = "before it was restored"


class Changes:
    """The snapshots of one run. Raises `LogError` and `SandboxError`, one sentence each."""

    def __init__(self, run: log.RunLog) -> None:
        target = log.option_of(run.started, "target")
        named = target.get("workspace")
        self._run = run
        self._reviewed = Path(str(named)) if named and target.get("review") else None
        self.workspace = run.folder / WORKSPACE if self._reviewed or not named else Path(str(named))
        self._store = run.folder / SNAPSHOTS
        if not self._store.is_dir():
            raise SandboxError(
                f"the run {run.started.run} has no snapshots: no call of it could have written."
            )
        self._kept = Snapshots(self.workspace, self._store)

    def all(self) -> list[Snapshot]:
        """The snapshots there are, oldest first."""
        return self._kept.all()

    def remove(self, which: str) -> None:
        """Forget one snapshot, or `all`."""
        if which == "all":
            self._kept.clear()
        else:
            self._kept.remove(which)

    def diff(self, before: str | None, after: str | None) -> Diff:
        """What changed, from the first snapshot to now unless others are named."""
        return self._kept.diff(before or self._first(), after, text=True)

    def restore(self, snapshot: str | None) -> dict[str, Any]:
        """Bring a snapshot, or the first one, back to the folder it was taken of.

        What is there now is kept as a snapshot before.
        """
        snapshot = snapshot or self._first()
        kept = Snapshots(Path(self._kept.find(snapshot).of), self._store)
        with log.EventLog(self._run.folder):  # nobody goes on working there meanwhile
            before = kept.take(_KEPT)
            done = kept.restore(snapshot)
        return {
            "run": self._run.started.run,
            "snapshot": snapshot,
            "folder": kept.find(snapshot).of,
            "changed": done.changed,
            "before": before,
            "problems": list(done.problems),
        }

    def apply(self, *, overwrite: bool) -> dict[str, Any]:
        """Bring the work of a run in review mode over to the user's folder."""
        if self._reviewed is None:
            raise SandboxError(
                f"the run {self._run.started.run} worked in its folder itself, there is nothing to bring "
                "over: start a run with --review for that."
            )
        with log.EventLog(self._run.folder):
            done = bring_over(self._reviewed, self.workspace, self._store, overwrite=overwrite)
        return {
            "run": self._run.started.run,
            "folder": str(self._reviewed),
            "ended": any(isinstance(event, log.RunEnded) for event in self._run.events),
            "applied": overwrite or not done.conflicts,
            "changed": done.changed,
            "conflicts": list(done.conflicts),
            "problems": list(done.problems),
        }

    def _first(self) -> str:
        found = self._kept.all()
        if not found:
            raise SandboxError(f"the run {self._run.started.run} has no snapshots (any more).")
        return found[0].id


def diff_data(diff: Diff) -> dict[str, Any]:
    """A diff as `--json` prints it."""

    def data(change: Change) -> dict[str, Any]:
        shown = asdict(change)
        for side, entry in (("before", change.before), ("after", change.after)):
            shown[side] = entry and {"kind": entry.kind, "mode": entry.mode, "bytes": entry.size}
        return shown

    return {"changes": [data(change) for change in diff.changes], "warnings": list(diff.warnings)}


def diff_lines(diff: Diff, *, text: bool) -> list[str]:
    """A diff for a person: what runs by itself first, then each path, then the lines."""
    if not diff.changes:
        return ["Nothing changed."]
    risky = [change for change in diff.changes if change.runs]
    lines = [f"Look at these first, as they are run or obeyed by themselves ({len(risky)}):"] if risky else []
    lines += [f"  {visible(change.path, one_line=True)}  ({change.runs})" for change in risky[:_LISTED]]
    signs = {"added": "A", "removed": "D", "changed": "M", "mode": "m"}
    shown = [f"{signs[change.how]} {change.path}{_remark(change)}" for change in diff.changes[:_LISTED]]
    lines += [visible(line, one_line=True) for line in shown]
    if len(diff.changes) > _LISTED:
        lines.append(f"and {len(diff.changes) - _LISTED} more; --json has all.")
    lines += diff.warnings
    if text:
        lines += [change.text.rstrip("\n") for change in diff.changes if change.text]
    return lines


def _remark(change: Change) -> str:
    remarks = [change.note] if change.note else []
    before, after = change.before, change.after
    if before and after and before.mode != after.mode and before.kind != "link" != after.kind:
        remarks.append(f"mode {before.mode:o} to {after.mode:o}")
    if before and after and (before.uid, before.gid) != (after.uid, after.gid):
        remarks.append(f"owner {before.uid}:{before.gid} to {after.uid}:{after.gid}")
    if change.endings:
        remarks.append("mostly line ends")
    if after and after.kind == "link":
        remarks.append(f"link to {after.data}")
    return f"  ({', '.join(remarks)})" if remarks else ""
