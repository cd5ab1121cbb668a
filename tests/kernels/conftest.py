"""What the tests of kernels share: fresh numbers, one thread, and the GPU where there is one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_random_numbers() -> None:
    """Other numbers in each run; pytest shows the seed of a test that fails."""
    seed = torch.seed()
    random.seed(seed)
    print(f"torch.manual_seed({seed}), random.seed({seed})")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors here are tiny: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tensors of a test lie."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
