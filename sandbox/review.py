"""Review mode: the work is done in a copy of the user's folder, and brought over only when it is asked for.

A copy and not an overlay, because the folder below an overlay must not change while that is mounted, and
people go on working in theirs; because folders in an overlay cannot be renamed (EXDEV), which `git mv` does
not cope with; and because a copy is the same at every level, for every user and on every file system.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pilotfish.sandbox.entries import EMPTY, Entry, Node, encoded
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.objects import digest_of
from pilotfish.sandbox.snapshots import Snapshots
from pilotfish.sandbox.trees import remove_tree

AS_IT_WAS = "the folder as it was"
BROUGHT_OVER = "brought over"
BEFORE = "before it was brought over"


@dataclass(frozen=True)
class Applied:
    """What bringing the work over did.

    conflicts: paths that were changed on both sides; then nothing was done, unless that was asked for.
    """

    conflicts: tuple[str, ...]
    changed: int = 0
    problems: tuple[str, ...] = ()


def prepare(folder: Path, copy: Path, store: Path) -> None:
    """Make `copy` what `folder` is now; nothing happens when it is there. Raises `SandboxError`."""
    if copy.is_dir():
        return
    draft = copy.with_name(f"{copy.name}.part")
    if draft.is_dir():
        remove_tree(draft)
    draft.mkdir(mode=0o700, parents=True)
    found = folder.stat()
    if os.geteuid() == 0:
        os.chown(draft, found.st_uid, found.st_gid)
    snapshot = Snapshots(folder, store).take(AS_IT_WAS)
    Snapshots(draft, store).restore(snapshot)
    draft.rename(copy)


def bring_over(folder: Path, copy: Path, store: Path, *, overwrite: bool = False) -> Applied:
    """Make the changes of `copy` in `folder`. Raises `SandboxError`.

    What only one side changed is merged, file by file. What both changed is a conflict: nothing is done, or
    with `overwrite` the copy wins. The folder is kept as a snapshot before anything is done.
    """
    kept, mine = Snapshots(folder, store), Snapshots(copy, store)
    points = [one for one in kept.all() if one.label in (AS_IT_WAS, BROUGHT_OVER)]
    if not points:
        raise SandboxError(
            f"the snapshot of {str(folder)!r} as it was is gone, so what the run changed cannot be told: "
            f"compare it with {str(copy)!r} yourself."
        )
    since = points[-1]
    now = mine.take(BROUGHT_OVER)
    base, work = mine.tree(since.id), mine.tree(now)
    before = kept.take(BEFORE)
    merge = Merge(base, work, kept.tree(before), overwrite)
    if merge.conflicts and not overwrite:
        for snapshot in (now, before):
            kept.remove(snapshot)
        return Applied(tuple(merge.conflicts))
    done = kept.become(merge.result)
    if not done.changed:
        kept.remove(before)
    return Applied(tuple(merge.conflicts), done.changed, done.problems)


class Merge:
    """What a folder is to be: `theirs`, with what changed from `base` to `ours`."""

    def __init__(self, base: Node, ours: Node, theirs: Node, overwrite: bool) -> None:
        self.conflicts: list[str] = []
        self._overwrite = overwrite
        self.result = self._folder(base, ours, theirs, "")

    def _folder(self, base: Node, ours: Node, theirs: Node, above: str) -> Node:
        entries: dict[str, Entry] = {}
        folders: dict[str, Node] = {}
        for name in sorted(base.entries.keys() | ours.entries.keys() | theirs.entries.keys()):
            nodes = [node.folders.get(name, EMPTY) for node in (base, ours, theirs)]
            found = [node.entries.get(name) for node in (base, ours, theirs)]
            path = above + name
            if any(one is not None and one.kind == "folder" for one in found) and all(
                one is None or one.kind == "folder" for one in found
            ):
                self._both_folders(found, nodes, path, entries, folders)
                continue
            side = self._choose(found, nodes, path)
            entry = found[side]
            if entry is None:
                continue
            # Its links to other names are those of the copy.
            entries[name] = entry._replace(kind="file") if side == 1 and entry.kind == "linked" else entry
            if entry.kind == "folder":
                folders[name] = nodes[side]
        return Node(entries, folders, digest_of(encoded(entries)))

    def _both_folders(
        self,
        found: list[Entry | None],
        nodes: list[Node],
        path: str,
        entries: dict[str, Entry],
        folders: dict[str, Node],
    ) -> None:
        base, ours, theirs = found
        merged = self._folder(nodes[0], nodes[1], nodes[2], f"{path}/")
        if base is not None and (ours is None or theirs is None) and not merged.entries:
            return
        chosen = ours if theirs is None or (ours is not None and not _same(base, ours)) else theirs
        assert chosen is not None
        entries[chosen.name] = chosen._replace(data=merged.id)
        folders[chosen.name] = merged

    def _choose(self, found: list[Entry | None], nodes: list[Node], path: str) -> int:
        """Whose entry it is to be: 1 is ours, 2 theirs."""
        base, ours, theirs = zip(found, nodes, strict=True)
        if _same_tree(base, ours) or _same_tree(ours, theirs):
            return 2
        if _same_tree(base, theirs):
            return 1
        self.conflicts.append(path)
        return 1 if self._overwrite else 2


Part = tuple[Entry | None, Node]


def _same(one: Entry | None, other: Entry | None) -> bool:
    """Whether two entries say the same, owners, times and what is in a folder aside."""
    if one is None or other is None:
        return one is other
    if one.kind == "folder" or other.kind == "folder":
        return (one.kind, one.mode) == (other.kind, other.mode)
    return (one.is_file, one.mode, one.data) == (other.is_file, other.mode, other.data) and (
        one.is_file or one.kind == other.kind
    )


def _same_tree(one: Part, other: Part) -> bool:
    if not _same(one[0], other[0]):
        return False
    names = one[1].entries.keys() | other[1].entries.keys()
    return all(_same_tree(_part(one[1], name), _part(other[1], name)) for name in names)


def _part(node: Node, name: str) -> Part:
    return node.entries.get(name), node.folders.get(name, EMPTY)
