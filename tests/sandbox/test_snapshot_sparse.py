"""Big files and their holes: what there is of content is kept, in the time and the room that it takes."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from pilotfish.sandbox import SandboxError, Snapshots
from pilotfish.sandbox.parts import BIG, data_bytes
from pilotfish.sandbox.scan import Bounds

PART = 64 << 10


def stored(work: Path) -> int:
    """The bytes of all objects, holes included."""
    return sum(p.stat().st_size for p in (work.parent / "store" / "objects").rglob("*") if p.is_file())


def at(path: Path, pieces: dict[int, bytes], size: int) -> None:
    """A file of this size with these pieces in it and nothing but holes around them."""
    with path.open("wb") as file:
        for offset, piece in pieces.items():
            file.seek(offset)
            file.write(piece)
        file.truncate(size)


def test_a_huge_file_with_little_in_it_is_kept_at_once(work: Path, kept: Snapshots) -> None:
    size = 100 << 30
    pieces = {5: b"first", 50 << 30: b"middle", size - 4: b"last"}
    at(work / "disk.img", pieces, size)
    began = time.monotonic()
    first = kept.take()
    (work / "disk.img").unlink()
    assert kept.restore(first).problems == ()
    assert kept.diff(first, text=True).changes == ()
    assert time.monotonic() - began < 10
    assert stored(work) < 1 << 20
    look = (work / "disk.img").stat()
    assert look.st_size == size
    assert look.st_blocks << 9 < 1 << 20
    with (work / "disk.img").open("rb") as file:
        for offset, piece in pieces.items():
            assert os.pread(file.fileno(), len(piece) + 8, offset).rstrip(b"\0") == piece


def test_any_content_comes_back_byte_for_byte(work: Path, kept: Snapshots) -> None:
    noise = random.Random(7)
    contents = {}
    for number in range(24):
        size = BIG + noise.choice([0, 1, PART - 1, PART, PART + 1, noise.randrange(1 << 20)])
        content = bytearray(size)
        for _ in range(noise.randrange(6)):
            start = noise.choice([0, PART - 1, size - 1, noise.randrange(size)])
            piece = noise.randbytes(noise.choice([1, 100, PART, 3 * PART]))[: size - start]
            content[start : start + len(piece)] = piece
        (work / f"{number}").write_bytes(content)
        contents[f"{number}"] = bytes(content)
    first = kept.take()
    for name in contents:
        (work / name).unlink()
    assert kept.restore(first).problems == ()
    assert {path.name: path.read_bytes() for path in work.iterdir()} == contents
    for number in contents:
        (work / number).rename(work / "dense")
        command = ["cp", f"--sparse={noise.choice(['always', 'never'])}", "-p", work / "dense", work / number]
        subprocess.run(command, check=True)
        (work / "dense").unlink()
    assert kept.diff(first).changes == (), "where the holes are is no difference"


def test_what_is_read_is_what_counts(work: Path) -> None:
    """One measure for what is too big and for what is too much: the parts that are no holes."""
    bounds = Bounds(store_bytes=8 << 20, file_bytes=4 << 20)
    kept = Snapshots(work, work.parent / "store", bounds)
    for number in range(40):
        at(work / f"hollow{number}", {1 << 20: b"x"}, 1 << 30)
    assert kept.find(kept.take()).others == 0
    with (work / "hollow0").open("rb") as file:
        assert data_bytes(file.fileno(), 1 << 30, 1 << 30) == PART
    at(work / "scattered", {n << 20: b"x" for n in range(65)}, 1 << 30)
    found = kept.find(kept.take())
    assert found.left_out == ("scattered (more than 4 MiB)",)
    assert found.missing == "scattered (more than 4 MiB)"
    for number in range(4):
        (work / f"dense{number}").write_bytes(os.urandom(3 << 20))
    for store in ("store", "another"):
        with pytest.raises(SandboxError, match="more than the 8 MiB that are kept of it"):
            Snapshots(work, work.parent / store, bounds).take()
