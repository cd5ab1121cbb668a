"""Names of files as they are shown and given back, and opening a file that may be swapped meanwhile."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Sequence

_PLAIN = re.compile(r'[^\x00-\x1f\x7f"\\\u0080-\u009f\u2028\u2029\ud800-\udfff]+')
_ESCAPES = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}
_FROM_ESCAPE = {value: bytes([key]) for key, value in _ESCAPES.items()}


def shown(path: bytes) -> str:
    """A path in one line of text: as it is where that can be read, else quoted with escapes as git does."""
    try:
        text = path.decode()
    except UnicodeDecodeError:
        text = ""
    if text and _PLAIN.fullmatch(text):
        return text
    quoted = (
        b"\\" + _ESCAPES[byte]
        if byte in _ESCAPES
        else bytes([byte])
        if 32 <= byte < 127
        else b"\\%03o" % byte
        for byte in path
    )
    return f'"{b"".join(quoted).decode()}"'


def given(text: str) -> bytes:
    """The path that `shown` made this text of, or that a person wrote: `./a/b` and `a//b` are `a/b`."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return re.sub(rb"\\([0-7]{3}|.)", _unescaped, _encoded(text[1:-1]))
    parts = _encoded(text).split(b"/")
    return b"/".join(part for part in parts if part not in (b"", b"."))


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # no file is called so
        return text.encode("utf-8", "surrogatepass")


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 255]) if len(code) == 3 else _FROM_ESCAPE.get(code, code)


def tree_of(paths: Sequence[str], depth: int | None = None) -> str:
    """Paths as `shown` gives them, in their order, as an indented tree. depth: how many levels of folders are
    opened; those below are named with the number of their files.
    """
    split = [_steps(path) for path in paths]
    closed = Counter(
        tuple(steps[: depth + 1]) for steps in split if depth is not None and len(steps) > depth + 1
    )
    lines: list[str] = []
    before: list[str] = []
    for *folders, name in split:
        same = 0
        while same < min(len(folders), len(before)) and folders[same] == before[same]:
            same += 1
        opened = folders if depth is None else folders[:depth]
        lines += [f"{'  ' * level}{opened[level]}" for level in range(same, len(opened))]
        if len(opened) == len(folders):
            lines.append(f"{'  ' * len(folders)}{name}")
        elif same <= len(opened):
            lines.append(
                f"{'  ' * len(opened)}{folders[len(opened)]} ({closed[(*opened, folders[len(opened)])]})"
            )
        before = folders
    return "".join(f"{line}\n" for line in lines)


def _steps(path: str) -> list[str]:
    """The folders of a path, each with its slash, and the name; a quoted path is one step."""
    return [path] if path.startswith('"') else [step for step in re.split("(?<=/)", path) if step]


def open_beneath(root: bytes, path: bytes, flags: int) -> int:
    """Open `path` in the folder `root` (absolute, without links) if no step of the way is a link.

    Raises OSError; ELOOP where a link was met.
    """
    whole = root + b"/" + path if path else root
    fd = os.open(whole, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        # What was opened is told by the kernel, so whatever was swapped on the way cannot matter.
        if os.readlink(b"/proc/self/fd/%d" % fd) != whole:  # noqa: PTH115
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_beneath(root: bytes, path: bytes, limit: int) -> tuple[bytes, os.stat_result]:
    """The first `limit` bytes of a regular file, and its state before. Raises OSError."""
    fd = open_beneath(root, path, os.O_RDONLY)
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        pieces = []
        left = limit
        while left > 0 and (piece := os.read(fd, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces), state
    finally:
        os.close(fd)
