"""The shell's trouble list: hangs, daemons, floods, odd bytes, and what lasts from command to command."""

from __future__ import annotations

import asyncio
import time

import pytest

from pilotfish.sandbox import Sandbox, SandboxError

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


async def names(box: Sandbox) -> list[str]:
    """The command lines of everything that runs inside."""
    listing = await box.run(["ps", "-eo", "args"])
    await listing.wait(10)
    return listing.output.splitlines()


async def test_long_output_keeps_both_ends_and_counts_the_rest(box: Sandbox) -> None:
    result = await box.shell.run("seq 1 200000")
    whole = "".join(f"{n}\n" for n in range(1, 200001))
    assert result.exit_code == 0
    head, mark, tail = result.output.partition(f"\n[... {result.dropped_bytes} bytes left out ...]\n")
    assert mark
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head) + len(tail) + result.dropped_bytes == len(whole)
    assert len(head) + len(tail) <= 32 * 1024


async def test_background_job_does_not_hold_the_command(box: Sandbox) -> None:
    result = await box.shell.run("sleep 31.7 & echo up", timeout_s=20)
    assert (result.output, result.exit_code, result.timed_out) == ("up\n", 0, False)
    assert "sleep 31.7" in await names(box)


async def test_background_server_goes_on_answering_after_its_command(box: Sandbox) -> None:
    started = await box.shell.run("python3 -m http.server 8123 --bind 127.0.0.1 & sleep 0.1")
    assert started.exit_code == 0
    ask = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123').status)\""
    retry = f"for i in $(seq 50); do {ask} 2>/dev/null && break; sleep 0.1; done; {ask}; {ask}"
    # The server logs each request to the pipe of a command that is over: it must neither block nor die.
    assert (await box.shell.run(retry)).output.splitlines()[-2:] == ["200", "200"]


async def test_heredoc(box: Sandbox) -> None:
    assert (await box.shell.run("cat <<'X'\n$HOME \"q\"\nX")).output == '$HOME "q"\n'


async def test_exit_code_and_life_after_exit(box: Sandbox) -> None:
    assert (await box.shell.run("cd /tmp; exit 3")).exit_code == 3
    after = await box.shell.run("pwd")
    assert (after.output, after.exit_code) == ("/tmp\n", 0)


@pytest.mark.parametrize("command", ["exec sleep 0", "kill -9 $$", "echo 'never closed", "set -e; false"])
async def test_shell_survives(box: Sandbox, command: str) -> None:
    await box.shell.run(command)
    assert (await box.shell.run("echo fine")).output == "fine\n"


async def test_killed_by_signal_is_reported_as_bash_does(box: Sandbox) -> None:
    assert (await box.shell.run("kill -9 $$")).exit_code == 137


async def test_bytes_that_are_not_text_are_replaced(box: Sandbox) -> None:
    assert (await box.shell.run(r"printf 'a\xff\xfeb'")).output == "a\ufffd\ufffdb"


@pytest.mark.parametrize(
    "command",
    ["git -C /workspace/repo log", "less /etc/hosts", "python3 -i", "read answer", "cat", "top -n 1 -d 100"],
)
async def test_nothing_waits_for_a_person(box: Sandbox, command: str) -> None:
    await box.shell.run(
        "mkdir -p /workspace/repo && cd /workspace/repo && git init -q . && "
        "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first; cd /workspace"
    )
    result = await box.shell.run(command, timeout_s=20)
    assert not result.timed_out


async def test_git_is_told_not_to_ask(box: Sandbox) -> None:
    result = await box.shell.run('echo "$GIT_PAGER $PAGER $GIT_TERMINAL_PROMPT $DEBIAN_FRONTEND"')
    assert result.output == "cat cat 0 noninteractive\n"


async def test_time_limit_keeps_the_output_so_far(box: Sandbox) -> None:
    result = await box.shell.run("echo before; sleep 100000", timeout_s=0.5)
    assert (result.output, result.exit_code, result.timed_out) == ("before\n", None, True)


async def test_time_limit_takes_daemons_along_and_spares_earlier_jobs(box: Sandbox) -> None:
    await box.shell.run("sleep 1001 &")
    daemons = (
        "setsid nohup sleep 2001 >/dev/null 2>&1 & "
        "(setsid sh -c 'sleep 2002 & sleep 2003' &) ; "
        "sh -c \"trap '' TERM HUP INT; sleep 2004; sleep 2005\" & sleep 2006"
    )
    task = asyncio.ensure_future(box.shell.run(daemons, timeout_s=1.5))
    while sum("sleep 200" in name for name in await names(box)) < 6:
        assert not task.done(), "the daemons never ran, so the test would prove nothing"
    assert (await task).timed_out
    left = await names(box)
    assert not [name for name in left if "sleep 200" in name]
    assert "sleep 1001" in left


async def test_daemons_of_a_finished_command_live_on(box: Sandbox) -> None:
    await box.shell.run("setsid nohup sleep 3001 >/dev/null 2>&1 &")
    assert "sleep 3001" in await names(box)


async def test_cancelling_a_command_kills_it(box: Sandbox) -> None:
    task = asyncio.ensure_future(box.shell.run("setsid sleep 4001 & sleep 4002"))
    while not {"sleep 4001", "sleep 4002"} <= set(await names(box)):
        pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    deadline = time.monotonic() + 5
    while any("sleep 400" in name for name in await names(box)):
        assert time.monotonic() < deadline
    assert (await box.shell.run("echo fine")).output == "fine\n"


async def test_endless_output_is_bounded(box: Sandbox) -> None:
    result = await box.shell.run("yes", timeout_s=1)
    assert result.timed_out
    assert len(result.output) < 33 * 1024
    assert result.dropped_bytes > 1 << 20


async def test_what_lasts(box: Sandbox) -> None:
    box.shell.reset()
    await box.shell.run(
        "mkdir -p 'a b' && cd 'a b'; export EXPORTED=$'two\\nlines' PLAIN_LIST; plain='a \"b\" $c'; "
        "list=(1 '2 3'); greet() { echo \"hi $1\"; }; alias shout='echo LOUD'; PATH=$PATH:/extra"
    )
    result = await box.shell.run(
        'pwd; python3 -c "import os; print(repr(os.environ[\'EXPORTED\']))"; echo "$plain"; '
        'echo "${list[1]}"; greet you; shout; echo "${PATH##*:}"; cd - >/dev/null; pwd'
    )
    assert result.output.splitlines() == [
        "/workspace/a b",
        "'two\\nlines'",
        'a "b" $c',
        "2 3",
        "hi you",
        "LOUD",
        "/extra",
        "/workspace",
    ]


async def test_reset_forgets(box: Sandbox) -> None:
    await box.shell.run("cd /tmp; export GONE=1")
    box.shell.reset()
    assert (await box.shell.run("pwd; echo [$GONE]")).output == "/workspace\n[]\n"


async def test_shell_options_do_not_last(box: Sandbox) -> None:
    await box.shell.run("set -euo pipefail; set -x")
    assert (await box.shell.run("false; echo on $undefined_name")).output == "on\n"


async def test_time_limit_leaves_folder_and_variables(box: Sandbox) -> None:
    await box.shell.run("cd /tmp; V=1")
    await box.shell.run("cd /usr; V=2; sleep 100", timeout_s=0.3)
    assert (await box.shell.run("pwd; echo $V")).output == "/tmp\n1\n"


async def test_asked_folder_is_entered_and_lasts(box: Sandbox) -> None:
    assert (await box.shell.run("pwd", cwd="/usr")).output == "/usr\n"
    assert (await box.shell.run("pwd; echo $PWD")).output == "/usr\n/usr\n"
    with pytest.raises(SandboxError, match=r"'/nowhere' could not be entered .*create it first\.$"):
        await box.shell.run("pwd", cwd="/nowhere")


async def test_folder_that_was_removed(box: Sandbox) -> None:
    await box.shell.run("mkdir -p /tmp/short/life; cd /tmp/short/life")
    await box.shell.run("rm -r /tmp/short")
    result = await box.shell.run("pwd")
    assert result.output == "[folder /tmp/short/life is gone, running in /workspace]\n/workspace\n"


async def test_commands_that_cannot_be(box: Sandbox) -> None:
    with pytest.raises(SandboxError, match="null byte"):
        await box.shell.run("echo a\0b")
    with pytest.raises(SandboxError, match="200006 bytes, at most 102400 fit"):
        await box.shell.run("true #" + "x" * 200_000)
    with pytest.raises(SandboxError, match="timeout_s is 0"):
        await box.shell.run("true", timeout_s=0)
    assert (await box.shell.run("#" * 50_000 + "\necho long")).output == "long\n"


async def test_text_beyond_ascii_goes_both_ways(box: Sandbox) -> None:
    assert (await box.shell.run("echo 'żółw 🐢 \u202e'")).output == "żółw 🐢 \u202e\n"


async def test_only_the_three_standard_descriptors_are_open(box: Sandbox) -> None:
    result = await box.shell.run("python3 -c \"import os; print(sorted(os.listdir('/proc/self/fd')))\"")
    assert result.output == "['0', '1', '2', '3']\n"  # 3 is the listing itself


async def test_commands_at_once_take_turns(box: Sandbox) -> None:
    results = await asyncio.gather(*(box.shell.run(f"n={i}; sleep 0.02; echo $n") for i in range(5)))
    assert [result.output for result in results] == [f"{i}\n" for i in range(5)]
