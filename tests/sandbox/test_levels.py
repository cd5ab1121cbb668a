"""Below level 3: what still works at level 2, what is said where there is no level 3, and level 0."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec, SandboxUnavailable, landlock
from pilotfish.sandbox.levels import LOST_AT_2, check_level_2, meaning, without_level_3

from .created_user import created_user, run_python
from .host import alive, process_tree

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]

SPEC = SandboxSpec(desktop=False, level=2)

# Where nobody can make a user namespace: inside one that forbids more.
WITHOUT_NAMESPACES = ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--disable-userns"]
LEVELS_THERE = """
import asyncio
from pilotfish.sandbox import Sandbox, SandboxSpec, SandboxUnavailable

async def main():
    try:
        await Sandbox.start(SandboxSpec(desktop=False))
    except SandboxUnavailable as error:
        print(error)
    async with Sandbox.open(SandboxSpec(desktop=False, level=2)) as box:
        print((await box.shell.run("echo works; cat /etc/shadow")).output)

asyncio.run(main())
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def box() -> AsyncIterator[Sandbox]:
    async with Sandbox.open(SPEC) as opened:
        yield opened


async def test_work_gets_done_at_level_2(box: Sandbox) -> None:
    """Files from both sides, pipes, a repository, a compiler, Python with a pool of threads."""
    box.files.write_text("src/main.c", '#include <stdio.h>\nint main() { puts("built"); }\n')
    done = await box.shell.run(
        "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm first && "
        "git log --format=%s | tr a-z A-Z; gcc src/main.c -o main && ./main"
    )
    assert done.output == "FIRST\nbuilt\n"
    pool = "from concurrent.futures import ThreadPoolExecutor as P; print(sum(P(4).map(abs, range(100))))"
    assert (await box.shell.run(f"python3 -c '{pool}'")).output == "4950\n"
    assert "main" in {entry.name for entry in box.files.list()}


async def test_home_and_temporary_files_are_the_sandboxes_own(box: Sandbox) -> None:
    done = await box.shell.run("echo 1 > ~/a; f=$(mktemp); echo $f; pwd; echo ~; cat ~/a; id -u")
    temporary, workspace, home, content, user = done.output.splitlines()
    assert temporary.startswith(str(box.places.tmp))
    assert (workspace, home, content) == (str(box.places.workspace), str(box.places.home), "1")
    assert user != "0"


async def test_tools_name_files_as_programs_do(box: Sandbox) -> None:
    box.files.write_text(f"{box.places.workspace}/named", "1")
    assert (await box.shell.run(f"cat {box.places.workspace}/named")).output == "1"
    with pytest.raises(SandboxError, match=f"give a path inside {box.places.workspace}"):
        box.files.read_text("/etc/passwd")


async def sleepers(pattern: str, count: int) -> None:
    """Wait until so many of our descendants have this command line."""
    deadline = time.monotonic() + 10
    while sum(bool(re.search(pattern, name)) for name in alive(process_tree(os.getpid()))) < count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_programs_end_with_the_sandbox() -> None:
    before = process_tree(os.getpid())
    async with Sandbox.open(SPEC) as box:
        await box.shell.run("(setsid nohup sleep 6601 >/dev/null 2>&1 &); sleep 6602 &")
        await box.run(["sleep", "6603"])
        await sleepers("sleep 660[123]", 3)
        tree = process_tree(os.getpid()) - before
    assert alive(tree) == []


async def test_what_level_2_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="sandbox level 2 has no display"):
        SandboxSpec(level=2)
    with pytest.raises(SandboxError, match=r"level 2 cannot show .* at another path"):
        SandboxSpec(level=2, desktop=False, read_only={tmp_path: "/opt/x"})
    with pytest.raises(SandboxError, match="sandbox level is 1, choose 3, 2 or 0"):
        SandboxSpec(level=1, desktop=False)  # type: ignore[arg-type]


async def test_what_a_run_is_shown_with(box: Sandbox) -> None:
    assert box.protection == meaning(2)
    assert LOST_AT_2 in box.protection
    assert meaning(0).startswith("NOT SANDBOXED")


async def test_an_old_kernel_has_no_level_2(monkeypatch: pytest.MonkeyPatch) -> None:
    check_level_2()
    monkeypatch.setattr(landlock, "NEEDED_VERSION", 99)
    with pytest.raises(
        SandboxUnavailable, match=r"needs version 99 of Landlock and this kernel has \d+: start"
    ):
        await Sandbox.start(SPEC)
    trouble = SandboxUnavailable("namespaces are off: switch them on")
    assert without_level_3(trouble) is trouble


async def test_level_0_is_this_machine_itself(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("of the host")
    async with Sandbox.open(SandboxSpec(desktop=False, level=0)) as box:
        assert (await box.shell.run(f"cat {tmp_path}/mine; sleep 6604 &")).output.startswith("of the host")
        await sleepers("sleep 6604", 1)
        tree = process_tree(os.getpid())
        assert box.protection.startswith("NOT SANDBOXED")
    assert not any("sleep 6604" in name for name in alive(tree))


async def test_without_user_namespaces_the_message_says_cause_mend_and_loss() -> None:
    """Nothing falls back by itself; level 2 works there when it is asked for."""
    if os.geteuid() == 0:
        with created_user() as name:
            done = await asyncio.to_thread(run_python, name, "-c", LEVELS_THERE, before=WITHOUT_NAMESPACES)
    else:
        command = [*WITHOUT_NAMESPACES, sys.executable, "-c", LEVELS_THERE]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    message, works, *refused = done.stdout.splitlines()
    assert "no more user namespaces can be created here" in message, done.stderr
    assert "sysctl -w user.max_user_namespaces" in message
    assert LOST_AT_2 in message
    assert works == "works"
    assert all("Permission denied" in line for line in refused if line)


async def test_modes_and_times_by_name_as_a_user() -> None:
    """There Landlock has no say, and a clerk makes the changes that are the sandbox's own."""
    script = Path(__file__).with_name("changing_files.py")
    if os.geteuid() == 0:
        with created_user() as name:
            done = await asyncio.to_thread(run_python, name, str(script))
    else:
        command = [sys.executable, str(script)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "link 700",
        "relative 740",
        "time 2001-02-03",
        "of the link 2002-02-03",
        "kept 2001-02-03",
        "copied 740",
        "unpacked 740",
        "installed 711",
        "below a folder 600",
        "1",
        "Operation not permitted",
    ], done.stderr
