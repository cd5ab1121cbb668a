"""Several answers at once from one network: each round computes a piece of a prompt, then a token of every
answer that is being written.

An answer is a generator that says what it needs next. One worker thread runs them all, so nothing of the
network or its caches needs a lock; it ends when there is nothing to do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import Tensor

from pilotfish.model.sequence import TokenSequence, append_ahead, append_each


@dataclass(frozen=True, eq=False)
class Append:
    """An answer needs the scores that follow one more token of its sequence.

    ahead: tokens that will probably come next. The scores behind them may come along, and the sequence then
    holds them too.
    """

    sequence: TokenSequence
    token: int
    ahead: tuple[int, ...] = ()


T = TypeVar("T")

Need = Append | Literal["turn", "wait"]
"""What an answer needs: a token appended; "turn", to go on after others had their turn; "wait", to go on when
something has changed: another answer got further, or ended."""

Steps = Generator[Need, Tensor | None, None]
"""An answer. It is sent the scores it asked for, [1, vocab], or more rows, those behind tokens ahead. Sent
None instead, or when it was its turn or was due, it looks whether to go on itself."""


class Task(Future[None]):
    """One answer in the scheduler; done when its generator has ended, with its exception if it raised one.

    due: whether it wants to look at once whether to go on: it was stopped, or its time is up.
    """

    def __init__(self, steps: Steps, due: Callable[[], bool]) -> None:
        super().__init__()
        self.steps, self.due = steps, due
        self.need: Need = "turn"
        self.at_work = False

    def go_on(self, scores: Tensor | None = None) -> None:
        """Run it to its next need, or to its end."""
        self._run(lambda: self.steps.send(scores))

    def fail(self, error: BaseException) -> None:
        """Let what it asked for raise an error."""
        self._run(lambda: self.steps.throw(error))

    def _run(self, go: Callable[[], Need]) -> None:
        self.at_work = True
        try:
            self.need = go()
        except StopIteration:
            self.set_result(None)
        except BaseException as error:
            self.set_exception(error)
        finally:
            self.at_work = False


class Scheduler:
    """Runs answers, at most `most` at once and the others in the order they came, and jobs between rounds."""

    def __init__(self, most: int, name: str = "engine") -> None:
        self.most = most
        self._lock = threading.Lock()
        self._queue: deque[Task] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._active: list[Task] = []
        self._running = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    @property
    def active(self) -> int:
        """Answers that are being computed."""
        return len(self._active)

    def submit(self, steps: Steps, due: Callable[[], bool]) -> Task:
        """Queue an answer."""
        task = Task(steps, due)
        with self._lock:
            self._queue.append(task)
            self._start()
        return task

    def run(self, job: Callable[[], T]) -> Future[T]:
        """Run a job in the worker thread, between two rounds."""
        future: Future[T] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)

        with self._lock:
            self._jobs.append(work)
            self._start()
        return future

    def leave(self, task: Task) -> bool:
        """Take an answer out of the queue; whether it had not begun."""
        with self._lock:
            if task not in self._queue:
                return False
            self._queue.remove(task)
        return task.cancel()

    def look(self) -> None:
        """Let answers that are due end; called in the midst of computing another one's prompt."""
        for task in list(self._active):
            if not task.at_work and task.due():
                self._go_on(task)

    def close(self) -> None:
        """Wait for all answers and jobs to end."""
        self._thread.shutdown()

    def _start(self) -> None:
        if not self._running:
            self._thread.submit(self._work)
            self._running = True

    def _work(self) -> None:
        try:
            while self._admit():
                self._round()
        except BaseException as error:  # a fault of ours must not leave anyone waiting
            with self._lock:
                lost = [task for task in [*self._active, *self._queue] if not task.done()]
                self._active.clear()
                self._queue.clear()
                self._running = False
            for task in lost:
                task.fail(error)
            raise

    def _admit(self) -> bool:
        """Take up what came; False when there is nothing to do."""
        while True:
            with self._lock:
                while self._queue and len(self._active) < self.most:
                    task = self._queue.popleft()
                    task.set_running_or_notify_cancel()
                    self._active.append(task)
                job = self._jobs.popleft() if self._jobs else None
                if job is None:
                    self._running = bool(self._active)
                    return self._running
            job()

    def _round(self) -> None:
        """A piece of one prompt, and a token of each answer that is being written."""
        for task in [task for task in self._active if task.need == "wait"]:
            self._go_on(task)
        turn = next((task for task in self._active if task.need == "turn"), None)
        if turn is not None:
            # Prompts take turns, or a long one would keep all others waiting.
            self._active.remove(turn)
            self._active.append(turn)
            self._go_on(turn)
        writing = [(task, task.need) for task in self._active if isinstance(task.need, Append)]
        if not writing:
            return
        try:
            scores = self._scores([need for _, need in writing])
        except Exception as error:
            for task, _ in writing:
                task.fail(error)
                self._active.remove(task)
            return
        for (task, _), own in zip(writing, scores, strict=True):
            self._go_on(task, own)

    def _scores(self, needs: list[Append]) -> list[Tensor]:
        """What each asked for. Tokens ahead are for rows that nobody else needs."""
        if len(needs) == 1:
            return [append_ahead(needs[0].sequence, (needs[0].token, *needs[0].ahead))]
        rows = append_each([need.sequence for need in needs], [need.token for need in needs])
        return [row[None] for row in rows]

    def _go_on(self, task: Task, scores: Tensor | None = None) -> None:
        if task.done():  # while another one computed, which looked after it
            return
        task.go_on(scores)
        if task.done():
            self._active.remove(task)
