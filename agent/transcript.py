"""What is said in an episode, put into its log and into the conversation, so that both tell the same."""

from __future__ import annotations

from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.control.hands import Hands
from pilotfish.agent.conversation import Conversation
from pilotfish.agent.prompt import developer_turn, first_turn, person_turn, tool_turn
from pilotfish.agent.recorder import Observed
from pilotfish.agent.reply import Reply
from pilotfish.model.protocol import CallChunk, Image, Usage
from pilotfish.tools.base import ToolResult


class Transcript:
    """The two records of one episode. Everything is in the log first; all raise `log.LogError`."""

    def __init__(self, events: log.EventLog, conversation: Conversation) -> None:
        self._events, self._conversation = events, conversation

    def open(self, instruction: str, seen: Observed | None, before: str = "") -> None:
        """Say the first two turns. before: see `first_turn`."""
        self._conversation.append(developer_turn())
        self._conversation.append(first_turn(instruction, None if seen is None else seen.clip, before))

    def reply(self, step: int, reply: Reply, *, kept: bool) -> None:
        """Record a reply, which joins the conversation if it is kept."""
        logprobs = reply.end.logprobs
        self._events.append(
            log.Answered(
                step=step,
                text=reply.text,
                reasoning=reply.reasoning,
                calls=[_call_data(said) for said in reply.calls],
                end=reply.end.reason,
                usage=_usage_data(reply.end.usage),
                logprobs=None if logprobs is None else [round(value, 5) for value in logprobs],
                seconds=round(reply.seconds, 4),
                kept=kept,
            )
        )
        if kept:
            self._conversation.append(reply.message)

    def nudge(self, step: int, text: str) -> None:
        """Record a sentence to the model that does not join the conversation."""
        self._events.append(log.Told(step=step, text=text))

    def spoken(self, step: int, text: str) -> None:
        """Record a person's message and tell it."""
        self._events.append(log.Spoken(step=step, text=text))
        self._conversation.append(person_turn(text))

    def took_over(self, step: int) -> None:
        """Record that a person has mouse and keyboard."""
        self._events.append(log.TookOver(step=step))

    def gave_back(self, step: int, text: str, seen: Observed | None, hands: Hands) -> None:
        """Record that they have come back and what was done with them, and tell what there is to be told."""
        self._events.append(
            log.GaveBack(
                step=step,
                text=text,
                clip=self.clip_data(seen),
                inputs=hands.inputs,
                did=hands.doings.lines,
                seconds=round(hands.seconds, 3),
            )
        )
        self._tell(text, seen)

    def stepped_back(self, step: int, to: int, note: str, told: str, seen: Observed | None) -> None:
        """Record that the run is before a step again, and tell what the model has to know of it."""
        clip = self.clip_data(seen)
        self._events.append(log.SteppedBack(step=step, to=to, note=note, told=told, clip=clip))
        self._tell(told, seen)

    def _tell(self, text: str, seen: Observed | None) -> None:
        if text:
            word, clip = (None, None) if seen is None else (seen.word, seen.clip)
            self._conversation.append(person_turn(text, word, clip))

    def intent(self, step: int, said: CallChunk) -> None:
        """Record a call that is about to run."""
        self._events.append(log.Intended(step=step, call=_call_data(said)))

    def result(
        self,
        step: int,
        call_id: str,
        result: ToolResult,
        seen: Observed | None = None,
        *,
        executed: bool = True,
        seconds: float = 0.0,
    ) -> None:
        """Record a result and tell it to the model."""
        image = None if result.image is None else self._events.frames.put(result.image)
        self._events.append(
            log.Resulted(
                step=step,
                call_id=call_id,
                ok=result.ok,
                text=result.text,
                end=result.end,
                executed=executed,
                clip=self.clip_data(seen),
                image=image,
                seconds=round(seconds, 4),
            )
        )
        picture = None if result.image is None else Image(result.image)
        if seen is None:
            self._conversation.append(tool_turn(result.text, None, None, picture))
        else:
            self._conversation.append(tool_turn(result.text, seen.word, seen.clip, picture))

    def no_result(self, step: int, call_id: str, why: str) -> None:
        """Record and tell that a call was not executed."""
        self.result(step, call_id, ToolResult(False, why), executed=False)

    def clip_data(self, seen: Observed | None) -> log.ClipData | None:
        """Put the frames of a clip into the store; what is returned names them."""
        if seen is None:
            return None
        a, b, c, d = (self._events.frames.put(frame) for frame in seen.clip.frames)
        clip = seen.clip
        return log.ClipData(frames=(a, b, c, d), times_s=clip.times_s, settled=clip.settled, word=seen.word)


def _call_data(said: CallChunk) -> log.CallData:
    call, confidence = said.call, said.confidence
    rounded = None if confidence is None else float(f"{confidence:.4g}")
    return log.CallData(id=call.id, name=call.name, arguments=call.arguments, confidence=rounded)


def _usage_data(usage: Usage) -> Usage:
    rounded: dict[str, Any] = {
        name: round(value, 4) if isinstance(value, float) else value for name, value in vars(usage).items()
    }
    return Usage(**rounded)
