"""Programs that wait for a person are told from programs that are just quiet."""

from __future__ import annotations

import asyncio

import pytest

from pilotfish.sandbox import SandboxError, Shell

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


async def until_idle(shell: Shell) -> None:
    for _ in range(500):
        if shell.sessions["main"] == "idle":
            return
        await asyncio.sleep(0.01)
    pytest.fail("it goes on and on")


def python(code: str) -> str:
    return f"python3 -c '{code}'"


@pytest.mark.parametrize(
    ("command", "program", "hidden"),
    [
        ("cat", "cat", False),
        ("cat | tr a b", "cat", False),
        ("read answer", "bash", False),
        ("select x in a b; do break; done", "bash", False),
        ("read -s answer", "bash", True),
        ("python3 -i", "python3", False),
        (python("input()"), "python3", False),
        (python('import getpass; getpass.getpass("x")'), "python3", True),
        (python("import sys, select; select.select([sys.stdin], [], [])"), "python3", False),
        (python("import sys, select; p = select.poll(); p.register(0, 1); p.poll()"), "python3", False),
        (python("import select; p = select.epoll(); p.register(0, 1); p.poll()"), "python3", False),
        (
            python("import threading; t = threading.Thread(target=input); t.start(); t.join()"),
            "python3",
            False,
        ),
        ("bash -c 'read x </dev/tty'", "bash", False),
        ("bash -i", "bash", False),
        ("ssh-keygen -f /tmp/key", "ssh-keygen", True),
        ("less /etc/passwd", "less", False),
        ("top -d 100", "top", False),
        ("node -i", "node", False),
        ("gdb -q", "gdb", False),
        ("vi /tmp/x", "vi", False),
        ("rm -i /tmp/asked", "rm", False),
        ("sh -c 'sleep 60 & cat'", "cat", False),
    ],
)
async def test_who_waits(shell: Shell, command: str, program: str, hidden: bool) -> None:
    await shell.run("touch /tmp/asked")
    installed = await shell.run(f"type -P {command.split()[0]} || type -t {command.split()[0]}")
    if installed.exit_code:
        pytest.skip(f"{program} is not installed here")
    result = await shell.run(command, timeout_s=20)
    assert not result.timed_out
    assert (result.waiting, result.hidden) == (program, hidden)
    assert (await shell.kill()).exit_code == 137


@pytest.mark.parametrize(
    "command",
    [
        "sleep 60",
        "sleep 60 | cat",
        "cat </dev/null; sleep 60",
        "while :; do :; done",
        "while :; do sleep 0.05; done",
        "mkfifo /tmp/fifo; cat /tmp/fifo; rm /tmp/fifo",
        "python3 -m http.server 8124 --bind 127.0.0.1",
        python("import time; time.sleep(60)"),
        python("import select; select.select([], [], [], 60)"),
        python('import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); s.accept()'),
        python("import threading; threading.Event().wait()"),
        "sleep 60 </dev/tty",
    ],
)
async def test_who_only_takes_long(shell: Shell, command: str) -> None:
    result = await shell.run(f"rm -f /tmp/fifo; {command}", timeout_s=0.6)
    assert (result.timed_out, result.waiting) == (True, None)


@pytest.mark.parametrize(
    "relay", ["script -qec '{}' /dev/null", 'python3 -c \'import pty, sys; pty.spawn(["sh", "-c", "{}"])\'']
)
async def test_who_passes_a_terminal_on_to_its_own_work(shell: Shell, relay: str) -> None:
    result = await shell.run(relay.format("sleep 0.6; echo one; sleep 0.6; echo two"), timeout_s=20)
    assert (result.waiting, result.output, result.exit_code) == (None, "one\ntwo\n", 0)
    asked = await shell.run(relay.format("read x; echo got $" + "x"), timeout_s=20)
    assert asked.waiting is not None
    assert (await shell.type("y\n")).output.endswith("got y\n")


async def test_a_conversation(shell: Shell) -> None:
    first = await shell.run("python3 -i")
    assert first.output.endswith(">>> ")
    assert (await shell.type("x = 6\n")).output == "x = 6\n>>> "
    block = await shell.type("for n in range(2):\n    print(n * x)\n\n")
    assert block.output.endswith("0\n6\n>>> ")
    last = await shell.type("raise SystemExit(4)\n")
    assert (last.exit_code, last.waiting) == (4, None)
    assert (await shell.run("echo fine")).output == "fine\n"


async def test_slow_answers_are_waited_for(shell: Shell) -> None:
    await shell.run("read a; sleep 0.7; echo got $a; read b; echo $b")
    result = await shell.type("one\n")
    assert (result.output, result.waiting) == ("one\ngot one\n", "bash")
    assert (await shell.type("two\n")).output == "two\ntwo\n"


async def test_typing_part_of_a_line(shell: Shell) -> None:
    await shell.run("read a; echo [$a]")
    assert (await shell.type("half ")).waiting == "bash"
    assert (await shell.type("whole\n")).output.endswith("[half whole]\n")


async def test_much_text_and_odd_characters_arrive(shell: Shell) -> None:
    lines = "".join(f"{n} żółw 🐢\n" for n in range(3000))
    await shell.run("cat > typed")
    await shell.type(lines)
    assert (await shell.type(key="ctrl-d")).exit_code == 0
    assert (await shell.run("cmp typed - <<'X'\n" + lines + "X\nwc -l < typed")).output == "3000\n"


async def test_keys(shell: Shell) -> None:
    await shell.run("cat")
    assert (await shell.type(key="ctrl-d")).exit_code == 0
    await shell.run("cat; echo not reached")
    interrupted = await shell.type(key="ctrl-c")
    assert (interrupted.exit_code, "not reached" in interrupted.output) == (130, False)
    await shell.run("cat")
    stopped = await shell.type(key="ctrl-z")
    assert stopped.exit_code == 148
    assert (await shell.run("fg")).waiting == "cat"
    assert (await shell.type("back\n")).output == "back\nback\n"
    await shell.kill()


async def test_what_is_typed_and_not_read_reaches_no_later_command(shell: Shell) -> None:
    await shell.run("read a")
    await shell.type("one\ntouch /tmp/bad\necho bad\n")
    result = await shell.run("ls /tmp/bad; read -t 0.2 b; echo [$b]")
    assert "No such file" in result.output
    while result.waiting:
        result = await shell.type()
    assert result.output == "[]\n"


async def test_one_that_ends_by_itself_while_nobody_looks(shell: Shell) -> None:
    assert (await shell.run("read -t 0.3 a; echo late; (exit 5)")).waiting == "bash"
    await until_idle(shell)
    result = await shell.type()
    assert (result.output, result.exit_code) == ("late\n", 5)
    assert (await shell.run("read -t 0.3 a; echo late; (exit 5)")).waiting == "bash"
    await until_idle(shell)
    result = await shell.run("echo next")
    assert (result.output, result.background) == ("next\n", "late\n\nexit status 5\n")


async def test_looking_again_at_one_that_waits_and_prints(shell: Shell) -> None:
    first = await shell.run("(sleep 0.4; echo news) & cat")
    assert first.waiting == "cat"
    await asyncio.sleep(0.6)
    again = await shell.type()
    assert (again.output, again.waiting) == ("news\n", "cat")


async def test_a_time_limit_while_it_waits_again_ends_it(shell: Shell) -> None:
    await shell.run("read a; sleep 60")
    result = await shell.type("x\n", timeout_s=0.3)
    assert (result.timed_out, result.output) == (True, "x\n")
    assert (await shell.run("echo fine")).output == "fine\n"


async def test_modes_that_a_program_leaves_are_put_right(shell: Shell) -> None:
    await shell.run("stty raw -echo -isig")
    assert (await shell.run("read a; echo [$a]")).waiting == "bash"
    assert (await shell.type("x\n")).output == "x\n[x]\n"


async def test_what_cannot_be_typed(shell: Shell) -> None:
    for call in (shell.type("x\n"), shell.type(key="ctrl-c"), shell.kill(), shell.type("x", session="none")):
        with pytest.raises(SandboxError, match="nothing waits for input in session"):
            await call
    await shell.run("cat")
    with pytest.raises(SandboxError, match=r"line of 5000 bytes .* at most 4000"):
        await shell.type("x" * 5000)
    with pytest.raises(SandboxError, match="half a character"):
        await shell.type("\ud800")
    with pytest.raises(SandboxError, match="cat still waits for input in session 'main': answer it"):
        await shell.run("true")
