"""Opening and closing: nothing stays behind, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec
from pilotfish.sandbox.hostdir import X_SOCKETS, HostFolder, base_folder
from pilotfish.sandbox.janitor import Janitor

from .host import alive, open_fds, process_tree

pytestmark = pytest.mark.timeout(90)


def traces(workspace: Path, display: str) -> list[str]:
    """What is left on the host of a sandbox with a private workspace."""
    number = display.removeprefix(":")
    candidates = [workspace.parent]
    if number:
        candidates += [X_SOCKETS / f"X{number}", Path(f"/tmp/.X{number}-lock")]
    return [str(path) for path in candidates if path.exists() or path.is_symlink()]


Owner = tuple[asyncio.subprocess.Process, Path, str, set[tuple[int, str]]]


@contextlib.asynccontextmanager
async def owner(shape: str) -> AsyncIterator[Owner]:
    """A process with an open sandbox: the process, its workspace, its display, everything it started."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).with_name("owner.py")), shape, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        word, workspace, *display = (await process.stdout.readline()).decode().split()
        assert word == "open"
        yield process, Path(workspace), "".join(display), process_tree(process.pid)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("shape", ["plain", "desk", "browser"])
async def test_killing_the_owner_ends_everything(shape: str) -> None:
    async with owner(shape) as (process, workspace, display, tree):
        assert len(tree) >= {"plain": 8, "desk": 12, "browser": 20}[shape]
        assert traces(workspace, display)
        process.kill()
        await process.wait()
        deadline = time.monotonic() + 20
        while (left := alive(tree)) or (left := traces(workspace, display)):
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("shape", "number"),
    [("browser", signal.SIGTERM), ("browser-term", signal.SIGTERM), ("desk", signal.SIGINT)],
)
async def test_signals_to_the_owner_end_everything(shape: str, number: int) -> None:
    async with owner(shape) as (process, workspace, display, tree):
        process.send_signal(number)
        await asyncio.wait_for(process.wait(), 20)
        deadline = time.monotonic() + 20
        while (left := alive(tree)) or (left := traces(workspace, display)):
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.02)


async def test_closing_leaves_nothing() -> None:
    async with Sandbox.open(SandboxSpec(width=320, height=240, desktop=True)):
        pass  # what a first sandbox loads for good
    fds, before = open_fds(), process_tree(os.getpid())
    async with Sandbox.open(SandboxSpec(width=320, height=240)) as box:
        await box.shell.run("setsid nohup sleep 8001 >/dev/null 2>&1 & sleep 8002 &")
        await box.run(["sleep", "8003"])
        await box.shell.run("until [ $(pgrep -fc '^sleep 800') = 3 ]; do sleep 0.01; done", timeout_s=10)
        tree = process_tree(os.getpid()) - before
        assert len([name for name in alive(tree) if "sleep 800" in name]) == 3
        workspace, display = box.workspace, box.display.name
    assert alive(tree) == []
    assert traces(workspace, display) == []
    await box.close()
    assert open_fds() == fds


async def test_an_error_in_the_body_closes_too() -> None:
    trees, workspaces = [], []
    others = process_tree(os.getpid())

    async def fail() -> None:
        async with Sandbox.open(SandboxSpec(desktop=False)) as box:
            trees.append(process_tree(os.getpid()) - others)
            workspaces.append(box.workspace)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert trees[0]
    assert alive(trees[0]) == []
    assert traces(workspaces[0], "") == []


def folders() -> set[Path]:
    return {path for path in base_folder().iterdir() if path.is_dir()}


@pytest.fixture
def own_base(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of sandboxes that no other process on this machine puts any into."""
    with tempfile.TemporaryDirectory(prefix="pf-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.mark.usefixtures("own_base")
@pytest.mark.parametrize("after_s", [0, 0.005, 0.02, 0.05, 0.1])
async def test_cancelling_the_opening_leaves_nothing(after_s: float) -> None:
    before, known = process_tree(os.getpid()), folders()
    opening = asyncio.ensure_future(Sandbox.start(SandboxSpec(width=320, height=240)))
    await asyncio.sleep(after_s)
    opening.cancel()
    try:
        box = await opening
    except asyncio.CancelledError:
        pass
    else:
        await box.close()
    assert alive(process_tree(os.getpid()) - before) == []
    assert folders() - known == set()


async def test_a_given_workspace_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("1")
    async with Sandbox.open(SandboxSpec(desktop=False, workspace=tmp_path)) as box:
        assert box.workspace == tmp_path
        assert (await box.shell.run("cat mine; echo 2 > theirs")).output == "1"
        assert [(entry.name, entry.size) for entry in box.files.list()] == [("mine", 1), ("theirs", 2)]
    assert (tmp_path / "mine").read_text() == "1"
    assert (tmp_path / "theirs").stat().st_uid == os.getuid()


async def test_read_only_folders_are_shown_and_protected(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("hello")
    async with Sandbox.open(SandboxSpec(desktop=False, read_only={tmp_path: "/opt/pages"})) as box:
        assert (await box.shell.run("cat /opt/pages/page.html")).output == "hello"
        assert "Read-only" in (await box.shell.run("echo x > /opt/pages/page.html")).output
    assert (tmp_path / "page.html").read_text() == "hello"


async def test_use_after_the_end() -> None:
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        assert box.is_open
        process = await box.run(["sleep", "60"])
        with pytest.raises(SandboxError, match="desktop=True"):
            _ = box.display
        with pytest.raises(SandboxError, match="desktop=True"):
            _ = box.browser
    assert not box.is_open
    for use in (box.shell.run("true"), box.run(["true"]), process.wait()):
        with pytest.raises(SandboxError, match="the sandbox has ended, open a new one"):
            await use
    await process.kill()
    with pytest.raises(SandboxError, match="closed"):
        box.files.read_text("x")


async def test_the_guest_dying_ends_the_sandbox_with_a_sentence() -> None:
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        waiting = asyncio.ensure_future(box.shell.run("sleep 100"))
        await asyncio.sleep(0.1)
        assert box._supervisor.inner_pid is not None
        os.kill(box._supervisor.inner_pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="the sandbox has ended, open a new one"):
            await asyncio.wait_for(waiting, 10)
        assert not box.is_open


async def test_closing_in_the_middle_of_a_command() -> None:
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        running = asyncio.ensure_future(box.shell.run("sleep 100"))
        await asyncio.sleep(0.05)
    with pytest.raises(SandboxError, match="the sandbox has ended"):
        await running


def test_folders_of_dead_owners_are_swept_and_live_ones_are_not() -> None:
    live = HostFolder()
    number = live.claim_display()
    dead = base_folder() / "0123456789ab"
    (dead / "x11").mkdir(parents=True)
    (dead / "locked").mkdir(mode=0)
    X_SOCKETS.joinpath("X4998").symlink_to(dead / "x11" / "X4998")
    Path("/tmp/.X4998-lock").write_text("4194304\n")
    other = HostFolder()
    try:
        assert not dead.exists()
        assert not X_SOCKETS.joinpath("X4998").is_symlink()
        assert not Path("/tmp/.X4998-lock").exists()
        assert live.path.exists()
        assert X_SOCKETS.joinpath(f"X{number}").is_symlink()
        assert other.claim_display() != number
    finally:
        live.remove()
        other.remove()
    assert not X_SOCKETS.joinpath(f"X{number}").is_symlink()


async def test_closing_when_the_browser_driver_has_died() -> None:
    before = process_tree(os.getpid())
    async with Sandbox.open(SandboxSpec(width=320, height=240)) as box:
        await box.browser.open("data:text/html,hello")
        tree = process_tree(os.getpid()) - before
        drivers = [pid for pid, start in tree if any("driver" in name for name in alive({(pid, start)}))]
        assert drivers
        for pid in drivers:
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(SandboxError):  # it may be found out in the middle
            await box.browser.open("data:text/html,again")
        again = await box.browser.open("data:text/html,again")
        assert await again.evaluate("document.body.innerText") == "again"
    assert alive(tree) == []
    assert traces(box.workspace, box.display.name) == []


@pytest.mark.parametrize("after_s", [0.02, 0.15, 0.3])
async def test_closing_while_a_page_opens(after_s: float) -> None:
    before = process_tree(os.getpid())
    async with Sandbox.open(SandboxSpec(width=320, height=240)) as box:
        opening = asyncio.ensure_future(box.browser.open("data:text/html,hello"))
        await asyncio.sleep(after_s)
    with contextlib.suppress(SandboxError):  # or it was quick enough
        await opening
    assert alive(process_tree(os.getpid()) - before) == []


async def test_ten_sandboxes_in_a_row_are_flat() -> None:
    counts = []
    for _ in range(10):
        async with Sandbox.open(SandboxSpec(desktop=False)) as box:
            assert (await box.shell.run("echo $$")).exit_code == 0
        counts.append((open_fds(), len(process_tree(os.getpid()))))
    assert len(set(counts[1:])) == 1


def folders_of(parent: Path) -> set[Path]:
    return set(parent.iterdir())


async def test_a_monitor_that_outlives_its_owner_is_ended(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    janitor = await Janitor.hire(folder, None)
    monitor = await asyncio.create_subprocess_exec("sleep", "100", start_new_session=True)
    await janitor.watch(monitor.pid)
    assert monitor.returncode is None
    assert janitor._process.stdin is not None
    janitor._process.stdin.close()  # what the kernel does when the owner is killed
    assert await asyncio.wait_for(monitor.wait(), 10) == -9
    await asyncio.wait_for(janitor._process.wait(), 10)
    assert folder not in folders_of(tmp_path)


async def test_a_dismissed_janitor_leaves_everything(tmp_path: Path) -> None:
    janitor = await Janitor.hire(tmp_path, None)
    monitor = await asyncio.create_subprocess_exec("sleep", "100", start_new_session=True)
    await janitor.watch(monitor.pid)
    await janitor.dismiss()
    assert monitor.returncode is None
    assert tmp_path in folders_of(tmp_path.parent)
    monitor.kill()
    await monitor.wait()
