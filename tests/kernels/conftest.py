"""Kernels are tested on the GPU where there is one, elsewhere in Triton's interpreter."""

from __future__ import annotations

import os
import random

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is imported, so before the first of them


@pytest.fixture(autouse=True)
def fresh_random_numbers() -> None:
    """Other numbers in each run; pytest shows the seed of a test that fails."""
    seed = torch.seed()
    random.seed(seed)
    print(f"torch.manual_seed({seed}), random.seed({seed})")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tensors of a test lie."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
