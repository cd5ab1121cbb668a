"""Snapshots: the workspace comes back as it was, and hostile content stays where it is."""

from __future__ import annotations

import pytest

from pilotfish.sandbox import Sandbox, SandboxError

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

LIST = (
    "cd /workspace; find . -mindepth 1 -printf '%p %M %T@ %l\\n' | sort; "
    "find . -type f -exec sha256sum {} + | sort"
)


async def test_everything_comes_back(box: Sandbox) -> None:
    await box.shell.run(
        "mkdir -p deep/er empty; echo one > deep/er/file; printf '\\0\\1' > binary; chmod 750 binary; "
        "ln -s deep/er link; ln -s /etc/passwd out; mkdir shut; echo x > shut/x; chmod 500 shut; "
        "touch $'odd\\nname \\xff'; git init -q .; dd if=/dev/urandom of=big bs=1M count=3 2>/dev/null"
    )
    before = (await box.shell.run(LIST)).output
    first = await box.snapshot()
    await box.shell.run(
        "chmod 700 shut; rm -rf deep .git binary shut; echo two > new; mkdir link2; rm link; echo f > link"
    )
    changed = (await box.shell.run(LIST)).output
    second = await box.snapshot()
    await box.restore(first)
    assert (await box.shell.run(LIST)).output == before
    await box.restore(second)
    assert (await box.shell.run(LIST)).output == changed
    await box.restore(first)
    assert (await box.shell.run(LIST)).output == before
    assert box.files.read_text("deep/er/file") == "one\n"


async def test_restoring_while_programs_write(box: Sandbox) -> None:
    await box.shell.run("rm -rf /workspace/*; mkdir d; for i in $(seq 50); do echo old > d/$i; done")
    snapshot = await box.snapshot()
    script = "while :; do for i in $(seq 50); do mkdir -p d; echo new > d/$i; echo new > d/x$i; done; done"
    writer = await box.run(["bash", "-c", script], capture=False)
    try:
        for _ in range(10):
            await box.restore(snapshot)
    finally:
        await writer.kill()
    await box.restore(snapshot)
    assert (await box.shell.run("cat d/* | sort | uniq -c")).output.split() == ["50", "old"]


async def test_unknown_snapshot_changes_nothing(box: Sandbox) -> None:
    box.files.write_text("kept", "1")
    for name in ("nothing", "../x", ""):
        with pytest.raises(SandboxError, match="there is no snapshot"):
            await box.restore(name)
    assert box.files.read_text("kept") == "1"
