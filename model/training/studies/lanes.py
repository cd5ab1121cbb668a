"""Plays jobs side by side, each in a process of its own.

Small models are bound by the processor that launches their kernels, so one GPU takes several. The processes
are forked from one that has imported torch, which takes longer than all else that a training needs to begin.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import torch

from pilotfish.model.device import cpu_threads
from pilotfish.model.protocol import ModelError
from pilotfish.model.training.studies.jobs import Job, Plan, room
from pilotfish.model.training.studies.trial import Stopped

SAID = "said.txt"  # what a process has printed, in its job's folder
GRACE = 12.0  # seconds before the end in which jobs are told to save, and stop
PATIENCE = 60.0  # seconds after which one that was told is killed


@dataclass
class Run:
    """A job that is being played in a lane, and since when."""

    job: Job
    process: BaseProcess
    lane: int
    begun: float


class Lanes:
    """So many jobs at once, until all are done or the seconds are over."""

    def __init__(
        self, plan: Plan, out: Path, parallel: int, seconds: float | None, ended: Callable[[], None]
    ):
        """ended: called whenever a job is done."""
        self.plan, self.out, self.parallel, self.ended = plan, out, parallel, ended
        self.end = time.monotonic() + seconds - min(GRACE, seconds / 2) if seconds else None
        self.running: dict[int, Run] = {}
        self.pace: dict[type, float] = {}  # seconds per unit of work, of the quickest job that ran whole
        self.failed: list[Job] = []
        self.stopped_by = 0  # the signal, if there was one
        self.context = (
            _forking() if plan.device == "cpu" or _can_fork() else multiprocessing.get_context("spawn")
        )

    def play(self, jobs: Sequence[Job]) -> None:
        """Play the jobs in their order. A job is begun only when there may be time for the whole of it.

        Raises `Stopped` for a signal, after the jobs have saved where they are.
        """
        previous = {n: signal.signal(n, self._halt) for n in (signal.SIGTERM, signal.SIGINT)}
        waiting, told = list(jobs), 0.0
        try:
            while waiting or self.running:
                if not told and (self.stopped_by or self._left() <= 0):
                    told, waiting = time.monotonic(), []
                    self._tell(signal.SIGTERM)
                if told and time.monotonic() > told + PATIENCE:
                    self._tell(signal.SIGKILL)
                while len(self.running) < self.parallel and (job := self._next(waiting)) is not None:
                    waiting.remove(job)
                    self._begin(job)
                if waiting and not self.running:
                    break  # none of them would come to its end
                ended = wait(list(self.running), timeout=0.5)
                for sentinel in [one for one in self.running if one in ended]:
                    self._end(self.running.pop(sentinel), bool(told or self.stopped_by))
        finally:
            self._tell(signal.SIGKILL)
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self.stopped_by:
            raise Stopped(self.stopped_by)

    def _left(self) -> float:
        return float("inf") if self.end is None else self.end - time.monotonic()

    def _next(self, waiting: Sequence[Job]) -> Job | None:
        left = self._left()
        return next(
            (job for job in waiting if self.pace.get(type(job), 0) * job.work(self.plan) <= left), None
        )

    def _begin(self, job: Job) -> None:
        taken = {run.lane for run in self.running.values()}
        lane = next(n for n in range(self.parallel) if n not in taken)
        with room(self.out):
            job.folder(self.out).mkdir(parents=True, exist_ok=True)
        process = self.context.Process(  # type: ignore[attr-defined]
            target=_play, args=(job, self.plan, self.out, self.parallel, lane)
        )
        process.start()
        self.running[process.sentinel] = Run(job, process, lane, time.monotonic())
        say(f"{job.name}, seed {job.seed}: begun")

    def _end(self, run: Run, told: bool) -> None:
        run.process.join()
        job, took = run.job, time.monotonic() - run.begun
        if run.process.exitcode == 0:
            pace = took / job.work(self.plan)
            self.pace[type(job)] = min(pace, self.pace.get(type(job), pace))
            say(f"{job.name}, seed {job.seed}: done after {took:.0f} s")
            self.ended()
        elif told:
            say(f"{job.name}, seed {job.seed}: stopped")
        else:
            self.failed.append(job)
            said = (job.folder(self.out) / SAID).read_text(encoding="utf-8", errors="replace")
            say(f"{job.name}, seed {job.seed}: failed ({run.process.exitcode})")
            say("".join(f"  {line}\n" for line in said.splitlines()[-12:]).rstrip())

    def _tell(self, number: int) -> None:
        for run in self.running.values():
            if run.process.pid is not None and run.process.is_alive():
                os.kill(run.process.pid, number)

    def _halt(self, number: int, _frame: FrameType | None) -> None:
        self.stopped_by = number


def _forking() -> BaseContext:
    """Begins processes as copies of one that has imported all they need, and nothing more."""
    # torch asks the driver otherwise, and no copy of a process that has can use a GPU.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # the optimisers import that one when made
    return context


def _can_fork() -> bool:
    """Whether such a copy can use the GPU."""
    process = _forking().Process(target=_touch_gpu)  # type: ignore[attr-defined]
    process.start()
    process.join()
    return bool(process.exitcode == 0)


def _touch_gpu() -> None:
    torch.zeros(1, device="cuda").item()


def _play(job: Job, plan: Plan, out: Path, beside: int, lane: int) -> None:
    """The life of a job's process. What it says goes to a file: those of several would mix."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; whoever has begun this says when
    _end_with_parent()
    with (job.folder(out) / SAID).open("a", encoding="utf-8") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        fcntl.flock(said, fcntl.LOCK_EX)  # one whose study was killed may still be saving
        if plan.device == "cpu":
            torch.set_num_threads(max(1, cpu_threads() // beside))
        else:
            torch.cuda.set_device(lane % torch.cuda.device_count())
        try:
            job.play(plan, out, beside)
        except Stopped as stop:
            sys.exit(128 + stop.signal)
        except ModelError as error:
            print(error, file=sys.stderr)
            sys.exit(1)


def _end_with_parent() -> None:
    """Stop, as at a signal, when the process that plays the study is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def say(text: str) -> None:
    """A line on how far the study is."""
    print(text, file=sys.stderr, flush=True)
