"""What a step back leaves of a log, for each reader of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.accounts import totals
from pilotfish.agent.atif import to_atif
from pilotfish.agent.conversation import Conversation
from pilotfish.agent.replay.page import told
from pilotfish.agent.resume import standing, unknown_call
from pilotfish.agent.show import Narrator
from pilotfish.model.protocol import Message, Usage


def step(number: int, command: str) -> list[log.Event]:
    call = log.CallData(id=f"c{number}", name="shell", arguments={"command": command})
    return [
        log.Answered(step=number, calls=[call], usage=Usage(output_tokens=10)),
        log.SnapshotTaken(step=number, snapshot=command),
        log.Intended(step=number, call=call),
        log.Resulted(step=number, call_id=call.id, ok=True, text=f"did {command}"),
    ]


BEGIN: list[log.Event] = [
    log.RunStarted(run="r", pilotfish="1", command="run", model="m"),
    log.EpisodeStarted(episode=0, task="t", instruction="Do it"),
]
BACK = [
    log.SteppedBack(step=4, to=2, over=False),
    log.SteppedBack(step=4, to=2, note="All is as it was.", told="Your programs have ended."),
]


@pytest.fixture
def run(tmp_path: Path) -> log.RunLog:
    """Three steps, back to before the second, which is then another one."""
    steps = [*step(1, "one"), *step(2, "two"), log.Spoken(step=3, text="Well?"), *step(3, "three")]
    rule = log.RuleAdded(rule={"verdict": "ask"})
    end = log.EpisodeEnded(episode=0, end="done", passed=True, steps=2)
    with log.EventLog(tmp_path) as events:
        for event in (*BEGIN, *steps, rule, *BACK, *step(2, "other"), end):
            events.append(event)
    return log.read_run(tmp_path)


def commands(events: list[log.Event]) -> list[str]:
    return [event.call.arguments["command"] for event in events if isinstance(event, log.Intended)]


def test_what_was_undone_is_told_apart_and_stays_in_the_log(run: log.RunLog) -> None:
    group = run.episodes()[0]
    assert commands(group) == ["one", "two", "three", "other"]
    assert commands(log.live(group)) == ["one", "other"]
    gone = [event.type for event in run.events if event.n in log.undone(run.events)]
    kinds = ["answered", "snapshot_taken", "intended", "resulted"]
    assert gone == [*kinds, "spoken", *kinds]


def test_it_can_be_gone_back_twice_and_to_the_very_beginning(run: log.RunLog) -> None:
    again = log.SteppedBack(n=900, step=3, to=1)
    more: list[log.Event] = [*run.events, again, *(one.model_copy(update={"n": 999}) for one in step(1, "x"))]
    live = [event for event in more if event.n not in log.undone(more)]
    assert commands(live) == ["x"]


def test_a_conversation_is_rebuilt_without_it(run: log.RunLog) -> None:
    here = standing(run.episodes()[0], run.frames, Conversation())
    told = [message.parts[0] for message in here.conversation.messages if message.role == "tool"]
    assert told == ["did one", "did other"]
    assert Message("user", ("Your programs have ended.",)) in here.conversation.messages
    assert (here.used_steps, here.used_tokens) == (2, 20)


def test_a_call_that_was_undone_is_not_unknown(tmp_path: Path) -> None:
    with log.EventLog(tmp_path) as events:
        for event in (*BEGIN, *step(1, "one"), *step(2, "two")[:-1], *BACK):
            events.append(event)
    assert unknown_call(log.read_run(tmp_path).episodes()[0]) is None


def test_readers_show_it_as_undone_and_count_only_its_cost(run: log.RunLog) -> None:
    (episode,) = told(run).episodes
    gone = [entry.title for entry in episode.entries if "undone" in entry.tags]
    assert gone == ["shell two", "message: Well?", "shell three"]
    stands = [entry.title for entry in episode.entries if "undone" not in entry.tags]
    assert stands[:4] == ["start", "shell one", "stepped back to before step 2", "shell other"]
    trajectory: dict[str, Any] = to_atif(run)
    said = str(trajectory["steps"])
    assert "did one" in said
    assert "did other" in said
    assert "did two" not in said
    assert "before step 2 again" in said
    assert totals(run.events).answers == 4
    shown = io.StringIO()
    narrate = Narrator(shown, undone=log.undone(run.events))
    for event in run.events:
        narrate(event)
    lines = shown.getvalue().splitlines()
    assert [line for line in lines if line.startswith("undone") and "did" in line] == [
        "undone        did two",
        "undone        did three",
    ]
