"""What ends a bash, wedges it, or lies in its place, and how the shell goes on after it."""

from __future__ import annotations

import asyncio
import io
import json
import math
import zipfile

import pytest

from pilotfish.sandbox import Sandbox, Shell, shell_session

from .host import open_fds
from .inside import names, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


async def test_a_command_that_traps_the_interrupt_ends_with_its_shell(box: Sandbox, shell: Shell) -> None:
    await shell.run("cd /tmp; V=1")
    result = await shell.run("trap 'echo no' INT; while :; do sleep 9001; done", timeout_s=0.3)
    assert result.timed_out
    assert result.note == "bash ended, and a new one goes on in /tmp without its variables and functions"
    await until(box, "sleep 9001", gone=True)
    assert (await shell.run("pwd; echo [$V]")).output == "/tmp\n[]\n"


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
        "exec 42>&-",
        "exec 200>/tmp/out && flock -n 200 || exit",
        "ulimit -n 64",
        "ulimit -n 64; exit",
        "rm -rf /tmp/*",
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


@pytest.mark.parametrize(
    "command",
    [
        "builtin() { :; }",
        "enable -n printf",
        "shopt -s extdebug; trap false DEBUG",
        "kill -STOP $PPID",
        "kill -STOP $$; echo on",
        "(sleep 0.1; kill -STOP $$) & sleep 50",
        "ulimit -n 20",
        "ulimit -n 3",
    ],
)
async def test_a_wedged_shell_is_replaced_in_its_folder_long_before_its_time_limit(
    shell: Shell, command: str
) -> None:
    await shell.run("cd /tmp")
    result = await shell.run(command, timeout_s=30)
    assert not result.timed_out
    assert "a new one goes on in /tmp" in result.note
    assert (await shell.run("pwd")).output == "/tmp\n"


async def test_a_coprocess_lasts(shell: Shell) -> None:
    await shell.run("coproc cat")
    said = await shell.run('echo said >&${COPROC[1]}; read -t 5 line <&${COPROC[0]}; echo "$line"')
    assert said.output == "said\n"


async def test_its_files_are_there_again_when_the_folder_for_them_was_removed(shell: Shell) -> None:
    await shell.run("V=kept; rm -rf /tmp/*; chmod 0 /tmp", session="emptied")
    assert (await shell.run("chmod 1777 /tmp; true", session="other")).exit_code == 0
    assert "everything is in /tmp" in (await shell.run("seq 100000", session="emptied")).output
    await shell.run("exit", session="emptied")
    assert (await shell.run("echo $V", session="emptied")).output == "kept\n"


CONTINUED = """
import ctypes, time
libc = ctypes.CDLL(None)
timer, signal = ctypes.c_void_p(), (ctypes.c_int * 16)(0, 0, 18)  # SIGCONT
every = (ctypes.c_long * 4)(0, 10**7, 0, 10**7)
assert libc.timer_create(1, signal, ctypes.byref(timer)) == libc.timer_settime(timer, 0, every, None) == 0
assert libc.prctl(4, DUMPABLE, 0, 0, 0) == 0
while True:
    open("/workspace/late", "a").write("x")
    time.sleep(0.01)
"""


@pytest.mark.parametrize("dumpable", [1, 0])
async def test_what_is_stopped_for_good_cannot_continue_itself(box: Sandbox, dumpable: int) -> None:
    box.files.write_text("late", "")
    box.files.write_text("continued.py", CONTINUED.replace("DUMPABLE", str(dumpable)))
    await box.shell.run("python3 continued.py & until [ -s late ]; do sleep 0.01; done", timeout_s=20)
    await box.shell.freeze_all()
    size = (await box.shell.run("sleep 0.1; wc -c < late")).output
    assert (await box.shell.run("sleep 0.5; wc -c < late")).output == size


async def test_all_of_it_killed_from_inside(shell: Shell) -> None:
    await shell.run("cd /tmp")
    result = await shell.run("kill -9 -1")
    assert result.exit_code == 137
    assert result.note == "bash ended, and a new one goes on in /tmp without its variables and functions"
    assert (await shell.run("pwd")).output == "/tmp\n"


async def test_folder_that_was_removed(shell: Shell) -> None:
    await shell.run("mkdir -p /tmp/short/life; cd /tmp/short/life")
    await shell.run("rm -r /tmp/short")
    result = await shell.run("pwd")
    assert result.output == "/workspace\n"
    assert result.note == "the folder /tmp/short/life was gone, so this ran in the workspace"


async def test_a_shell_that_was_stopped_meanwhile_is_replaced(shell: Shell) -> None:
    pid = (await shell.run("cd /tmp; echo $$")).output
    await shell.run(f"kill -STOP {pid}", session="other")
    result = await shell.run("pwd", timeout_s=10)
    assert (result.output, result.exit_code) == ("/tmp\n", 0)
    assert "a new one goes on in /tmp" in result.note


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
    with monkeypatch.context() as short:
        short.setattr(shell_session, "_START_S", 3.0)  # what says nothing is waited for that long
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


async def test_many_sessions_leave_nothing(box: Sandbox, shell: Shell) -> None:
    await shell.run("sleep 8101 &")
    await until(box, "sleep 8101")
    shell.reset()
    await until(box, "sleep 8101", gone=True)
    fds, running = open_fds(), len(await names(box))
    for number in range(15):
        session = f"s{number % 3}"
        await shell.run(f"sleep 82{number} & cat", session=session)
        shell.reset(session)
    for number in range(15):
        await until(box, f"sleep 82{number}", gone=True)
    while len(await names(box)) > running:
        pass
    assert open_fds() == fds


async def test_cancelling_an_answer_ends_the_command(box: Sandbox, shell: Shell) -> None:
    await shell.run("V=kept; read a; sleep 8301")
    answering = asyncio.ensure_future(shell.type("x\n"))
    await until(box, "sleep 8301")
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert (await shell.run("echo $V")).output == "kept\n"
    await until(box, "sleep 8301", gone=True)
