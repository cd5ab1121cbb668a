"""What models have computed of repositories, kept on disk for later tasks: the folder, its bounds, its lock.

A file is named by the weights, the tokenizer, what computes, and the token ids, so it is the same computation
or it is not there. Files appear whole; one process writes at a time, and who does not get the lock goes on
without keeping anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pilotfish.model.protocol import KeepsPrefixes, Message, ModelError, ToolSpec

MOST_BYTES = 16 << 30
"""What the folder may hold. It also leaves half of the disk's free space alone."""
_ENDING = ".prefix"
_WORTH = 1024
"""Fewer tokens are computed as soon as loaded."""
Thinking = Literal["enabled", "disabled", "adaptive"]


@dataclass(frozen=True)
class Prefilled:
    """tokens: computed or loaded in all. loaded: of these, from the disk. saved: written there. note: a
    sentence on what stood against it.
    """

    tokens: int
    loaded: int = 0
    saved: int = 0
    note: str = ""


def cache_folder() -> Path:
    """Where they are kept: in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "pilotfish" / "prefixes"


async def prefill(
    model: KeepsPrefixes,
    opening: Sequence[Message],
    tools: Sequence[ToolSpec],
    thinking: Thinking,
    compute: Callable[[], Awaitable[int]],
    stop: asyncio.Event,
) -> Prefilled:
    """Have a model hold an opening: from the disk, else by `compute`, whose result is then kept there."""
    try:
        path = cache_folder() / f"{await asyncio.to_thread(model.name_of, opening, tools, thinking)}{_ENDING}"
        loaded, note = await _load(model, path)
        tokens = await compute()  # what was loaded is found there, and the rest is computed
    except ModelError as error:
        return Prefilled(0, note=f"The repository could not be computed beforehand: {error}")
    if loaded or tokens < _WORTH or stop.is_set():
        return Prefilled(tokens, loaded, note=note)
    saved, trouble = await _save(model, path, tokens)
    return Prefilled(tokens, 0, saved, " ".join(one for one in (note, trouble) if one))


async def _load(model: KeepsPrefixes, path: Path) -> tuple[int, str]:
    try:
        await asyncio.to_thread(os.utime, path)  # the ones used last stay
    except OSError:
        return 0, ""
    try:
        tokens = await model.load(path)
    except ModelError as error:
        return 0, f"What was kept of the repository is computed again: {error}"
    return tokens, ""


async def _save(model: KeepsPrefixes, path: Path, tokens: int) -> tuple[int, str]:
    """Write what the model computed last; returns its tokens, and a sentence where that did not work."""
    folder, size = path.parent, model.bytes_for(tokens)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _only_writer(folder) as alone:
            if not alone:
                return 0, ""
            _make_room(folder, size)
            return await model.save(path), ""
    except (OSError, ModelError) as error:
        return 0, f"What was computed of the repository is not kept: {error}"


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock, if no other process does; whether it is held."""
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _make_room(folder: Path, size: int) -> None:
    """Remove what a killed process left half written, and the files used longest ago, until there is room.

    Raises OSError where so much is never kept.
    """
    for left in folder.glob(".saving-*"):
        shutil.rmtree(left, ignore_errors=True)
    files = [(one.stat(), one) for one in folder.glob(f"*{_ENDING}")]
    files.sort(key=lambda pair: pair[0].st_mtime)
    held = sum(state.st_size for state, _ in files)
    most = min(MOST_BYTES, (shutil.disk_usage(folder).free + held) // 2)
    if size > most:
        raise OSError(f"it takes {size >> 20:,} MiB, and {folder} may hold {most >> 20:,} MiB.")
    for state, one in files:
        if held + size <= most:
            break
        one.unlink(missing_ok=True)
        held -= state.st_size
