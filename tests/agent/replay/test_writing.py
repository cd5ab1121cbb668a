"""What goes into the replay page's file, and what keeps it from being written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.replay import write_replay
from pilotfish.agent.replay.diffs import edit_diff
from pilotfish.agent.replay.page import told
from pilotfish.agent.run_folder import SNAPSHOTS, WORKSPACE
from pilotfish.sandbox import Snapshots

from .recorded import Recording, recorded


def test_equal_frames_are_embedded_once(tmp_path: Path) -> None:
    def twice(run: Recording) -> None:
        run.start()
        run.click(1, 1, 1, 2)
        run.click(2, 1, 1, 1)
        run.click(3, 1, 1, 2)

    html = write_replay(recorded(tmp_path, twice)).read_text()
    assert html.count("data:image/png;base64,") == 3


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    run = recorded(tmp_path, Recording.start)
    with pytest.raises(log.LogError, match="choose another file"):
        write_replay(run, tmp_path / "no" / "where.html")
    with pytest.raises(log.LogError, match="no episode 3"):
        write_replay(run, episodes=[3])


def test_what_changed_in_the_workspace_is_told_with_the_call_that_did_it(tmp_path: Path) -> None:
    workspace = tmp_path / WORKSPACE
    workspace.mkdir()
    kept = Snapshots(workspace, tmp_path / SNAPSHOTS)

    def write(run: Recording) -> None:
        run.start(options={"target": {"workspace": None}})
        for step, text in enumerate(("one\n", "one\ntwo\n", "three\n"), 1):
            run.answer(step, {"command": f"write {step}"}, name="shell")
            run.events.append(log.SnapshotTaken(step=step, snapshot=kept.take()))
            (workspace / "a.txt").write_text(text)
            run.result(step, step + 1)

    (episode,) = told(recorded(tmp_path, write)).episodes
    changes = [dict(map(tuple, entry.notes)) for entry in episode.entries[1:]]
    assert "A a.txt" in changes[0]["workspace"]
    assert "+two" in changes[1]["workspace"]
    assert "one" in changes[1]["workspace"]
    assert "+three" in changes[2]["workspace since then"]


def test_edits_are_shown_as_what_they_change() -> None:
    replaced = edit_diff({"command": "replace", "old_text": "a\nb\nc", "new_text": "a\nB\nc"})
    assert replaced.split("\n")[1:] == [" a", "-b", "+B", " c"]
    assert edit_diff({"command": "create", "new_text": "x\ny"}) == "+x\n+y"
    assert edit_diff({"command": "insert", "line": 3, "new_text": "x"}) == "@@ after line 3 @@\n+x"
    assert edit_diff({"command": "patch", "patch": "@@ -1 +1 @@\n-a\n+b"}).endswith("+b")
    assert edit_diff({"command": "view", "path": "a"}) == ""
    long = "\n".join(map(str, range(30_000)))
    assert edit_diff({"command": "replace", "old_text": long, "new_text": long + "x"}).count("\n") == 60_000
