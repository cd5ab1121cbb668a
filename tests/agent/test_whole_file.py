from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.agent.whole_file import write_whole

KILLED = """
import os, pathlib, signal, sys
from pilotfish.agent.whole_file import write_whole

def pieces():
    yield b"half of it"
    os.kill(os.getpid(), signal.SIGKILL)

write_whole(pathlib.Path(sys.argv[1]), pieces())
"""


def test_a_file_is_replaced_and_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    write_whole(real, b"one")
    real.chmod(0o640)
    link.symlink_to(real)
    write_whole(link, iter([b"t", b"wo"]))
    assert (real.read_bytes(), link.is_symlink(), real.stat().st_mode & 0o777) == (b"two", True, 0o640)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_what_fails_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half of it"
        raise ValueError("the rest is missing")

    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="the rest is missing"):
        write_whole(path, pieces())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    write_whole(pipe, b"through it")
    assert reader.communicate(timeout=60)[0] == b"through it"
    read, write = os.pipe()
    write_whole(Path(f"/proc/self/fd/{write}"), b"one without a name")
    os.close(write)
    with os.fdopen(read, "rb") as file:
        assert file.read() == b"one without a name"
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path, b"x")
