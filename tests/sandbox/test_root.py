"""A sandbox that root starts: its programs are a user without powers to the host's kernel too."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pilotfish.sandbox import Limits, Sandbox, SandboxSpec, SandboxUnavailable
from pilotfish.sandbox.as_user import is_real_root, user_for
from pilotfish.sandbox.idmap import mount_namespace

from .host import alive, process_tree

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not is_real_root(), reason="only root can start one as root"),
]
OTHER = 12345  # a user of the host that nobody here is


def users_of_guests(tree: set[tuple[int, str]]) -> set[int]:
    """Whom the host takes the supervisors inside for."""
    guests = [pid for pid, start in tree if any("guest.py" in name for name in alive({(pid, start)}))]
    return {Path(f"/proc/{pid}").stat().st_uid for pid in guests}


async def test_programs_belong_to_a_user_that_nobody_is() -> None:
    before = process_tree(os.getpid())
    async with Sandbox.open(SandboxSpec(desktop=False)) as box, Sandbox.open(SandboxSpec(desktop=False)):
        await box.run(["sleep", "6001"])
        users = users_of_guests(process_tree(os.getpid()) - before)
        assert len(users) == 2
        assert 0 not in users


async def test_the_limit_on_processes_counts() -> None:
    fork = "import os, time\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(30)\n"
    fork += "except OSError as error: print(error.errno)"
    async with Sandbox.open(SandboxSpec(desktop=False, limits=Limits(processes=60))) as box:
        process = await box.run(["python3", "-c", fork])
        await asyncio.wait_for(process.wait(), 20)
        assert process.output == "11\n"  # EAGAIN
        await process.kill()
        assert (await box.shell.run("echo fine")).output == "fine\n"


@pytest.mark.parametrize("owner", [0, OTHER])
async def test_the_workspace_keeps_its_owner(tmp_path: Path, owner: int) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir(mode=0o700)
    (workspace / "mine").write_text("1")
    for path in (workspace, workspace / "mine"):
        os.chown(path, owner, owner)
    async with Sandbox.open(SandboxSpec(desktop=False, workspace=workspace)) as box:
        box.files.write_text("folder/outside", "2")
        done = await box.shell.run(
            "cat mine folder/outside; echo 3 > folder/inside; echo 4 >> folder/outside"
        )
        assert (done.output, done.exit_code) == ("12", 0)
        snapshot = await box.snapshot()
        await box.shell.run("rm -r mine folder")
        await box.restore(snapshot)
        assert (await box.shell.run("echo 5 >> folder/outside && cat folder/*")).output == "3\n24\n5\n"
        assert {path.lstat().st_uid for path in workspace.rglob("*")} == {owner}


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of root's that nobody else may read."""
    (tmp_path / "data").write_text("shown")
    (tmp_path / "data").chmod(0o600)
    tmp_path.chmod(0o700)
    return tmp_path


async def test_what_only_root_can_read_is_shown_when_asked_for(private: Path) -> None:
    async with Sandbox.open(SandboxSpec(desktop=False, read_only={private: "/opt/data"})) as box:
        assert (await box.shell.run("cat /opt/data/data")).output == "shown"
        assert (await box.shell.run("echo x > /opt/data/data")).exit_code == 1


def test_user_ids_have_no_name() -> None:
    assert user_for("00000000000f") == 2_000_000_015
    assert user_for("ffffffffffff") != user_for("fffffffffffe")


def test_what_cannot_be_shown_to_a_user_without_powers_is_named() -> None:
    with pytest.raises(
        SandboxUnavailable, match=r"\(/proc/sys: Invalid argument\): start it as a normal user"
    ):
        mount_namespace({"/usr": False, "/proc/sys": True}, user_for("0"))
    assert Path("/tmp/0").exists() is False  # nothing was mounted where others see it


async def test_nothing_of_the_setup_is_inherited() -> None:
    async with Sandbox.open(SandboxSpec(desktop=False)) as box:
        assert (await box.shell.run("ls /proc/self/fd | wc -l")).output == "4\n"  # 0 to 2 and the listing
        groups = await box.shell.run("id -G; grep -E '^Cap(Prm|Eff|Inh|Amb)' /proc/self/status | uniq -f1")
        assert groups.output.split("\n")[0] == "1000"
        assert groups.output.count("0000000000000000") == 1
