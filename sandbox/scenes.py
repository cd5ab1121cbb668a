# ruff: noqa: ASYNC220, ASYNC240 - nothing else runs in this event loop
"""Attacks that take more than one program: each is played inside and, for its twin, outside."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pilotfish.sandbox.box import Sandbox
from pilotfish.sandbox.errors import SandboxError, SandboxPathError
from pilotfish.sandbox.levels import Level
from pilotfish.sandbox.spec import Limits, SandboxSpec

_SECONDS = 10.0

# Leaves a daemon that holds a lock and heeds no signal, and says when it does.
_DAEMON = """
import fcntl, os, signal, sys, time
if os.fork():
    os.wait()
    time.sleep(600 if len(sys.argv) > 2 else 0)
    os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
for number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(fd, fcntl.LOCK_EX)
os.write(fd, str(os.getpid()).encode())
time.sleep(600)
"""

_FORK = """
import os, time
try:
    for _ in range(600):
        if os.fork() == 0: time.sleep(60); os._exit(0)
    print('yes')
except OSError as error: print(type(error).__name__)
"""


_FEW = 40
_COUNTED_FORK = """
import os, time
forks = 0
try:
    while forks < 100:
        if os.fork() == 0: time.sleep(60); os._exit(0)
        forks += 1
except OSError: pass
print(forks)
"""


@dataclass(frozen=True)
class Scene:
    """play(level) gives what came of it inside and outside; it held when those are `safe` and `yes`.

    Outside is '' where only root could do it.
    """

    id: str
    what: str
    play: Callable[[Level], Awaitable[tuple[str, str]]]
    safe: str
    levels: tuple[Level, ...] = (3, 2)


def _spec(level: Level, workspace: Path | None = None) -> SandboxSpec:
    return SandboxSpec(desktop=False, level=level, workspace=workspace)


async def _until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _SECONDS
    while not true():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def _is_locked(path: Path) -> bool:
    """Whether a living process holds the lock of this file, and has written who it is."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.fstat(fd).st_size > 0
    else:
        return False
    finally:
        os.close(fd)


async def _link(level: Level, target: str) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder, "secret")
        secret.write_text("of the host")
        async with Sandbox.open(_spec(level)) as box:
            link = box.workspace / "link"
            link.symlink_to(target + str(secret))
            try:
                result = box.files.read_text("link")
            except SandboxPathError as error:
                result = error.reason
            return result, "yes" if link.read_text() == "of the host" else "no"


async def _big_file(level: Level) -> tuple[str, str]:
    async with Sandbox.open(_spec(level)) as box:
        made = await box.run(["truncate", "-s", "1G", "big"])
        await made.wait()
        try:
            result = f"{len(box.files.read_bytes('big'))} bytes"
        except SandboxPathError as error:
            result = error.reason
        return result, "yes" if (box.workspace / "big").stat().st_size == 1 << 30 else "no"


async def _mount_below(level: Level) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        below = _made(lambda: SandboxSpec(read_only={Path(folder): "/workspace/inner"}))
        return below, _made(lambda: SandboxSpec(read_only={Path(folder): "/opt/inner"}))


async def _whole_machine(level: Level) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        whole, home = _made(lambda: _spec(level, Path("/"))), _made(lambda: _spec(level, Path.home()))
        return whole if whole == home else "yes", _made(lambda: _spec(level, Path(folder)))


def _made(make: Callable[[], SandboxSpec]) -> str:
    try:
        make()
    except SandboxError:
        return "refused"
    return "yes"


async def _kill_all(level: Level) -> tuple[str, str]:
    """Kill PID 1 and everything; the sandbox has to serve the next program."""
    async with Sandbox.open(_spec(level)) as box:
        killer = "import os\nfor pid in (1, -1):\n  try: os.kill(pid, 9)\n  except OSError: pass"
        # It may be so quick that it kills who would have told us of its start.
        with contextlib.suppress(SandboxError):
            await (await box.run(["python3", "-c", killer])).wait(_SECONDS)
        after = await box.run(["echo", "served"])
        await after.wait(_SECONDS)
    victim = subprocess.Popen(["sleep", "60"])
    victim.kill()
    return after.output.strip(), "yes" if victim.wait() == -9 else "no"


async def _outliving_daemon() -> str:
    """The twin of daemons: outside, one does outlive the killing of what started it."""
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "lock")
        parent = subprocess.Popen([sys.executable, "-c", _DAEMON, str(lock), "stay"], start_new_session=True)
        held = await _until(lambda: _is_locked(lock))
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        outlived = held and _is_locked(lock)
        if held:
            os.kill(int(lock.read_text()), signal.SIGKILL)
        return "yes" if outlived else "no"


async def _daemon_and_kill(level: Level) -> tuple[str, str]:
    async with Sandbox.open(_spec(level)) as box:
        job = await box.run(["python3", "-c", _DAEMON, "lock", "stay"])
        lock = box.workspace / "lock"
        if not await _until(lambda: _is_locked(lock)):
            return "not started", ""
        await job.kill()
        return "lives" if _is_locked(lock) else "gone", await _outliving_daemon()


async def _daemon_and_close(level: Level) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "lock")
        async with Sandbox.open(_spec(level, Path(folder))) as box:
            await box.run(["python3", "-c", _DAEMON, "lock"])
            if not await _until(lambda: _is_locked(lock)):
                return "not started", ""
        return "lives" if _is_locked(lock) else "gone", await _outliving_daemon()


async def _daemon_and_dead_owner(level: Level) -> tuple[str, str]:
    """The process that owns the sandbox is killed."""
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "lock")
        owner = subprocess.Popen([sys.executable, "-m", "pilotfish.sandbox.scenes", str(level), folder])
        held = await _until(lambda: _is_locked(lock))
        owner.kill()
        owner.wait()
        if not held:
            return "not started", ""
        gone = await _until(lambda: not _is_locked(lock))
        return "gone" if gone else "lives", await _outliving_daemon()


async def _own(level: Level, folder: str) -> None:
    async with Sandbox.open(_spec(level, Path(folder))) as box:
        await box.run(["python3", "-c", _DAEMON, "lock"])
        await asyncio.sleep(600)


async def _fork_bomb(level: Level) -> tuple[str, str]:
    async with (
        Sandbox.open(replace(_spec(level), limits=Limits(processes=200))) as bombed,
        Sandbox.open(_spec(level)) as other,
    ):
        bomb = await bombed.run(["python3", "-c", _FORK])
        await bomb.wait(60)
        beside = await other.run(["echo", "served"])
        await beside.wait(_SECONDS)
        await bomb.kill()
    twin = subprocess.Popen(
        [sys.executable, "-c", _FORK], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert twin.stdout is not None
    said = twin.stdout.readline().strip()
    os.killpg(twin.pid, signal.SIGKILL)
    twin.wait()
    twin.stdout.close()
    return f"{bomb.output.strip()} {beside.output.strip()}", said


async def _bomb_of_root(level: Level) -> tuple[str, str]:
    """The limit on processes does not count for root; a control group would allow a few more."""
    async with Sandbox.open(replace(_spec(level), limits=Limits(processes=_FEW))) as box:
        bomb = await box.run(["python3", "-c", _COUNTED_FORK])
        await bomb.wait(60)
        await bomb.kill()
    forks = bomb.output.strip()
    result = "limited" if forks.isdigit() and int(forks) < _FEW else forks
    if os.geteuid() != 0:
        return result, ""
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NPROC, ({_FEW}, {_FEW}))\n"
    twin = subprocess.Popen(
        [sys.executable, "-c", limited + _COUNTED_FORK],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert twin.stdout is not None
    said = twin.stdout.readline().strip()
    os.killpg(twin.pid, signal.SIGKILL)
    twin.wait()
    twin.stdout.close()
    return result, "yes" if said.isdigit() and int(said) > _FEW else said


SCENES = (
    Scene("A5", "have the read tool follow a link", lambda level: _link(level, ""), "outside"),
    Scene("A6", "the same through /proc", lambda level: _link(level, "/proc/self/root"), "outside"),
    Scene("A11", "have the read tool take a file of a gigabyte", _big_file, "too_big"),
    Scene("A18", "mount below the workspace, where a link may wait", _mount_below, "refused", levels=(3,)),
    Scene("A19", "take the whole machine or the home folder for a workspace", _whole_machine, "refused"),
    Scene("B1", "kill the supervisor and everything else", _kill_all, "served"),
    Scene("B4", "a daemon outlives its job", _daemon_and_kill, "gone"),
    Scene("B4b", "a daemon outlives the sandbox", _daemon_and_close, "gone"),
    Scene("B6", "a daemon outlives the owner, who is killed", _daemon_and_dead_owner, "gone"),
    Scene("B5", "a fork bomb", _fork_bomb, "BlockingIOError served"),
    Scene("B7", "a fork bomb where root has started the sandbox", _bomb_of_root, "limited"),
)


if __name__ == "__main__":
    asyncio.run(_own(3 if sys.argv[1] == "3" else 2, sys.argv[2]))
