"""Closing is bounded and leaves nothing, whatever has been frozen or killed from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec, cgroup
from pilotfish.sandbox.levels import Level

from .host import alive, open_fds, process_tree
from .test_lifecycle import owner, traces

pytestmark = pytest.mark.timeout(90)

LINGER = "(setsid nohup sleep 9101 >/dev/null 2>&1 &); (trap '' TERM HUP; exec sleep 9102) & sleep 9103 &"


async def with_programs(level: Level, desktop: bool = False) -> tuple[Sandbox, set[tuple[int, str]]]:
    """A sandbox in which daemons run, and all the processes that belong to it."""
    before = process_tree(os.getpid())
    box = await Sandbox.start(SandboxSpec(width=320, height=240, desktop=desktop, level=level))
    await box.shell.run(LINGER)
    await box.shell.run("until [ $(pgrep -fc '^sleep 910') = 3 ]; do sleep 0.01; done", timeout_s=20)
    tree = process_tree(os.getpid()) - before
    assert len([name for name in alive(tree) if name.startswith("sleep 910")]) == 3
    return box, tree


def groups_of(box: Sandbox) -> list[str]:
    """The control groups that are left of it."""
    return [str(path) for path in (box._group.folders if box._group else ()) if path.exists()]


PARTS: dict[str, Callable[[Sandbox], int | None]] = {
    "janitor": lambda box: box._janitor._process.pid if box._janitor else None,
    "monitor": lambda box: box._supervisor.outer_pid,
    "PID 1": lambda box: box._supervisor.inner_pid,
}


@pytest.mark.parametrize("desktop", [False, True])
@pytest.mark.parametrize("parts", [["janitor"], ["monitor"], ["PID 1"], ["PID 1", "monitor", "janitor"]])
async def test_closing_what_is_frozen(parts: list[str], desktop: bool) -> None:
    await _close_frozen(3, parts, desktop)


@pytest.mark.parametrize("level", [2, 0])
@pytest.mark.parametrize("parts", [["janitor"], ["monitor"], ["monitor", "janitor"]])
async def test_closing_what_is_frozen_below_level_3(parts: list[str], level: Level) -> None:
    await _close_frozen(level, parts)


async def _close_frozen(level: Level, parts: list[str], desktop: bool = False) -> None:
    fds = open_fds()
    box, tree = await with_programs(level, desktop)
    for part in parts:
        pid = PARTS[part](box)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    await asyncio.wait_for(box.close(), 20)
    assert alive(tree) == []
    assert groups_of(box) == []
    assert traces(box.workspace, box.display.name if desktop else "") == []
    await asyncio.sleep(0)
    assert open_fds() <= fds + 2  # the first sandbox of a process loads something for good


async def test_closing_with_a_frozen_browser() -> None:
    box, tree = await with_programs(3, desktop=True)
    before = process_tree(os.getpid())
    await box.browser.open("data:text/html,hello")
    inside = process_tree(box._supervisor.outer_pid)
    tree |= process_tree(os.getpid()) - before
    assert len(inside) >= 10
    for pid, _ in inside:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)  # all of it, the supervisor too
    await asyncio.wait_for(box.close(), 30)
    assert alive(tree) == []
    assert groups_of(box) == []
    assert traces(box.workspace, box.display.name) == []


async def test_closing_with_a_frozen_relay_of_the_browser() -> None:
    box, tree = await with_programs(3, desktop=True)
    before = process_tree(os.getpid())
    await box.browser.open("data:text/html,hello")
    tree |= process_tree(os.getpid()) - before
    for pid, _ in {one for one in tree if any("browser_relay.py" in name for name in alive({one}))}:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.wait_for(box.close(), 30)
    assert alive(tree) == []


@pytest.mark.parametrize("level", [3, 2, 0])
async def test_a_supervisor_that_is_killed_takes_its_programs_along(level: Level) -> None:
    box, tree = await with_programs(level)
    waiting = asyncio.ensure_future(box.shell.run("sleep 100"))
    await asyncio.sleep(0.1)
    supervisor = box._supervisor.inner_pid if level == 3 else PARTS["monitor"](box)
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    with pytest.raises(SandboxError, match="the sandbox has ended, open a new one"):
        await asyncio.wait_for(waiting, 10)
    assert box.trouble == "the sandbox has ended, open a new one."
    deadline = time.monotonic() + 10
    while left := [name for name in alive(tree) if name.startswith("sleep")]:  # before anything is closed
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.02)
    await box.close()
    assert alive(tree) == []


async def test_no_program_outlives_supervisor_and_runners_at_level_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "working_place", lambda: None)  # a control group would end them too
    other = await asyncio.create_subprocess_exec("/bin/sleep", "600")
    box, tree = await with_programs(2)
    await box.run(["env", "-i", "setsid", "sleep", "9104"])
    tree |= process_tree(PARTS["monitor"](box) or 0)
    ours = [pid for pid, start in tree if any("guest.py" in name for name in alive({(pid, start)}))]
    assert len(ours) >= 3
    for pid in sorted(ours, reverse=True):
        os.kill(pid, signal.SIGSTOP)
    for pid in ours:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while left := [name for name in alive(tree) if "guest.py" in name or name.startswith(("sleep", "bash"))]:
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.02)
    await box.close()
    assert alive(tree) == []
    assert other.returncode is None
    other.kill()
    assert await other.wait() == -9


@pytest.mark.parametrize("level", [3, 2, 0])
async def test_a_frozen_supervisor_is_told_in_a_sentence(level: Level) -> None:
    box, tree = await with_programs(level)
    waiting = asyncio.ensure_future(box.shell.run("sleep 100"))
    supervisor = box._supervisor.inner_pid if level == 3 else PARTS["monitor"](box)
    assert supervisor is not None
    assert box.trouble is None
    os.kill(supervisor, signal.SIGSTOP)
    sentence = f"the sandbox was frozen from outside .process {supervisor} was stopped., open a new one"
    with pytest.raises(SandboxError, match=sentence):
        await asyncio.wait_for(waiting, 10)
    assert box.trouble is not None
    with pytest.raises(SandboxError, match=sentence):
        await box.shell.run("true")
    await box.close()
    assert alive(tree) == []


@pytest.mark.parametrize("shape", ["plain", "plain-level-2", "plain-level-0"])
async def test_killing_the_owner_of_a_frozen_sandbox_ends_everything(shape: str) -> None:
    async with owner(shape) as (process, workspace, display, tree):
        supervisors = [
            pid for pid, start in tree if any("guest.py" in name for name in alive({(pid, start)}))
        ]
        os.kill(min(supervisors), signal.SIGSTOP)
        groups = (workspace.parent / "groups").read_text().split()
        process.kill()
        await process.wait()
        deadline = time.monotonic() + 15
        while (left := alive(tree)) or (left := traces(workspace, display)) or (left := _existing(groups)):
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.02)


async def test_killing_the_owner_of_a_frozen_relay_ends_it() -> None:
    async with owner("browser") as (process, _, _, tree):
        relay = {one for one in tree if any("browser_relay.py" in name for name in alive({one}))}
        assert len(relay) == 1
        os.kill(next(iter(relay))[0], signal.SIGSTOP)
        process.kill()
        await process.wait()
        deadline = time.monotonic() + 15
        while left := alive(tree):
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.02)


def _existing(paths: list[str]) -> list[str]:
    return [path for path in paths if Path(path).exists()]
