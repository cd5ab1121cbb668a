"""What a diff of snapshots says: which files, how, their lines, and what to look at first."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pilotfish.sandbox import Change, Snapshots
from pilotfish.sandbox.runs_later import who_runs


def changes(kept: Snapshots, before: str, after: str | None = None) -> dict[str, Change]:
    return {change.path: change for change in kept.diff(before, after, text=True).changes}


def test_what_happened_to_each_path(work: Path, kept: Snapshots) -> None:
    for name in ("same", "touched", "changed", "mode", "removed", "to-link"):
        (work / name).write_text(f"{name}\n")
    (work / "gone" / "deep").mkdir(parents=True)
    (work / "gone" / "deep" / "file").write_text("1")
    first = kept.take()
    os.utime(work / "touched", ns=(1, 1))
    (work / "changed").write_text("other\n")
    (work / "mode").chmod(0o755)
    (work / "removed").unlink()
    (work / "to-link").unlink()
    (work / "to-link").symlink_to("same")
    subprocess.run(["rm", "-r", work / "gone"], check=True)
    (work / "added").mkdir()
    (work / "added" / "file").write_text("new\n")
    wanted = {
        "added": "added",
        "added/file": "added",
        "changed": "changed",
        "gone": "removed",
        "gone/deep": "removed",
        "gone/deep/file": "removed",
        "mode": "mode",
        "removed": "removed",
        "to-link": "changed",
    }
    now = changes(kept, first)
    assert {path: change.how for path, change in now.items()} == wanted
    second = kept.take()
    then = changes(kept, first, second)
    assert {path: change.text for path, change in then.items()} == {
        path: change.text for path, change in now.items()
    }
    assert now["changed"].text == "--- a/changed\n+++ b/changed\n@@ -1 +1 @@\n-changed\n+other\n"
    assert (now["mode"].before.mode, now["mode"].after.mode) == (0o644, 0o755)  # type: ignore[union-attr]
    back = kept.diff(second, first)
    assert (back.count("added"), back.count("removed"), back.count("mode")) == (4, 2, 1)
    assert changes(kept, second) == {}


def test_lines_can_be_applied_by_patch(work: Path, kept: Snapshots) -> None:
    """Far from the beginning and the end, and without a last line feed."""
    lines = [f"line {number}\n" for number in range(2000)]
    (work / "file").write_text("".join(lines) + "no end")
    first = kept.take()
    lines[900:905] = ["new\n"]
    lines.insert(1500, "inserted\n")
    after = "".join(lines) + "another end"
    (work / "file").write_text(after)
    text = changes(kept, first)["file"].text
    kept.restore(first)
    subprocess.run(["git", "apply", "-"], input=text, text=True, cwd=work, check=True)
    assert (work / "file").read_text() == after


def test_what_is_not_shown_says_so(work: Path, kept: Snapshots) -> None:
    first = kept.take()
    (work / "binary").write_bytes(b"\0\1")
    (work / "latin").write_bytes(b"caf\xe9\n")
    (work / "big").write_bytes(b"x\n" * (1 << 20))
    (work / "long").write_text("".join(f"{number}\n" for number in range(10_000)))
    (work / "many").write_text("".join(f"{number}\n" for number in range(2_900)))
    found = changes(kept, first)
    assert found["binary"].note == "binary"
    assert found["big"].note == "too big to show"
    assert found["long"].note == "more than 3000 lines differ"
    assert found["many"].note == "only the first 2000 lines are shown"
    assert found["latin"].text.endswith("+caf\\xe9\n")
    assert [change.path for change in found.values() if change.text] == ["latin", "many"]


def test_endings_alone_are_warned_of(work: Path, kept: Snapshots) -> None:
    text = "".join(f"line {number}\n" for number in range(100))
    (work / "ends").write_bytes(text.encode())
    (work / "real").write_bytes(b"one\n")
    first = kept.take()
    (work / "ends").write_bytes(text.replace("\n", "\r\n").encode())
    (work / "real").write_bytes(b"two\n")
    found = kept.diff(first, text=True)
    assert found.warnings == ("100 of 101 changed lines differ only in how they end.",)
    assert [(change.path, change.endings) for change in found.changes] == [("ends", True), ("real", False)]
    (work / "ends").write_bytes(text.replace("line", "word").encode())
    assert kept.diff(first, text=True).warnings == ()


@pytest.mark.parametrize(
    "path",
    [
        ".git/hooks/pre-commit",
        ".git/config",
        ".git/config.worktree",
        ".git/modules/sub/hooks/post-checkout",
        ".git/worktrees/tree/commondir",
        ".git/info/attributes",
        "sub/.git",
        "vendor/.git/hooks/update",
        "bare.git/hooks/pre-receive",
        "mirror/hooks/post-update",
        ".vscode/tasks.json",
        ".envrc",
        "deep/Makefile",
        ".npmrc",
        "package.json",
        "AGENTS.md",
        "docs/CLAUDE.md",
        "lib/site.pth",
        "tests/conftest.py",
        ".github/workflows/ci.yml",
        ".GIT/hooks/pre-commit",
        ".git\u200c/hooks/pre-commit",
        "\uff2dakefile",
        ".git /config",
        "pilotfish.toml",
    ],
)
def test_what_runs_by_itself_later(path: str) -> None:
    """Cases F6 and A20."""
    assert who_runs(path)


@pytest.mark.parametrize(
    "path",
    [
        ".git/objects/ab/cdef",
        ".git/index",
        ".git/HEAD",
        ".git/refs/heads/config",
        "src/hooks/useThing.ts",
        "a.py",
        "README.md",
        "odd\udcff",
    ],
)
def test_what_does_not(path: str) -> None:
    assert who_runs(path) == ""


def test_flags_come_with_the_diff(work: Path, kept: Snapshots) -> None:
    subprocess.run(["git", "init", "-q", work], check=True)
    (work / "Makefile").write_text("all:\n")
    first = kept.take()
    (work / ".git" / "hooks" / "post-checkout").write_text("#!/bin/sh\nevil\n")
    (work / ".git" / "config").write_text("[core]\n\tfsmonitor = evil\n")
    (work / "Makefile").unlink()
    (work / "plain.txt").write_text("plain")
    found = kept.diff(first)
    assert {change.path: change.runs for change in found.changes} == {
        ".git/config": "git",
        ".git/hooks/post-checkout": "git",
        "Makefile": "",
        "plain.txt": "",
    }
