"""One server for the tests of a file, and the model behind it, which plays what it is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pilotfish.model.serving.run import listen

from .stage import Stage, served


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage()


@pytest.fixture(scope="module")
def address(stage: Stage) -> Iterator[str]:
    opened, where = listen(0, None)
    with served(stage, opened):
        yield where


@pytest.fixture(autouse=True)
def _fresh(stage: Stage) -> None:
    stage.reset()
