"""Bytes between a file and tensors, by several threads at once, summed on the way.

Files are read and written, never mapped: one that is cut short meanwhile is an error, not a signal.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PIECE_BYTES = 4 * 1024**2
"""What a thread takes at once; much larger and it would leave the processor's cache before it is summed."""
THREADS = 8
"""Threads at most; copying out of the page cache takes some to come near a GPU's bus."""

Raw = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Piece:
    """At most `PIECE_BYTES` of a file from `offset` on, and the contiguous uint8 tensors that hold them."""

    offset: int
    parts: Sequence[Tensor]


def read(file: int, pieces: Sequence[Piece]) -> list[int]:
    """Fill the tensors of all pieces from an open file; returns each piece's sum.

    Raises ValueError when the file ends before, OSError when it cannot be read; then some are filled.
    """

    def one(piece: Piece, staged: Tensor | None) -> int:
        if staged is None:
            return _in_place(piece, lambda raw, offset: _read(file, raw, offset))
        raw = staged.numpy()[: sum(len(part) for part in piece.parts)]
        _read(file, raw, piece.offset)
        at = 0
        for part in piece.parts:
            part.copy_(staged[at : at + len(part)])
            at += len(part)
        return _sum(raw)

    return _each(pieces, one)


def write(file: int, pieces: Sequence[Piece]) -> list[int]:
    """Write the tensors of all pieces to an open file; returns each piece's sum. Raises OSError."""

    def one(piece: Piece, staged: Tensor | None) -> int:
        if staged is None:
            return _in_place(piece, lambda raw, offset: _write(file, raw, offset))
        at = 0
        for part in piece.parts:
            staged[at : at + len(part)].copy_(part)
            at += len(part)
        raw = staged.numpy()[:at]
        _write(file, raw, piece.offset)
        return _sum(raw)

    return _each(pieces, one)


def _each(pieces: Sequence[Piece], one: Callable[[Piece, Tensor | None], int]) -> list[int]:
    """Do one after another in several threads; a GPU's each have pinned memory and a stream of their own."""
    device = next((part.device for piece in pieces for part in piece.parts), torch.device("cpu"))
    own = threading.local()
    on_gpu = device.type == "cuda"
    if on_gpu:  # work queued before may still use these tensors
        torch.cuda.current_stream(device).synchronize()

    def prepare() -> None:
        if on_gpu:
            own.staged = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
            own.stream = torch.cuda.Stream(device)

    def work(piece: Piece) -> int:
        with torch.cuda.stream(own.stream) if on_gpu else contextlib.nullcontext():
            return one(piece, own.staged if on_gpu else None)

    with ThreadPoolExecutor(min(THREADS, _cores()), "transfer", prepare) as threads:
        return list(threads.map(work, pieces))


def _in_place(piece: Piece, move: Callable[[Raw, int], None]) -> int:
    total, offset = 0, piece.offset
    for part in piece.parts:
        raw = part.numpy()
        move(raw, offset)
        total += _sum(raw)
        offset += len(raw)
    return total % 2**64


def _read(file: int, raw: Raw, offset: int) -> None:
    at = 0
    while at < len(raw):
        count = os.preadv(file, [raw[at:].data], offset + at)
        if not count:
            raise ValueError(f"it ends at byte {offset + at}")
        at += count


def _write(file: int, raw: Raw, offset: int) -> None:
    at = 0
    while at < len(raw):
        at += os.pwrite(file, raw[at:].data, offset + at)


def _sum(raw: Raw) -> int:
    """All words of 8 bytes and the bytes behind them, modulo 2**64."""
    words = len(raw) // 8 * 8
    return (int(raw[:words].view(np.int64).sum()) + int(raw[words:].sum())) % 2**64


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
