"""Real X displays for the tests of the recorder and the loop."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilotfish.model.protocol import ToolCall


def shell(command: object) -> ToolCall:
    """A call of the shell."""
    return ToolCall("1", "shell", {"command": command})


class XServer:
    """An Xvfb of this test's own."""

    def __init__(self, log: Path) -> None:
        read, write = os.pipe()
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [
                    "Xvfb",
                    "-displayfd",
                    str(write),
                    "-screen",
                    "0",
                    "320x240x24",
                    "-nolisten",
                    "tcp",
                    "-noreset",
                ],
                pass_fds=[write],
                stderr=errors,
            )
        os.close(write)
        with os.fdopen(read) as pipe:
            self.name = f":{int(pipe.readline())}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def x_server(tmp_path: Path) -> Iterator[XServer]:
    server = XServer(tmp_path / "xvfb.log")
    yield server
    server.kill()


@pytest.fixture
def start_x(tmp_path: Path) -> Iterator[Callable[[], XServer]]:
    """Start any number of X servers; all are gone after the test."""
    servers: list[XServer] = []

    def start() -> XServer:
        servers.append(XServer(tmp_path / f"xvfb-{len(servers)}.log"))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()
