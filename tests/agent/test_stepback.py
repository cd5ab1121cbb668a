"""Whether there is a way back to before a step, and what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.returning import how_to_resume
from pilotfish.agent.stepback import NoWay, unfinished, way_back


def call(number: int, name: str = "shell", **arguments: Any) -> log.CallData:
    return log.CallData(id=f"c{number}", name=name, arguments=arguments or {"command": "true"})


def step(
    number: int, said: log.CallData | None = None, snapshot: str | None = None, text: str = "ok"
) -> list[log.Event]:
    said = said or call(number)
    taken = [] if snapshot is None else [log.SnapshotTaken(step=number, snapshot=snapshot)]
    return [
        log.Answered(step=number, calls=[said]),
        *taken,
        log.Intended(step=number, call=said),
        log.Resulted(step=number, call_id=said.id, ok=True, text=text),
    ]


def group(folder: Path, *parts: list[log.Event], screen: tuple[int, int] | None = None) -> list[log.Event]:
    with log.EventLog(folder) as events:
        events.append(log.EpisodeStarted(episode=0, task="t", instruction="x", screen=screen))
        for part in parts:
            for event in part:
                events.append(event)
    return log.read_run(folder).episodes()[0]


LOOK = call(2, "edit", command="view", path="a")
CLICK = call(1, "computer", action="left_click", coordinate=[1, 1])


def test_files_come_from_the_first_snapshot_from_there_on(tmp_path: Path) -> None:
    events = group(tmp_path, step(1, snapshot="1"), step(2, LOOK), step(3, snapshot="2"), step(4, LOOK))
    ways = {to: way_back(events, to, keeps_files=True) for to in (1, 2, 3, 4, 5)}
    assert {to: way.at for to, way in ways.items()} == {1: "1", 2: "2", 3: "2", 4: "", 5: ""}
    assert [way.programs for way in ways.values()] == [False, True, True, True, True]
    assert ways[2].things is None


def test_files_that_were_not_kept_cannot_be_brought_back(tmp_path: Path) -> None:
    events = group(tmp_path, step(1, snapshot="1"), step(2, snapshot=""), step(3, snapshot="3"))
    with pytest.raises(NoWay, match="files before step 2 were not kept"):
        way_back(events, 2, keeps_files=True)
    assert way_back(events, 3, keeps_files=True).at == "3"
    assert way_back(events, 2, keeps_files=False).at == ""


@pytest.mark.parametrize(("to", "says"), [(0, "has taken 1 step"), (3, "There is no step 3 to go back to")])
def test_a_step_that_is_not_there(tmp_path: Path, to: int, says: str) -> None:
    with pytest.raises(NoWay, match=says):
        way_back(group(tmp_path, step(1, snapshot="1")), to, keeps_files=True)
    with pytest.raises(NoWay, match="has not taken one yet"):
        way_back(group(tmp_path / "none"), 1, keeps_files=True)
    with pytest.raises(NoWay, match="has not taken one yet"):
        way_back([], 1, keeps_files=True)


def test_what_reached_the_network_is_not_done_again(tmp_path: Path) -> None:
    reached = log.AttemptData(number=1, method="POST", host="shop.test", port=443, verdict="allowed")
    refused = log.AttemptData(number=2, host="other.test", port=443, verdict="refused")
    tried: list[log.Event] = [log.Networked(attempts=[refused, reached])]
    events = group(tmp_path, step(1, CLICK), tried, step(2, CLICK), screen=(10, 10))
    with pytest.raises(NoWay, match=r"programs reached shop\.test:443"):
        way_back(events, 2, keeps_files=False)
    things = way_back(events, 1, keeps_files=False).things
    assert [thing.what for thing in things or ()] == ["look"]
    without = group(tmp_path / "none", step(1), tried, step(2))
    assert way_back(without, 2, keeps_files=False).things is None, "without a screen nothing is done again"


def test_a_step_back_that_was_begun_is_taken_from_where_it_began(tmp_path: Path) -> None:
    back: list[log.Event] = [log.SteppedBack(step=4, to=2, over=False), log.Resumed()]
    steps = [step(1, snapshot="1"), step(2, snapshot="2"), step(3, snapshot="3")]
    events = group(tmp_path, *steps, back)
    assert unfinished(events) is not None
    way = way_back(events, 2, keeps_files=True)
    assert (way.at, way.step, way.programs) == ("2", 4, True)
    how = how_to_resume(events, keeps_files=True, own_files=False)
    assert (how.starts, how.back, how.note) == (
        False,
        None,
        "The run goes back to before step 2, which had been begun.",
    )


def test_how_a_run_with_a_screen_is_gone_on_with(tmp_path: Path) -> None:
    events = group(tmp_path, step(1, CLICK, snapshot="1"), step(2, CLICK, snapshot="2"), screen=(10, 10))
    how = how_to_resume(events, keeps_files=True, own_files=True)
    assert (how.back, how.note) == (3, "The screen is brought back by doing its 2 finished steps again.")
    way = way_back(events, 3, keeps_files=True)
    assert (way.first, way.at, [thing.what for thing in way.things or ()]) == (
        "1",
        "",
        ["look", "call", "call"],
    )
    mine = how_to_resume(events, keeps_files=True, own_files=False)
    assert mine.starts
    assert "(files in a folder of yours may be others by now)" in mine.note
    assert how_to_resume([], keeps_files=True, own_files=True).starts
