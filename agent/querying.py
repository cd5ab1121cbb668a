"""Asks the model for the next call, again where it says nothing whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.agent.control.steering import Steering
from pilotfish.agent.limits import RESAMPLES, Answered, Budget, FormatLimit, ModelBroke, TokenLimit
from pilotfish.agent.prompt import no_call
from pilotfish.agent.reply import OnProgress, Reply, read_reply
from pilotfish.agent.transcript import Transcript
from pilotfish.model.protocol import Limits, Message, Model, ModelError, ToolSpec
from pilotfish.tools.base import Tool, exact_schema, tool_schema

STALL_S = 10.0
"""Seconds beyond its own limit after which a silent model is given up."""


def specs_of(tools: Sequence[Tool[Any]]) -> list[ToolSpec]:
    """Tools as a model is told of them."""
    return [ToolSpec(tool.name, tool.description, tool_schema(tool), exact_schema(tool)) for tool in tools]


@dataclass(eq=False)
class Querier:
    """One model in one episode. or_stopped: awaits, or raises what ends the episode or the answer."""

    model: Model
    specs: Sequence[ToolSpec]
    sampling: Limits
    budget: Budget
    steering: Steering
    transcript: Transcript
    stop: asyncio.Event
    on_progress: OnProgress | None
    or_stopped: Callable[..., Awaitable[Any]]
    thinks: bool = False
    """Whether the model is at an answer."""

    async def query(self, messages: Sequence[Message], step: int, *, has_screen: bool) -> Reply:
        """Ask the model until it makes a call. A reply without one never joins the conversation.

        Raises `Answered` when the model ends with text, `FormatLimit` when it says nothing whole.
        """
        nudge: tuple[Message, ...] = ()
        cut_off = 0
        for last_try in (*(False,) * RESAMPLES, True):
            reply = await self._ask((*messages, *nudge))
            faults = reply.faults
            # Text around a call that cannot be read is no answer, nor is text that a limit cut off.
            is_answer = bool(reply.text.strip()) and not faults and (last_try or not has_screen)
            kept = bool(reply.calls) or is_answer
            cut_off += reply.end.reason == "length"
            self.transcript.reply(step, reply, kept=kept)
            if reply.calls:
                return reply
            if is_answer:
                raise Answered(answer=reply.text)
            if not last_try:
                told = no_call(faults)
                nudge = (Message("user", (told,)),)
                self.transcript.nudge(step, told)
        self.budget.check()  # a reply that the episode's own limit cut off is not the model's fault
        if cut_off > RESAMPLES:  # it wrote without an end, and what it began was well-formed
            most = f"{self.sampling.max_tokens} tokens, which answer_tokens raises"
            raise TokenLimit(f"{cut_off} answers in a row were cut off at {most}; the last: {faults[-1]}.")
        why = f"; what was wrong with the last: {faults[-1]}" if faults else " and said nothing"
        raise FormatLimit(f"The model made no call in {RESAMPLES + 1} replies{why}.")

    async def _ask(self, messages: Sequence[Message]) -> Reply:
        """One answer within what is left of the budget."""
        self.budget.check()
        seconds = min(self.sampling.max_seconds, self.budget.remaining_s)
        tokens = min(self.sampling.max_tokens, self.budget.tokens - self.budget.used_tokens)
        limits = Limits(**{**vars(self.sampling), "max_seconds": seconds, "max_tokens": tokens})
        try:
            self.thinks = True
            self.steering.begin_answer()
            async with asyncio.timeout(seconds + STALL_S):
                chunks = self.model.respond(messages, self.specs, stop=self.stop, limits=limits)
                reading = read_reply(chunks, self.on_progress, self.steering.wrote)
                reply: Reply = await self.or_stopped(reading, self.steering.reach.hands_wanted)
        except TimeoutError:
            raise ModelBroke(
                f"The model {self.model.name} was silent for {seconds + STALL_S:.0f} s."
            ) from None
        except ModelError as error:
            raise ModelBroke(str(error)) from error
        finally:
            self.thinks = False
        self.budget.used_tokens += reply.end.usage.output_tokens
        return reply
