"""Worker processes that files are handed to, one per core, each killed when a file keeps it too long."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from pilotfish.tools.index.frames import Frames, packed
from pilotfish.tools.index.listing import IndexingError

FILE_SECONDS = 10.0
"""How long one file may take to be read and parsed."""
_START_SECONDS = 60.0
_AHEAD = 8  # requests a worker has before it, so that it never waits; they fit into a pipe
_TICK_SECONDS = 0.2


class Cancelled(Exception):
    """Who asked for the work wants it no more."""


class _Worker:
    def __init__(self, root: bytes, first: bytes) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pilotfish.tools.index.worker", root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.frames = Frames()
        self.ready = False
        self.since = time.monotonic()
        self.waiting: deque[list[bytes]] = deque()
        if first:
            self.send(first)

    def send(self, data: bytes) -> bool:
        """False where the process has gone."""
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self.input, view) :]
        except BrokenPipeError:
            return False
        return True

    def end(self) -> int:
        """Kill it; returns its exit status."""
        self.process.kill()
        status = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                stream.close()
        return status


class Pool:
    """Workers for one folder. Requests go in, answers come out in no particular order."""

    def __init__(
        self,
        root: bytes,
        workers: int | None = None,
        *,
        first: list[bytes] | None = None,
        file_seconds: float = FILE_SECONDS,
    ) -> None:
        """first: a request that every worker is given once. file_seconds: the time one request may take."""
        self._root, self._seconds = root, file_seconds
        self._count = workers or len(os.sched_getaffinity(0))
        self._first = packed(first) if first else b""
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._selector.close()

    def answers(
        self, requests: Iterable[list[bytes]], cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[list[bytes], list[bytes] | str]]:
        """Each request with its answer, or with the end of a sentence on why there is none.

        Raises Cancelled soon after `cancelled` says so, IndexingError if workers cannot be started.
        """
        coming = iter(requests)
        again: deque[list[bytes]] = deque()

        def feed(worker: _Worker) -> None:
            while len(worker.waiting) < _AHEAD:
                request = again.popleft() if again else next(coming, None)
                if request is None:
                    return
                if not worker.waiting:
                    worker.since = time.monotonic()
                worker.waiting.append(request)
                if not worker.send(packed(request)):
                    return  # its end is read as the end of its output

        self._start(feed)
        while any(worker.waiting for worker in self._workers):
            if cancelled():
                raise Cancelled
            for key, _ in self._selector.select(_TICK_SECONDS):
                worker: _Worker = key.data
                failure = ""
                try:
                    data = os.read(worker.output, 1 << 20)
                    answers = worker.frames.add(data)
                except ValueError as error:
                    data, answers, failure = b"", [], f"its parser answered with {error}"
                for answer in answers:
                    if not worker.ready:
                        worker.ready = True
                    elif worker.waiting:
                        yield worker.waiting.popleft(), answer
                    worker.since = time.monotonic()
                if data:
                    feed(worker)
                else:
                    yield from self._replace(worker, failure, again, feed)
            for worker in list(self._workers):
                limit = self._seconds if worker.ready else _START_SECONDS
                if worker.waiting and time.monotonic() - worker.since > limit:
                    yield from self._replace(worker, f"took longer than {self._seconds:g} s", again, feed)

    def _start(self, feed: Callable[[_Worker], None]) -> None:
        """Start or feed as many workers as there is work for."""
        for worker in self._workers:
            feed(worker)
        while len(self._workers) < self._count:
            worker = _Worker(self._root, self._first)
            self._workers.append(worker)
            self._selector.register(worker.output, selectors.EVENT_READ, worker)
            feed(worker)
            if len(worker.waiting) < _AHEAD:
                break

    def _replace(
        self, worker: _Worker, why: str, again: deque[list[bytes]], feed: Callable[[_Worker], None]
    ) -> Iterator[tuple[list[bytes], str]]:
        """Another worker instead of one that died or hangs; what it was at has failed, the rest is done
        again.
        """
        self._selector.unregister(worker.output)
        self._workers.remove(worker)
        worker.errors.seek(0)
        said = worker.errors.read().decode("utf-8", "replace").strip().split("\n")[-1][:200]
        status = worker.end()
        if not worker.ready:
            raise IndexingError(
                f"The process that parses files cannot be started ({said or why}); install again."
            )
        if not why:
            ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            why = f"ended its parser ({said or ended})"
        if worker.waiting:
            yield worker.waiting.popleft(), why
        again.extend(worker.waiting)
        self._start(feed)
