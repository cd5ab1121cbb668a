"""What a killed episode's log says about where it stood."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pilotfish.agent import events as log
from pilotfish.agent.conversation import Conversation
from pilotfish.agent.prompt import NOT_EXECUTED, UNKNOWN_OUTCOME
from pilotfish.agent.resume import Standing, messages_left, standing
from pilotfish.model.protocol import Clip, Message, ToolCall, Usage

ONE = log.CallData(id="1", name="shell", arguments={"command": "one"})
TWO = log.CallData(id="2", name="shell", arguments={"command": "two"})

BEGIN = log.EpisodeStarted(episode=0, task="t", instruction="Do it")
ANSWER = log.Answered(step=1, text="first", calls=[ONE, TWO], usage=Usage(output_tokens=7))
INTENT = log.Intended(step=1, call=ONE)
RESULT = log.Resulted(step=1, call_id="1", ok=True, text="done one")
OTHER = log.Resulted(step=1, call_id="2", ok=False, text=NOT_EXECUTED, executed=False)


def stood(folder: Path, *events: log.Event) -> Standing:
    with log.EventLog(folder) as writer:
        for event in events:
            writer.append(event)
    run = log.read_run(folder)
    return standing(run.episodes()[-1], run.frames, Conversation())


def calls(*data: log.CallData) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call.id, call.name, call.arguments) for call in data)


def test_a_finished_step_is_kept(tmp_path: Path) -> None:
    here = stood(tmp_path, BEGIN, ANSWER, INTENT, RESULT, OTHER)
    assert here.conversation.messages[1:] == (
        Message("user", ("Do it",)),
        Message("assistant", ("first",), None, calls(ONE, TWO)),
        Message("tool", ("done one",)),
        Message("tool", (NOT_EXECUTED,)),
    )
    assert (here.used_steps, here.used_tokens, here.unknown_call, here.closing) == (1, 7, None, [])


def test_a_call_that_was_running_is_unknown(tmp_path: Path) -> None:
    here = stood(tmp_path, BEGIN, ANSWER, INTENT)
    assert here.unknown_call == ONE
    assert here.closing == [(ONE, UNKNOWN_OUTCOME), (TWO, NOT_EXECUTED)]
    assert here.conversation.messages[-1].tool_calls == calls(ONE, TWO)
    assert here.used_steps == 1


def test_an_answer_whose_call_had_not_begun_is_forgotten(tmp_path: Path) -> None:
    here = stood(tmp_path, BEGIN, ANSWER, INTENT, RESULT, OTHER, ANSWER)
    assert here.closing == []
    assert len(here.conversation.messages) == 5
    assert (here.used_steps, here.used_tokens) == (1, 14)


def test_the_results_that_were_not_told_are_told(tmp_path: Path) -> None:
    here = stood(tmp_path, BEGIN, ANSWER, INTENT, RESULT)
    assert here.closing == [(TWO, NOT_EXECUTED)]
    assert here.unknown_call is None


def test_replies_that_were_sampled_again_do_not_come_back(tmp_path: Path) -> None:
    lost = log.Answered(step=1, text="hm", kept=False, usage=Usage(output_tokens=1))
    here = stood(tmp_path, BEGIN, lost, log.Told(step=1, text="Reply."), ANSWER, INTENT, RESULT, OTHER)
    assert [message.role for message in here.conversation.messages] == [
        "developer",
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    assert here.used_tokens == 8


def test_an_episode_that_was_stopped_goes_on(tmp_path: Path) -> None:
    stopped = log.EpisodeEnded(episode=0, end="stopped")
    again = log.Answered(step=2, calls=[TWO])
    told = log.Resulted(step=2, call_id="2", ok=True, text="done two")
    here = stood(
        tmp_path,
        BEGIN,
        ANSWER,
        INTENT,
        RESULT,
        OTHER,
        stopped,
        log.RunEnded(status="interrupted"),
        log.Resumed(),
        again,
        log.Intended(step=2, call=TWO),
        told,
    )
    assert here.used_steps == 2
    assert here.conversation.messages[-1] == Message("tool", ("done two",))


def test_clips_come_back_byte_for_byte(tmp_path: Path) -> None:
    frames = np.random.default_rng(5).integers(0, 256, (4, 8, 6, 3), np.uint8)
    with log.EventLog(tmp_path) as writer:
        a, b, c, d = (writer.frames.put(frame) for frame in frames)
    clip = log.ClipData(frames=(a, b, c, d), times_s=(0.0, 0.1, 0.2, 0.3), settled=False, word="unsettled")
    here = stood(tmp_path, BEGIN.model_copy(update={"clip": clip}))
    shown = here.conversation.messages[1].parts[0]
    assert isinstance(shown, Clip)
    assert np.array_equal(shown.frames, frames)
    assert (shown.times_s, shown.settled) == ((0.0, 0.1, 0.2, 0.3), False)
    (tmp_path / "frames" / f"{a}.png").unlink()
    with pytest.raises(log.LogError, match="missing"):
        stood(tmp_path)


def test_a_message_waits_until_the_whole_has_been_told_it() -> None:
    one, two = (log.MessageLeft(text=text) for text in ("one", "two"))
    told = [log.Spoken(step=1, text="one"), log.Spoken(step=1, text="two", parent=3)]
    assert messages_left([one, one, two]) == ["one", "one", "two"]
    assert messages_left([one, one, two, *told]) == ["one", "two"], "a sub-task's is not the whole's"
    back = log.SteppedBack(step=2, to=1)
    assert messages_left([one, told[0], back]) == [], "what was told is undone with its step"
