"""A unified diff of one file, put on its text: exactly, or not at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pilotfish.tools.nearest import explain_miss

_HEAD = re.compile(r"@@(?: -(\d{1,9})(?:,\d+)? \+\d+(?:,\d+)? @@.*)?")
_NO_END = "\\ No newline at end of file"


class PatchError(ValueError):
    """The patch cannot be put on the text; the message is a clause for the model."""


@dataclass
class Hunk:
    """What stands in one place, before and after. line: where it says that it is, -1 for unknown."""

    line: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    old_ends: bool = True
    new_ends: bool = True

    def text(self, lines: Sequence[str], ends: bool) -> str:
        return "\n".join(lines) + ("\n" if lines and ends else "")


def read_patch(patch: str) -> list[Hunk]:
    """The hunks of a diff; what stands before the first one is passed over. Raises `PatchError`."""
    hunks: list[Hunk] = []
    last = ""
    files = 0
    for line in patch.replace("\r\n", "\n").removesuffix("\n").split("\n"):
        if head := _HEAD.fullmatch(line):
            hunks.append(Hunk(int(head[1] or -1)))
        elif line.startswith(("diff --git ", "--- ")) and (not hunks or line.startswith("diff --git ")):
            files += line.startswith("--- ") or bool(hunks)
            if files > 1:
                raise PatchError("`patch` is for several files; give one call for each")
        elif not hunks:
            continue
        elif line == _NO_END:
            hunks[-1].old_ends &= last == "+"
            hunks[-1].new_ends &= last == "-"
        elif line[:1] in ("", " ", "-", "+"):
            if line[:1] != "+":
                hunks[-1].old.append(line[1:])
            if line[:1] != "-":
                hunks[-1].new.append(line[1:])
        else:
            raise PatchError(f"`patch` has the line {line[:60]!r}, which begins with none of ' ', '-', '+'")
        last = line[:1]
    if not hunks:
        raise PatchError("`patch` has no hunk; each begins with a line such as @@ -3,2 +3,3 @@")
    if all(hunk.old == hunk.new and hunk.old_ends == hunk.new_ends for hunk in hunks):
        raise PatchError("`patch` changes nothing")
    return hunks


def places(hunks: Sequence[Hunk], text: str) -> list[tuple[int, int, str]]:
    """Where in `text` (with `\\n` line ends) what is to stand instead: (start, end, new), in order.

    A hunk goes where its lines are exactly: where it says, moved as the ones before were, or else at the one
    place after these where they are. Raises `PatchError`.
    """
    starts = [0]
    while (end := text.find("\n", starts[-1])) >= 0:
        starts.append(end + 1)
    if starts[-1] != len(text):
        starts.append(len(text))  # the last line has no end
    found: list[tuple[int, int, str]] = []
    done = moved = 0
    for number, hunk in enumerate(hunks, 1):
        old, new = hunk.text(hunk.old, hunk.old_ends), hunk.text(hunk.new, hunk.new_ends)
        if not hunk.old:
            after = len(starts) - 1 if hunk.line < 0 else hunk.line + moved
            if not 0 <= after < len(starts):
                raise PatchError(
                    f"hunk {number} adds after line {after}, and there are {len(starts) - 1} lines"
                )
            at = starts[after]
            if at == len(text) and text and not text.endswith("\n"):
                new = "\n" + new.removesuffix("\n")
            found.append((max(at, done), max(at, done), new))
            continue
        if not text.endswith("\n") and text.endswith(old.removesuffix("\n")) and old not in text:
            # The end of a file without a line end, which stays so.
            old, new = old.removesuffix("\n"), new.removesuffix("\n")
        says = hunk.line - 1 + moved
        wanted = starts[says] if hunk.line > 0 and 0 <= says < len(starts) else -1
        hits = [wanted] if wanted >= done and _is_at(text, old, wanted, hunk.old_ends) else []
        hits = hits or _hits(text, old, done, hunk.old_ends)
        if hits == [wanted]:
            at = wanted
        elif len(hits) == 1:
            at = hits[0]
            moved = moved if hunk.line < 0 else text.count("\n", 0, at) + 1 - hunk.line
        elif hits:
            lines = ", ".join(str(text.count("\n", 0, hit) + 1) for hit in hits[:10])
            raise PatchError(f"hunk {number} fits {len(hits)} places, at lines {lines}; give it more lines")
        else:
            raise PatchError(f"the lines of hunk {number} are not there: {explain_miss(text, old)}")
        found.append((at, at + len(old), new))
        done = at + len(old)
    return found


def _hits(text: str, old: str, after: int, whole: bool) -> list[int]:
    """Where `old` stands at the start of a line; at the end of the text, if its last line has no end."""
    found = []
    at = text.find(old, after)
    while at >= 0:
        if _is_at(text, old, at, whole):
            found.append(at)
        at = text.find(old, at + 1)
    return found


def _is_at(text: str, old: str, at: int, whole: bool) -> bool:
    """Whether `old` is there, from the start of a line to the end of one."""
    if not text.startswith(old, at) or (at > 0 and text[at - 1] != "\n"):
        return False
    end = at + len(old)
    return old.endswith("\n") or end == len(text) or (whole and text[end] == "\n")
