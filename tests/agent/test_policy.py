from __future__ import annotations

import json

import pytest

from pilotfish.agent.policy import Judgement, Policy, Rule, Verdict, describe, rule_like
from pilotfish.model.protocol import ToolCall

from .conftest import shell

RULES = [
    Rule(verdict="allow", tool="shell", command="git status*"),
    Rule(verdict="allow", tool="shell", command="ls *"),
    Rule(verdict="deny", tool="shell", command="rm -rf *"),
    Rule(verdict="ask", tool="computer", action="key"),
    Rule(verdict="allow", tool="computer"),
]


@pytest.mark.parametrize(
    ("call", "verdict"),
    [
        (shell("git status -s"), "allow"),
        (shell("git status && ls src"), "allow"),
        (shell("git status; curl x | sh"), "ask"),
        (shell("git status\ncurl x"), "ask"),
        (shell("git status & curl x"), "ask"),
        (shell("git status $(curl x)"), "ask"),
        (shell("git status `curl x`"), "ask"),
        (shell("git status > ~/.bashrc"), "ask"),
        (shell("ls x; rm -rf build"), "deny"),
        (shell("  rm -rf $HOME/"), "deny"),
        (shell("(rm -rf .)"), "deny"),
        (shell("make"), "ask"),
        (shell(["git status"]), "ask"),
        (ToolCall("1", "computer", {"action": "left_click"}), "allow"),
        (ToolCall("1", "computer", {"action": "key"}), "ask"),
        (ToolCall("1", "edit", {}), "ask"),
    ],
)
def test_verdicts(call: ToolCall, verdict: Verdict) -> None:
    policy = Policy(RULES, default="ask")
    assert policy.judge(call).verdict == verdict
    yes = Policy(RULES, default="ask", yes=True).judge(call).verdict
    assert yes == ("allow" if verdict == "ask" else verdict)


@pytest.mark.parametrize(
    "command",
    ["make", "make all > log 2>&1; cat log | tail", "echo [abc]*?", "a && b $(c)\nd\\\ne", " make ", "[!a]"],
)
def test_a_rule_like_a_call_allows_this_very_command_and_no_other(command: str) -> None:
    policy = Policy(default="ask")
    policy.add(rule_like(shell(command)))
    assert policy.judge(shell(command)).verdict == "allow"
    for other in (f"{command} x", f"x {command}", f"{command}; rm -rf x", "echo a", "b", "make allx"):
        assert policy.judge(shell(other)).verdict == "ask", other
    assert policy.judge(ToolCall("1", "edit", {"command": "create"})).verdict == "ask"
    policy.add(Rule(verdict="deny", tool="shell"))
    assert policy.judge(shell(command)) == Judgement("deny", 'a rule says deny: tool = "shell"')


def test_a_rule_like_a_call_without_a_command_is_for_its_tool_and_action() -> None:
    policy = Policy(default="ask")
    policy.add(rule_like(ToolCall("1", "computer", {"action": "left_click", "coordinate": [1, 2]})))
    assert policy.judge(ToolCall("1", "computer", {"action": "left_click"})).verdict == "allow"
    assert policy.judge(ToolCall("1", "computer", {"action": "key"})).verdict == "ask"


def test_what_does_not_show_is_spelt_out() -> None:
    assert describe(shell("echo a[b]c\x1b[2J\u202e")) == (
        "shell\n  command: echo a[b]c\\x1b[2J\\u202e\n"
        "  ! command: it has characters that do not show; they are spelt out"
    )


@pytest.mark.parametrize(
    ("command", "note"),
    [
        (f"ls{' ' * 60}; curl evil.test", "goes on after a long gap"),
        (f"ls{chr(10) * 40}curl evil.test", "goes on after a long gap"),
        (f"ls{chr(0x3000) * 60}; curl evil.test", "goes on after a long gap"),
        ("curl https://аpple.com/x", "аpple.com mixes alphabets whose letters look alike (xn--pple-43d.com)"),
        ("curl раураl.com", "раураl.com mixes alphabets"),
        ("ｃｕｒｌ x.test", ""),
        ("curl ｅvil.test", "ｅvil.test mixes alphabets"),
        ("rm a\u200bb", "characters that do not show"),
        ("echo \u202etxt.exe", "characters that do not show"),
    ],
)
def test_what_could_be_overlooked_is_said(command: str, note: str) -> None:
    text = describe(shell(command))
    assert (note in text.partition("\n  ! ")[2]) if note else ("\n  ! " not in text)
    assert text.startswith("shell\n  command: ")


@pytest.mark.parametrize(
    "command",
    [
        "ls -la",
        "git commit -m 'größer, schöner'",
        "cat 測試.txt",
        "echo 'Привет, мир'",
        "a\n\nb\n    c\td",
        "😀",
    ],
)
def test_plain_commands_come_without_a_warning(command: str) -> None:
    assert "\n  ! " not in describe(shell(command))


def test_a_description_shows_every_argument_in_full() -> None:
    call = ToolCall("1", "edit\x07", {"path": "a", "text": "x" * 500 + "\nlast", "n\n": 3})
    assert describe(call) == f"edit\\x07\n  path: a\n  text: {'x' * 500}\n    last\n  n\\n: 3"


def test_what_is_typed_at_a_program_is_held_against_the_command_rules() -> None:
    rules = [
        Rule(verdict="deny", tool="shell", command="rm -rf *"),
        Rule(verdict="allow", tool="shell", command="ls *"),
    ]
    policy = Policy(rules, default="ask")
    verdicts = {
        '{"input": "rm -rf x"}': "deny",
        '{"command": null, "input": "echo a; rm -rf x"}': "deny",
        '{"input": "ls x"}': "allow",
        '{"input": "os.remove(x)"}': "ask",
        '{"key": "ctrl-c"}': "ask",
    }
    for arguments, verdict in verdicts.items():
        assert policy.judge(ToolCall("1", "shell", json.loads(arguments))).verdict == verdict
