"""Whether a call may run: the rules first, then whoever is there. What a person allows is what runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

from pilotfish.agent import events as log
from pilotfish.agent.control.steering import Check, Steering
from pilotfish.agent.control.wire import Question, call_digest
from pilotfish.agent.limits import Denied
from pilotfish.agent.policy import Policy, overlooked, rule_like
from pilotfish.model.protocol import ToolCall
from pilotfish.sandbox import Files

ANOTHER_WAY = "do it another way."
Preview = Callable[[], tuple[str, tuple[int, int] | None]]
"""Computes what an edit would change, as a unified diff, and the screen's pixel where a click would go."""


@dataclass(frozen=True)
class Approved:
    """The call that runs; note: what the model is told of it besides its result."""

    call: ToolCall
    note: str = ""


class Approval:
    """Decides about the calls of one episode."""

    def __init__(
        self, policy: Policy, steering: Steering, events: log.EventLog, files: Files | None = None
    ) -> None:
        """files: of the workspace, in which links are followed."""
        self._policy, self._steering, self._events, self._files = policy, steering, events, files

    async def decide(self, call: ToolCall, step: int, check: Check, preview: Preview) -> Approved:
        """Apply the rules, asking where they say so. Raises `Denied`.

        check: whether arguments fit the tool. preview: is asked for only if a person is.
        """
        judgement = self._policy.judge(call, self._files)
        if judgement.verdict == "allow":
            return Approved(call)
        if judgement.verdict == "deny":
            raise self._denied(call)
        nobody = Denied(
            f"The call of {call.name} has to be allowed by a person and nobody is there; {ANOTHER_WAY}"
        )
        if not self._steering.somebody_is_there:
            raise nobody
        # A text that UTF-8 cannot take is shown otherwise than the model wrote it; what is shown runs.
        shown = log.CallData(id=call.id, name=call.name, arguments=call.arguments)
        diff, pixel = await asyncio.to_thread(preview)
        question = Question(
            question=0,
            step=step,
            call=shown,
            why=judgement.why,
            warnings=overlooked(shown),
            diff=diff,
            pixel=pixel,
            rule=rule_like(shown).model_dump(exclude_defaults=True),
        )
        self._events.append(log.Asked(step=step, call=shown, why=judgement.why))
        answer = await self._steering.ask(question, lambda arguments: self._refuses(shown, arguments, check))
        if answer is None:
            reason = "Nobody is there any more."
            self._events.append(log.Decided(step=step, call_id=call.id, verdict="deny", reason=reason))
            raise nobody
        self._events.append(log.Decided(step=step, call_id=call.id, **vars(answer)))
        if answer.verdict == "deny":
            why = answer.reason.strip()
            raise Denied(
                f"The user denied this call of {call.name}{f': {why}' if why else f'; {ANOTHER_WAY}'}"
            )
        runs = ToolCall(
            call.id, shown.name, shown.arguments if answer.arguments is None else answer.arguments
        )
        # A deny may have come while it waited, by a new rule or by a link that leads elsewhere now.
        if self._policy.judge(runs, self._files).verdict == "deny":
            raise self._denied(runs)
        if answer.verdict == "task":
            rule = rule_like(runs)
            self._policy.add(rule)
            self._events.append(log.RuleAdded(rule=rule.model_dump(exclude_defaults=True)))
        return Approved(runs, "" if answer.arguments is None else changed_note(runs))

    def _denied(self, call: ToolCall) -> Denied:
        return Denied(f"The call of {call.name} is denied by the user's rules; {ANOTHER_WAY}")

    def _refuses(self, call: log.CallData, arguments: dict[str, object], check: Check) -> str | None:
        if (wrong := check(arguments)) is not None:
            return f"These arguments do not fit: {wrong}"
        judgement = self._policy.judge(ToolCall(call.id, call.name, arguments), self._files)
        if judgement.verdict == "deny":
            return f"These arguments are denied ({judgement.why}); change them, or the rule."
        return None


def changed_note(call: ToolCall | log.CallData) -> str:
    """What the model is told of a call that a person has edited."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return f"[the user changed this call before it ran; what ran: {call.name} {arguments}]"


def was_changed(answer: log.CallData, runs: log.CallData) -> bool:
    """Whether what ran is not what the model asked for."""
    return call_digest(answer.name, answer.arguments) != call_digest(runs.name, runs.arguments)
