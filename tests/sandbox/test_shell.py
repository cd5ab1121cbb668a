"""The shell's trouble list: hangs, daemons, floods, what lasts from command to command, and what ends it."""

from __future__ import annotations

import asyncio
import io
import json
import math
import time
import zipfile

import pytest

from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec, Shell, shell_session
from pilotfish.sandbox.levels import Level

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


@pytest.fixture
def shell(box: Sandbox) -> Shell:
    """The shell with a fresh main session; nothing of the test before runs in it."""
    for name in box.shell.sessions:
        box.shell.reset(name)
    return box.shell


async def names(box: Sandbox) -> list[str]:
    """The command lines of everything that runs inside."""
    listing = await box.run(["ps", "-eo", "args"])
    await listing.wait(10)
    return listing.output.splitlines()


async def until(box: Sandbox, name: str, *, gone: bool = False) -> None:
    """Wait until a program runs inside, or no longer does."""
    deadline = time.monotonic() + 5
    while (name in await names(box)) == gone:
        assert time.monotonic() < deadline


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


async def test_a_command_that_traps_the_interrupt_ends_with_its_shell(box: Sandbox, shell: Shell) -> None:
    await shell.run("cd /tmp; V=1")
    result = await shell.run("trap 'echo no' INT; while :; do sleep 9001; done", timeout_s=0.3)
    assert result.timed_out
    assert result.note == "bash ended, and a new one goes on in /tmp without its variables and functions"
    await until(box, "sleep 9001", gone=True)
    assert (await shell.run("pwd; echo [$V]")).output == "/tmp\n[]\n"


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


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 3", 3),
        ("set -e; false; echo no", 1),
        ("exit 3; echo no", 3),
        ("trap - INT; kill -HUP $$; sleep 5", 129),
    ],
)
async def test_a_shell_that_ends_leaves_its_state_to_the_next(
    shell: Shell, command: str, status: int
) -> None:
    await shell.run("cd /usr; V='a \"b\"'; f() { echo $V; }; declare -A map=([k]=v); alias say=echo")
    result = await shell.run(f"cd /tmp; {command}")
    assert result.exit_code == status
    assert result.note == "bash ended, and a new one goes on in /tmp with the same variables and functions"
    after = await shell.run('pwd; f; echo "${map[k]}"; say $OLDPWD; false; echo on')
    assert (after.output, after.note) == ('/tmp\na "b"\nv\n/usr\non\n', "")


@pytest.mark.parametrize(
    ("command", "status"),
    [("exec sleep 0", 0), ("exec false", 1), ("kill -9 $$", 137), ("trap 'echo bye' EXIT; exit 4", 4)],
)
async def test_a_shell_that_is_lost_is_replaced_in_its_folder(
    shell: Shell, command: str, status: int
) -> None:
    await shell.run("cd /tmp; V=1")
    result = await shell.run(command)
    assert result.exit_code == status
    assert ("bye" in result.output) == ("bye" in command)
    assert result.note == "bash ended, and a new one goes on in /tmp without its variables and functions"
    assert (await shell.run("pwd; echo [$V]")).output == "/tmp\n[]\n"


@pytest.mark.parametrize(
    "command",
    [
        "echo 'never closed",
        'echo "never',
        "echo $(",
        "if true",
        "cat <<X\nx",
        "} ; {",
        "foo(",
        "set -u; echo $nope",
        ": ${nope:?unset}",
        "readonly r=1; r=2; echo no",
        "return 3",
        "break",
        "exec nonexistent",
        "kill $$",
        "set -x; true",
        "set -v; true",
        "exec >/tmp/out; exec >&2",
        "exec 5</etc/hosts",
        "exec 199>&-",
        "stty -icanon",
        "unset PATH",
        "shopt -s expand_aliases; alias eval=false builtin=false",
        "set -o posix",
        "IFS=x",
        "trap 'true' DEBUG",
        "PROMPT_COMMAND='echo prompt'; PS1='$ '",
        "set -T; trap 'echo r >/dev/null' RETURN",
    ],
)
async def test_the_shell_survives(shell: Shell, command: str) -> None:
    await shell.run("V=kept")
    await shell.run(command, timeout_s=5)
    result = await shell.run("echo $V")
    assert result.output.splitlines()[-1] == "kept"
    assert result.exit_code == 0


@pytest.mark.parametrize("command", ["builtin() { :; }", "enable -n printf", "kill -STOP $PPID"])
async def test_a_wedged_shell_is_replaced_in_its_folder(shell: Shell, command: str) -> None:
    await shell.run("cd /tmp")
    result = await shell.run(command, timeout_s=0.5)
    assert result.timed_out
    assert "a new one goes on in /tmp" in result.note
    assert (await shell.run("pwd")).output == "/tmp\n"


async def test_all_of_it_killed_from_inside(shell: Shell) -> None:
    await shell.run("cd /tmp")
    result = await shell.run("kill -9 -1")
    assert result.exit_code == 137
    assert result.note == "bash ended, and a new one goes on in /tmp without its variables and functions"
    assert (await shell.run("pwd")).output == "/tmp\n"


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


async def test_folder_that_was_removed(shell: Shell) -> None:
    await shell.run("mkdir -p /tmp/short/life; cd /tmp/short/life")
    await shell.run("rm -r /tmp/short")
    result = await shell.run("pwd")
    assert result.output == "/workspace\n"
    assert result.note == "the folder /tmp/short/life was gone, so this ran in the workspace"


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


async def test_a_shell_that_was_stopped_meanwhile_is_replaced(shell: Shell) -> None:
    pid = (await shell.run("cd /tmp; echo $$")).output
    await shell.run(f"kill -STOP {pid}", session="other")
    result = await shell.run("pwd", timeout_s=10)
    assert (result.output, result.exit_code) == ("/tmp\n", 0)
    assert "a new one goes on in /tmp" in result.note


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


async def test_a_lost_shell_whose_folder_is_gone_goes_on_in_the_workspace(shell: Shell) -> None:
    await shell.run("mkdir -p /tmp/lost && cd /tmp/lost")
    await shell.run("kill -9 -1")
    await shell.run("rmdir /tmp/lost", session="other")
    result = await shell.run("pwd")
    assert result.output == "/workspace\n"
    assert result.note == "the folder /tmp/lost was gone, so this ran in the workspace"


async def test_a_folder_that_may_not_be_entered_again(shell: Shell) -> None:
    await shell.run("mkdir -p /tmp/shut && cd /tmp/shut && chmod 000 .")
    await shell.run("kill -9 $$")
    result = await shell.run("pwd")
    assert result.output == "/workspace\n"
    assert "/tmp/shut was gone" in result.note


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


HOSTILE = """
import socket
s = socket.socket(fileno=4)
s.recv(100000)
for packet in {packets!r}:
    s.send(packet)
s.recv(100000)
"""


def done(**changes: object) -> list[bytes]:
    event = {
        "event": "done",
        "status": 0,
        "cwd": "/",
        "killed": False,
        "gone": None,
        "ended": None,
        "log": None,
    }
    return [b"j" + json.dumps(event | changes).encode()]


@pytest.mark.parametrize(
    "packets",
    [
        [b"x"],
        [b"j"],
        [b"j[]"],
        [b"j{"],
        [b"j" + b"[" * 50_000],
        [b"j\xff"],
        [b'j{"event": "nothing"}'],
        [b'j{"event": ["done"]}'],
        [b'j{"event": "done"}'],
        [b'j{"event": "waiting", "turn": 1, "program": "x"}'],
        done(status=math.inf),
        done(status="x"),
        done(cwd="/\0"),
        done(cwd="/" * 10_000),
        done(gone={}),
        [],
    ],
)
async def test_an_inner_side_that_lies_ends_its_session_only(
    box: Sandbox, shell: Shell, packets: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__main__.py", HOSTILE.format(packets=packets))
    with monkeypatch.context() as patch:
        patch.setattr(shell_session, "_modules", archive.getvalue)
        running = asyncio.ensure_future(shell.run("true", timeout_s=0.3))
        await asyncio.sleep(0)
    result = await running
    assert "without its variables" in result.note
    assert (await shell.run("echo fine")).output == "fine\n"


async def test_words_from_inside_are_shown_safely(box: Sandbox, shell: Shell) -> None:
    folder = "$'/tmp/\\e]0;x\\a\\nline'"
    await shell.run(f"mkdir -p {folder}; cd {folder}; rmdir {folder}")
    result = await shell.run("true")
    assert result.note == "the folder /tmp/\\x1b]0;x\\x07\\nline was gone, so this ran in the workspace"
    await shell.run("cp /bin/cat $'/tmp/\\e[31mred'")
    asked = await shell.run("$'/tmp/\\e[31mred'")
    assert asked.waiting == "\\x1b[31mred"
