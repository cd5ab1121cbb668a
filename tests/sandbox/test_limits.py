"""Every limit, reached by a real program: that it holds, and the sentence that says so."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pilotfish.sandbox import Limits, Sandbox, SandboxSpec, ShellResult, cgroup
from pilotfish.sandbox.levels import Level

from .created_user import created_user, run_python

pytestmark = pytest.mark.timeout(120)

LIMITS = Limits(
    processes=120,
    open_files=200,
    file_bytes=64 << 20,
    memory_bytes=400 << 20,
    tmp_folder=32 << 20,
    home_folder=32 << 20,
    shm_folder=32 << 20,
)
TAKE = "import sys, time; b = bytearray(int(sys.argv[1]) << 20); time.sleep(9)"
SHARE = "import mmap, time; m = mmap.mmap(-1, 700 << 20); m.write(bytes(700 << 20)); time.sleep(9)"
# Six workers that all have the same 200 MiB.
WORKERS = """
import os, time
shared = b"x" * (200 << 20)
children = []
for _ in range(6):
    child = os.fork()
    if child == 0:
        time.sleep(1.5)
        os._exit(0)
    children.append(child)
print(sum(os.waitpid(child, 0)[1] for child in children), len(shared))
"""
FILES = "import os; fds = [os.open('/dev/null', 0) for _ in range(300)]"


@pytest.fixture(params=["group", "no group"])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the kernel counts memory in a control group, or the watchdog does."""
    if request.param == "no group":
        monkeypatch.setattr(cgroup, "working_place", lambda: None)
    elif cgroup.working_place() is None:
        pytest.skip("no control group can be made here")
    return bool(request.param == "group")


@pytest.fixture(params=[3, 2])
async def box(request: pytest.FixtureRequest, group: bool) -> AsyncIterator[Sandbox]:
    async with Sandbox.open(SandboxSpec(desktop=False, level=request.param, limits=LIMITS)) as opened:
        yield opened


def python(code: str, *words: str) -> str:
    return f"python3 -c '{code}' {' '.join(words)}"


async def said(box: Sandbox, command: str) -> ShellResult:
    """A command that must run into one limit and be told of it, after which the shell is as before."""
    await box.shell.run("kept=here")
    result = await box.shell.run(command, timeout_s=30)
    assert len(result.limits) == 1, result
    assert (await box.shell.run("echo $kept")).output.endswith("here\n")
    return result


async def test_memory_of_one_program(box: Sandbox, group: bool) -> None:
    result = await said(box, python(TAKE, "700"))
    assert result.exit_code == 137
    who = "the kernel ended 1 program" if group else r"a watchdog ended `python3` ("
    assert result.limits[0].startswith(f"the sandbox's memory limit of 400 MiB was reached and {who}")


async def test_memory_that_is_shared(box: Sandbox, group: bool) -> None:
    assert (await said(box, python(SHARE))).exit_code == 137


async def test_memory_of_many_small_programs(box: Sandbox, group: bool) -> None:
    """None is big by itself; those in one command go together, and an earlier job stays."""
    await box.shell.run("sleep 6400 & ")
    many = f"for i in $(seq 8); do {python(TAKE, '80')} & done; wait -n; kill $(jobs -p)"
    box.files.write_text("many", many)
    await said(box, "bash many 2>/dev/null; (exit 9)")
    assert (await box.shell.run("pgrep -fc '^sleep 6400'")).output == "1\n"


async def test_memory_that_workers_have_together_counts_once(box: Sandbox) -> None:
    box.files.write_text("workers.py", WORKERS)
    result = await box.shell.run("python3 workers.py")
    assert (result.output, result.limits) == (f"0 {200 << 20}\n", ())


async def test_what_is_spared(group: bool) -> None:
    """The display, the window manager and the shell's own processes stay."""
    async with Sandbox.open(SandboxSpec(width=320, height=240, limits=LIMITS)) as box:
        before = (await box.shell.run("pgrep -x 'Xvfb|openbox|bash' | sort")).output
        await said(box, python(TAKE, "700"))
        assert (await box.shell.run("pgrep -x 'Xvfb|openbox|bash' | sort")).output == before


async def test_processes(box: Sandbox) -> None:
    command = "for i in $(seq 200); do sleep 5 & done; wait"
    result = await box.shell.run(command, timeout_s=4)
    assert any("limit of 120 processes" in sentence for sentence in result.limits), result
    after = await box.shell.run("echo fine", timeout_s=20)
    assert after.output == "fine\n", after


async def test_open_files(box: Sandbox) -> None:
    result = await said(box, python(FILES.replace("'", '"')))
    assert result.limits == ["a program may have 200 files open at a time: close those it is done with"]


async def test_size_of_a_file(box: Sandbox) -> None:
    result = await said(box, "head -c 99M /dev/zero > big")
    assert result.limits == ["a file may have 64 MiB: write several"]
    assert (box.workspace / "big").stat().st_size == 64 << 20


async def test_folders_in_memory() -> None:
    async with Sandbox.open(SandboxSpec(desktop=False, limits=LIMITS)) as box:
        for folder, inner in (("/tmp", "/tmp"), ("/home", "/home/user"), ("/dev/shm", "/dev/shm")):
            result = await said(box, f"head -c 50M /dev/zero > {inner}/big")
            assert result.limits[0].startswith(f"{folder} (of 32 MiB) is full, as it is kept in memory")
            await box.shell.run(f"rm {inner}/big")
        assert (await box.shell.run("false")).limits == ()


def test_it_is_told_to_a_created_user_too() -> None:
    """Where no control group can be made by nature."""
    with created_user() as user:
        done = run_python(user, str(Path(__file__).with_name("limits_of_user.py")))
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
    assert "a watchdog of 400 MiB" in lines[0]
    assert "a watchdog ended `python3`" in lines[1]
    assert "a watchdog ended `python3`" in lines[2]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own of 400 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    try:
        (place / "work").mkdir()
        yield place / "work"
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("level", [3, 2])
@pytest.mark.parametrize("way", ["head -c 10M /dev/zero > f$i", "fallocate -l 10M f$i"])
async def test_what_is_left_of_the_disk(small_disk: Path, level: Level, way: str) -> None:
    spec = SandboxSpec(desktop=False, level=level, workspace=small_disk, limits=Limits(disk_free=1 << 30))
    async with Sandbox.open(spec) as box:
        result = await said(box, f"for i in $(seq 60); do {way}; sleep 0.1; done")
        left = os.statvfs(small_disk)
        assert result.limits[0].startswith("the disk of the workspace has only "), result
        assert result.limits[0].endswith(" was ended: remove files that are not needed")
        assert left.f_bavail * left.f_frsize > 0


async def test_growth_of_the_workspace(tmp_path: Path) -> None:
    spec = SandboxSpec(desktop=False, workspace=tmp_path, limits=Limits(disk_growth=200 << 20))
    async with Sandbox.open(spec) as box:
        # What others write to the same disk does not count.
        await asyncio.to_thread(
            subprocess.run, ["dd", "if=/dev/zero", f"of={tmp_path}-other", "bs=1M", "count=300"]
        )
        assert (await box.shell.run("sleep 1; false")).limits == ()
        result = await said(box, "for i in $(seq 40); do head -c 20M /dev/zero > f$i; sleep 0.05; done")
        assert result.limits[0].startswith(
            "the workspace may grow by 200 MiB and has, so the command was ended: "
        )
    assert sum(os.stat(entry).st_size for entry in os.scandir(tmp_path)) < 400 << 20  # noqa: PTH116
    os.unlink(f"{tmp_path}-other")  # noqa: PTH108


async def test_the_program_that_filled_the_disk_is_named(tmp_path: Path) -> None:
    spec = SandboxSpec(desktop=False, workspace=tmp_path, limits=Limits(disk_growth=200 << 20))
    async with Sandbox.open(spec) as box:
        dd = "dd if=/dev/zero of=all bs=1M count=2000 2>&1"
        result = await said(box, f"sleep 60 & {dd} | tail -n1 | (sleep 30; cat)")
        assert result.limits == [
            "the workspace may grow by 200 MiB and has, so `dd` was ended: remove files that are not needed"
        ]
        assert "Running" in (await box.shell.run("rm all; jobs")).output


async def test_it_works_while_this_process_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "working_place", lambda: None)
    async with Sandbox.open(SandboxSpec(desktop=False, limits=LIMITS)) as box:
        await box.run(["python3", "-c", TAKE, "390"])
        taker = await box.run(["python3", "-c", TAKE, "700"])
        deadline = asyncio.get_running_loop().time() + 3
        while asyncio.get_running_loop().time() < deadline:
            sum(range(10_000))  # nothing else gets a turn
        assert await taker.wait(0.5) == -9
        told = await box.limits_hit()
        assert [sentence.partition(" (")[0] for sentence in told] == [
            "the sandbox's memory limit of 400 MiB was reached and a watchdog ended `python3`"
        ]
        assert await box.limits_hit() == []
