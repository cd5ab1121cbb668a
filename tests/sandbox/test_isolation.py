"""What a program inside cannot do. Each probe has its twin: the same program does succeed outside."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.sandbox import Sandbox, SandboxSpec

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

PYTHON = "/usr/bin/python3"


def outside(code: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=20)
    return done.stdout.strip()


async def inside(box: Sandbox, code: str, *args: str) -> str:
    process = await box.run([PYTHON, "-c", code, *args])
    await process.wait(20)
    return process.output.strip()


def tried(body: str) -> str:
    """A probe that prints 'yes' when `body` works, else the name of its error."""
    return (
        "import os, sys, socket, ctypes\n"
        "try:\n" + "".join(f"    {line}\n" for line in body.splitlines()) + "    print('yes')\n"
        "except Exception as error:\n    print(type(error).__name__)\n"
    )


@pytest.fixture
def server() -> Iterator[int]:
    """A TCP server of the host; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_no_connection_to_the_host(box: Sandbox, server: int) -> None:
    probe = tried("socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)")
    assert outside(probe, str(server)) == "yes"
    assert await inside(box, probe, str(server)) == "ConnectionRefusedError"


async def test_no_route_to_anywhere(box: Sandbox) -> None:
    # Connecting a datagram socket sends nothing, it only asks for a route.
    probe = tried("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect((sys.argv[1], 53))")
    assert outside(probe, "127.0.0.1") == "yes"
    assert await inside(box, probe, "127.0.0.1") == "yes"  # its own loopback works
    for address in ("8.8.8.8", "10.0.0.1", "169.254.169.254"):
        assert await inside(box, probe, address) == "OSError"
    assert await inside(box, tried("print([n for _, n in socket.if_nameindex()])")) == "['lo']\nyes"


async def test_no_names(box: Sandbox) -> None:
    assert await inside(box, tried("socket.getaddrinfo('example.com', 80)")) == "gaierror"
    assert await inside(box, tried("socket.getaddrinfo('localhost', 80)")) == "yes"


async def test_no_abstract_or_path_socket_of_the_host(box: Sandbox, tmp_path: Path) -> None:
    abstract, path = f"\0pilotfish-test-{os.getpid()}", str(tmp_path / "socket")
    probe = tried("socket.socket(socket.AF_UNIX).connect(sys.argv[1].replace('@', chr(0)))")
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        for listener, name in ((one, abstract), (two, path)):
            listener.bind(name)
            listener.listen()
            argument = name.replace("\0", "@")
            assert outside(probe, argument) == "yes"
            assert await inside(box, probe, argument) in ("ConnectionRefusedError", "FileNotFoundError")


async def test_no_file_of_the_host(box: Sandbox, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("1")
    probe = tried("open(sys.argv[1]).read()")
    for path in (own, Path(__file__)):
        assert outside(probe, str(path)) == "yes"
        assert await inside(box, probe, str(path)) == "FileNotFoundError"
    for path in (
        "/etc/shadow",
        "/root/.bashrc",
        "/workspace/../../../etc/shadow",
        "/proc/self/root/../etc/shadow",
    ):
        assert await inside(box, probe, path) in ("FileNotFoundError", "PermissionError")
    assert await inside(box, probe, "/etc/passwd") == "yes"


async def test_nothing_of_the_host_can_be_written(box: Sandbox, tmp_path: Path) -> None:
    probe = tried("open(sys.argv[1], 'w').write('x')")
    assert outside(probe, str(tmp_path / "file")) == "yes"
    for path in (
        "/usr/lib/x",
        "/etc/x",
        "/x",
        "/dev/x",
        "/etc/passwd",
        "/etc/pilotfish/inside/guest.py",
        "/bin/x",
    ):
        assert await inside(box, probe, path) in ("OSError", "PermissionError")
    name = f"pilotfish-test-{os.getpid()}"
    for folder in ("/workspace", "/tmp", "/home/user", "/dev/shm"):
        assert await inside(box, probe, f"{folder}/{name}") == "yes"
        assert not os.path.exists(f"{folder}/{name}")  # noqa: ASYNC240, PTH110
    assert (box.workspace / name).read_text() == "x"


async def test_switches_of_the_kernel_are_read_only(box: Sandbox) -> None:
    # Opening for writing is the whole probe: nothing is written even where it is allowed.
    probe = tried("os.close(os.open(sys.argv[1], os.O_WRONLY))")
    if os.getuid() == 0:
        assert outside(probe, "/proc/sys/kernel/core_pattern") == "yes"
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/hostname"):
        assert await inside(box, probe, path) in ("OSError", "PermissionError")


async def test_no_environment_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    monkeypatch.setenv("GITHUB_TOKEN", "ghp-secret")
    assert "sk-secret" in outside("import os; print(dict(os.environ))")
    async with Sandbox.open(SandboxSpec(desktop=False, env={"WANTED": "1"})) as box:
        seen = await inside(box, "import os; print(dict(os.environ)); print(open('/proc/1/environ').read())")
        assert "secret" not in seen
        assert "'WANTED': '1'" in seen
        assert "secret" not in (await box.shell.run("env; cat /proc/*/environ 2>/dev/null")).output


async def test_no_process_of_the_host(box: Sandbox) -> None:
    probe = "import os; print(len([n for n in os.listdir('/proc') if n.isdigit()]))"
    assert int(await inside(box, probe)) < 10
    victim = await asyncio.create_subprocess_exec("sleep", "60")
    kill = tried("os.kill(int(sys.argv[1]), 9)")
    assert await inside(box, kill, str(victim.pid)) == "ProcessLookupError"
    assert victim.returncode is None
    assert outside(kill, str(victim.pid)) == "yes"
    await victim.wait()


async def test_only_standard_descriptors_are_inherited(box: Sandbox) -> None:
    listing = await inside(box, "import os; print(os.listdir('/proc/self/fd'))")
    assert listing == "['0', '1', '2', '3']"


async def test_no_privileges(box: Sandbox) -> None:
    status = await inside(box, "print(open('/proc/self/status').read())")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"
    assert fields["Uid"].split() == ["1000"] * 4
    assert await inside(box, tried("os.setuid(0)")) == "OSError"
    assert (
        await inside(box, tried("os.mknod('/workspace/disk', 0o60600, os.makedev(254, 0))"))
        == "PermissionError"
    )
    mount = "if ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None): raise PermissionError"
    assert await inside(box, tried(mount)) == "PermissionError"


async def test_supervisor_cannot_be_ended_traced_or_read(box: Sandbox) -> None:
    assert (await box.shell.run("kill -9 1; kill -9 -1; echo unreachable")).exit_code == 137
    ptrace = "if ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0): raise PermissionError"
    twin = await box.run(["sleep", "50"])
    assert await inside(box, tried(ptrace), str(twin.pid)) == "yes"
    assert await inside(box, tried(ptrace), "1") == "PermissionError"
    for name in ("mem", "environ", "fd/0", "root", "cwd"):
        assert await inside(box, tried(f"os.open('/proc/1/{name}', os.O_RDONLY)")) in (
            "PermissionError",
            "FileNotFoundError",
        )
    await twin.kill()


async def test_killing_every_runner_ends_their_programs_and_nothing_else(box: Sandbox) -> None:
    lost = await box.run(["sh", "-c", "setsid sleep 5001 & setsid sleep 5002"])
    while (await box.shell.run("pgrep -fc '^sleep 500'")).output != "2\n":
        pass
    # What runs as a child of PID 1 is a runner.
    assert (await box.shell.run("pkill -9 -P 1; true")).exit_code in (0, -9, 137)
    assert await asyncio.wait_for(lost.wait(), 10) == -9
    left = await box.run(["ps", "-eo", "args"])
    await left.wait()
    assert "sleep 500" not in left.output
    assert (await box.shell.run("echo fine")).output == "fine\n"


async def test_limits(box: Sandbox) -> None:
    async with Sandbox.open(
        SandboxSpec(
            desktop=False,
            limits=box.spec.limits.__class__(file_bytes=1 << 20, open_files=64, tmp_folder=1 << 20),
        )
    ) as small:
        assert await inside(small, tried("[os.dup(0) for _ in range(100)]")) == "OSError"
        assert await inside(box, tried("[os.dup(0) for _ in range(100)]")) == "yes"
        fill = tried("open(sys.argv[1], 'wb').write(bytes(2 << 20))")
        assert await inside(small, fill, "/tmp/big") == "OSError"
        assert await inside(small, fill, "/workspace/big") == "OSError"
        assert await inside(box, fill, "/workspace/big") == "yes"
