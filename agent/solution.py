"""Two players that need no network: a task's reference solution, and random clicks as a baseline.

Both are models to the loop. Where an answer stands in the script is read from the conversation, so that
they go on rightly after a resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from pilotfish.model.protocol import Message, ToolCall, ToolSpec
from pilotfish.model.scripted import ScriptedModel
from pilotfish.tasks.format import Task
from pilotfish.tasks.miniwob import random_click_policy
from pilotfish.tasks.run_solution import solution_answer, solution_calls

SOLUTION, RANDOM = "solution", "random-click"


def solution_model(task: Task) -> ScriptedModel:
    """Plays the reference solution of a task. Raises `TaskError` when it has none."""
    calls = list(solution_calls(task))
    answer = solution_answer(task)

    def next_answer(conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        step = _answers(conversation)
        if step < len(calls):
            name, arguments = calls[step]
            return _call(step, name, arguments)
        if answer or "computer" not in {tool.name for tool in tools}:
            return Message("assistant", (answer or "Done.",))
        return _call(step, "computer", {"action": "done"})

    return ScriptedModel(next_answer, SOLUTION)


def random_clicks(seed: int) -> ScriptedModel:
    """Clicks at random places of a MiniWoB++ page and never looks at it."""

    def next_answer(conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        step = _answers(conversation)
        return _call(step, "computer", next(islice(random_click_policy(seed), step, None)))

    return ScriptedModel(next_answer, RANDOM)


def _answers(conversation: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in conversation)


def _call(step: int, name: str, arguments: dict[str, object]) -> Message:
    return Message("assistant", tool_calls=(ToolCall(f"call-{step}", name, arguments),))
