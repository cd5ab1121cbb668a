"""Reading a log while it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.agent.control.runs import runs_in
from pilotfish.agent.events import EVENTS, read_run
from pilotfish.agent.events.tail import LogTail

from . import made_runs


def test_each_look_takes_what_has_come_since(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tail = LogTail(folder)
    assert tail.read().events == []
    made_runs.write(folder, made_runs.start(folder))
    assert [event.type for event in tail.read().events] == ["run_started", "episode_started"]
    assert tail.read().events == []
    made_runs.write(folder, made_runs.step(1, "ls", "a b"))
    assert [event.n for event in tail.read().events] == [3, 4, 5]


def test_small_pieces_give_the_same_as_all_at_once(tmp_path: Path) -> None:
    folder = made_runs.finished(tmp_path / "run", steps=20)
    tail = LogTail(folder)
    events = []
    while True:
        news = tail.read(most=700)
        events += news.events
        if not news.more:
            break
    assert events == list(read_run(folder).events)


def test_a_torn_line_waits_for_its_end_and_a_cut_log_begins_again(tmp_path: Path) -> None:
    folder = made_runs.write(tmp_path / "run", made_runs.start(tmp_path / "run"))
    path = folder / EVENTS
    whole = path.read_bytes()
    tail = LogTail(folder)
    path.write_bytes(whole[:-20])
    assert [event.n for event in tail.read().events] == [1]
    path.write_bytes(whole)
    news = tail.read()
    assert ([event.n for event in news.events], news.again) == ([2], False)
    path.write_bytes(whole[: whole.index(b"\n") + 1])
    news = tail.read()
    assert ([event.n for event in news.events], news.again) == ([1], True)


def test_lines_that_make_no_sense_are_named_and_passed_over(tmp_path: Path) -> None:
    folder = made_runs.write(tmp_path / "run", made_runs.start(tmp_path / "run"))
    with (folder / EVENTS).open("a") as file:
        file.write('{"v": 1, "type": "from the future"}\nnoise\n')
    made_runs.write(folder, made_runs.step(1, "ls", ""))
    news = LogTail(folder).read()
    assert len(news.events) == 5
    assert len(news.warnings) == 2
    assert "Line 3 of " in news.warnings[0]


@pytest.mark.parametrize("when", ["NaN", "1e308", "-1", "1" + "0" * 400])
def test_a_time_that_no_clock_tells_is_skipped_and_borne(tmp_path: Path, when: str) -> None:
    path = tmp_path / "run" / EVENTS
    path.parent.mkdir()
    path.write_text(f'{{"v": 1, "t": {when}, "type": "run_started", "run": "r"}}\n')
    news = LogTail(path.parent).read()
    assert not news.events
    assert "its field t is wrong" in news.warnings[0]
    assert [run.began for run in runs_in(tmp_path)] == [path.stat().st_mtime]
