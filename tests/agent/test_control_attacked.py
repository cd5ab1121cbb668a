"""Against what is put in the place of a run's socket, and texts that no request can carry."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pilotfish.agent.control.client import ControlError, RunClient
from pilotfish.agent.control.server import serving
from pilotfish.agent.control.steering import Steering
from pilotfish.agent.control.wire import SOCKET, Decide, Hello, Tell
from pilotfish.sandbox import Sandbox, SandboxSpec

from ..waiting import until

HELLO = json.dumps(Hello(run="r", folder="/", pid=1, client=1).model_dump()).encode() + b"\n"
FAKE = f"""
import os, socket
there = socket.socket(socket.AF_UNIX)
there.bind("being-made")
there.listen()
os.rename("being-made", {SOCKET!r})
one, _ = there.accept()
try:
    one.sendall({HELLO!r})
    print("told", one.recv(1))
except OSError:
    print("told b''")
"""


async def test_a_socket_of_a_program_in_a_sandbox_is_told_nothing(tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text(FAKE)
    async with Sandbox.open(SandboxSpec(desktop=False, workspace=tmp_path)) as box:
        faking = asyncio.ensure_future(box.shell.run("python3 fake.py"))
        await until(lambda: (tmp_path / SOCKET).exists())
        with pytest.raises(ControlError, match="in a sandbox, so nothing is said to it"):
            await RunClient.connect(tmp_path)
        assert (await faking).output.strip() == "told b''"


async def test_half_a_character_is_refused_in_a_sentence(tmp_path: Path) -> None:
    async with serving(tmp_path, Steering()):
        client = await RunClient.connect(tmp_path)
        for request in (
            Tell(text="a\ud800"),
            Decide(question=1, verdict="once", arguments={"text": "\udcff"}),
        ):
            with pytest.raises(ControlError, match="half of a character"):
                await client.ask(request)
        await client.ask(Tell(text="a\x00\u202e\r\n"))
        await client.close()
