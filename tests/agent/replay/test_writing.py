"""What goes into the replay page's file, and what keeps it from being written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.replay import write_replay

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
