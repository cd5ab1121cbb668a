"""The control group of a sandbox: what it bounds, that it goes away, and what is said where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from pilotfish.sandbox import Limits, Sandbox, SandboxSpec, cgroup
from pilotfish.sandbox.hostdir import base_folder, remove_groups_of
from pilotfish.sandbox.levels import Level

pytestmark = pytest.mark.timeout(60)

needs_group = pytest.mark.skipif(cgroup.working_place() is None, reason="no control group can be made here")

TAKE = "b = bytearray(int(__import__('sys').argv[1]) << 20); print('taken', flush=True); input()"


@needs_group
@pytest.mark.parametrize("level", [3, 2])
async def test_memory_counts_for_all_programs_together(level: Level) -> None:
    spec = SandboxSpec(desktop=False, level=level, limits=Limits(memory_bytes=300 << 20))
    async with Sandbox.open(spec) as box:
        assert "of 300 MiB for the whole sandbox" in box.bounds
        read, write = os.pipe()
        first = await box.run(["python3", "-c", TAKE, "150"], stdin=read)
        while first.output != "taken\n":
            await box.shell.run("sleep 0.01")
        second = await box.run(["python3", "-c", TAKE, "250"])
        assert await second.wait(20) == -9 or await first.wait(20) == -9
        os.close(write)
        os.close(read)
        assert (await box.shell.run("echo fine")).output == "fine\n"


@needs_group
async def test_the_group_goes_with_the_sandbox() -> None:
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        assert box._group is not None
        folders = box._group.folders
        assert all(folder.exists() for folder in folders)
        await box.shell.run("setsid nohup sleep 6701 >/dev/null 2>&1 &")
    assert not any(folder.exists() for folder in folders)


@needs_group
@pytest.mark.parametrize("after_s", [0.01, 0.02, 0.03, 0.04, 0.06, 0.08])
async def test_nobody_is_left_in_the_group_of_a_cancelled_opening(
    monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    """A group with a process in it cannot be removed, so this finds any that got away."""
    made: list[cgroup.ControlGroup] = []

    def make(name: str, processes: int, memory_bytes: int) -> cgroup.ControlGroup | None:
        group = cgroup.make(name, processes, memory_bytes)
        assert group is not None
        made.append(group)
        return group

    monkeypatch.setattr("pilotfish.sandbox.box.make_group", make)
    opening = asyncio.ensure_future(Sandbox.start(SandboxSpec(desktop=False)))
    await asyncio.sleep(after_s)
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await opening).close()
    assert not [folder for group in made for folder in group.folders if folder.exists()]


@needs_group
def test_a_left_group_is_removed_with_its_folder(tmp_path: Path) -> None:
    group = cgroup.make(f"pilotfish-test-{os.getpid()}", 10, 64 << 20)
    assert group is not None
    (tmp_path / "groups").write_text("".join(f"{folder}\n" for folder in group.folders))
    remove_groups_of(tmp_path)
    assert not any(folder.exists() for folder in group.folders)


async def test_without_a_group_a_watchdog_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "working_place", lambda: None)
    spec = SandboxSpec(desktop=False, limits=Limits(memory_bytes=1 << 30, data_bytes=256 << 20))
    async with Sandbox.open(spec) as box:
        assert box.bounds.startswith("a watchdog of 1024 MiB for the whole sandbox, as no control group")
        taken = await box.run(["python3", "-c", TAKE, "300"])
        assert await taken.wait(20) == 1
        assert "MemoryError" in taken.output


def test_where_version_2_is_delegated(tmp_path: Path) -> None:
    """The nearest group with both controllers that we may write to, not above the mount."""
    inner = tmp_path / "user.slice" / "app.slice" / "run.scope"
    inner.mkdir(parents=True)
    for folder, controllers in ((tmp_path, "cpu memory pids"), (inner.parent, "memory pids"), (inner, "")):
        (folder / "cgroup.subtree_control").write_text(controllers)
    own = cgroup._own_groups("0::/user.slice/app.slice/run.scope\n")
    mounts = cgroup._mounts(f"41 31 0:38 / {tmp_path} rw - cgroup2 cgroup2 rw,nsdelegate\n")
    assert list(cgroup._places(own, mounts)) == [(2, (inner.parent,)), (2, (tmp_path,))]


def test_where_version_1_is(tmp_path: Path) -> None:
    for name in ("memory/a", "pids"):
        (tmp_path / name).mkdir(parents=True)
    own = cgroup._own_groups("8:pids:/\n4:memory:/a\n0::/\n")
    mounts = cgroup._mounts(
        f"35 31 0:32 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
        f"39 31 0:36 / {tmp_path}/pids rw - cgroup cgroup rw,pids\n"
    )
    assert list(cgroup._places(own, mounts)) == [(1, (tmp_path / "memory/a", tmp_path / "pids"))]


@needs_group
def test_the_trial_group_of_a_process_that_was_killed_goes_with_the_next_trial() -> None:
    place = cgroup.working_place()
    assert place is not None
    left = [parent / "pilotfish-trial-4194305" for parent in place[1]]  # above any process id there is
    for folder in left:
        folder.mkdir()
    assert cgroup.working_place.__wrapped__() == place
    assert not any(folder.exists() for folder in left)


@needs_group
async def test_a_group_is_noted_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed between the two must not leave a group that nobody knows of."""
    noted: list[str] = []

    def make(name: str, processes: int, memory_bytes: int) -> cgroup.ControlGroup | None:
        notes = base_folder() / name.removeprefix("pilotfish-") / "groups"
        noted.extend(notes.read_text().splitlines())
        assert not any(Path(line).exists() for line in noted)
        return cgroup.make(name, processes, memory_bytes)

    monkeypatch.setattr("pilotfish.sandbox.box.make_group", make)
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        assert noted
        assert box._group is not None
        assert noted == [str(folder) for folder in box._group.folders]
