"""A workspace as a tree of entries, and that tree as objects of a store: one for each folder."""

from __future__ import annotations

import json
import stat
from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

from pilotfish.sandbox.objects import Damaged, Objects, Unreadable

Kind = Literal["file", "linked", "link", "folder", "pipe", "other"]
"""`linked` is a file with more than one name, `link` a symbolic link, `other` what cannot be kept."""


class Entry(NamedTuple):
    """One name in a folder.

    mode: the permission bits, with those that are not given back. data: the digest of a file or folder, the
    target of a link, the reason why something cannot be kept. changed_ns: 0 for what has to be read again in
    any case.
    """

    name: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    modified_ns: int
    size: int
    inode: int
    changed_ns: int
    data: str

    @property
    def is_file(self) -> bool:
        return self.kind in ("file", "linked")

    @property
    def safe_mode(self) -> int:
        """The mode as it is given back. Without set-user-id: who writes a file between two looks at it must
        not gain by that.
        """
        return self.mode & ~(stat.S_ISUID if self.kind == "folder" else stat.S_ISUID | stat.S_ISGID)

    def is_like(self, other: Entry) -> bool:
        """Whether a restore of this one over the other would have nothing to do."""
        return (
            self[3:6] == other[3:6]
            and (self.kind, self.data) == (other.kind, other.data)
            and other.mode in (self.mode, self.safe_mode)
        )


class Node:
    """A folder's entries and, below it, the folders that were looked at. Never changed once made."""

    __slots__ = ("entries", "files", "folders", "id", "linked", "others", "size")

    def __init__(self, entries: dict[str, Entry], folders: dict[str, Node], name: str) -> None:
        self.entries = entries
        self.folders = folders
        self.id = name
        self.files = self.size = self.linked = self.others = 0
        for entry in entries.values():
            if entry.is_file:
                self.files += 1
                self.size += entry.size
            self.linked += entry.kind == "linked"
            self.others += entry.kind == "other"
        for below in folders.values():
            self.files += below.files
            self.size += below.size
            self.linked += below.linked
            self.others += below.others


EMPTY = Node({}, {}, "")


def encoded(entries: dict[str, Entry]) -> bytes:
    """A folder as an object."""
    return json.dumps(sorted(entries.values()), separators=(",", ":")).encode("ascii")


def loaded(objects: Objects, name: str, known: Node | None = None) -> Node:
    """A folder of a store with all that is below it. Raises `Damaged`.

    known: a tree that need not be loaded again where it is the same.
    """
    return _loaded(objects, name, {} if known is None else {node.id: node for node in _folders_of(known)})


def _folders_of(node: Node) -> Iterator[Node]:
    yield node
    for folder in node.folders.values():
        yield from _folders_of(folder)


def _loaded(objects: Objects, name: str, known: dict[str, Node]) -> Node:
    if (node := known.get(name)) is not None:
        return node
    found = _entries(objects, name)
    folders = {entry.name: _loaded(objects, entry.data, known) for entry in found if entry.kind == "folder"}
    return Node({entry.name: entry for entry in found}, folders, name)


def _entries(objects: Objects, name: str) -> list[Entry]:
    try:
        return [Entry(*fields) for fields in json.loads(objects.get(name))]
    except (ValueError, TypeError):
        raise Damaged(name) from None


def names_in(objects: Objects, name: str, met: set[str]) -> None:
    """Add to `met` the names of all objects that a tree is made of, and that can be told.

    What is damaged leads no further, what is not counts nonetheless. Raises `Unreadable`.
    """
    if name in met:
        return
    met.add(name)
    try:
        found = _entries(objects, name)
    except Unreadable:
        raise
    except Damaged:
        return
    for entry in found:
        if entry.is_file:
            met.add(entry.data)
        elif entry.kind == "folder":
            names_in(objects, entry.data, met)


def without_lost(node: Node, there: Collection[str]) -> Node:
    """A tree without the files whose content is no longer `there`."""
    entries = {
        name: entry for name, entry in node.entries.items() if not entry.is_file or entry.data in there
    }
    folders = {name: without_lost(folder, there) for name, folder in node.folders.items()}
    if len(entries) == len(node.entries) and all(folders[name] is node.folders[name] for name in folders):
        return node
    return Node(entries, folders, "")


def entries_of(node: Node, above: str = "") -> Iterator[tuple[str, Entry]]:
    """Every entry of a tree by its path, folders before what is in them."""
    for name, entry in sorted(node.entries.items()):
        yield above + name, entry
        if entry.kind == "folder":
            yield from entries_of(node.folders[name], f"{above}{name}/")


def others_of(node: Node, above: str = "") -> Iterator[tuple[str, Entry]]:
    """What could not be kept of a tree, by its path."""
    for name, entry in sorted(node.entries.items()) if node.others else ():
        if entry.kind == "other":
            yield above + name, entry
        elif entry.kind == "folder":
            yield from others_of(node.folders[name], f"{above}{name}/")
