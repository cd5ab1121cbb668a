"""Answers that take turns in one thread, as plain generators: each ends once, whoever looks after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pilotfish.model.scheduler import Need, Scheduler, Steps

PATIENCE_S = 60


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler(4)
    yield made
    made.close()


@pytest.mark.parametrize("need", ["turn", "wait"])
def test_several_that_are_due_at_once_end_once(scheduler: Scheduler, need: Need) -> None:
    """One that reads a prompt looks after the others, and so does each of them when it goes on."""
    due, all_there = threading.Event(), threading.Event()

    def other() -> Steps:
        while not due.is_set():
            yield need
        scheduler.look()

    def reader() -> Steps:
        all_there.wait(PATIENCE_S)
        for _ in range(4):
            yield "turn"
        due.set()
        scheduler.look()

    def first_to_go_on() -> Steps:
        while not due.is_set():
            yield "wait"
            if scheduler.active == 4:
                due.set()
                scheduler.look()

    for begin in (reader, first_to_go_on):
        due.clear()
        all_there.clear()
        tasks = [scheduler.submit(steps, due.is_set) for steps in (begin(), other(), other(), other())]
        all_there.set()
        for task in tasks:
            task.result(PATIENCE_S)
