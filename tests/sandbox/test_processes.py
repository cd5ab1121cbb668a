"""Programs inside: output, input, descriptors, signals, trees, and what happens when they cannot start."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from pilotfish.sandbox import Sandbox, SandboxError

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


async def test_output_status_and_environment(box: Sandbox) -> None:
    process = await box.run(
        ["sh", "-c", "echo $A $HOME; pwd; echo err >&2; exit 7"], env={"A": "b"}, cwd="/tmp"
    )
    assert process.pid > 1
    assert await process.wait() == 7
    assert process.returncode == 7
    assert not process.is_running
    assert process.output == "b /home/user\n/tmp\nerr\n"
    assert process.dropped_bytes == 0


async def test_input(box: Sandbox) -> None:
    fed = await box.run(["cat"], stdin=b"fed\n" * 50_000)
    assert await fed.wait() == 0
    assert len(fed.output) + fed.dropped_bytes == 200_000 + len(
        f"\n[... {fed.dropped_bytes} bytes left out ...]\n"
    )
    starved = await box.run(["cat"])
    assert await starved.wait(10) == 0
    assert starved.output == ""
    silent = await box.run(["echo", "x"], capture=False)
    await silent.wait()
    assert silent.output == ""


async def test_any_descriptor_can_be_handed_over(box: Sandbox) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        code = "import socket; s = socket.socket(fileno=7); s.sendall(s.recv(9).upper())"
        process = await box.run(["/usr/bin/python3", "-c", code], fds={7: theirs.fileno()})
        theirs.close()
        ours.sendall(b"across")
        await process.wait()
        assert ours.recv(9) == b"ACROSS"
        assert ours.recv(9) == b""  # nobody inside or here holds the other end any more


async def test_descriptors_that_swap_places(box: Sandbox) -> None:
    pairs = {number: os.pipe() for number in (3, 4, 5)}
    try:
        # Handing 4 our 3 and 3 our 4 must not make one overwrite the other on the way.
        command = "for n in 3 4 5; do printf $n >&$n; done"
        process = await box.run(["bash", "-c", command], fds={n: write for n, (_, write) in pairs.items()})
        assert await process.wait() == 0
        assert [os.read(read, 9) for read, _ in pairs.values()] == [b"3", b"4", b"5"]
    finally:
        for fd in (fd for pair in pairs.values() for fd in pair):
            os.close(fd)


@pytest.mark.parametrize(
    ("argv", "cwd", "words"),
    [
        (["no-such-program"], None, "'no-such-program' could not be started .*check its name and that it is"),
        (["/etc/passwd"], None, "'/etc/passwd' could not be started .*check the file"),
        (["true"], "/missing", "working folder '/missing' could not be entered"),
        ([], None, "argv is empty, name a program"),
        (["echo", "a\0"], None, "null byte"),
        (["echo", "x" * 300_000], None, "take 3.* bytes, at most .* fit"),
    ],
)
async def test_programs_that_cannot_start(box: Sandbox, argv: list[str], cwd: str | None, words: str) -> None:
    assert (await box.shell.run("echo fine")).output == "fine\n"  # the session has a socket from now on
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(SandboxError, match=words):
        await box.run(argv, cwd=cwd)
    assert (await box.shell.run("echo fine")).output == "fine\n"
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


async def test_waiting_with_a_limit_leaves_it_running(box: Sandbox) -> None:
    process = await box.run(["sleep", "60"])
    with pytest.raises(TimeoutError):
        await process.wait(0.05)
    assert process.is_running
    assert process.returncode is None
    process.signal(15)
    assert await process.wait() == -15


async def test_kill_takes_the_tree(box: Sandbox) -> None:
    process = await box.run(["sh", "-c", "echo here; setsid sleep 6001 & (setsid sleep 6002 &); sleep 6003"])
    while (await box.shell.run("pgrep -fc '^sleep 600'")).output != "3\n":
        pass
    await process.kill()
    await process.kill()
    assert process.returncode == -9
    assert process.output == "here\n"
    assert (await box.shell.run("pgrep -fc '^sleep 600'")).output == "0\n"


async def test_many_short_programs_leave_nothing(box: Sandbox) -> None:
    async def one(number: int) -> str:
        process = await box.run(["echo", str(number)])
        await process.wait()
        await process.wait_gone()
        return process.output

    await one(0)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for start in range(0, 200, 20):
        outputs = await asyncio.gather(*(one(number) for number in range(start, start + 20)))
        assert outputs == [f"{number}\n" for number in range(start, start + 20)]
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert (await box.shell.run("ps -eo stat= | wc -l")).output == "6\n"  # PID 1, the shell's 3, ps, wc
