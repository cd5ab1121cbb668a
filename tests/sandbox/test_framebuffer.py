"""The display's picture without an X client: the same pixels, and an error for whatever else lies there."""

from __future__ import annotations

import time
from pathlib import Path

import mss
import numpy as np
import pytest

from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec
from pilotfish.sandbox.framebuffer import INNER_SCREEN

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

FILE = f"{INNER_SCREEN}/Xvfb_screen0"


async def test_every_pixel_is_what_an_x_client_gets(desk: Sandbox) -> None:
    width, height = desk.display.width, desk.display.height
    # Something to see, and the pointer over it, which belongs into no picture.
    script = "seq 1 200; printf '\\033[?25l'; touch shown; sleep 60"
    program = await desk.run(["xterm", "-bg", "navy", "-geometry", "60x20+20+20", "-e", "sh", "-c", script])
    await desk.shell.run("until [ -e shown ]; do sleep 0.02; done; sleep 0.5", timeout_s=20)
    with mss.MSS(display=desk.display.name) as camera:
        shot = np.frombuffer(camera.grab(camera.monitors[0]).raw, np.uint8).reshape(height, width, 4)
    picture = desk.framebuffer.grab(0, 0, width, height)
    assert len(np.unique(picture.reshape(-1, 4), axis=0)) > 10
    assert (picture == shot).all()
    assert (desk.framebuffer.grab(30, 40, 100, 50) == shot[40:90, 30:130]).all()
    assert (desk.framebuffer.grab(width - 1, height - 1, 1, 1) == shot[-1:, -1:]).all()
    await program.kill()


@pytest.mark.parametrize("region", [(-1, 0, 5, 5), (0, 0, 673, 1), (0, 440, 1, 9), (5, 5, 0, 1)])
async def test_a_region_that_is_not_on_the_display_is_told(
    desk: Sandbox, region: tuple[int, int, int, int]
) -> None:
    with pytest.raises(SandboxError, match="is not on the display, which is 672x448"):
        desk.framebuffer.grab(*region)


async def test_a_box_without_a_display_has_no_picture(box: Sandbox) -> None:
    with pytest.raises(SandboxError, match="desktop=True"):
        _ = box.framebuffer
    assert box.camera(":0") is None


@pytest.mark.parametrize("done", ["truncate -s 5000", "rm -f", "ln -sf /etc/passwd", "rm -f $FILE; mkfifo"])
async def test_what_a_program_puts_there_is_one_sentence_and_waits_for_nobody(done: str) -> None:
    async with Sandbox.open(SandboxSpec(width=64, height=64)) as box:
        await box.shell.run(f"FILE={FILE}; {done} {FILE}")
        began = time.monotonic()
        with pytest.raises(SandboxError, match="a program inside has changed it") as caught:
            box.framebuffer.grab(0, 0, 64, 64)
        assert time.monotonic() - began < 10
        assert "\n" not in str(caught.value)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_dead_x_server_gives_no_old_picture() -> None:
    async with Sandbox.open(SandboxSpec(width=64, height=64)) as box:
        before = descriptors()
        box.framebuffer.grab(0, 0, 64, 64)
        await box.shell.run(
            "kill -9 $(pgrep -x Xvfb); while pgrep -x Xvfb; do sleep 0.01; done", timeout_s=10
        )
        deadline = time.monotonic() + 20
        while box.framebuffer._is_alive() and time.monotonic() < deadline:
            await box.shell.run("sleep 0.01")
        with pytest.raises(SandboxError, match="X server has ended"):
            box.framebuffer.grab(0, 0, 64, 64)
        assert descriptors() <= before  # the sandbox itself closes some of what the X server had
