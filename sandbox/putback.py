# ruff: noqa: PTH101
"""Makes a workspace what it was, without touching what already is so.

Programs inside may write meanwhile, and so may people: then, if asked for, a file is left as it is that was
changed since it was looked at. Every step is taken relative to the descriptor of a folder that was
opened without following a link; a file is written beside its place and renamed into it, so nobody sees half
of one, and what hard links lead to elsewhere is never written into.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from pilotfish.sandbox.entries import EMPTY, Entry, Node, entries_of
from pilotfish.sandbox.objects import Damaged, Objects, Unreadable
from pilotfish.sandbox.placing import Meanwhile, a_draft, is_still, put, put_if, remove_if
from pilotfish.sandbox.scan import ELSEWHERE
from pilotfish.sandbox.trees import FILE, FOLDER, TRIES, open_anyway, remove

_AT_EMPTY_PATH = 0x1000
NAMED = 200
Did = Literal["written", "removed"]
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class PutBack:
    """One restore. root: an open descriptor of the workspace; have: what was found there a moment ago.

    careful: leave alone what is not as it was found. changed: how many entries were written or removed, and
    done: the paths of the first `NAMED`, and how. problems: what was not brought back, as ends of sentences.
    """

    root: int
    objects: Objects
    goes_on: Callable[[], None]
    careful: bool = False
    changed: int = 0
    done: list[tuple[str, Did]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    refused: int = 0
    """How many of these would go another time."""
    _is_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    _torn: dict[str, int] = field(default_factory=dict)
    """Paths whose hard links have to be made anew, by the inode that they shared."""
    _torn_folders: set[str] = field(default_factory=set)
    _written: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The path and the inode of the file that was written for each of `_torn`."""

    def run(self, want: Node, have: Node) -> None:
        """Go from `have` to `want`. Raises `OSError` when the disk does not take it."""
        if want.linked:
            self._find_torn(want, have)
        self._folder(self.root, want, have, "")

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
                with self._told(above + name):
                    self._take_away(folder, old, have, above)
        for name, entry in want.entries.items():
            old_entry = have.entries.get(name)
            if entry.kind == "other" or (old_entry is not None and old_entry.kind == "other"):
                self._leave(entry, old_entry, above)
            elif entry.kind == "folder":
                same = old_entry is not None and entry.is_like(old_entry)
                if not same or f"{above}{name}/" in self._torn_folders:
                    with self._told(f"{above}{name}/"):
                        self._put_folder(folder, entry, want.folders[name], have, above)
            elif old_entry is None or not entry.is_like(old_entry) or above + name in self._torn:
                with self._told(above + name):
                    if old_entry is not None and old_entry.kind == "folder":
                        self._take_away(folder, old_entry, have, above)
                        if have.folders[name].others:
                            continue
                        old_entry = None
                    self._put(folder, entry, old_entry, above + name)

    @contextlib.contextmanager
    def _told(self, path: str) -> Iterator[None]:
        """What one path alone is refused for is a problem, and no reason to leave the others."""
        try:
            yield
            return
        except Meanwhile:
            why = "was changed meanwhile and was left as it is"
        except PermissionError as error:
            why = f"could not be written ({error.strerror})"
        except Unreadable as error:
            why = f"is damaged in the snapshot ({error})"
        except Damaged:
            why = "is damaged in the snapshot"
        self.refused += 1
        self.problems.append(f"{path} {why}")

    def _did(self, path: str, how: Did) -> None:
        self.changed += 1
        if len(self.done) < NAMED:
            self.done.append((path, how))

    def _leave(self, entry: Entry, old: Entry | None, above: str) -> None:
        """What is in no snapshot is neither made nor replaced."""
        if old is not None and (entry.is_like(old) and entry.size == old.size):
            return
        reason = old.data if old is not None and old.kind == "other" else entry.data
        self.problems.append(f"{above}{entry.name} was left as it is ({reason})")

    def _take_away(self, folder: int, old: Entry, have: Node, above: str) -> None:
        path = above + old.name
        inner = have.folders.get(old.name)
        if old.kind == "other":
            if old.data != ELSEWHERE:
                self.problems.append(f"{path} was left where it is ({old.data})")
        elif inner is None:
            if self.careful:
                remove_if(folder, old.name, old)
            else:
                remove(folder, old.name)
            self._did(path, "removed")
        elif inner.others or self.careful:
            self._empty(folder, old.name, inner, f"{path}/")
        else:
            remove(folder, old.name)
            self._did(f"{path}/", "removed")

    def _empty(self, parent: int, name: str, have: Node, path: str) -> None:
        """Remove a folder and what was found in it, but nothing else that is in it."""
        try:
            below = open_anyway(parent, name, FOLDER)
        except FileNotFoundError:
            return
        except OSError:
            raise Meanwhile from None
        try:
            with _ours(below):
                said, changed, done = len(self.problems), self.changed, len(self.done)
                self._folder(below, EMPTY, have, path)
        finally:
            os.close(below)
        if have.others or len(self.problems) > said:
            return
        try:
            os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise Meanwhile from None
        self.changed = changed
        del self.done[done:]
        self._did(path, "removed")

    def _put_folder(self, parent: int, entry: Entry, want: Node, have_above: Node, above: str) -> None:
        path = f"{above}{entry.name}/"
        old = have_above.entries.get(entry.name)
        have = have_above.folders.get(entry.name, EMPTY)
        if self.careful and old is not None and old.kind != "folder":
            remove_if(parent, entry.name, old)
            old = None
        for _ in range(TRIES):
            folder = self._opened_folder(parent, entry.name, old, path)
            try:
                with _ours(folder):
                    self._folder(folder, want, have, path)
                self._finish_folder(folder, entry)
                return
            except FileNotFoundError:  # a program inside has removed the folder that we are in
                if self.careful:
                    raise Meanwhile from None
                have = EMPTY
            finally:
                os.close(folder)
        self.refused += 1
        self.problems.append(f"{path} is removed again and again by a program inside")

    def _opened_folder(self, parent: int, name: str, old: Entry | None, path: str) -> int:
        for _ in range(TRIES):
            try:
                return open_anyway(parent, name, FOLDER)
            except FileNotFoundError:
                if self.careful and old is not None:
                    raise Meanwhile from None
                try:
                    os.mkdir(name, 0o700, dir_fd=parent)
                except FileExistsError:
                    continue
                self._did(path, "written")
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                if self.careful:
                    raise Meanwhile from None
                remove(parent, name)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def _finish(self, fd: int, entry: Entry) -> None:
        """Owner, mode and times of something open."""
        if self._is_root:
            os.fchown(fd, entry.uid, entry.gid)
        os.fchmod(fd, entry.safe_mode)
        os.utime(fd, ns=(entry.modified_ns, entry.modified_ns))

    def _finish_folder(self, fd: int, entry: Entry) -> None:
        """The same for a folder, which may be somebody else's that we may write in."""
        found = os.fstat(fd)
        if self._is_root or found.st_uid == os.geteuid():
            self._finish(fd, entry)
        elif stat.S_IMODE(found.st_mode) not in (entry.mode, entry.safe_mode):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def _put(self, folder: int, entry: Entry, old: Entry | None, path: str) -> None:
        if old is None or not (entry.kind == old.kind == "file" and self._only_mode(folder, entry, old)):
            for attempt in range(TRIES):
                try:
                    self._write(folder, entry, old, path)
                    break
                except FileNotFoundError:  # a program inside removes what we write
                    if self.careful:
                        raise Meanwhile from None
                    if attempt == TRIES - 1:
                        raise
        self._did(path, "written")

    def _write(self, folder: int, entry: Entry, old: Entry | None, path: str) -> None:
        draft = a_draft()
        try:
            self._make(folder, draft, entry, path)
            if self.careful:
                put_if(folder, draft, entry.name, old)
            else:
                put(folder, draft, entry.name)
        except BaseException:
            remove(folder, draft)
            raise

    def _only_mode(self, folder: int, entry: Entry, old: Entry) -> bool:
        """Whether a file has the right content and owner and could be given its mode and times back."""
        if (entry.data, entry.uid, entry.gid) != (old.data, old.uid, old.gid):
            return False
        if self.careful and not is_still(folder, entry.name, old):
            raise Meanwhile
        try:
            fd = os.open(entry.name, FILE, dir_fd=folder)
        except OSError:
            return False
        try:
            found = os.fstat(fd)
            same = (found.st_ino, found.st_mtime_ns, found.st_nlink) == (old.inode, old.modified_ns, 1)
            if same:
                os.fchmod(fd, entry.safe_mode)
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
        elif not self._link(folder, draft, self._torn.get(path)):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(draft, flags, 0o600, dir_fd=folder)
            try:
                self.objects.write_to(entry.data, fd, entry.size)
                self._finish(fd, entry)
                if path in self._torn:
                    self._written[self._torn[path]] = path, os.fstat(fd).st_ino
            finally:
                os.close(fd)

    def _link(self, folder: int, draft: str, torn: int | None) -> bool:
        """Make a hard link to the file that was written for another name of it, if that is still there."""
        if torn not in self._written:
            return False
        path, inode = self._written[torn]
        *folders, name = path.split("/")
        with contextlib.ExitStack() as stack:
            here = self.root
            try:
                for step in folders:
                    here = os.open(step, FOLDER, dir_fd=here)
                    stack.callback(os.close, here)
                found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            except OSError:
                return False
            stack.callback(os.close, found)
            if os.fstat(found).st_ino != inode:
                return False
            # By descriptor: this is the file that we wrote, whatever has its name by now.
            os.link(f"/proc/self/fd/{found}", draft, dst_dir_fd=folder, follow_symlinks=True)
        return True

    def _own(self, folder: int, draft: str, entry: Entry, is_right: Callable[[int], bool]) -> None:
        """Owner and mode of what cannot be opened, unless it is something else by now."""
        fd = os.open(draft, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not is_right(os.fstat(fd).st_mode):
                return
            if self._is_root:
                _libc.fchownat(fd, b"", entry.uid, entry.gid, _AT_EMPTY_PATH)
            if entry.kind == "pipe":
                os.chmod(f"/proc/self/fd/{fd}", entry.safe_mode)
                os.utime(f"/proc/self/fd/{fd}", ns=(entry.modified_ns, entry.modified_ns))
        finally:
            os.close(fd)


@contextlib.contextmanager
def _ours(folder: int) -> Iterator[None]:
    """Write in a folder whose mode forbids it. If that fails, it has its mode back."""
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & 0o700 != 0o700:
        os.fchmod(folder, mode | 0o700)
    try:
        yield
    except BaseException:
        if mode & 0o700 != 0o700:
            os.fchmod(folder, mode)
        raise
