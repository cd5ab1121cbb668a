# ruff: noqa: ASYNC221, ASYNC240 - nothing else runs in this event loop
"""Attacks on the desktop and through the browser: each is played inside and, for its twin, outside."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pilotfish.sandbox.box import Sandbox
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.framebuffer import INNER_SCREEN
from pilotfish.sandbox.levels import Level
from pilotfish.sandbox.pieces import find_chromium
from pilotfish.sandbox.scenes import Scene
from pilotfish.sandbox.spec import SandboxSpec

_SECONDS = 10.0
_SMALL = SandboxSpec(width=64, height=64)
_PAGE = SandboxSpec(width=320, height=240)

_CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"

# What a program may put in place of the picture: sizes that would read elsewhere, and what is no file.
_HOSTILE_PICTURE = """
import os, struct, sys
path, kind = sys.argv[1:]
if kind in ("link", "pipe"):
    os.unlink(path)
    os.symlink("/etc/passwd", path) if kind == "link" else os.mkfifo(path)
elif kind.startswith("bytes="):
    os.truncate(path, int(kind[6:]))
else:
    field, value = map(int, kind.split("="))
    with open(path, "r+b") as file:
        file.seek(4 * field)
        file.write(struct.pack(">I", value))
"""
# Fields: 0 length of the header, 3 depth, 4 and 5 width and height, 11 bits of a pixel, 12 bytes of a row, 19
# colours.
_HOSTILE_KINDS = (
    *(
        "0=0",
        "0=4294967295",
        "3=1",
        "4=4294967295",
        "5=0",
        "5=65535",
        "11=1",
        "12=4294967295",
        "19=4294967295",
    ),
    *("bytes=10000", "bytes=0", "bytes=99", "link", "pipe"),
)


async def _other_display(level: Level) -> tuple[str, str]:
    async with Sandbox.open(_SMALL) as desk, Sandbox.open(_SMALL) as box:
        path = f"/tmp/.X11-unix/X{desk.display.number}"
        inside = await box.run(["python3", "-c", _CONNECT, path])
        status = await inside.wait(_SECONDS)
        with socket.socket(socket.AF_UNIX) as outside:
            outside.connect(path)
        return "yes" if status == 0 else "refused", "yes"


async def _clipboard(level: Level) -> tuple[str, str]:
    """Read and replace what is in the clipboard of another display, as the user's own is."""
    async with Sandbox.open(_SMALL) as users, Sandbox.open(_SMALL) as box:
        read = f"DISPLAY={users.display.name} xsel -b -o | cat"
        await users.shell.run("printf secret | xsel -b -i")
        await box.shell.run("printf mine | xsel -b -i")
        own = await _until_said(users, read, "secret")
        stolen = await box.shell.run(
            f"{read}; printf mine | DISPLAY={users.display.name} xsel -b -i", timeout_s=5
        )
        kept = await users.shell.run(read, timeout_s=_SECONDS)
        private = "secret" not in stolen.output and kept.output == "secret"
        return "private" if private else "yes", "yes" if own else "no"


async def _until_said(box: Sandbox, command: str, words: str) -> bool:
    """Run a command until it says this."""
    deadline = time.monotonic() + _SECONDS
    while (await box.shell.run(command, timeout_s=_SECONDS)).output.strip() != words:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


async def _hostile_picture(level: Level) -> tuple[str, str]:
    """Put other things in place of the display's picture; the twin is the picture as it is."""
    async with Sandbox.open(_SMALL) as box:
        path = f"{INNER_SCREEN}/Xvfb_screen0"
        twin = box.framebuffer.grab(0, 0, 64, 64).shape == (64, 64, 4)
        await box.shell.run(f"cp {path} /tmp/good")
        found = set()
        for kind in _HOSTILE_KINDS:
            attack = await box.run(["python3", "-c", _HOSTILE_PICTURE, path, kind])
            if await attack.wait(_SECONDS):
                return attack.output, "yes"
            try:
                box.framebuffer.grab(0, 0, 64, 64)
                found.add(f"took {kind}")
            except SandboxError:
                found.add("refused")
            await box.shell.run(f"rm {path}; cp /tmp/good {path}")
        twin &= box.framebuffer.grab(0, 0, 64, 64).shape == (64, 64, 4)
        return " ".join(sorted(found)), "yes" if twin else "no"


_FETCH = """async port => {
    try { return (await (await fetch(`http://127.0.0.1:${port}/json/list`)).text()) }
    catch (error) { return error.name }
}"""


_PORT = 9339
_LISTENING = "awk '$4 == \"0A\"' /proc/net/tcp /proc/net/tcp6"


_ASK = f"""
import urllib.request
try: print(urllib.request.urlopen("http://127.0.0.1:{_PORT}/json/list", timeout=5).status)
except OSError: print("refused")
"""


async def _debugging_port(level: Level) -> tuple[str, str]:
    """Reach the debugging port of a Chromium from the host, from another sandbox and from a page."""
    program = str(find_chromium().inner)
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--user-data-dir=/tmp/other"]
    ask = shlex.join(["python3", "-c", _ASK])
    async with Sandbox.open(_PAGE) as box, Sandbox.open(_PAGE) as other:
        await box.run([program, *flags, f"--remote-debugging-port={_PORT}", "about:blank"])
        served = await _until_said(box, ask, "200") and (await box.shell.run(_LISTENING)).output.strip() != ""
        page = await box.browser.open("data:text/html,x")
        fetched = str(await page.evaluate(_FETCH, _PORT))
        await other.browser.open("data:text/html,x")
        elsewhere = (await other.shell.run(ask, timeout_s=_SECONDS)).output.strip()
        own = (await other.shell.run(_LISTENING)).output.strip()
        host = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, text=True, check=False
        ).stdout
        served &= await _until_said(box, ask, "200")
    reached = {
        "page": fetched != "TypeError",
        "sandbox": elsewhere != "refused",
        "host": host.strip() != "refused",
        "own": own != "",
    }
    return " ".join(name for name, yes in reached.items() if yes) or "refused", "yes" if served else "no"


async def _browser_reads(level: Level) -> tuple[str, str]:
    async with Sandbox.open(_PAGE) as box:
        page = await box.browser.open("file:///etc/passwd")
        seen = str(await page.evaluate("document.body.innerText"))
    own = Path("/etc/passwd").read_text()
    stranger = next(line for line in own.splitlines() if line.startswith("daemon:"))
    return "made up" if stranger not in seen and "user:x:1000" in seen else "yes", "yes"


async def _download(level: Level) -> tuple[str, str]:
    """Have a page bring a program that reads a file of the host, make it executable and run it."""
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder, "secret")
        secret.write_text("of the host")
        program = f"#!/bin/sh\nhostname\ncat {secret} 2>/dev/null\n"
        async with Sandbox.open(_PAGE) as box:
            page = await box.browser.open("data:text/html,x")
            await page.evaluate(
                "text => Object.assign(document.createElement('a'), {download: 'tool.sh', "
                "href: URL.createObjectURL(new Blob([text]))}).click()",
                program,
            )
            file = box.workspace / "Downloads" / "tool.sh"
            deadline = time.monotonic() + _SECONDS
            while not (file.exists() and file.read_text() == program):
                if time.monotonic() > deadline:
                    return "not downloaded", ""
                await asyncio.sleep(0.02)
            kind = "executable" if file.stat().st_mode & 0o111 else "inside"
            said = (await box.shell.run("chmod +x Downloads/tool.sh && Downloads/tool.sh")).output
            with contextlib.suppress(PermissionError):
                file.chmod(0o755)
            twin = subprocess.run([file], capture_output=True, text=True, check=False).stdout
        return kind if said.strip() == "sandbox" else said, "yes" if "of the host" in twin else "no"


DESKTOP_SCENES = (
    Scene("E1", "connect to the display of another sandbox", _other_display, "refused", levels=(3,)),
    Scene("E2", "read and replace another display's clipboard", _clipboard, "private", levels=(3,)),
    Scene(
        "E4", "put something else in place of the display's picture", _hostile_picture, "refused", levels=(3,)
    ),
    Scene("E6", "reach a browser's debugging port", _debugging_port, "refused", levels=(3,)),
    Scene("E8", "read the host's users in the browser", _browser_reads, "made up", levels=(3,)),
    Scene("E9", "download a program, make it executable, run it", _download, "inside", levels=(3,)),
)
