"""Which calls may run: allow, ask a person, or deny.

The sandbox is what confines a run; the policy is what a person wants to see first. Rules are glob patterns
on the tool, the action, the command, and the files and hosts that a call names. A deny beats an ask, an ask
beats an allow, and a call that no rule names gets the default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from pilotfish.agent.events import CallData
from pilotfish.agent.named import LONGEST_PATH, Forms, Named, host_globs, line_of
from pilotfish.agent.safetext import visible, warnings
from pilotfish.agent.shell_line import hides_commands, simple_commands
from pilotfish.model.protocol import ToolCall
from pilotfish.tools.actions import in_schema_spelling

if TYPE_CHECKING:
    from pilotfish.sandbox import Files

Verdict = Literal["allow", "ask", "deny"]


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
    path: str | None = None
    """A file that the call names, relative to the workspace, or absolute where it is not in there; `..` and
    links are followed. A deny or an ask also holds for all that is below. Of a shell line the words and the
    redirections are looked at, which cannot tell all that the line will touch.
    """
    network: str | None = None
    """A host that the call names: where the browser goes, addresses in a shell line or in what is typed. What
    programs can reach is for the setting `network` to say; this is about what can be read beforehand.
    """


@dataclass(frozen=True)
class Judgement:
    """What the rules say of a call; why: the rule that says it, or the default."""

    verdict: Verdict
    why: str


_DEFAULTS = {"allow": "allowed", "ask": "asked about", "deny": "denied (default_verdict)"}


class Policy:
    """The rules of a run. A person may add to them while it is played."""

    def __init__(
        self,
        rules: Sequence[Rule] = (),
        *,
        default: Verdict = "allow",
        on_host: bool = False,
        yes: bool = False,
    ) -> None:
        """on_host: whether the computer tool acts on the user's own desktop; then an action that no rule
        names is asked about, unless the default denies it. yes: whatever would be asked is allowed.
        """
        self.rules = tuple(rules)
        self.default = default
        self._on_host = on_host
        self._yes = yes

    def add(self, rule: Rule) -> None:
        """Hold to one more rule from now on."""
        if rule not in self.rules:
            self.rules = (*self.rules, rule)

    def judge(self, call: ToolCall | CallData, files: Files | None = None) -> Judgement:
        """What is to be done with a call. files: of the workspace, in which links are followed."""
        found = self._judge(call, files)
        return Judgement("allow", found.why) if self._yes and found.verdict == "ask" else found

    def _judge(self, call: ToolCall | CallData, files: Files | None) -> Judgement:
        rules = [rule for rule in self.rules if _names(rule, call)]
        named = Named(call.name, call.arguments, files)
        for verdict in ("deny", "ask"):
            for rule in rules:
                if rule.verdict == verdict and _catches(rule, named):
                    return Judgement(verdict, f"a rule says {verdict}: {spelt(rule)}")
        allowing = [rule for rule in rules if rule.verdict == "allow"]
        if _allowed(allowing, named):
            return Judgement("allow", f"rules allow it: {'; '.join(map(spelt, allowing))}")
        if self._on_host and self.default == "allow" and _acts_on_screen(call):
            return Judgement("ask", "it acts on your own desktop, and no rule allows it")
        return Judgement(self.default, f"no rule names it, and such calls are {_DEFAULTS[self.default]}")


def spelt(rule: Rule) -> str:
    """A rule as the settings have it, on one line."""
    fields = rule.model_dump(exclude_defaults=True, exclude={"verdict"})
    words = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    return ", ".join(words) or "every call"


def rule_like(call: ToolCall | CallData) -> Rule:
    """The rule that allows whatever is like a call: the same tool and action, and the same exact command."""
    line = line_of(call.arguments)
    return Rule(
        verdict="allow",
        tool=_literal(call.name),
        action="*" if call.arguments.get("action") is None else _literal(_action(call)),
        command=None if line is None else _literal(line.strip()),
    )


def _literal(text: str) -> str:
    """The glob that matches this text alone."""
    return re.sub(r"[*?[]", r"[\g<0>]", text)


def _is_literal(glob: str) -> bool:
    """Whether a pattern matches one text alone."""
    return not re.search(r"[*?[]", re.sub(r"\[[*?[]\]", "", glob))


def describe(call: ToolCall | CallData) -> str:
    """Exactly what will run, for a person: the tool's name, then each argument in full, hidden characters
    spelt out, then what could be overlooked.
    """
    lines = [visible(call.name, one_line=True)]
    for name, value in call.arguments.items():
        text = visible(argument_text(value)).replace("\n", "\n    ")
        lines.append(f"  {visible(name, one_line=True)}: {text}")
    return "\n".join(lines + [f"  ! {warning}" for warning in overlooked(call)])


def overlooked(call: ToolCall | CallData) -> list[str]:
    """What a person who is to allow a call could overlook, a sentence each."""
    return [
        f"{visible(name, one_line=True)}: {warning}"
        for name, value in call.arguments.items()
        for warning in warnings(argument_text(value))
    ]


def argument_text(value: Any) -> str:
    """An argument as a person is shown it: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_WATCHING = ("screenshot", "zoom", "cursor_position", "wait", "done", "infeasible")


def _acts_on_screen(call: ToolCall | CallData) -> bool:
    """Whether a call moves the mouse or presses something; one that only looks does not."""
    return call.name == "computer" and _action(call) not in _WATCHING


def _names(rule: Rule, call: ToolCall | CallData) -> bool:
    return fnmatchcase(call.name, rule.tool) and fnmatchcase(_action(call), rule.action)


def _action(call: ToolCall | CallData) -> str:
    """What a call does, as the tool that takes many spellings of it will read it."""
    if call.name == "computer":
        return str(in_schema_spelling(call.arguments).get("action", ""))
    return str(call.arguments.get("action", ""))


def _catches(rule: Rule, call: Named) -> bool:
    """Whether a deny or ask rule that names the call also catches its command, or any part of it, and a file
    and a host that it names. A line that is too long to be looked at is caught by every rule about lines.
    """
    looks = rule.command is not None or rule.path is not None or rule.network is not None
    if looks and call.line is not None and len(call.line) > _LONGEST_LINE:
        return True
    if rule.command is not None and (not any(fnmatchcase(text, rule.command) for text in call.spellings)):
        return False
    if rule.path is not None and not any(
        _reaches(glob, form) for glob in call.path_globs(rule.path) for path in call.paths for form in path
    ):
        return False
    return rule.network is None or any(
        fnmatchcase(form, glob) for glob in host_globs(rule.network) for host in call.hosts for form in host
    )


_LONGEST_LINE = 1 << 17
"""Characters; Linux takes no longer operand for a program either."""


def _reaches(glob: str, path: str) -> bool:
    """Whether a pattern matches a path, a folder above it, or the folder whose content it is about."""
    if fnmatchcase(path, glob) or glob in (f"{path}/*", f"{path}/**"):
        return True
    if glob == ".":
        return not path.startswith("/")
    above = (path[:at] for at, char in enumerate(path[:LONGEST_PATH]) if char == "/" and at)
    return any(fnmatchcase(name, glob) for name in above)


def _allowed(rules: Sequence[Rule], call: Named) -> bool:
    """Whether these allow rules cover the whole call."""
    if any(rule.command is None and rule.path is None and rule.network is None for rule in rules):
        return True
    line = call.line
    if call.tool != "shell" and any(
        (rule.command is None or (line is not None and fnmatchcase(line.strip(), rule.command)))
        and (rule.path is None or _all_named(call.path_globs(rule.path)[0], call.paths))
        and (rule.network is None or _all_named(rule.network, call.hosts))
        for rule in rules
        if rule.path is not None or rule.network is not None
    ):
        return True
    if line is None:
        return False
    rules = [rule for rule in rules if rule.command is not None]
    if any(_is_literal(str(rule.command)) and _covers(rule, line.strip(), call) for rule in rules):
        return True  # a rule that is this very line
    if hides_commands(line):
        return False
    parts = simple_commands(line)
    return bool(parts) and all(any(_covers(rule, part, call) for rule in rules) for part in parts)


def _covers(rule: Rule, part: str, call: Named) -> bool:
    """Whether an allow rule allows one command; with files or hosts, the command has to name such alone."""
    return (
        fnmatchcase(part, str(rule.command))
        and (rule.path is None or _all_named(call.path_globs(rule.path)[0], call.paths_in(part)[1:]))
        and (rule.network is None or _all_named(rule.network, call.hosts_in(part)))
    )


def _all_named(glob: str, named: Sequence[Forms]) -> bool:
    """Whether all forms of all that is named match, and something is named."""
    return bool(named) and all(fnmatchcase(form, glob) for forms in named for form in forms)
