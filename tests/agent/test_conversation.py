from __future__ import annotations

import numpy as np
import pytest

from pilotfish.agent.conversation import Conversation
from pilotfish.agent.prompt import (
    DEVELOPER,
    PRUNED_CLIP,
    developer_turn,
    first_turn,
    observation_word,
    tool_turn,
)
from pilotfish.model.protocol import Clip, Message, ToolCall


def clip() -> Clip:
    return Clip(np.zeros((4, 2, 2, 3), np.uint8), (0.0, 0.1, 0.2, 0.3))


def clips_of(conversation: Conversation) -> list[Clip]:
    return [part for message in conversation.messages for part in message.parts if isinstance(part, Clip)]


def grown(steps: int, **options: int) -> tuple[Conversation, list[Clip]]:
    clips = [clip() for _ in range(steps + 1)]
    conversation = Conversation([developer_turn(), first_turn("Press OK", clips[0])], **options)
    for step in range(steps):
        call = ToolCall(str(step), "computer", {"action": "wait"})
        conversation.append(Message("assistant", tool_calls=(call,)))
        conversation.append(tool_turn("ok", "settled", clips[step + 1]))
    return conversation, clips


def test_the_wording_is_the_one_the_model_was_trained_on() -> None:
    assert DEVELOPER == (
        "You control a computer through tools. Each clip shows four frames of the screen, oldest first. "
        "Coordinates are integers from 0 to 1000 on both axes. "
        "When the task is finished, use the action done."
    )
    shown = clip()
    assert first_turn("Press OK", shown) == Message("user", (shown, "Press OK"))
    assert tool_turn("ok", "unchanged", shown) == Message("tool", ("ok\nunchanged", shown))
    assert first_turn("Count", None) == Message("user", ("Count",))
    assert tool_turn("3 lines", None, None) == Message("tool", ("3 lines",))
    assert observation_word(changed=True, settled=True) == "settled"
    assert observation_word(changed=False, settled=True) == "unchanged"
    assert observation_word(changed=True, settled=False) == "unsettled"


def test_clips_go_in_blocks_and_the_first_stays() -> None:
    conversation, clips = grown(11)
    assert clips_of(conversation) == clips
    conversation, clips = grown(12)
    assert clips_of(conversation) == [clips[0], *clips[9:]]
    assert conversation.messages[1].parts == (clips[0], "Press OK")
    assert conversation.messages[3].parts == ("ok\nsettled", PRUNED_CLIP)


def test_between_prunings_the_prefix_does_not_change() -> None:
    changes = 0
    conversation, _ = grown(0)
    for step in range(100):
        before = conversation.messages
        conversation.append(tool_turn("ok", "settled", clip()))
        if conversation.messages[: len(before)] != before:
            changes += 1
        assert len(clips_of(conversation)) <= 12, f"step {step}"
    assert changes == conversation.prunings == 12


def test_an_empty_assistant_turn_is_refused() -> None:
    conversation, _ = grown(0)
    with pytest.raises(ValueError, match="empty assistant turn"):
        conversation.append(Message("assistant", ("  \n",), reasoning="hm"))
    assert len(conversation.messages) == 2


@pytest.mark.parametrize(("max_clips", "block"), [(12, 0), (12, 12), (1, 1)])
def test_a_block_that_would_take_the_first_clip_is_refused(max_clips: int, block: int) -> None:
    with pytest.raises(ValueError, match="cannot be dropped"):
        Conversation(max_clips=max_clips, block=block)
