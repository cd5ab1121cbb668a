"""Review mode: the work is done in a copy of the user's folder, and brought over only when it is asked for.

A copy and not an overlay, because the folder below an overlay must not change while that is mounted, and
people go on working in theirs; because folders in an overlay cannot be renamed (EXDEV), which `git mv` does
not cope with; and because a copy is the same at every level, for every user and on every file system.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pilotfish.sandbox.entries import EMPTY, Entry, Node, encoded
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.objects import digest_of
from pilotfish.sandbox.records import trouble
from pilotfish.sandbox.snapshots import Snapshots
from pilotfish.sandbox.trees import remove_tree

AS_IT_WAS = "the folder as it was"
AS_LEFT = "as the run left it"
BROUGHT_OVER = "brought over"
BEFORE = "before it was brought over"


@dataclass(frozen=True)
class Applied:
    """What bringing the work over did.

    conflicts: paths that were changed on both sides; then nothing was done, unless that was asked for.
    problems: what was not brought over, as sentences without their full stop.
    """

    conflicts: tuple[str, ...]
    changed: int = 0
    problems: tuple[str, ...] = ()


def prepare(folder: Path, copy: Path, store: Path) -> str:
    """Make `copy` what `folder` is now; it stays as it is when it is there. Raises `SandboxError`.

    Returns what is not in it, with the reason; '' for nothing.
    """
    kept = Snapshots(folder, store)
    if not copy.is_dir():
        with _told(f"the folder {str(folder)!r} could not be copied"):
            _make(folder, copy, kept, store)
    return next((one.missing for one in kept.all() if one.label == AS_IT_WAS), "")


def _make(folder: Path, copy: Path, kept: Snapshots, store: Path) -> None:
    found = folder.stat()
    draft = copy.with_name(f"{copy.name}.part")
    if draft.is_dir():
        remove_tree(draft)
    draft.mkdir(mode=0o700, parents=True)
    if os.geteuid() == 0:
        os.chown(draft, found.st_uid, found.st_gid)
    done = Snapshots(draft, store).restore(kept.take(AS_IT_WAS))
    if done.refused:
        raise SandboxError(
            f"the folder {str(folder)!r} could not be copied ({done.problems[-1]}): try again."
        )
    draft.rename(copy)


def bring_over(folder: Path, copy: Path, store: Path, *, overwrite: bool = False) -> Applied:
    """Make the changes of `copy` in `folder`. Raises `SandboxError`.

    What only one side changed is merged, file by file. What both changed is a conflict: nothing is done, or
    with `overwrite` the copy wins. The folder is kept as a snapshot before anything is done, and a file that
    somebody saves from then on is left as it is, for another time.
    """
    kept, mine = Snapshots(folder, store), Snapshots(copy, store)
    points = [one for one in kept.all() if one.label in (AS_IT_WAS, BROUGHT_OVER)]
    if not points:
        raise SandboxError(
            f"the snapshot of {str(folder)!r} as it was is gone, so what the run changed cannot be told: "
            f"compare it with {str(copy)!r} yourself."
        )
    since = points[-1].id
    now = mine.take(AS_LEFT, needed=[since])
    is_over = False
    try:
        before = kept.take(BEFORE, needed=[since, now])
        there = kept.tree(before)
        merge = Merge(mine.tree(since), mine.tree(now), there, overwrite)
        if merge.conflicts and not overwrite:
            kept.remove(before)
            return Applied(tuple(merge.conflicts))
        done = kept.become(merge.result, have=there)
        if not done.changed:
            kept.remove(before)
        is_over = not done.refused
        return Applied(tuple(merge.conflicts), done.changed, (*merge.left, *done.problems))
    finally:
        # The next time begins here only if everything is over there.
        if is_over:
            mine.relabel(now, BROUGHT_OVER)
        else:
            mine.remove(now)


@contextlib.contextmanager
def _told(failed: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SandboxError(trouble(failed, error)) from error


class Merge:
    """What a folder is to be: `theirs`, with what changed from `base` to `ours`.

    left: sentences on what cannot be kept and so not brought over.
    """

    def __init__(self, base: Node, ours: Node, theirs: Node, overwrite: bool) -> None:
        self.conflicts: list[str] = []
        self.left: list[str] = []
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
        was, made, _ = found
        if was is not None and was.kind == "other" and made is None:  # it never was in the copy
            return 2
        if made is not None and made.kind == "other":
            if not _same(was, made):
                self.left.append(f"{path} was not brought over ({made.data})")
            return 2
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
        return (one.kind, one.safe_mode) == (other.kind, other.safe_mode)
    return (one.is_file, one.safe_mode, one.data) == (other.is_file, other.safe_mode, other.data) and (
        one.is_file or one.kind == other.kind
    )


def _same_tree(one: Part, other: Part) -> bool:
    if not _same(one[0], other[0]):
        return False
    names = one[1].entries.keys() | other[1].entries.keys()
    return all(_same_tree(_part(one[1], name), _part(other[1], name)) for name in names)


def _part(node: Node, name: str) -> Part:
    return node.entries.get(name), node.folders.get(name, EMPTY)
