"""A sandbox that cannot be opened: one sentence says why, soon, and nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec
from pilotfish.sandbox.hostdir import base_folder

from .host import alive, open_fds, process_tree

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """An empty folder whose name is short enough for a sandbox's sockets."""
    with tempfile.TemporaryDirectory(prefix="pf-", dir="/tmp") as folder:
        yield Path(folder)


@contextmanager
def open_files(limit: int, left: int) -> Iterator[None]:
    """This process may have so many files open, and has all but `left` of them."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        held += [os.open("/dev/null", os.O_RDONLY) for _ in range(limit - open_fds() + 1 - left)]
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def opened(spec: SandboxSpec) -> None:
    async with Sandbox.open(spec):
        pass


async def test_too_low_a_limit_on_open_files_is_told() -> None:
    with open_files(300, 200), pytest.raises(SandboxError, match=r"300 files open here, 640 are .*ulimit -n"):
        await opened(SandboxSpec(desktop=False))


@pytest.mark.parametrize("left", [5, 8, 12, 16, 20])
async def test_no_descriptors_left_is_told_and_leaves_nothing(
    left: int, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    await opened(SandboxSpec(desktop=False))
    before, processes = open_fds(), process_tree(os.getpid())
    with open_files(700, left), pytest.raises(SandboxError, match=r"more files can be opened.*ulimit -n"):
        await opened(SandboxSpec(width=320, height=240))
    assert open_fds() == before
    assert alive(process_tree(os.getpid()) - processes) == []
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        assert [path.name for path in base_folder().iterdir() if path.is_dir()] == [box.id]
        assert (await box.shell.run("echo on")).output == "on\n"


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def _started(name: str, before: set[tuple[int, str]]) -> int:
    """The first of our processes that has this name."""
    while True:
        for pid, _ in process_tree(os.getpid()) - before:
            if _name(pid) == name:
                return pid
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", ["Xvfb", "openbox"])
async def test_a_sandbox_killed_while_its_desktop_starts_is_told_at_once(name: str) -> None:
    said = "it was always ready first"
    for _ in range(10):
        before = process_tree(os.getpid())
        opening = asyncio.ensure_future(Sandbox.start(SandboxSpec(width=320, height=240)))
        runner = _parent(await _started(name, before))
        os.kill(_parent(runner), signal.SIGKILL)  # PID 1
        try:
            async with asyncio.timeout(10):
                box = await opening
        except SandboxError as error:
            said = str(error)
            break
        await box.close()  # it was ready before it was killed
    assert said == "the sandbox has ended, open a new one."


@pytest.mark.parametrize("left", ["", "sleep 600 &"])
async def test_a_sandbox_killed_before_it_is_ready_is_told(
    left: str, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = short_folder / "bwrap"
    killed.write_text(f"#!/bin/sh\n{left}\nkill -KILL $$\n")  # `left` holds on to all that it was given
    killed.chmod(0o755)
    monkeypatch.setenv("PATH", f"{short_folder}:{os.environ['PATH']}")
    before = process_tree(os.getpid())
    with pytest.raises(
        SandboxError, match=r"^the sandbox was killed by signal 9 while it started: try again\.$"
    ):
        await opened(SandboxSpec(desktop=False))
    assert alive(process_tree(os.getpid()) - before) == []
