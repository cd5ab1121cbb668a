"""Questions from a repository's own history: what a commit says, asked of the tree before it."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tarfile
from pathlib import Path

from pilotfish.tools.index.questions import Question, Tree, functions, is_test, masked

_MOST_FILES = 4  # a commit that changes more says little about each
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))?", re.MULTILINE)


def trees_of_history(repository: Path, most: int) -> list[Tree]:
    """One tree for each of the newest commits that change one to four Python files which are no tests and
    were there before, newest first, with one question each. The names of the files are masked.
    """
    found: list[Tree] = []
    for line in _git(repository, "log", "--no-merges", "--format=%H %P").splitlines():
        commit, parent, *_ = [*line.split(), "", ""]
        if len(found) == most or not parent:
            break
        changed = _git(repository, "diff", "--no-renames", "--name-status", "-z", parent, commit).split("\0")
        pairs = list(zip(changed[::2], changed[1::2], strict=False))
        paths = [path for state, path in pairs if path.endswith(".py") and not is_test(path)]
        if not 0 < len(paths) <= _MOST_FILES or any(state != "M" for state, path in pairs if path in paths):
            continue
        texts = _texts(repository, parent)
        symbols = [pair for path in paths for pair in _touched(repository, parent, commit, path, texts[path])]
        stems = [path.rpartition("/")[2].partition(".")[0] for path in paths]
        said = masked(_git(repository, "log", "-1", "--format=%B", commit).strip(), stems)
        found.append(
            Tree(commit[:12], texts, (Question("commit", said, tuple(sorted(paths)), tuple(symbols)),))
        )
    return found


def _git(repository: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "--no-pager", *words], cwd=repository, capture_output=True, text=True, check=True
    )
    return done.stdout


def _texts(repository: Path, commit: str) -> dict[str, bytes]:
    """The Python files of a commit."""
    packed = subprocess.run(
        ["git", "archive", commit], cwd=repository, capture_output=True, check=True
    ).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(".py") and (file := archive.extractfile(member)):
                found[member.name] = file.read()
    return found


def _touched(repository: Path, parent: str, commit: str, path: str, text: bytes) -> list[tuple[str, str]]:
    """The functions that had lines which the commit changes."""
    difference = _git(repository, "diff", "--no-ext-diff", "-U0", parent, commit, "--", path)
    spans = [(int(first), int(first) + int(count or 1) - 1) for first, count in _HUNK.findall(difference)]
    return [
        (path, qualified)
        for qualified, node in functions(ast.parse(text))
        if any(first <= (node.end_lineno or 0) and node.lineno <= last for first, last in spans)
    ]
