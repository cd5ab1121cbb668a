"""Every kernel compiles ahead of time for Hopper, just as its host function launches it.

Run as a program, this file calls host functions with a driver that only compiles, and prints for each case
the kernels it would have launched. Tensors hold no data, however large they are.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

SHARED_BYTES = 227 * 1024  # what a program may have on Hopper
BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn


def _select(
    queries: int, keys: int, dtype: torch.dtype, *, groups: int = 4, width: int = 128, block: int = 128
) -> None:
    from pilotfish.kernels.batch import Batch
    from pilotfish.kernels.selection import select_blocks

    qi = torch.empty(queries, groups, width, dtype=dtype)
    batch = Batch.single(queries, keys, "cpu")
    select_blocks(qi, torch.empty(keys, width, dtype=dtype), batch, block=block, topk=16)


def _select_paged(queries: int, keys: int, dtype: torch.dtype) -> None:
    from pilotfish.kernels.batch import Batch
    from pilotfish.kernels.selection import select_blocks

    qi = torch.empty(queries, 4, 128, dtype=dtype)
    pages = torch.zeros(queries, keys // 128, dtype=torch.int32)
    batch = Batch.packed([1] * queries, [keys] * queries, "cpu", pages)
    select_blocks(qi, torch.empty(keys // 128, 128, 128, dtype=dtype), batch, block=128, topk=16)


def _attend(
    queries: int,
    keys: int,
    dtype: torch.dtype,
    *,
    heads: int = 64,
    groups: int = 4,
    width: int = 128,
    block: int = 128,
    kept: int = 16,
    paged: bool = False,
    key_dtype: torch.dtype | None = None,
    sequences: int = 1,
) -> None:
    from pilotfish.kernels.attention import sparse_attention
    from pilotfish.kernels.batch import Batch

    tokens, blocks = queries * sequences, keys // block * sequences
    q = torch.empty(tokens, heads, width, dtype=dtype)
    ids = torch.zeros(tokens, groups, kept, dtype=torch.int32)
    pages = torch.zeros(sequences, keys // block, dtype=torch.int32) if paged else None
    shape = (blocks, block, groups, width) if paged else (blocks * block, groups, width)
    k = torch.empty(shape, dtype=key_dtype or dtype)
    if sequences == 1 and not paged:
        batch = Batch.single(queries, keys, "cpu")
    else:
        batch = Batch.packed([queries] * sequences, [keys] * sequences, "cpu", pages)
    sparse_attention(q, k, k, ids, batch, block=block, scale=1.0)


BY_BLOCKS = {
    "_count": False, "_sum_tiles": False, "_cut": False, "_place": False,
    "_attend_blocks": True, "_merge": False,
}  # fmt: skip
BY_QUERIES = {"_attend_queries": False}


def _train(
    dtype: torch.dtype, *, heads: int = 64, groups: int = 4, width: int = 128, block: int = 128
) -> None:
    """Every kernel that only training has."""
    from pilotfish.kernels.backward import sparse_attention_backward
    from pilotfish.kernels.batch import Batch
    from pilotfish.kernels.training import index_kl
    from pilotfish.kernels.warmup import index_kl_dense

    q, k = torch.empty(256, heads, width, dtype=dtype), torch.empty(512, groups, width, dtype=dtype)
    qi, ki = torch.empty(256, groups, width, dtype=dtype), torch.empty(512, width, dtype=dtype)
    ids, lse = torch.zeros(256, groups, 16, dtype=torch.int32), torch.empty(256, heads)
    batch = Batch.single(256, 512, "cpu")
    sparse_attention_backward(q, lse, q, k, k, ids, q, lse, batch, block=block, scale=1.0)
    index_kl(q, k, lse, qi, ki, ids, batch, block=block, scale=1.0, index_scale=1.0)
    index_kl_dense(q, k, None, qi, ki, batch, scale=1.0, index_scale=1.0)


def _compare() -> None:
    """What the bench compares with."""
    from pilotfish.kernels.peers import token_level_attention

    q, qi, weights = (torch.empty(64, *s, dtype=BF16) for s in ((64, 128), (4, 128), (4,)))
    k, ki = torch.empty(4096, 4, 128, dtype=BF16), torch.empty(4096, 128, dtype=BF16)
    token_level_attention(q, k, k, qi, ki, weights.float(), 2048)


TRAINING = {
    "_pieces": True, "_add_slots": False, "_add_pieces": False, "_row_products": False,
    "_student_sums": True, "_teachers": True, "_losses": True, "_stream": True, "_dense_losses": True,
}  # fmt: skip

# Bytes that registers may spill. These kernels touch theirs once per tile, outside the loop over heads.
MAY_SPILL = {"_losses": 512, "_dense_losses": 512, "_pieces": 64, "_attend_blocks": 64}

# What to compile. Kernels: names as in the source, with whether the tensor cores' own instruction must show.
CASES: dict[str, tuple[Callable[[], None], Mapping[str, bool | None]]] = {
    "select a chunk at 1M": (
        lambda: _select(8192, 1 << 20, BF16),
        {"_whole_ranks": True, "_block_ranks": True, "_top_blocks": False},
    ),
    "select a chunk at 1M, fp8": (
        lambda: _select(8192, 1 << 20, FP8),
        {"_whole_ranks": True, "_block_ranks": True},
    ),
    "select for a clip": (lambda: _select(256, 65536, FP16), {"_block_ranks": True}),
    "select for one token": (
        lambda: _select(1, 1 << 20, BF16),
        {"_block_ranks": True, "_top_blocks": False},
    ),
    "select for one token, fp8": (lambda: _select(1, 1 << 20, FP8), {"_block_ranks": True}),
    "select in pages": (lambda: _select_paged(4, 65536, BF16), {"_block_ranks": True}),
    "select for nano": (
        lambda: _select(4096, 4096, BF16, groups=2, width=64, block=32),
        {"_block_ranks": True, "_top_blocks": False},
    ),
    "select for nano, fp32": (
        lambda: _select(4096, 4096, FP32, groups=2, width=64, block=32),
        {"_block_ranks": False},
    ),
    "attend a chunk at 1M": (lambda: _attend(8192, 1 << 20, BF16), BY_BLOCKS),
    "attend a chunk in pages": (lambda: _attend(8192, 1 << 17, FP16, paged=True), BY_BLOCKS),
    "attend a chunk, fp8 keys": (lambda: _attend(8192, 1 << 17, BF16, key_dtype=FP8), BY_BLOCKS),
    "attend a chunk, 32 blocks": (lambda: _attend(8192, 1 << 17, BF16, kept=32, groups=8), BY_BLOCKS),
    "attend for nano": (
        lambda: _attend(4096, 4096, BF16, heads=6, groups=2, width=64, block=32),
        BY_QUERIES,
    ),
    "attend in small blocks": (
        lambda: _attend(4096, 4096, BF16, heads=6, groups=2, width=128, block=64),
        BY_BLOCKS,
    ),
    "attend for nano, fp32": (
        lambda: _attend(4096, 4096, FP32, heads=6, groups=2, width=64, block=32),
        BY_QUERIES,
    ),
    "attend, fp32": (lambda: _attend(4096, 4096, FP32), BY_QUERIES),
    "attend for a few": (lambda: _attend(32, 1 << 17, BF16), BY_QUERIES),
    "attend for many": (lambda: _attend(512, 2048, BF16, sequences=5), BY_BLOCKS),
    "attend for one token each": (
        lambda: _attend(1, 8192, BF16, sequences=16, paged=True),
        BY_QUERIES | {"_merge": False},
    ),
    "attend for one token of many": (lambda: _attend(1, 8192, BF16, sequences=64, paged=True), BY_QUERIES),
    "attend for one token": (
        lambda: _attend(1, 1 << 20, BF16),
        BY_QUERIES | {"_merge": False},
    ),
    "attend for one token in pages, fp8": (
        lambda: _attend(1, 1 << 20, BF16, paged=True, key_dtype=FP8),
        BY_QUERIES | {"_merge": False},
    ),
    "single tokens": (_compare, {"_token_scores": True, "_token_attention": False}),
    "train": (lambda: _train(BF16), TRAINING),
    "train nano": (lambda: _train(BF16, heads=6, groups=2, width=64, block=32), dict.fromkeys(TRAINING)),
    "train nano, fp32": (
        lambda: _train(FP32, heads=6, groups=2, width=64, block=32),
        dict.fromkeys(TRAINING, False),
    ),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Of each case every kernel: its name, whether it uses the tensor cores, its shared and spilled bytes."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", CASES)
def test_kernels_compile_for_hopper(compiled: dict[str, Any], case: str) -> None:
    names = {kernel["name"] for kernel in compiled[case]}
    assert names >= set(CASES[case][1])
    for kernel in compiled[case]:
        expected = CASES[case][1].get(kernel["name"])
        assert expected is None or kernel["wgmma"] == expected
        assert kernel["shared"] <= SHARED_BYTES
        assert kernel["spilled"] <= MAY_SPILL.get(kernel["name"], 0)


class _CompileOnly:
    """As much of a driver as compiling takes."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    """Print what every case compiles, as JSON."""
    import triton
    from triton.runtime.jit import JITFunction

    from pilotfish.kernels import card

    triton.runtime.driver.set_active(_CompileOnly())
    found: dict[str, dict[str, Any]] = {}
    launch = JITFunction.run

    def only_compile(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = launch(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in found:
            found[kernel.hash] = {
                "name": self.__name__,
                "wgmma": "wgmma.mma_async" in kernel.asm["ptx"],
                "shared": kernel.metadata.shared,
                "spilled": _spilled(kernel.asm["cubin"]),
            }
        return kernel

    JITFunction.run = only_compile
    _import_kernels()
    # Kernels are cut for an H200. Host functions take tensors of the CPU where the interpreter runs; the
    # kernels are imported without it.
    triton.knobs.runtime.interpret = True
    card.NO_CARD = card.Card(cores=132, capability=(9, 0))
    report = {}
    for case, (call, _) in CASES.items():
        found = {}
        call()
        report[case] = list(found.values())
    json.dump(report, sys.stdout)


def _import_kernels() -> None:
    import pilotfish.kernels

    for module in pkgutil.iter_modules(pilotfish.kernels.__path__, "pilotfish.kernels."):
        importlib.import_module(module.name)


def _spilled(cubin: bytes) -> int:
    """Bytes of a thread's stack: what did not fit into registers."""
    import triton

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", path]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(int(n) for n in re.findall(r"(?:STACK|LOCAL):(\d+)", usage))


if __name__ == "__main__":
    main()
