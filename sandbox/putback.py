# ruff: noqa: PTH101
"""Makes a workspace what it was, without touching what already is so.

Programs inside may write meanwhile. Every step is taken relative to the descriptor of a folder that was
opened without following a link; a file is written beside its place and renamed into it, so nobody sees half
of one, and what hard links lead to elsewhere is never written into.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from pilotfish.sandbox.entries import EMPTY, Entry, Node, entries_of
from pilotfish.sandbox.objects import Damaged, Objects
from pilotfish.sandbox.scan import ELSEWHERE
from pilotfish.sandbox.trees import FILE, FOLDER, TRIES, open_anyway, remove

_AT_EMPTY_PATH = 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class PutBack:
    """One restore. root: an open descriptor of the workspace; have: what was found there a moment ago.

    changed: how many entries were written or removed. problems: what could not be brought back, as ends of
    sentences.
    """

    root: int
    objects: Objects
    goes_on: Callable[[], None]
    changed: int = 0
    problems: list[str] = field(default_factory=list)
    _is_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    _torn: dict[str, int] = field(default_factory=dict)
    """Paths whose hard links have to be made anew, by the inode that they shared."""
    _torn_folders: set[str] = field(default_factory=set)
    _written: dict[int, int] = field(default_factory=dict)
    """Descriptors of the files that were written for `_torn`."""

    def run(self, want: Node, have: Node) -> None:
        """Go from `have` to `want`. Raises `OSError` when the disk does not take it."""
        if want.linked:
            self._find_torn(want, have)
        try:
            self._folder(self.root, want, have, "")
        finally:
            while self._written:
                os.close(self._written.popitem()[1])

    def _find_torn(self, want: Node, have: Node) -> None:
        groups: dict[int, list[tuple[str, Entry]]] = {}
        for path, entry in entries_of(want):
            if entry.kind == "linked":
                groups.setdefault(entry.inode, []).append((path, entry))
        there = dict(entries_of(have)) if any(len(group) > 1 for group in groups.values()) else {}
        for inode, group in groups.items():
            found = [there.get(path) for path, _ in group]
            whole = all(old and entry.is_like(old) for old, (_, entry) in zip(found, group, strict=True))
            if len(group) > 1 and not (whole and len({old.inode for old in found if old}) == 1):
                for path, _ in group:
                    self._torn[path] = inode
                    parts = path.split("/")[:-1]
                    self._torn_folders |= {"/".join(parts[: n + 1]) + "/" for n in range(len(parts))}

    def _folder(self, folder: int, want: Node, have: Node, above: str) -> None:
        self.goes_on()
        for name, old in have.entries.items():
            if name not in want.entries:
                self._take_away(folder, old, have, above)
        for name, entry in want.entries.items():
            old_entry = have.entries.get(name)
            if entry.kind == "other" or (old_entry is not None and old_entry.kind == "other"):
                self._leave(entry, old_entry, above)
            elif entry.kind == "folder":
                inner = have.folders.get(name)
                same = old_entry is not None and entry.is_like(old_entry)
                if not same or f"{above}{name}/" in self._torn_folders:
                    self._put_folder(folder, entry, want.folders[name], inner or EMPTY, above)
            elif old_entry is None or not entry.is_like(old_entry) or above + name in self._torn:
                if old_entry is not None and old_entry.kind == "folder":
                    self._take_away(folder, old_entry, have, above)
                    if have.folders[name].others:
                        continue
                self._put(folder, entry, old_entry, above + name)

    def _leave(self, entry: Entry, old: Entry | None, above: str) -> None:
        """What is in no snapshot is neither made nor replaced."""
        if old is not None and (entry.is_like(old) and entry.size == old.size):
            return
        reason = old.data if old is not None and old.kind == "other" else entry.data
        self.problems.append(f"{above}{entry.name} was left as it is ({reason})")

    def _take_away(self, folder: int, old: Entry, have: Node, above: str) -> None:
        if old.kind == "other":
            if old.data != ELSEWHERE:
                self.problems.append(f"{above}{old.name} was left where it is ({old.data})")
            return
        self.changed += 1
        inner = have.folders.get(old.name)
        if inner is None or not inner.others:
            remove(folder, old.name)
            return
        try:
            below = open_anyway(folder, old.name, FOLDER)
        except OSError:
            return
        try:
            self._folder(below, EMPTY, inner, f"{above}{old.name}/")
        finally:
            os.close(below)

    def _put_folder(self, parent: int, entry: Entry, want: Node, have: Node, above: str) -> None:
        path = f"{above}{entry.name}/"
        for _ in range(TRIES):
            folder = self._opened_folder(parent, entry.name)
            try:
                os.fchmod(folder, 0o700 | entry.mode)
                self._folder(folder, want, have, path)
                self._finish(folder, entry)
                return
            except FileNotFoundError:  # a program inside has removed the folder that we are in
                have = EMPTY
            finally:
                os.close(folder)
        self.problems.append(f"{path} is removed again and again by a program inside")

    def _opened_folder(self, parent: int, name: str) -> int:
        for _ in range(TRIES):
            try:
                return open_anyway(parent, name, FOLDER)
            except FileNotFoundError:
                try:
                    os.mkdir(name, 0o700, dir_fd=parent)
                except FileExistsError:
                    continue
                self.changed += 1
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                remove(parent, name)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def _finish(self, fd: int, entry: Entry) -> None:
        """Owner, mode and times of something open."""
        if self._is_root:
            os.fchown(fd, entry.uid, entry.gid)
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=(entry.modified_ns, entry.modified_ns))

    def _put(self, folder: int, entry: Entry, old: Entry | None, path: str) -> None:
        self.changed += 1
        if old is not None and entry.kind == old.kind == "file" and self._only_mode(folder, entry, old):
            return
        for attempt in range(TRIES):
            try:
                self._write(folder, entry, path)
                return
            except Damaged:
                self.changed -= 1
                self.problems.append(f"{path} is damaged in the snapshot")
                return
            except FileNotFoundError:  # a program inside removes what we write
                if attempt == TRIES - 1:
                    raise
                if (written := self._written.pop(self._torn.get(path, -1), None)) is not None:
                    os.close(written)

    def _write(self, folder: int, entry: Entry, path: str) -> None:
        draft = f".{secrets.token_hex(8)}.tmp"
        try:
            self._make(folder, draft, entry, path)
            for _ in range(TRIES):
                try:
                    os.rename(draft, entry.name, src_dir_fd=folder, dst_dir_fd=folder)
                    return
                except OSError as error:
                    if error.errno not in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    remove(folder, entry.name)
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        except BaseException:
            remove(folder, draft)
            raise

    def _only_mode(self, folder: int, entry: Entry, old: Entry) -> bool:
        """Whether a file has the right content and owner and could be given its mode and times back."""
        if (entry.data, entry.uid, entry.gid) != (old.data, old.uid, old.gid):
            return False
        try:
            fd = os.open(entry.name, FILE, dir_fd=folder)
        except OSError:
            return False
        try:
            found = os.fstat(fd)
            same = (found.st_ino, found.st_mtime_ns, found.st_nlink) == (old.inode, old.modified_ns, 1)
            if same:
                os.fchmod(fd, entry.mode)
                os.utime(fd, ns=(entry.modified_ns, entry.modified_ns))
            return same
        finally:
            os.close(fd)

    def _make(self, folder: int, draft: str, entry: Entry, path: str) -> None:
        if entry.kind == "link":
            os.symlink(entry.data, draft, dir_fd=folder)
            self._own(folder, draft, entry, stat.S_ISLNK)
            times = (entry.modified_ns, entry.modified_ns)
            os.utime(draft, ns=times, dir_fd=folder, follow_symlinks=False)
        elif entry.kind == "pipe":
            os.mkfifo(draft, 0o600, dir_fd=folder)
            self._own(folder, draft, entry, stat.S_ISFIFO)
        elif (inode := self._torn.get(path)) in self._written:
            # By descriptor: this is the file that we wrote, whatever has its name by now.
            written = f"/proc/self/fd/{self._written[inode]}"
            os.link(written, draft, dst_dir_fd=folder, follow_symlinks=True)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(draft, flags, 0o600, dir_fd=folder)
            try:
                self.objects.write_to(entry.data, fd)
                self._finish(fd, entry)
                if inode is not None:
                    self._written[inode] = os.dup(fd)
            finally:
                os.close(fd)

    def _own(self, folder: int, draft: str, entry: Entry, is_right: Callable[[int], bool]) -> None:
        """Owner and mode of what cannot be opened, unless it is something else by now."""
        fd = os.open(draft, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not is_right(os.fstat(fd).st_mode):
                return
            if self._is_root:
                _libc.fchownat(fd, b"", entry.uid, entry.gid, _AT_EMPTY_PATH)
            if entry.kind == "pipe":
                os.chmod(f"/proc/self/fd/{fd}", entry.mode)
                os.utime(f"/proc/self/fd/{fd}", ns=(entry.modified_ns, entry.modified_ns))
        finally:
            os.close(fd)
