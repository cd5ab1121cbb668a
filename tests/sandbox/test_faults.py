"""Parts of a sandbox are killed and frozen: each is told in one sentence, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from pilotfish.sandbox import Limits, Sandbox, SandboxError, SandboxSpec
from pilotfish.sandbox.hostdir import base_folder

from .host import alive, process_tree, small_disk
from .test_closing import groups_of
from .test_lifecycle import traces

pytestmark = pytest.mark.timeout(120)


async def told(box: Sandbox) -> str:
    """The sentence about what is wrong."""
    deadline = time.monotonic() + 20
    while box.trouble is None:
        assert time.monotonic() < deadline, "nothing was told"
        await asyncio.sleep(0.02)
    return box.trouble


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            "pkill -KILL Xvfb",
            "the display server (Xvfb) of the sandbox was killed by signal 9, open a new one.",
        ),
        (
            "pkill -STOP Xvfb",
            "the display server (Xvfb) of the sandbox was frozen by a signal, open a new one.",
        ),
        (
            "pkill -KILL openbox",
            "the window manager (openbox) of the sandbox was killed by signal 9, open a new one.",
        ),
        (
            "pkill -STOP openbox",
            "the window manager (openbox) of the sandbox was frozen by a signal, open a new one.",
        ),
        (
            "kill -STOP $(pgrep -f -- --remote-debugging-pipe | head -1)",
            "the browser (Chromium) of the sandbox was frozen by a signal, open a new one.",
        ),
    ],
)
async def test_a_part_of_the_desktop_that_fails(command: str, sentence: str) -> None:
    before = process_tree(os.getpid())
    async with Sandbox.open(SandboxSpec(width=320, height=240)) as box:
        if "remote" in command:
            await box.browser.open("data:text/html,hello")
        tree = process_tree(os.getpid()) - before
        assert box.trouble is None
        assert (await box.shell.run(command)).exit_code == 0
        assert await told(box) == sentence
    assert alive(tree) == []
    assert groups_of(box) == []
    assert traces(box.workspace, box.display.name) == []


async def test_whoever_waits_for_a_frozen_display_is_let_go() -> None:
    async with Sandbox.open(SandboxSpec(width=320, height=240)) as box:
        await box.shell.run("pkill -STOP Xvfb")
        waiting = await box.run(["xdpyinfo"])
        assert await waiting.wait(20) != 0


async def test_a_browser_that_is_killed_is_told_and_can_be_had_again() -> None:
    async with Sandbox.open(SandboxSpec(width=320, height=240)) as box:
        page = await box.browser.open("data:text/html,hello")
        await box.shell.run("pkill -KILL -f -- --remote-debugging-pipe")
        deadline = time.monotonic() + 20
        while box.browser.is_running:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        with pytest.raises(SandboxError):
            await page.evaluate("1")
        assert box.trouble is None
        await box.browser.open("data:text/html,again")


async def test_a_program_with_the_arguments_of_a_browser_is_none() -> None:
    async with Sandbox.open(SandboxSpec(width=320, height=240)) as box:
        await box.browser.open("data:text/html,hello")
        await box.run(["sh", "-c", "kill -STOP $$", "chromium", "--remote-debugging-pipe"])
        await asyncio.sleep(1.5)
        assert box.trouble is None


async def test_a_runner_that_a_program_freezes_goes_on() -> None:
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        done = await box.run(["sh", "-c", "kill -STOP $PPID"])
        assert await done.wait(20) == 0
        assert box.trouble is None


async def test_a_program_that_stops_itself_is_no_trouble() -> None:
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        await box.run(["sh", "-c", "kill -STOP $$"])
        await box.shell.run("sleep 60 & kill -STOP $!")
        await asyncio.sleep(1.5)
        assert box.trouble is None
        assert (await box.shell.run("echo on")).output == "on\n"


async def test_a_full_disk_is_a_sentence_of_whoever_writes() -> None:
    limits = Limits(tmp_folder=1 << 20, home_folder=1 << 20, shm_folder=1 << 20)
    async with Sandbox.open(SandboxSpec(desktop=False, limits=limits)) as box:
        for folder in ("/tmp", "/home/user", "/dev/shm"):
            result = await box.shell.run(
                f"head -c 9000000 /dev/zero > {folder}/all; echo on; rm {folder}/all"
            )
            assert "No space left on device" in result.output
            assert result.output.endswith("on\n")
        assert box.trouble is None


async def test_a_workspace_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path) as folder:
        async with Sandbox.open(SandboxSpec(desktop=False, workspace=folder)) as box:
            filled = await box.shell.run("cat /dev/zero > all")
            # On a busy machine the watchdog sees it before the program does.
            assert "No space left on device" in filled.output or "`cat` was ended" in filled.limits[0]
            with pytest.raises(SandboxError, match=r"'more' cannot be used \(No space left on device\)"):
                box.files.write_bytes("more", bytes(1 << 20))
            assert [entry.name for entry in box.files.list()] == ["all"], "no part of a file is left"
            assert (await box.shell.run("rm all; echo on")).output == "on\n"


async def test_no_room_for_the_sandbox_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="pf-", dir="/tmp") as where, small_disk(Path(where)) as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        async with Sandbox.open(SandboxSpec(desktop=False)):
            pass
        (folder / "all").write_bytes(bytes((1 << 20) - 4096 * 4))
        with contextlib.suppress(OSError), (folder / "rest").open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        before = process_tree(os.getpid())
        with pytest.raises(SandboxError, match=r"(?s)No space left on device.*free some space"):
            async with Sandbox.open(SandboxSpec(desktop=False)):
                pass
        assert process_tree(os.getpid()) - before == set()
        (folder / "all").unlink()
        async with Sandbox.open(SandboxSpec(desktop=False)) as box:
            assert (await box.shell.run("echo on")).output == "on\n"
        assert [path for path in base_folder().iterdir() if path.is_dir()] == []


def started(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """A program of the user's with this name."""
    shutil.copy("/bin/sleep", folder / name)
    return subprocess.Popen([str(folder / name), "600"], start_new_session=True)


async def test_programs_of_the_user_with_the_same_names_are_left_alone(tmp_path: Path) -> None:
    own = [started(tmp_path, name) for name in ("chromium", "Xvfb", "openbox", "bash", "node", "guest.py")]
    try:
        async with Sandbox.open(SandboxSpec(width=320, height=240)) as box:
            await box.browser.open("data:text/html,hello")
            await box.shell.run("pkill -KILL -f .")
        async with Sandbox.open(SandboxSpec(desktop=False, level=2)) as box:
            await box.shell.run("pkill -KILL -f sleep; pkill -KILL chromium", timeout_s=10)
        assert [process.poll() for process in own] == [None] * len(own)
    finally:
        for process in own:
            process.kill()
            process.wait()
