"""The CPU's own attention against its plain twins, on fresh random input."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pilotfish.kernels import cpu, reference
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.layer import selected_attention

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SCALE = 0.2


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class Case(NamedTuple):
    """A chunk of new tokens behind `start` others; which blocks are kept."""

    q: Tensor
    k: Tensor
    v: Tensor
    qi: Tensor
    ki: Tensor
    start: int
    sizes: dict[str, Any]

    @property
    def index(self) -> tuple[Tensor, Tensor, int]:
        return self.qi, self.ki, self.start


def make(dtype: torch.dtype = torch.float32, **given: int) -> Case:
    block, groups, heads = random.choice([8, 32]), random.choice([1, 2, 4]), random.choice([1, 3])
    T = given.pop("T", random.choice([2, 7, block, 3 * block + 1, 150]))
    start = given.pop("start", random.choice([0, 1, block - 1, 5 * block, 20 * block + 3, 700]))
    N, D = start + T, random.choice([16, 64])
    shapes = ((1, groups * heads, T, D), (1, groups, N, D), (1, groups, N, D), (1, groups, T, 32), (1, N, 32))
    tensors = (torch.randn(shape).to(dtype) for shape in shapes)
    topk = random.choice([1, 4, 16])
    local, init = (1, 0) if topk == 1 else (random.randint(1, 2), random.randint(0, 2))
    sizes = {"block": block, "topk": topk, "local": local, "init": init}
    return Case(*tensors, start, {**sizes, **given})


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("_", range(12))
def test_equals_the_twins(dtype: torch.dtype, _: int) -> None:
    case = make(dtype)
    wide = [x.float() for x in (case.q, case.k, case.v)]
    ids = cpu.choose_blocks(*case.index, **case.sizes)
    twins = reference.choose_blocks(*case.index, **case.sizes)
    assert ids.shape == twins.shape
    # Sums in another order may swap two blocks that score alike to the last bits.
    assert (ids == twins).float().mean() > 0.99, case.sizes
    after = case.start, case.sizes["block"], SCALE
    sparse = cpu.sparse_attention(case.q, case.k, case.v, twins, *after)
    expected = reference.sparse_attention(*wide, twins, *after)
    torch.testing.assert_close(sparse.float(), expected, rtol=0, atol=TOLERANCE[dtype])
    dense = cpu.dense_attention(case.q, case.k, case.v, case.start, SCALE)
    expected = reference.dense_attention(*wide, case.start, SCALE)
    torch.testing.assert_close(dense.float(), expected, rtol=0, atol=TOLERANCE[dtype])
    assert sparse.dtype == dense.dtype == dtype


def test_scores_of_bf16_are_those_of_single_precision() -> None:
    """Past one piece, so that pieces are joined; a factor must lose no bit."""
    case = make(torch.bfloat16, T=100, start=9000)
    block = case.sizes["block"]
    scores = cpu.block_scores(*case.index, block).permute(1, 2, 0)[None]
    exact = reference.block_scores(case.qi.double(), case.ki.double(), case.start, block)
    torch.testing.assert_close(scores, exact, rtol=1e-5, atol=1e-4)


def test_the_setting_for_products_is_left_as_it_was() -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    cpu.block_scores(*make(torch.bfloat16).index, 8)
    assert torch.backends.mkldnn.matmul.fp32_precision == before


@pytest.mark.parametrize("levels", [1, 3])
def test_equal_scores_keep_the_lower_ids(levels: int) -> None:
    """Whole numbers add up exactly, so that the ids must be the twin's own."""
    case = make(T=40, start=2000)
    qi, ki = (torch.randint(0, levels, x.shape).float() for x in (case.qi, case.ki))
    for zero in (0.0, -0.0):
        keys = ki.masked_fill(ki == 0, zero)
        ids = cpu.choose_blocks(qi, keys, case.start, **case.sizes)
        assert torch.equal(ids, reference.choose_blocks(qi, keys, case.start, **case.sizes))


def test_scores_that_are_no_numbers() -> None:
    """NaN ranks last, infinity below a forced block, in old keys and in new ones."""
    case = make(T=30, start=300)
    for value in (float("nan"), float("inf"), float("-inf")):
        case.ki[0, random.randrange(300)] = value
        case.ki[0, 300 + random.randrange(30)] = value
    ids = cpu.choose_blocks(*case.index, **case.sizes)
    assert torch.equal(ids, reference.choose_blocks(*case.index, **case.sizes))


def test_a_query_that_is_no_number_stays_alone() -> None:
    case = make(T=30, start=300, topk=4)
    ids = reference.choose_blocks(*case.index, **case.sizes)
    case.q[:, :, 0] = float("nan")
    out = cpu.sparse_attention(case.q, case.k, case.v, ids, case.start, case.sizes["block"], SCALE)
    assert out[:, :, 1:].isfinite().all()


def test_what_is_not_for_it_goes_the_plain_way() -> None:
    case = make()
    tensors = case.q, case.k, case.v, case.qi, case.ki
    assert cpu.is_fast(*tensors)
    assert not cpu.is_fast(*tensors, local=0)
    assert not cpu.is_fast(case.q[:, :, :1], *tensors[1:])
    assert not cpu.is_fast(case.q.bfloat16(), *tensors[1:])
    assert not cpu.is_fast(*(x.double() for x in tensors))
    with torch.enable_grad():
        assert not cpu.is_fast(*tensors)


def test_a_layer_gives_the_same_with_gradients_and_without() -> None:
    """A layer alone decides by the length which way it goes; both ways are one function."""
    for start in (50, 1000):
        case = make(T=64, start=start, block=8, topk=4, local=1, init=1)
        batch = Batch.single(64, start + 64, "cpu")
        tensors = case.q, case.k, case.v, case.qi, case.ki
        fast = selected_attention(*tensors, batch, scale=SCALE, **case.sizes)
        with torch.enable_grad():
            plain = selected_attention(*tensors, batch, scale=SCALE, **case.sizes)
        torch.testing.assert_close(fast, plain, rtol=0, atol=1e-5)


def test_threads_leave_the_kind_of_products_as_it_was() -> None:
    """Products in bf16 are a switch of the whole process, which threads turn on and off at once."""
    products = torch.backends.mkldnn.matmul
    before, start = products.fp32_precision, threading.Barrier(4)

    def narrow() -> set[str]:
        start.wait()
        seen = set()
        for _ in range(300):
            with cpu._bf16_products():
                time.sleep(0.00001)
                seen.add(products.fp32_precision)
        return seen

    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(narrow) for _ in range(4)]
        assert all(job.result() == {"bf16"} for job in jobs)
    assert products.fp32_precision == before
