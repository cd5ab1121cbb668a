"""Which files a folder holds: those that git would track, or all of a plain folder.

What a repository's own configuration says is never obeyed where it could run something or reach elsewhere:
git is called with an empty environment and every such setting overridden, for a limited time.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pilotfish.sandbox.repository import blocks
from pilotfish.tools.index.paths import open_beneath, read_beneath, shown
from pilotfish.tools.index.rules import NOT_SOURCE, VENDORED, in_vendored_folder

GIT_SECONDS = 60.0
"""How long git may take to list the files."""
IDLE_SECONDS = 4.0
"""How long git may sleep at a stretch meanwhile."""
_LOOK_SECONDS = 0.25
_GIT_SETTINGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.excludesFile=/dev/null",
    "core.attributesFile=/dev/null",
    "core.untrackedCache=false",
    "core.sshCommand=false",
    "core.gitProxy=",
    "credential.helper=",
    "diff.external=",
    "submodule.recurse=false",
    "protocol.allow=never",
    "safe.directory=*",
)
_EXAMPLES = 3


class IndexingError(Exception):
    """The folder cannot be indexed; the message is one sentence for a person or the model."""


def require_text(what: str, text: str) -> None:
    """Raise IndexingError for what is asked for in bytes that are no UTF-8: files are searched as text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise IndexingError(f"the {what} {text[:60]!a} is not UTF-8; give it as text.") from None


class Entry(NamedTuple):
    """A regular file: its path in the folder, bytes, and times of change in nanoseconds."""

    path: bytes
    size: int
    mtime_ns: int
    ctime_ns: int


@dataclass
class Listing:
    """entries: sorted by path. notes: what was not taken up, a sentence each. by_git: git said what
    belongs. waited: git took too long to say it.
    """

    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    by_git: bool = False
    waited: bool = False
    _left: dict[str, list[bytes]] = field(default_factory=dict)

    def leave_out(self, why: str, path: bytes) -> None:
        """Note that a path was not taken up; `why` ends a sentence on one or several paths."""
        self._left.setdefault(why, []).append(path)

    def finish(self) -> None:
        """Sort, and put what was left out into sentences."""
        self.entries.sort()
        for why, paths in sorted(self._left.items()):
            paths.sort()
            names = ", ".join(shown(path) for path in paths[:_EXAMPLES])
            more = f" and {len(paths) - _EXAMPLES} more" if len(paths) > _EXAMPLES else ""
            self.notes.append(f"Not indexed: {names}{more} ({why}).")


def list_files(folder: Path, *, above: bool = True, ask_git: bool = True) -> Listing:
    """The files of a folder.

    above: a repository that the folder lies in may be asked. ask_git: False takes all files.
    Raises IndexingError if there is no such folder or it is a bare repository.
    """
    root = resolved(folder)
    listing = Listing()
    if ask_git:
        paths = _paths_by_git(root, listing, above)
    else:
        listing.notes.append("git took too long to list the files before, so all are indexed.")
        paths = None
    if paths is None:
        _walk(root, listing)
    else:
        listing.by_git = True
        _look_at(root, paths, listing)
    listing.finish()
    return listing


def resolved(folder: Path) -> bytes:
    """The folder's real path. Raises IndexingError if it is none, or a bare repository."""
    try:
        root = folder.resolve(strict=True)
        is_folder = root.is_dir()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "links in a circle"
        raise IndexingError(f"{folder} cannot be indexed ({reason}); name a folder that exists.") from None
    if not is_folder:
        raise IndexingError(f"{folder} is a file; name the folder of a repository.")
    if not (root / ".git").exists() and (root / "HEAD").is_file() and (root / "objects").is_dir():
        raise IndexingError(
            f"{folder} is a bare repository, which has no files; "
            "add a worktree (git worktree add) and index that."
        )
    return os.fsencode(root)


def _walk(root: bytes, listing: Listing) -> None:
    """Take up all files of a plain folder; links are not followed."""
    folders = [b""]
    while folders:
        folder = folders.pop()
        try:
            fd = open_beneath(root, folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            listing.leave_out(f"the folder cannot be read: {error.strerror}", folder)
            continue
        try:
            with os.scandir(fd) as found:
                for one in found:
                    name = os.fsencode(one.name)
                    path = folder + b"/" + name if folder else name
                    if one.is_dir(follow_symlinks=False):
                        if name in VENDORED:
                            listing.leave_out("vendored", path)
                        elif name not in NOT_SOURCE:
                            folders.append(path)
                        continue
                    if name != b".git":
                        _take(one.stat(follow_symlinks=False), path, listing)
        except OSError as error:
            listing.leave_out(f"the folder cannot be read: {error.strerror}", folder)
        finally:
            os.close(fd)


def _look_at(root: bytes, paths: set[bytes], listing: Listing) -> None:
    """Take up the files that git named, as far as they are there."""
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in paths:
            if in_vendored_folder(path):
                folder = path
                while in_vendored_folder(folder):
                    folder = folder.rpartition(b"/")[0]
                if folder not in listing._left.get("vendored", ()):
                    listing.leave_out("vendored", folder)
                continue
            try:
                state = os.stat(path, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue  # deleted, but not yet for git
            except (OSError, ValueError) as error:
                listing.leave_out(
                    f"cannot be read: {getattr(error, 'strerror', None) or 'strange name'}", path
                )
                continue
            if stat.S_ISDIR(state.st_mode):
                listing.leave_out("a repository of its own, index it by itself", path.rstrip(b"/"))
            else:
                _take(state, path, listing)
    finally:
        os.close(fd)


def _take(state: os.stat_result, path: bytes, listing: Listing) -> None:
    if stat.S_ISREG(state.st_mode):
        listing.entries.append(Entry(path, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
    elif stat.S_ISLNK(state.st_mode):
        listing.leave_out("a link, which is not followed", path)
    else:
        listing.leave_out("neither a file nor a folder", path)


def _paths_by_git(root: bytes, listing: Listing, above: bool) -> set[bytes] | None:
    """What git lists; None where it does not say, with a note if that is a surprise."""
    found = _find_repository(root, listing, above)
    if found is None:
        return None
    git_folder, top = found
    if (blocked := _blocked(git_folder)) is not None:
        listing.notes.append(
            f"{shown(blocked)} is a pipe or a device, on which git would wait, so all files are indexed; "
            "remove it."
        )
        return None
    program = shutil.which("git")
    if program is None:
        listing.notes.append("git is not installed, so files that it would ignore are indexed too.")
        return None
    settings = [part for setting in _GIT_SETTINGS for part in ("-c", setting)]
    command: list[str | bytes] = [
        program,
        "--no-pager",
        *settings,
        b"--git-dir=" + git_folder,
        b"--work-tree=" + top,
        "ls-files",
    ]
    command += ["-z", "--cached", "--others", "--exclude-standard"]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
    }
    process = subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = _awaited(process)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if not isinstance(error, _TooLong):
            raise
        listing.waited = True
        listing.notes.append(f"{error}, so all are indexed.")
        return None
    if process.returncode:
        said = errors.decode("utf-8", "replace").strip().split("\n")[-1][:200]
        listing.notes.append(
            f"git cannot list the files ({said}), so all are indexed; repair the repository."
        )
        return None
    paths = set(output.split(b"\0")) - {b""}
    if not paths and root != top:
        return None  # the repository around it ignores this folder
    return {path for path in paths if path != b".git" and not path.startswith((b".git/", b"../", b"/"))}


class _TooLong(Exception):
    """git does not say which files there are; the message begins a sentence."""


def _awaited(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What git prints. Raises `_TooLong`, soon where it sleeps without an end, as before a pipe that stands
    for a .gitignore: who waits for a disk does not sleep, and who is ready to run neither.
    """
    began_s = idle_s = time.monotonic()
    known = b""
    while True:
        try:
            return process.communicate(timeout=min(_LOOK_SECONDS, GIT_SECONDS))
        except subprocess.TimeoutExpired:
            now_s = time.monotonic()
        state = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
        seen = b" ".join(state[11:13])  # the time that it has had of processors
        if state[0] != b"S" or seen != known:
            known, idle_s = seen, now_s
        if now_s - idle_s >= IDLE_SECONDS:
            raise _TooLong(f"git waited for {IDLE_SECONDS:g} s on a pipe or the like among the files")
        if now_s - began_s >= GIT_SECONDS:
            raise _TooLong(f"git did not list the files within {GIT_SECONDS:g} s")


def _blocked(git_folder: bytes) -> bytes | None:
    """What git would wait for among the files that it reads to list others."""
    for folder in (git_folder, git_folder + b"/info"):
        try:
            with os.scandir(os.fsdecode(folder)) as entries:
                if (found := next((entry.path for entry in entries if blocks(entry)), None)) is not None:
                    return os.fsencode(found)
        except OSError:
            continue
    return None


def _find_repository(root: bytes, listing: Listing, above: bool) -> tuple[bytes, bytes] | None:
    """The folder with git's data and the top of the working tree that `root` belongs to."""
    top = root
    while True:
        dot_git = top.rstrip(b"/") + b"/.git"
        try:
            state = os.lstat(dot_git)
        except OSError:
            state = None
        if state is not None:
            break
        if not above or top == b"/":
            return None
        top = top.rpartition(b"/")[0] or b"/"
    if stat.S_ISDIR(state.st_mode):
        return dot_git, top
    target = _target_of_file(top, above) if stat.S_ISREG(state.st_mode) else None
    if target is None:
        listing.notes.append(
            f"{shown(dot_git)} is not followed, as it is neither a repository nor the mark of a worktree or "
            "submodule that knows of it, so all files are indexed."
        )
        return None
    return target, top


def _target_of_file(top: bytes, above: bool) -> bytes | None:
    """Where a `.git` file points, if that is a worktree's or submodule's data that points back."""
    try:
        text, _ = read_beneath(top, b".git", 8192)
    except OSError:
        return None
    if not text.startswith(b"gitdir:"):
        return None
    target = _real(text[7:].strip().rstrip(b"\0"), top)
    if not above and not target.startswith(top + b"/"):
        return None
    try:
        back, _ = read_beneath(target, b"gitdir", 8192)
    except OSError:
        back = b""
    if back and _real(back.strip(), target) == top.rstrip(b"/") + b"/.git":
        return target
    outer = target.partition(b"/.git/modules/")[0]
    return target if outer != target and top.startswith(outer + b"/") else None


def _real(path: bytes, folder: bytes) -> bytes:
    """The real path of what is named from a folder; it need not exist."""
    return os.fsencode(Path(os.fsdecode(folder), os.fsdecode(path.replace(b"\0", b""))).resolve())
