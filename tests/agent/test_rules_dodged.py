"""A deny rule holds however a call spells what it is about."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pilotfish.agent.policy import Policy, Rule, rule_like
from pilotfish.model.protocol import ToolCall
from pilotfish.sandbox import Files

from .conftest import shell

REMOVES = [
    "rm x",
    "ls;rm x",
    "ls & rm x",
    "ls 2>&1 && rm x",
    "a=$(rm x)",
    "rm\tx",
    "  rm   x",
    "\\rm x",
    "r''m x",
    "$'rm' x",
    '"rm" x',
    "r\\\nm x",
    "rm \\\n x",
    "/bin/rm x",
    "A=1 B='2 3' rm x",
    ">log rm x",
    "< /dev/null rm x",
    "2>&1 rm x",
    "if true; then rm x; fi",
    "for f in *; do rm $f; done",
    "! rm x",
    "time -p rm x",
    "env -i A=1 rm x",
    "sudo -u user /bin/rm x",
    "exec rm x",
    "sh -c 'rm x'",
    "bash -lc \"cd y && 'rm' x\"",
    "sudo sh -c 'A=1 rm x'",
    "eval 'rm x'",
    "timeout 5 nice -n 5 rm x",
    "find . -exec rm {} +",
    "find | xargs rm",
    "ls 'and a quote without an end; rm x",
    "cat <<E\nrm x\nE",
    "env " + "A=1 " * 1000 + "rm x",
    ":" * (1 << 17) + "; rm x",
]


@pytest.mark.parametrize("line", REMOVES, ids=lambda line: repr(line[:40]))
def test_a_command_cannot_be_spelt_otherwise(line: str) -> None:
    policy = Policy([Rule(verdict="deny", command="rm *")])
    assert policy.judge(shell(line)).verdict == "deny"
    assert policy.judge(ToolCall("1", "shell", {"input": line})).verdict == "deny"


@pytest.mark.parametrize(
    "line", ["ls rm x", "git rm x", "echo rm x", "grep 'rm x' y", "rmdir x", "./arm x", ""]
)
def test_other_commands_are_none_of_it(line: str) -> None:
    assert Policy([Rule(verdict="deny", command="rm *")]).judge(shell(line)).verdict == "allow"


@pytest.mark.parametrize(
    "line", ["git push", "git -C a --no-pager push x", "GIT_DIR=a git -c b=c push", "env git push"]
)
def test_what_stands_before_gits_command_is_passed_over(line: str) -> None:
    assert Policy([Rule(verdict="deny", command="git push*")]).judge(shell(line)).verdict == "deny"
    assert Policy([Rule(verdict="deny", command="git pull*")]).judge(shell(line)).verdict == "allow"


@pytest.mark.parametrize(
    "action", ["left_click", "Left Click", "left_ click", "left_clik", "tap", "left_press"]
)
def test_an_action_is_the_one_that_the_tool_reads(action: str) -> None:
    call = ToolCall("1", "computer", {"action": action, "coordinate": [1, 1]})
    assert Policy([Rule(verdict="deny", action="left_click")]).judge(call).verdict == "deny"
    assert Policy([Rule(verdict="allow", action="left_click")], default="ask").judge(call).verdict == "allow"
    assert rule_like(call).action == "left_click"


@pytest.mark.parametrize(
    "glob",
    [
        "secrets",
        "secrets/",
        "secrets/*",
        "./secrets/**",
        "/workspace/secrets",
        "a/../secrets//key",
        "**/secrets/*",
    ],
)
def test_a_path_in_a_rule_may_be_written_otherwise(tmp_path: Path, glob: str) -> None:
    files = Files(tmp_path)
    for wanted in (glob, glob.replace("/workspace", str(tmp_path))):
        policy = Policy([Rule(verdict="deny", path=wanted)])
        for call in (ToolCall("1", "edit", {"path": "secrets/key"}), shell("cat secrets/key")):
            assert policy.judge(call, files).verdict == "deny"
            assert policy.judge(shell("ls /elsewhere"), files).verdict == "allow"
    files.close()
    assert (
        Policy([Rule(verdict="deny", path=".")]).judge(ToolCall("1", "edit", {"path": "a"})).verdict == "deny"
    )


@pytest.mark.parametrize(
    "line",
    [
        "sh -c 'cat secrets/key'",
        "python3 -c \"open('secrets/key')\"",
        "tar -Csecrets .",
        "cat $'secrets/key'",
        "cat secr\\\nets/key",
        "cat {secrets/key,x}",
        "cat /proc/self/cwd/secrets/key",
        "cat /proc/1/root/workspace/secrets/key",
    ],
)
def test_a_path_within_a_word_is_found(line: str) -> None:
    assert Policy([Rule(verdict="deny", path="secrets/*")]).judge(shell(line)).verdict == "deny"
    assert Policy([Rule(verdict="deny", path="secret/*")]).judge(shell(line)).verdict == "allow"


def test_the_home_folder_is_met_by_its_mark() -> None:
    for glob in ("~/.ssh/*", "/home/user/.ssh"):
        policy = Policy([Rule(verdict="deny", path=glob)])
        assert policy.judge(shell("cat ~/.ssh/id")).verdict == "deny"
        assert policy.judge(shell("cat /home/user/.ssh/id")).verdict == "deny"


def browse(url: str) -> ToolCall:
    return ToolCall("1", "browser", {"action": "navigate", "url": url})


@pytest.mark.parametrize(
    ("glob", "call"),
    [
        ("evil.test", browse("https://evil.test\u3002/")),
        ("evil.test", browse("https://EVIL.test../")),
        ("evil.test", browse("https://ev\u00adil.test/")),
        ("evil.test", browse("view-source:evil.test")),
        ("evil.test", shell("curl http://ev'il'.test")),
        ("evil.test", shell("curl http:/evil.test")),
        ("evil.test", shell("curl http://evil.te\\\nst")),
        ("Evil.test.", browse("https://evil.test/")),
        ("https://evil.test:443/x", browse("https://evil.test/")),
        ("*.test:443", browse("https://evil.test/")),
        ("straße.test", browse("https://xn--strae-oqa.test/")),
        ("xn--strae-oqa.test", browse("https://straße.test/")),
        ("::1", shell("nc 0:0::0001 80")),
        ("::1", browse("http://[::1%25lo]/")),
        ("[::1]", browse("http://[0::1]:80/")),
        ("127.0.0.1", shell("curl 2130706433")),
        ("127.0.0.1", shell("curl 0x7f000001")),
    ],
)
def test_a_host_is_met_however_rule_and_call_spell_it(glob: str, call: ToolCall) -> None:
    assert Policy([Rule(verdict="deny", network=glob)]).judge(call).verdict == "deny"
    assert Policy([Rule(verdict="deny", network="good.test")]).judge(call).verdict == "allow"


def test_an_allowed_host_with_a_port_is_no_other_port() -> None:
    policy = Policy([Rule(verdict="allow", network="good.test:443")], default="ask")
    assert policy.judge(browse("http://good.test:80/")).verdict == "ask"


@pytest.mark.parametrize("unit", ["a/", "a.", "a@", "env ", "sh -c '", "\\", "(", "http://", "\"a' "])
def test_a_hostile_line_is_judged_in_little_time(tmp_path: Path, unit: str) -> None:
    files = Files(tmp_path)
    rules = [{"command": "*rm*x*"}, {"path": "secrets/*"}, {"network": "*.evil.test"}]
    policy = Policy([Rule(verdict="deny", **fields) for fields in rules])
    began_s = time.monotonic()
    policy.judge(shell("curl " + unit * (130_000 // len(unit))), files)
    assert time.monotonic() - began_s < 15
    files.close()
