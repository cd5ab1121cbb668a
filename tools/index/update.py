"""Bringing an index up to date with its folder: only files that changed are read, only new content is
parsed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pilotfish.tools.index.facts import EMPTY, FileFacts, PackedTags
from pilotfish.tools.index.listing import Entry, Listing
from pilotfish.tools.index.pool import FILE_SECONDS, Cancelled, Pool
from pilotfish.tools.index.rules import left_out_by_name
from pilotfish.tools.index.store import Known, Store

_COMMIT_SECONDS = 0.5
_TELL_SECONDS = 0.1
_PER_WORKER = 16  # files that make another worker worth its start


@dataclass(frozen=True)
class Progress:
    """How far an update is, in files that have to be read."""

    done: int
    total: int


@dataclass
class Update:
    """What an update found: how many files were read anew, had other content than known, are new or changed
    but left out unread by their name or size, and are gone; how long it took.
    complete: False where it was cancelled; the next one goes on from there. notes: sentences on what went
    wrong.
    """

    read: int = 0
    changed: int = 0
    left_out: int = 0
    removed: int = 0
    seconds: float = 0.0
    complete: bool = True
    notes: list[str] = field(default_factory=list)


def bring_up_to_date(
    store: Store,
    root: bytes,
    listing: Listing,
    *,
    progress: Callable[[Progress], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    workers: int | None = None,
    file_seconds: float = FILE_SECONDS,
) -> Update:
    """Make the store say what the listed files hold now; the caller is the store's only writer.

    What was read is committed twice a second, so the index can be used meanwhile and after a kill.
    """
    known = store.known()
    stale, left_out = _stale(listing, known)
    listed = {entry.path for entry in listing.entries}
    gone = [one.id for path, one in known.items() if path not in listed]
    done = Update(removed=len(gone), left_out=len(left_out))
    notes = json.dumps(listing.notes)
    if not (stale or left_out or gone):
        if store.meta("complete") != "1" or store.meta("notes") != notes:
            with store.transaction():
                store.set_meta("complete", "1")
                store.set_meta("notes", notes)
        return done
    with store.transaction():
        store.set_meta("complete", "0")
        store.set_meta("notes", notes)
        _count_up(store)
        store.remove(gone)
        store.put(left_out)
    if stale:
        try:
            _read(store, root, stale, known, done, progress, cancelled, workers, file_seconds)
        except Cancelled:
            done.complete = False
    with store.transaction():
        store.set_meta("complete", "1" if done.complete else "0")
        _count_up(store)
    return done


def _count_up(store: Store) -> None:
    store.set_meta("generation", str(int(store.meta("generation") or 0) + 1))


def _stale(listing: Listing, known: dict[bytes, Known]) -> tuple[list[Entry], list[FileFacts]]:
    """The files that have to be read, and those that changed but are left out by their name or size."""
    stale, left_out = [], []
    for entry in listing.entries:
        old = known.get(entry.path)
        if (
            old is not None
            and not old.racy
            and (old.size, old.mtime_ns, old.ctime_ns) == (entry.size, entry.mtime_ns, entry.ctime_ns)
        ):
            continue
        why = left_out_by_name(entry.path, entry.size)
        if why is None:
            stale.append(entry)
        else:
            left_out.append(FileFacts(entry.path, entry.size, entry.mtime_ns, entry.ctime_ns, state=why))
    return stale, left_out


def _read(
    store: Store,
    root: bytes,
    stale: list[Entry],
    known: dict[bytes, Known],
    done: Update,
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
    workers: int | None,
    file_seconds: float,
) -> None:
    entries = {entry.path: entry for entry in stale}
    requests = ([b"facts", known[one.path].digest if one.path in known else b"", one.path] for one in stale)
    held: list[tuple[Known | None, FileFacts]] = []
    committed = told = time.monotonic()
    progress(Progress(0, len(stale)))
    try:
        with _readers(root, len(stale), workers, file_seconds) as pool:
            for request, answer in pool.answers(requests, cancelled):
                entry = entries[request[2]]
                held.append((known.get(entry.path), _facts(entry, answer)))
                done.read += 1
                now = time.monotonic()
                if now - told > _TELL_SECONDS:
                    progress(Progress(done.read, len(stale)))
                    told = now
                if now - committed > _COMMIT_SECONDS:
                    _write(store, held, done)
                    committed = time.monotonic()
    finally:
        _write(store, held, done)
    progress(Progress(done.read, len(stale)))


class _Here:
    """Reads and parses in this process, as a `Pool` does in others."""

    def __init__(self, root: bytes) -> None:
        self._root = root

    def answers(
        self, requests: Iterable[list[bytes]], cancelled: Callable[[], bool]
    ) -> Iterator[tuple[list[bytes], list[bytes] | str]]:
        from pilotfish.tools.index.worker import facts_answer

        for request in requests:
            if cancelled():
                raise Cancelled
            yield request, facts_answer(self._root, request[2], request[1])


def _readers(
    root: bytes, count: int, workers: int | None, file_seconds: float
) -> contextlib.AbstractContextManager[Pool | _Here]:
    if workers == 0:
        return contextlib.nullcontext(_Here(root))
    wanted = workers or min(len(os.sched_getaffinity(0)), 1 + count // _PER_WORKER)
    return Pool(root, wanted, file_seconds=file_seconds)


def _write(store: Store, held: list[tuple[Known | None, FileFacts]], done: Update) -> None:
    with store.transaction():
        for old, facts in held:
            if facts.state == "same" and old is not None:
                store.refresh(old.id, facts.size, facts.mtime_ns, facts.ctime_ns, facts.racy)
            else:
                store.put([facts])
                done.changed += 1
    held.clear()


def _facts(entry: Entry, answer: list[bytes] | str) -> FileFacts:
    """What a worker said about a file, in the state that it found it in."""
    if isinstance(answer, str):
        return FileFacts(entry.path, entry.size, entry.mtime_ns, entry.ctime_ns, state="failed", note=answer)
    said: dict[str, Any] = json.loads(answer[0])
    tags = PackedTags(*answer[1:]) if said["state"] == "parsed" else EMPTY
    return FileFacts(
        entry.path,
        said.get("size", entry.size),
        said.get("mtime_ns", entry.mtime_ns),
        said.get("ctime_ns", entry.ctime_ns),
        said.get("racy", False),
        bytes.fromhex(said["digest"]),
        said["state"],
        said.get("language"),
        said.get("lines", 0),
        said.get("note", ""),
        tags,
    )
