# ruff: noqa: PTH115, PTH123, PTH208
"""The workspace's files, read and written from outside without ever leaving the workspace.

Programs inside can change links and folders at any moment, so a check of a path followed by an open of that
path can be fooled. Here the kernel does both in one step: openat2(2) with RESOLVE_BENEATH fails when any step
of the way, link or `..`, would leave the workspace. Parents of a file that is written may not be links at
all, and the file is replaced by rename, which never follows a link.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from pilotfish.sandbox.errors import SandboxError, SandboxPathError
from pilotfish.sandbox.spec import INNER_WORKSPACE

MAX_FILE_BYTES = 64 << 20

_SYS_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_TRIES = 64
_RENAME_NOREPLACE = 1

_libc = ctypes.CDLL(None, use_errno=True)


def rename_new(source: int, name: str, target: int, new: str) -> bool:
    """Rename from one open folder to another; False when something of the new name is there."""
    done = _libc.renameat2(source, os.fsencode(name), target, os.fsencode(new), _RENAME_NOREPLACE)
    code = ctypes.get_errno()
    if done != 0 and code != errno.EEXIST:
        raise OSError(code, os.strerror(code))
    return bool(done == 0)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _openat2(folder: int, path: str, flags: int, resolve: int) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve | _RESOLVE_NO_MAGICLINKS | _RESOLVE_BENEATH)
    for _ in range(_TRIES):
        fd = int(
            _libc.syscall(_SYS_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        )
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code == errno.ENOSYS:
            raise SandboxError(
                "this kernel lacks openat2, which keeps files inside the workspace: use Linux 5.6 or newer."
            )
        if code not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: something was renamed during the walk
            raise OSError(code, os.strerror(code))
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _made_folder(parent: int, name: str) -> bool:
    """Create a folder; False when something of that name is there."""
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True)
class FileEntry:
    """One entry of a folder; `size` is in bytes, 0 for what is not a file."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    size: int


@dataclass(frozen=True)
class FileState:
    """Mode bits of a file, and how many names (hard links) it has."""

    mode: int
    names: int


class Files:
    """Files of one workspace. Paths are relative to it, or absolute as seen from inside (/workspace/...).

    Every method raises `SandboxPathError` with one sentence when a path leaves the workspace, is missing, or
    is something else than what was asked for.
    """

    def __init__(self, workspace: Path, inner: PurePosixPath = INNER_WORKSPACE) -> None:
        """inner: its path as programs inside see it."""
        self.root = workspace.resolve()
        self._inner = inner
        self._root_fd = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        found = os.fstat(self._root_fd)
        # Root works for whoever owns the workspace, whom the programs inside are shown as.
        self._owner = (found.st_uid, found.st_gid) if os.geteuid() == 0 else None

    def close(self) -> None:
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1

    def resolve(self, path: str | os.PathLike[str]) -> Path:
        """The host path of something in the workspace, which need not exist yet.

        For showing and comparing. Opening the result later is not protected: use the methods here for that.
        """
        relative = self._relative(path)
        existing = PurePosixPath(relative)
        rest: list[str] = []
        while True:
            try:
                fd = self._open(str(existing), os.O_PATH, 0, path)
            except SandboxPathError as error:
                if error.reason != "missing" or str(existing) == ".":
                    raise
                rest.insert(0, existing.name)
                existing = existing.parent
                continue
            try:
                real = Path(os.readlink(f"/proc/self/fd/{fd}"))
            finally:
                os.close(fd)
            if rest and ".." in rest:
                raise self._refusal(path, "outside")
            return real.joinpath(*rest)

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether there is a file or folder; False for a dangling link. Paths outside the workspace raise."""
        try:
            os.close(self._open(self._relative(path), os.O_PATH, 0, path))
        except SandboxPathError as error:
            if error.reason == "missing":
                return False
            raise
        return True

    def state(self, path: str | os.PathLike[str]) -> FileState:
        """The mode bits of a file or folder, and how many names it has."""
        fd = self._open(self._relative(path), os.O_PATH, 0, path)
        try:
            found = os.fstat(fd)
        finally:
            os.close(fd)
        return FileState(stat.S_IMODE(found.st_mode), found.st_nlink)

    def read_bytes(self, path: str | os.PathLike[str], limit: int = MAX_FILE_BYTES) -> bytes:
        """The content of a regular file of at most `limit` bytes."""
        fd = self._open(self._relative(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, 0, path)
        try:
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode):
                raise SandboxPathError("not_a_file", f"{self._named(path)} is a folder, name a file in it.")
            if not stat.S_ISREG(found.st_mode):
                raise SandboxPathError(
                    "not_a_file", f"{self._named(path)} is not a regular file, it cannot be read."
                )
            if found.st_size > limit:
                raise SandboxPathError(
                    "too_big", f"{self._named(path)} has {found.st_size} bytes, at most {limit} can be read."
                )
            with open(fd, "rb", closefd=False) as file:
                return file.read(limit)
        finally:
            os.close(fd)

    def read_text(self, path: str | os.PathLike[str], limit: int = MAX_FILE_BYTES) -> str:
        """The content of a UTF-8 file, line ends as they are."""
        data = self.read_bytes(path, limit)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SandboxPathError(
                "not_text",
                f"{self._named(path)} is not UTF-8 text (byte {error.start} is {data[error.start]:#04x}), "
                "read it as bytes.",
            ) from None

    def write_bytes(self, path: str | os.PathLike[str], data: bytes) -> None:
        """Create or replace a file in one step: readers see the old content or the new one.

        Mode bits and the owner are kept; other names of the file (hard links) keep the old content. Missing
        parent folders are created.
        """
        parent, name = self._parent(path, create=True)
        try:
            mode, owner = 0o644, self._owner
            try:
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                pass
            else:
                if stat.S_ISDIR(found.st_mode):
                    raise SandboxPathError(
                        "not_a_file", f"{self._named(path)} is a folder, choose another name."
                    )
                if not stat.S_ISREG(found.st_mode):
                    raise SandboxPathError(
                        "refused", f"{self._named(path)} is a link or special file, remove it first."
                    )
                mode = stat.S_IMODE(found.st_mode) & 0o777
                if self._owner is not None:
                    owner = (found.st_uid, found.st_gid)
                elif found.st_uid != os.geteuid():
                    raise SandboxPathError(
                        "refused", f"{self._named(path)} is another user's, who would lose it: copy it first."
                    )
            self._replace(parent, name, data, mode, owner)
        except OSError as error:
            raise self._failure(path, error) from error
        finally:
            os.close(parent)

    @staticmethod
    def _replace(parent: int, name: str, data: bytes, mode: int, owner: tuple[int, int] | None) -> None:
        draft = f".{secrets.token_hex(8)}.tmp"
        fd = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent
        )
        try:
            with open(fd, "wb") as file:
                file.write(data)
                if owner is not None:
                    os.fchown(fd, *owner)
                os.fchmod(fd, mode)
            os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.unlink(draft, dir_fd=parent)
            raise

    def _give(self, fd: int) -> None:
        """Make what we have created the workspace's owner's."""
        if self._owner is not None:
            os.fchown(fd, *self._owner)

    def write_text(self, path: str | os.PathLike[str], text: str) -> None:
        """`write_bytes` in UTF-8, line ends as they are."""
        self.write_bytes(path, text.encode("utf-8"))

    def remove(self, path: str | os.PathLike[str]) -> None:
        """Remove a file, a link (never what it points to) or an empty folder."""
        parent, name = self._parent(path, create=False)
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)
        except OSError as error:
            raise self._failure(path, error) from error
        finally:
            os.close(parent)

    def move(self, path: str | os.PathLike[str], to: str | os.PathLike[str]) -> None:
        """Give a file, a link or a folder another path; what has that path already is never replaced.

        Missing parent folders are created.
        """
        source, name = self._parent(path, create=False)
        try:
            target, new = self._parent(to, create=True)
            try:
                if not rename_new(source, name, target, new):
                    raise SandboxPathError("refused", f"{self._named(to)} exists, remove it first.")
            except OSError as error:
                raise self._failure(path, error) from error
            finally:
                os.close(target)
        finally:
            os.close(source)

    def list(self, path: str | os.PathLike[str] = ".") -> list[FileEntry]:
        """The entries of a folder, sorted by name."""
        fd = self._open(self._relative(path), os.O_RDONLY | os.O_DIRECTORY, 0, path)
        try:
            return [self._entry(fd, name) for name in sorted(os.listdir(fd))]
        finally:
            os.close(fd)

    @staticmethod
    def _entry(folder: int, name: str) -> FileEntry:
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:  # removed since the listing
            return FileEntry(name, "other", 0)
        if stat.S_ISREG(found.st_mode):
            return FileEntry(name, "file", found.st_size)
        if stat.S_ISDIR(found.st_mode):
            return FileEntry(name, "folder", 0)
        return FileEntry(name, "link" if stat.S_ISLNK(found.st_mode) else "other", 0)

    def _named(self, path: str | os.PathLike[str]) -> str:
        """A path as programs inside see it, for a sentence."""
        pure = PurePosixPath(path)
        if pure.is_relative_to(self.root):
            pure = self._inner / pure.relative_to(self.root)
            return repr(str(pure))
        return repr(str(path))

    def _relative(self, path: str | os.PathLike[str]) -> str:
        """The path below the workspace; an absolute one starts with the workspace's name, in or outside."""
        text = os.fspath(path)
        if not text or "\0" in text:
            raise SandboxPathError("refused", f"{text!r} is not a path, give a name without null bytes.")
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            message = f"{text!r} is not a path, give a name of whole characters."
            raise SandboxPathError("refused", message) from None
        pure = PurePosixPath(text)
        if pure.is_absolute():
            for root in (self._inner, PurePosixPath(self.root)):
                if pure.is_relative_to(root):
                    return str(pure.relative_to(root))
            raise self._refusal(path, "outside")
        if text.startswith("~"):  # a home folder to whoever wrote it, and no home folder is in the workspace
            raise self._refusal(path, "outside")
        return text

    def _parent(self, path: str | os.PathLike[str], *, create: bool) -> tuple[int, str]:
        """An open descriptor of the folder that holds `path`, and the last name."""
        pure = PurePosixPath(self._relative(path))
        if pure.name in ("", ".", ".."):
            raise SandboxPathError("not_a_file", f"{self._named(path)} does not name a file, give one.")
        return self._folder(str(pure.parent), path, create=create), pure.name

    def _folder(self, relative: str, path: str | os.PathLike[str], *, create: bool) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY
        try:
            return self._open(relative, flags, _RESOLVE_NO_SYMLINKS, path)
        except SandboxPathError as error:
            if error.reason != "missing" or not create:
                raise
        folder = self._open(".", flags, 0, path)
        for name in PurePosixPath(relative).parts:
            try:
                made = name != ".." and _made_folder(folder, name)
                deeper = _openat2(folder, name, flags, _RESOLVE_NO_SYMLINKS)
                if made:
                    self._give(deeper)
            except OSError as error:
                raise self._failure(path, error) from error
            finally:
                os.close(folder)
            folder = deeper
        return folder

    def _open(self, relative: str, flags: int, resolve: int, path: str | os.PathLike[str]) -> int:
        if self._root_fd < 0:
            raise SandboxError("the sandbox is closed, open a new one.")
        try:
            return _openat2(self._root_fd, relative, flags, resolve)
        except OSError as error:
            raise self._failure(path, error) from error

    def _failure(self, path: str | os.PathLike[str], error: OSError) -> SandboxPathError:
        if error.errno == errno.ENOENT:
            return SandboxPathError("missing", f"{self._named(path)} does not exist in the workspace.")
        if error.errno in (errno.EXDEV, errno.ELOOP):
            return self._refusal(path, "outside")
        if error.errno == errno.ENOTDIR:
            return SandboxPathError(
                "not_a_folder", f"{self._named(path)} goes through or names something that is not a folder."
            )
        if error.errno == errno.ENOTEMPTY:
            return SandboxPathError(
                "refused", f"{self._named(path)} is a folder with something in it, empty it first."
            )
        return SandboxPathError(
            "refused", f"{self._named(path)} cannot be used ({os.strerror(error.errno or 0)})."
        )

    def _refusal(self, path: str | os.PathLike[str], reason: Literal["outside"]) -> SandboxPathError:
        return SandboxPathError(
            reason,
            f"{self._named(path)} is outside the workspace or reached through a link, "
            f"give a path inside {self._inner}.",
        )
