"""Which calls may run: allow, ask a person, or deny.

The sandbox is what confines a run; the policy is what a person wants to see first. Rules are glob patterns
on the tool, the action and, for the shell, the command. A deny beats an ask, an ask beats an allow, and a
call that no rule names gets the default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pilotfish.agent.safetext import visible, warnings
from pilotfish.model.protocol import ToolCall

Verdict = Literal["allow", "ask", "deny"]
Ask = Callable[[str], Awaitable[bool]]
"""Shows a person what will run and returns whether it may."""


class Rule(BaseModel):
    """One rule. Patterns are globs (`*`, `?`, `[...]`) that must match the whole value."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    verdict: Verdict
    tool: str = "*"
    """Name of the tool."""
    action: str = "*"
    """The call's `action` argument; an empty text for tools without one."""
    command: str | None = None
    """A shell command, or what is typed at a program, which may be a shell. A compound line is allowed when
    allow rules cover every command in it, and is denied or asked about when a rule catches one of them.
    """


@dataclass(frozen=True)
class Decision:
    """Whether a call may run; `reason` is what the model is told when it may not."""

    allowed: bool
    reason: str = ""
    asked: bool = False


class Policy:
    """Decides about calls. Stateless: an approval holds for one call only."""

    def __init__(
        self,
        rules: Sequence[Rule] = (),
        *,
        default: Verdict = "allow",
        ask: Ask | None = None,
        on_host: bool = False,
    ) -> None:
        """`ask` None means that nobody is there: what would be asked is denied.

        on_host: whether the computer tool acts on the user's own desktop; then an action that no rule names
        is asked about, unless the default denies it.
        """
        self.rules = tuple(rules)
        self.default = default
        self._on_host = on_host
        self._ask = ask

    def verdict(self, call: ToolCall) -> Verdict:
        """What the rules say about a call."""
        rules = [rule for rule in self.rules if _names(rule, call)]
        for verdict in ("deny", "ask"):
            if any(rule.verdict == verdict and _catches(rule, call) for rule in rules):
                return verdict
        if _allowed([rule.command for rule in rules if rule.verdict == "allow"], call):
            return "allow"
        if self._on_host and self.default == "allow" and _acts_on_screen(call):
            return "ask"
        return self.default

    async def decide(self, call: ToolCall) -> Decision:
        """Apply the rules, asking a person where they say so."""
        match self.verdict(call):
            case "allow":
                return Decision(True)
            case "deny":
                reason = f"The call of {call.name} is denied by the user's rules; do it another way."
                return Decision(False, reason)
            case _ if self._ask is None:
                reason = f"The call of {call.name} needs a person's approval and nobody is there; "
                return Decision(False, reason + "do it another way.")
            case _:
                allowed = await self._ask(describe(call))
                reason = "" if allowed else f"The user refused this call of {call.name}; do it another way."
                return Decision(allowed, reason, asked=True)


def describe(call: ToolCall) -> str:
    """Exactly what will run, for a person: the tool's name, then each argument in full, hidden characters
    spelt out, then what could be overlooked.
    """
    lines = [visible(call.name, one_line=True)]
    notes: list[str] = []
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"  {visible(name, one_line=True)}: " + visible(text).replace("\n", "\n    "))
        notes += [f"  ! {visible(name, one_line=True)}: {warning}" for warning in warnings(text)]
    return "\n".join(lines + notes)


_WATCHING = ("screenshot", "zoom", "cursor_position", "wait", "done", "infeasible")


def _acts_on_screen(call: ToolCall) -> bool:
    """Whether a call moves the mouse or presses something; one that only looks does not."""
    return call.name == "computer" and call.arguments.get("action") not in _WATCHING


def _names(rule: Rule, call: ToolCall) -> bool:
    action = str(call.arguments.get("action", ""))
    return fnmatchcase(call.name, rule.tool) and fnmatchcase(action, rule.action)


def _line(call: ToolCall) -> str | None:
    """What is held against command patterns: the command, or what is typed."""
    values = (call.arguments.get(name) for name in ("command", "input"))
    return next((value for value in values if isinstance(value, str)), None)


def _catches(rule: Rule, call: ToolCall) -> bool:
    """Whether a deny or ask rule that names the call also catches its command, or any part of it."""
    line = _line(call)
    if rule.command is None or line is None:
        return rule.command is None
    return any(fnmatchcase(part, rule.command) for part in [line.strip(), *simple_commands(line)])


def _allowed(patterns: Sequence[str | None], call: ToolCall) -> bool:
    """Whether allow rules with these command patterns (None: any command) cover the whole call."""
    if None in patterns:
        return True
    line = _line(call)
    if line is None or _hides_commands(line):
        return False
    parts = simple_commands(line)
    return bool(parts) and all(any(fnmatchcase(part, str(glob)) for glob in patterns) for part in parts)


_SEPARATORS = re.compile(r"\|\||&&|;;?|\|&?|&(?![>&])|\n|[(){}`]|\$\(")


def simple_commands(line: str) -> list[str]:
    """A shell line cut at every operator that could start another command, quoted or not.

    Cutting inside quotes as well errs on the side of asking: an allow rule then sees a part it does not
    match.
    """
    return [part.strip() for part in _SEPARATORS.split(line) if part.strip()]


def _hides_commands(line: str) -> bool:
    """Whether a line can run or overwrite something that its parts do not show: substitution and
    redirection.
    """
    return any(mark in line for mark in ("$(", "`", "<(", ">(", ">", "<<", "\\\n", "\0"))
