"""The shell's trouble list: hangs, daemons, floods, and what lasts from command to command."""

from __future__ import annotations

import asyncio

import pytest

from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec, Shell
from pilotfish.sandbox.levels import Level

from .inside import names, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


async def test_long_output_keeps_both_ends_counts_the_rest_and_is_whole_in_a_file(shell: Shell) -> None:
    result = await shell.run("seq 1 200000")
    whole = "".join(f"{n}\n" for n in range(1, 200001))
    assert result.exit_code == 0
    head, mark, rest = result.output.partition(
        f"\n[... {result.dropped_bytes} bytes left out, everything is in "
    )
    path, _, tail = rest.partition(" ...]\n")
    assert mark
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head) + len(tail) + result.dropped_bytes == len(whole)
    assert len(head) + len(tail) <= 32 * 1024
    assert (await shell.run(f"seq 1 200000 | cmp - {path} && echo same")).output == "same\n"


async def test_the_file_of_an_endless_output_is_bounded_and_few_are_kept(shell: Shell) -> None:
    for _ in range(6):
        result = await shell.run("head -c 20000000 /dev/zero")
    path = result.output.partition("everything is in ")[2].partition(" ")[0]
    sizes = (await shell.run(f"stat -c %s $(dirname {path})/main-*.txt")).output.split()
    assert len(sizes) <= 4
    assert all(16 << 20 <= int(size) < 17 << 20 for size in sizes)


async def test_background_job_does_not_hold_the_command(box: Sandbox, shell: Shell) -> None:
    result = await shell.run("sleep 31.7 & echo up", timeout_s=20)
    number, up = result.output.splitlines()
    assert number.startswith("[1] ")
    assert (up, result.exit_code, result.timed_out) == ("up", 0, False)
    await until(box, "sleep 31.7")


async def test_background_server_goes_on_answering_after_its_command(shell: Shell) -> None:
    started = await shell.run("python3 -m http.server 8123 --bind 127.0.0.1 & sleep 0.1")
    assert started.exit_code == 0
    ask = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123').status)\""
    retry = f"for i in $(seq 50); do {ask} >/dev/null 2>&1 && break; sleep 0.1; done; {ask}"
    asked = await shell.run(retry)
    # The server logs each request to the same terminal.
    assert '"GET / HTTP/1.1" 200' in asked.output
    assert asked.output.splitlines()[-1] == "200"


async def test_what_the_background_prints_between_commands_is_told_apart(shell: Shell) -> None:
    await shell.run("(while [ ! -e /tmp/go ]; do sleep 0.01; done; echo late; touch /tmp/said) & ")
    await shell.run("touch /tmp/go; while [ ! -e /tmp/said ]; do sleep 0.01; done", session="other")
    result = await shell.run("echo now")
    assert result.background.startswith("late\n")
    assert result.output.startswith("now\n")


async def test_a_terminal_left_non_blocking_cuts_nothing_off(shell: Shell) -> None:
    await shell.run("python3 -c 'import os; os.set_blocking(1, False)'")
    result = await shell.run("seq 20000 | tail -c 20000; seq 20000 > /dev/null; echo rc=$?")
    assert result.output.endswith("20000\nrc=0\n")
    assert (await shell.run("seq 20000; echo rc=$?")).output.endswith("20000\nrc=0\n")


async def test_prompts_of_any_kind_stay_out_of_the_output(shell: Shell) -> None:
    await shell.run("PS0=zero PS1=one PS2=two PROMPT_COMMAND='echo three'")
    assert (await shell.run("echo said")).output == "said\n"


async def test_heredoc(shell: Shell) -> None:
    assert (await shell.run("cat <<'X'\n$HOME \"q\"\nX")).output == '$HOME "q"\n'


async def test_killed_by_signal_is_reported_as_bash_does(shell: Shell) -> None:
    assert (await shell.run("bash -c 'kill -9 $$'")).exit_code == 137


async def test_bytes_that_are_not_text_are_spelt_out(shell: Shell) -> None:
    assert (await shell.run(r"printf 'a\xff\xfeb\0c\x1b[31mred\x1b[0m'")).output == r"a\xff\xfeb\x00cred"


async def test_git_is_told_not_to_ask(shell: Shell) -> None:
    result = await shell.run('echo "$GIT_PAGER $PAGER $GIT_TERMINAL_PROMPT $DEBIAN_FRONTEND"')
    assert result.output == "cat cat 0 noninteractive\n"


@pytest.mark.parametrize("command", ["git log", "man bash | head -3", "git branch", "systemctl --version"])
async def test_no_pager_waits_for_a_person(shell: Shell, command: str) -> None:
    await shell.run(
        "mkdir -p /workspace/repo && cd /workspace/repo && git init -q . && "
        "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first"
    )
    result = await shell.run(command, timeout_s=20)
    assert (result.waiting, result.timed_out) == (None, False)


async def test_time_limit_keeps_the_output_so_far(shell: Shell) -> None:
    result = await shell.run("echo before; sleep 100000", timeout_s=0.5)
    assert (result.output, result.exit_code, result.timed_out) == ("before\n", None, True)


async def test_time_limit_takes_daemons_along_and_spares_earlier_jobs(box: Sandbox, shell: Shell) -> None:
    await shell.run("sleep 1001 &")
    await shell.run("(setsid sh -c 'sleep 1002; sleep 1003' &)")
    await until(box, "sleep 1002")
    daemons = (
        "setsid nohup sleep 2001 >/dev/null 2>&1 & "
        "(setsid sh -c 'sleep 2002 & sleep 2003' &) ; "
        "sh -c \"trap '' TERM HUP INT; sleep 2004; sleep 2005\" & sleep 2006\nsleep 2007"
    )
    task = asyncio.ensure_future(shell.run(daemons, timeout_s=1.5))
    while sum("sleep 200" in name for name in await names(box)) < 6:
        assert not task.done(), "the daemons never ran, so the test would prove nothing"
    assert (await task).timed_out
    left = await names(box)
    assert not [name for name in left if "sleep 200" in name]
    assert {"sleep 1001", "sleep 1002"} <= set(left)
    assert (await shell.run("jobs %1")).output.split()[1:] == ["Running", "sleep", "1001", "&"]


@pytest.mark.parametrize(
    "command",
    [
        "while :; do sleep 0.01; done",
        "while :; do :; done",
        "f() { while :; do g; done; }; g() { sleep 5; }; f; f",
        "for i in 1 2 3; do sleep 50; done; sleep 50",
        "sleep 50 | cat | sort; sleep 50",
        "sleep 50\nsleep 50\nsleep 50",
        "stty raw -echo; sleep 50",
        "(trap '' INT TERM; while :; do sleep 1; done)",
    ],
)
async def test_the_session_outlives_a_time_limit(shell: Shell, command: str) -> None:
    await shell.run("cd /tmp; V=1; declare -A map=([a]=b)")
    ended = await shell.run(f"cd /usr; V=2; {command}", timeout_s=0.3)
    assert (ended.timed_out, ended.note) == (True, "")
    assert (await shell.run("pwd; echo $V ${map[a]}")).output == "/usr\n2 b\n"


async def test_a_fork_bomb_is_ended_at_the_time_limit(box: Sandbox, shell: Shell) -> None:
    result = await shell.run("ulimit -u 200; f() { f | f & f; }; f", timeout_s=0.5)
    assert result.timed_out
    assert len(await names(box)) < 12
    assert (await shell.run("echo fine")).output == "fine\n"


async def test_daemons_of_a_finished_command_live_on(box: Sandbox, shell: Shell) -> None:
    await shell.run("setsid nohup sleep 3001 >/dev/null 2>&1 &")
    await until(box, "sleep 3001")


async def test_cancelling_a_command_kills_it(box: Sandbox, shell: Shell) -> None:
    await shell.run("V=kept")
    task = asyncio.ensure_future(shell.run("setsid sleep 4001 & sleep 4002"))
    while not {"sleep 4001", "sleep 4002"} <= set(await names(box)):
        assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await shell.run("echo $V")).output == "kept\n"
    assert not [name for name in await names(box) if "sleep 400" in name]


async def test_endless_output_is_bounded(shell: Shell) -> None:
    result = await shell.run("yes", timeout_s=1)
    assert result.timed_out
    assert len(result.output) < 33 * 1024
    assert result.dropped_bytes > 1 << 20


async def test_what_lasts(shell: Shell) -> None:
    await shell.run(
        "mkdir -p 'a b' && cd 'a b'; export EXPORTED=$'two\\nlines' PLAIN_LIST; plain='a \"b\" $c'; "
        "list=(1 '2 3'); greet() { echo \"hi $1\"; }; alias shout='echo LOUD'; PATH=$PATH:/extra; "
        "shopt -s nullglob; set -o pipefail; umask 027; sleep 1005 &"
    )
    result = await shell.run(
        'pwd; python3 -c "import os; print(repr(os.environ[\'EXPORTED\']))"; echo "$plain"; '
        'echo "${list[1]}"; greet you; shout; echo "${PATH##*:}"; cd - >/dev/null; pwd; '
        "echo *.none; false | true; echo $?; umask; kill %1; wait %1 2>/dev/null; echo $?; (exit 7)"
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
        "",
        "1",
        "0027",
        "143",
    ]
    assert (await shell.run("echo $?")).output == "7\n"


async def test_reset_forgets(box: Sandbox, shell: Shell) -> None:
    await shell.run("cd /tmp; export GONE=1; sleep 5001 &")
    await until(box, "sleep 5001")
    shell.reset()
    assert (await shell.run("pwd; echo [$GONE]")).output == "/workspace\n[]\n"
    await until(box, "sleep 5001", gone=True)


async def test_sessions_are_apart(box: Sandbox, shell: Shell) -> None:
    await shell.run("cd /tmp; V=main; sleep 6101 &")
    await until(box, "sleep 6101")
    assert (await shell.run("pwd; echo [$V]; jobs", session="two")).output == "/workspace\n[]\n"
    slow = asyncio.ensure_future(shell.run("sleep 0.3; echo slow", session="two"))
    assert (await shell.run("echo $V")).output == "main\n"
    assert not slow.done()
    assert shell.sessions == {"main": "idle", "two": "running"}
    assert (await slow).output == "slow\n"
    with pytest.raises(SandboxError, match="session 'a b' is no name"):
        await shell.run("true", session="a b")
    for number in range(6):
        await shell.run("true", session=f"s{number}")
    with pytest.raises(SandboxError, match="there are 8 sessions already, use one of main, two, s0"):
        await shell.run("true", session="ninth")
    # The time limit of one session ends nothing of another.
    assert (await shell.run("sleep 50", timeout_s=0.2, session="two")).timed_out
    assert "sleep 6101" in await names(box)


async def test_asked_folder_is_entered_and_lasts(shell: Shell) -> None:
    assert (await shell.run("pwd", cwd="/usr")).output == "/usr\n"
    assert (await shell.run("pwd; echo $PWD")).output == "/usr\n/usr\n"
    with pytest.raises(SandboxError, match=r"'/nowhere' could not be entered .*create it first\.$"):
        await shell.run("pwd", cwd="/nowhere")
    with pytest.raises(SandboxError, match=r"'/etc/passwd' could not be entered"):
        await shell.run("pwd", cwd="/etc/passwd")
    assert (await shell.run("pwd")).output == "/usr\n"


async def test_commands_that_cannot_be(shell: Shell) -> None:
    with pytest.raises(SandboxError, match="null byte"):
        await shell.run("echo a\0b")
    with pytest.raises(SandboxError, match="200006 bytes, at most 102400 fit"):
        await shell.run("true #" + "x" * 200_000)
    with pytest.raises(SandboxError, match="timeout_s is 0"):
        await shell.run("true", timeout_s=0)
    assert (await shell.run("#" * 50_000 + "\necho long")).output == "long\n"
    assert (await shell.run("echo '" + "x'\"'\"'" * 10_000 + "' | wc -c")).output == "20001\n"


async def test_text_beyond_ascii_goes_both_ways(shell: Shell) -> None:
    assert (await shell.run("echo 'żółw 🐢 \u202e'")).output == "żółw 🐢 \u202e\n"
    assert (await shell.run("printf %s $'\x01' '\x7f\x1f' | od -An -tx1")).output == " 01 7f 1f\n"


async def test_only_the_three_standard_descriptors_are_open(shell: Shell) -> None:
    result = await shell.run("python3 -c \"import os; print(sorted(os.listdir('/proc/self/fd')))\"")
    assert result.output == "['0', '1', '2', '3']\n"  # 3 is the listing itself


async def test_commands_at_once_take_turns(shell: Shell) -> None:
    results = await asyncio.gather(*(shell.run(f"n={i}; sleep 0.02; echo $n") for i in range(5)))
    assert [result.output for result in results] == [f"{i}\n" for i in range(5)]


async def test_no_byte_is_lost_at_the_end_of_a_command(shell: Shell) -> None:
    expected = "".join(f"{n}\n" for n in range(1, 701))
    for _ in range(200):
        assert (await shell.run("seq 700")).output == expected


@pytest.mark.parametrize("level", [2, 0])
async def test_the_other_levels_have_the_same_shell(level: Level) -> None:
    async with Sandbox.open(SandboxSpec(desktop=False, level=level)) as box:
        shell = box.shell
        await shell.run("V=kept; sleep 7001 &")
        asked = await shell.run("read -p '? ' x </dev/tty; echo $x")
        assert (asked.output, asked.waiting) == ("? ", "bash")
        assert (await shell.type("y\n")).output == "y\ny\n"
        ended = await shell.run("(setsid sleep 7002 &); cat /dev/zero >/dev/null", timeout_s=0.4)
        assert (ended.timed_out, ended.note) == (True, "")
        await until(box, "sleep 7002", gone=True)
        assert (await shell.run("jobs; cd /; exit 3")).output.split()[1:4] == ["Running", "sleep", "7001"]
        assert (await shell.run("pwd; echo $V")).output == "/\nkept\n"


async def test_many_commands_leave_nothing(box: Sandbox, shell: Shell) -> None:
    async def held() -> list[str]:
        look = "n=(/proc/$$/fd/* /proc/[0-9]*); echo ${#n[@]}; cat /proc/{$$,$PPID}/statm"
        return (await shell.run(look)).output.split()

    await held()
    before = await held()
    for n in range(400):
        await shell.run(f"v{n % 7}=$(echo {n}); true | cat")
    after = await held()
    assert after[0] == before[0]
    pages = [int(after[at]) - int(before[at]) for at in (2, 9)]  # of bash and of what serves it
    assert max(pages) < 250
