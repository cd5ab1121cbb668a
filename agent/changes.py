"""`pilotfish snapshots`, `diff`, `restore` and `apply`: what a run did to its workspace, and going back."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.run_folder import PATCH, SNAPSHOTS, WORKSPACE
from pilotfish.agent.safetext import counted, visible
from pilotfish.sandbox import Change, Diff, SandboxError, Snapshot, Snapshots
from pilotfish.sandbox.review import AS_IT_WAS, bring_over

_LISTED = 200
_CACHES = ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache")
"""Folders that programs fill by themselves: counted, not listed."""
_RECORDS = ("index", "HEAD", "*_HEAD", "COMMIT_EDITMSG", "packed-refs", "logs", "objects", "refs", "gc.log")
"""What git keeps for itself in `.git`, which nothing runs or obeys: counted likewise."""
_NAMED = 10
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
            raise SandboxError(self._why_none())
        self._kept = Snapshots(self.workspace, self._store)

    def all(self) -> list[Snapshot]:
        """The snapshots there are, oldest first."""
        return self._kept.all()

    def damaged(self) -> list[str]:
        """A sentence on each one that cannot be read."""
        return self._kept.damaged()

    def remove(self, which: str) -> None:
        """Forget one snapshot, or `all`."""
        if which == "all":
            self._kept.clear()
        else:
            self._kept.remove(which)

    def diff(self, before: str | None, after: str | None) -> Diff:
        """What changed, from the first snapshot to now unless others are named."""
        found = self._kept.diff(before or self._first(), after, text=True)
        if self._reviewed is None:
            return found
        # What cannot be kept was never in the copy.
        told = (one for one in found.changes if one.how != "removed" or one.before.kind != "other")  # type: ignore[union-attr]
        return replace(found, changes=tuple(told))

    def restore(self, snapshot: str | None) -> dict[str, Any]:
        """Bring a snapshot, or the first one, back to the folder it was taken of.

        What is there now is kept as a snapshot before; what a person changes after that stays.
        """
        snapshot = snapshot or self._first()
        folder = self._folder_of(self._kept.find(snapshot))
        kept = Snapshots(folder, self._store)
        with log.EventLog(self._run.folder):  # nobody goes on working there meanwhile
            before: str | None = kept.take(_KEPT, needed=[snapshot])
            done = kept.restore(snapshot, since=before)
            if before and not done.changed and not done.problems:
                kept.remove(before)
                before = None
        return {
            "run": self._run.started.run,
            "snapshot": snapshot,
            "folder": str(folder),
            "changed": done.changed,
            "done": [{"path": path, "how": how} for path, how in sorted(done.done)],
            "before": before,
            "problems": list(done.problems),
        }

    def _folder_of(self, snapshot: Snapshot) -> Path:
        """Where a snapshot belongs: the run's own workspace moves with the run, a folder of the user's stays.

        Raises `SandboxError` when the user's folder is another one by now.
        """
        folder = self._reviewed or self.workspace
        if self._reviewed is not None:
            if snapshot.of not in {one.of for one in self._kept.all() if one.label == AS_IT_WAS}:
                return self.workspace
        elif folder == self._run.folder / WORKSPACE:
            return folder
        if str(folder.resolve()) != snapshot.of:
            raise SandboxError(
                f"snapshot {snapshot.id!r} is one of {snapshot.of!r}, and {str(folder)!r} leads to another "
                "folder by now: let it lead there again."
            )
        return folder

    def apply(self, *, overwrite: bool) -> dict[str, Any]:
        """Bring the work of a run in review mode over to the user's folder."""
        if self._run.started.command == "code":
            patch = self._run.folder / PATCH
            put = shlex.join(["git", "apply", str(patch.absolute())])
            raise SandboxError(f"what pilotfish code made is a patch: `{put}` in your folder.")
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
            raise SandboxError(next(iter(self.damaged()), self._why_none()))
        return found[0].id

    def _why_none(self) -> str:
        """A sentence on a run without snapshots, from what its log says of them."""
        none = f"the run {self._run.started.run} has no snapshots"
        taken = [event for event in self._run.events if isinstance(event, log.SnapshotTaken)]
        if any(event.snapshot for event in taken) or (self._reviewed and self._store.is_dir()):
            return f"{none} any more: they were removed."
        if taken:
            return f"{none}: {taken[0].note.partition(': ')[2] or 'none could be taken.'}"
        if not self._run.episodes():
            return f"{none}: it ended before it had begun."
        return f"{none}: no call of it could have written to a folder that is kept."


def ways_back(run: log.RunLog) -> list[str]:
    """The commands that go on from what a run did to a folder of the user's; none if it did nothing."""
    target = log.option_of(run.started, "target")
    if not target.get("workspace"):
        return []
    try:
        if not Changes(run).diff(None, None).changes:
            return []
    except SandboxError:
        return []
    what = ("Bring it over with:", "apply") if target.get("review") else ("Undo it with:", "restore")
    folder = shlex.quote(str(run.folder))
    return [f"See its work with: pilotfish diff {folder}", f"{what[0]} pilotfish {what[1]} {folder}"]


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
    plain = [change for change in diff.changes if _aside(change) is None]
    shown = [f"{signs[change.how]} {change.path}{_remark(change)}" for change in plain[:_LISTED]]
    lines += [visible(line, one_line=True) for line in shown]
    if len(plain) > _LISTED:
        lines.append(f"and {len(plain) - _LISTED} more; --json has all.")
    aside = Counter(_aside(change) for change in diff.changes)
    words = {"__pycache__": ", which Python runs", ".git": ", git's own records"}
    for name, number in sorted((name, number) for name, number in aside.items() if name):
        lines.append(f"and {counted(number, 'change')} in {name}{words.get(name, '')}; --json has all.")
    lines += diff.warnings
    if text:
        lines += [change.text.rstrip("\n") for change in plain if change.text]
    return lines


def restored_lines(done: dict[str, Any]) -> list[str]:
    """What a restore did, for a person."""
    folder, snapshot = visible(done["folder"], one_line=True), done["snapshot"]
    if not done["changed"] and not done["problems"]:
        return [f"{folder} was as in snapshot {snapshot} already; nothing was changed."]
    again = (
        "is as in snapshot {} again" if not done["problems"] else "was brought back to snapshot {} in part"
    )
    lines = [f"{folder} {again.format(snapshot)}; {written_or_removed(done['changed'])}:"]
    named = done["done"][:_NAMED]
    lines += [f"  {one['how']:<8}  {visible(one['path'], one_line=True)}" for one in named]
    if done["changed"] > len(named):
        lines.append(f"  and {done['changed'] - len(named):,} more.")
    lines.append(f"What was there before is snapshot {done['before']}.")
    return lines + [f"But {visible(problem, one_line=True)}." for problem in done["problems"]]


def written_or_removed(number: int) -> str:
    """How much was done, in words."""
    return (
        f"{number:,} {'file or folder was' if number == 1 else 'files and folders were'} written or removed"
    )


def _aside(change: Change) -> str | None:
    """The folder in whose name a change is only counted; None for one that is listed."""
    parts = change.path.split("/")
    if ".git" in parts[:-1] and not change.runs:
        inner, after = parts[parts.index(".git") + 1], change.after
        if any(fnmatchcase(inner, name) for name in _RECORDS) and (after is None or after.kind != "link"):
            return ".git"
    return next((part for part in parts if part in _CACHES), None)


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
