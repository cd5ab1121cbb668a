"""What a person is shown of a question before it is answered: everything that will run, line by line."""

from __future__ import annotations

import json
import re
from typing import Any

from pilotfish.agent.control import wire
from pilotfish.agent.events import CallData
from pilotfish.agent.policy import argument_text, overlooked
from pilotfish.agent.safetext import has_gap
from pilotfish.agent.tui.exact_view import Line, numbered


def question_lines(
    question: wire.Question, call: CallData, words: str = "", told: str = "", *, edited: bool = False
) -> list[Line]:
    """The lines for a call that is proposed. call: the question's, or with `edited` what a person has made of
    it. words: what it would do on the screen. told: what else is to be known.
    """
    warnings = [] if edited else question.warnings
    warnings = list(filter(None, [told, *warnings, *overlooked(call)]))
    lines = [Line(f"! {warning}", "warning") for warning in dict.fromkeys(warnings)]
    if question.run_warning:
        lines.append(Line(f"! {question.run_warning}", "warning"))
    if edited:
        lines.append(Line("! you have edited the arguments", "warning"))
    lines.append(Line(f"Why it is asked: {question.why}", "faint"))
    if words:
        lines.append(Line(f"On the screen: {words}", "faint"))
    if not re.fullmatch(r"[a-z_]{1,16}", call.name):  # such a name stands whole in the title
        lines += [Line("The tool", "head"), *numbered(call.name)]
    for name, value in call.arguments.items():
        lines += [Line(f"{name}{_kind(name, value)}", "head"), *numbered(argument_text(value))]
    if not call.arguments:
        lines.append(Line("It has no arguments.", "faint"))
    if question.diff and not edited:
        lines.append(Line("What it changes", "head"))
        lines += [Line(line.text, _tone(line), line.number, line.goes_on) for line in numbered(question.diff)]
    if question.rule and not edited:
        lines.append(Line("What is allowed from then on if you allow it for this run", "head"))
        lines += numbered("\n".join(f"{name} = {_json(value)}" for name, value in question.rule.items()))
    return lines


def must_be_read(question: wire.Question, call: CallData) -> bool:
    """Whether something stands so far below that the end has to be seen before it is allowed."""
    return any(has_gap(text) for text in [question.diff, *map(argument_text, call.arguments.values())])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _kind(name: str, value: Any) -> str:
    """What is to be known of an argument beside its name and itself."""
    if not isinstance(value, str):
        return ", on the grid of 0 to 1000" if name.endswith("coordinate") else ""
    lines = value.count("\n") + 1
    if lines > 1:
        return f", {len(value):,} characters in {lines:,} lines"
    return f", {len(value):,} characters" if len(value) > 60 else ""


def _tone(line: Line) -> str:
    if line.text.startswith("+"):
        return "added"
    return "removed" if line.text.startswith("-") else "said"
