"""What the kernels reach on this GPU, beside full attention and the floor: `python -m
pilotfish.kernels.bench`.

One M3-shaped layer, batch 1, random data: 64 query heads, 4 KV groups and index heads, all 128 wide, blocks
of 128 keys, 16 kept. Times are medians of device events after a warm-up; steps and decoding are timed as
CUDA graphs that go round several sets of keys, so that none stays in the L2 cache. The floor is what the
arithmetic takes at the rate of a large matrix product, or what the fewest bytes take at the rate of a large
copy, whichever is more; both rates are measured first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pilotfish.kernels import ops
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.bench_plot import picture
from pilotfish.kernels.bench_table import Ceilings, Row, headline, line
from pilotfish.kernels.busy import warn_when_busy

if ops.has_triton:
    from pilotfish.kernels.peers import FULL_BACKENDS, full_attention, token_level_attention

HEADS, GROUPS, WIDTH, BLOCK, KEPT = 64, 4, 128, 128, 16
SCALE = WIDTH**-0.5
CHUNK = 8192
MOST = 1 << 20
LENGTHS = {
    "chunk": (131_072, 262_144, 524_288, MOST),
    "step": (65_536, 262_144, MOST),
    "decode": (131_072, MOST),
    "train": (32_768, 131_072),
    "tokens": (131_072,),
}
"""Contexts that each job is timed at, up to the longest asked for."""
STEPS = (32, 512)
TOKENS = 1024
DEVICE = "cuda"
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
JOBS = ("prefill", "chunk", "step", "decode", "train", "tokens")


def main(arguments: list[str] | None = None) -> int:
    """Run the jobs asked for and print the table; 0, or 2 where there is no GPU or too little of it."""
    parser = argparse.ArgumentParser(prog="python -m pilotfish.kernels.bench", description=__doc__)
    parser.add_argument("--only", default=",".join(JOBS), help=f"jobs, by comma: {', '.join(JOBS)}")
    parser.add_argument("--keys", type=int, default=MOST, help="longest context, default 1048576")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--plot", type=Path, help="write a picture of the times, as SVG, to this file")
    options = parser.parse_args(arguments)
    warn_when_busy()
    jobs = options.only.split(",")
    for job in jobs:
        if job not in JOBS:
            parser.error(f"--only has {job!r}: {', '.join(JOBS)} are accepted")
    if options.keys < CHUNK or options.keys % CHUNK:
        parser.error(f"--keys is {options.keys}: multiples of {CHUNK} are accepted")
    if options.plot is not None and not _may_write(options.plot):
        parser.error(
            f"--plot is {options.plot}: a file that may be written, in a folder that exists, is accepted"
        )
    if not torch.cuda.is_available():
        print("The bench needs a CUDA GPU, and torch finds none here.", file=sys.stderr)
        return 2
    ceilings = measure_ceilings()
    if not options.json:
        print(headline(ceilings), flush=True)
    rows = []
    try:
        for job in jobs:
            for row in RUNS[job](ceilings, options.keys):
                rows.append(row)
                if not options.json:
                    print(line(row), flush=True)
    except torch.cuda.OutOfMemoryError:
        print(
            f"The card has too little memory for {job} at --keys {options.keys}; ask for fewer.",
            file=sys.stderr,
        )
        return 2
    if options.json:
        print(json.dumps(report(ceilings, rows)))
    if options.plot is not None:
        options.plot.write_text(picture(rows), encoding="utf-8")
    return 0


def _may_write(path: Path) -> bool:
    if path.exists():
        return path.is_file() and os.access(path, os.W_OK)
    return path.parent.is_dir() and os.access(path.parent, os.W_OK)


def report(ceilings: Ceilings, rows: list[Row]) -> dict[str, Any]:
    """The table as JSON."""
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "ceilings": {f"{k}_per_second": v for k, v in dataclasses.asdict(ceilings).items()},
        "shape": {"heads": HEADS, "groups": GROUPS, "width": WIDTH, "block": BLOCK, "kept": KEPT},
        "rows": [{**dataclasses.asdict(r), "ratio": r.ratio, "floor_share": r.share} for r in rows],
    }


def milliseconds(work: Callable[[], object], *, warm: int = 2, budget_ms: float = 400.0) -> float:
    """Median time of `work` on the device: as many runs as fit the budget, at least one, at most 50."""
    for _ in range(warm):
        work()
    times: list[float] = []
    while not times or (sum(times) < budget_ms and len(times) < 50):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def graph_milliseconds(steps: list[Callable[[], object]]) -> float:
    """Median time of one of these steps, captured together in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for step in steps * 2:
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in steps:
            step()
    return milliseconds(graph.replay) / len(steps)


def measure_ceilings() -> Ceilings:
    """A copy of 2 GiB; products of 8,192 x 8,192 matrices of random numbers."""
    source = torch.randn(1 << 29, device=DEVICE)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / (milliseconds(lambda: target.copy_(source)) / 1e3)
    a, b = (torch.randn(CHUNK, CHUNK, device=DEVICE, dtype=BF16) for _ in "ab")
    bf16 = 2 * CHUNK**3 / (milliseconds(lambda: a @ b) / 1e3)
    if torch.cuda.get_device_capability() < (8, 9):
        return Ceilings(copy, bf16, bf16)
    c, d, one = a.to(FP8), b.t().contiguous().to(FP8).t(), torch.ones((), device=DEVICE)
    product = lambda: torch._scaled_mm(c, d, one, one, out_dtype=BF16)  # noqa: E731
    return Ceilings(copy, bf16, 2 * CHUNK**3 / (milliseconds(product) / 1e3))


@dataclass(frozen=True)
class Layer:
    """Random keys, values and index keys of one layer."""

    k_NGD: Tensor
    v_NGD: Tensor
    ki_ND: Tensor

    @staticmethod
    def random(keys: int, index_type: torch.dtype = BF16) -> Layer:
        """Keys and values in bf16, index keys in the type given."""
        k, v = (random(keys, GROUPS, WIDTH) for _ in "kv")
        return Layer(k, v, random(keys, WIDTH).to(index_type))

    def cut(self, keys: int) -> Layer:
        """The first keys."""
        return Layer(self.k_NGD[:keys], self.v_NGD[:keys], self.ki_ND[:keys])

    def attend(self, q_THD: Tensor, qi_TGD: Tensor, batch: Batch) -> Tensor:
        """All that a layer does between its projections."""
        ids = ops.select_blocks(qi_TGD, self.ki_ND, batch, block=BLOCK, topk=KEPT)
        return ops.sparse_attention(q_THD, self.k_NGD, self.v_NGD, ids, batch, block=BLOCK, scale=SCALE)[0]


def random(*shape: int, grad: bool = False) -> Tensor:
    """Normal numbers in bf16."""
    return torch.randn(*shape, device=DEVICE, dtype=BF16, requires_grad=grad)


def full_ms(q: Tensor, layer: Layer, *, causal: bool, graph: bool = False) -> float:
    """The best time of torch's libraries for full attention."""
    best = math.inf
    for backend in FULL_BACKENDS:

        def work(backend: Any = backend) -> object:
            return full_attention(q, layer.k_NGD, layer.v_NGD, causal=causal, backend=backend)

        try:
            best = min(best, graph_milliseconds([work]) if graph else milliseconds(work))
        except RuntimeError:
            continue  # this library does not take the shape
    return best


def floor_ms(ceilings: Ceilings, new: int, keys: int, index_type: torch.dtype) -> float:
    """Scores of all visible pairs and attention to the kept ones; every key and index key read once."""
    pairs = new * (keys - (new - 1) / 2)
    scores = 2 * GROUPS * WIDTH * pairs
    attention = 4 * HEADS * WIDTH * new * min(KEPT * BLOCK, keys)
    kept_keys = min(keys, new * KEPT * BLOCK) * GROUPS * WIDTH * 2 * 2
    moved = keys * WIDTH * index_type.itemsize + kept_keys + 2 * new * HEADS * WIDTH * 2
    if index_type == FP8:
        return ceilings.floor_ms(attention, scores, moved)
    return ceilings.floor_ms(attention + scores, 0.0, moved)


def prefill(ceilings: Ceilings, keys: int) -> Iterator[Row]:
    """A whole context, in chunks of 8,192 tokens."""
    layer, name = Layer.random(keys), {BF16: "bf16", FP8: "fp8"}
    q, qi = random(CHUNK, HEADS, WIDTH), random(CHUNK, GROUPS, WIDTH)
    full = None
    for index_type in (BF16, FP8):
        typed = dataclasses.replace(layer, ki_ND=layer.ki_ND.to(index_type))
        typed_qi = qi.to(index_type)
        ends = range(CHUNK, keys + 1, CHUNK)
        batches = [Batch.single(CHUNK, end, DEVICE) for end in ends]

        def work(layer: Layer = typed, qi: Tensor = typed_qi, batches: list[Batch] = batches) -> None:
            for batch in batches:
                layer.cut(batch.max_keys).attend(q, qi, batch)

        work()  # every length has kernels of its own to compile
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        ours = milliseconds(work, warm=0, budget_ms=1.0)
        beyond = (torch.cuda.max_memory_allocated() - held) / 1e9
        if full is None:
            whole = random(keys, HEADS, WIDTH)
            x = (whole, layer.k_NGD, layer.v_NGD)
            # Half a minute at 1M, so once, and by the library that is faster there.
            full = milliseconds(
                lambda: full_attention(*x, causal=True, backend=FULL_BACKENDS[0]),  # noqa: B023
                warm=0,
            )
            del whole, x
        note = f"whole context; {beyond:.1f} GB beyond inputs"
        least = floor_ms(ceilings, keys, keys, index_type)
        yield Row("prefill", keys, keys, name[index_type], ours, full, least, note)


def chunks(ceilings: Ceilings, keys: int) -> Iterator[Row]:
    """One chunk of 8,192 tokens at the end of contexts of several lengths."""
    layer = Layer.random(keys)
    q, qi = random(CHUNK, HEADS, WIDTH), random(CHUNK, GROUPS, WIDTH)
    for length in _lengths("chunk", keys):
        short, batch = layer.cut(length), Batch.single(CHUNK, length, DEVICE)
        # Without the triangle of the chunk itself, which flatters full attention by less than the noise.
        full = full_ms(q, short, causal=False)
        for index_type, name in ((BF16, "bf16"), (FP8, "fp8")):
            typed = dataclasses.replace(short, ki_ND=short.ki_ND.to(index_type))
            typed_qi = qi.to(index_type)
            work = lambda layer=typed, qi=typed_qi: layer.attend(q, qi, batch)  # noqa: B023, E731
            least = floor_ms(ceilings, CHUNK, length, index_type)
            yield Row("chunk", CHUNK, length, name, milliseconds(work), full, least)


def steps(ceilings: Ceilings, keys: int) -> Iterator[Row]:
    """An agent's step: few new tokens over a long prefix."""
    for new in STEPS:
        yield from _in_graphs(ceilings, "step", new, keys)


def decode(ceilings: Ceilings, keys: int) -> Iterator[Row]:
    """One token."""
    yield from _in_graphs(ceilings, "decode", 1, keys)


def _lengths(job: str, keys: int) -> list[int]:
    return [n for n in LENGTHS[job] if n <= keys]


def _in_graphs(ceilings: Ceilings, job: str, new: int, keys: int) -> Iterator[Row]:
    """Work too short to be launched one by one: ours and full attention as CUDA graphs."""
    q, qi = random(new, HEADS, WIDTH), random(new, GROUPS, WIDTH)
    for length in _lengths(job, keys):
        layers = [Layer.random(length) for _ in range(4)]
        batch = Batch.single(new, length, DEVICE)
        full = full_ms(q, layers[0], causal=False, graph=True)
        for index_type, name in ((BF16, "bf16"), (FP8, "fp8")):
            typed_qi = qi.to(index_type)
            typed = [dataclasses.replace(x, ki_ND=x.ki_ND.to(index_type)) for x in layers]
            work = [lambda layer=x, qi=typed_qi: layer.attend(q, qi, batch) for x in typed]  # noqa: B023
            with torch.no_grad():
                ours = graph_milliseconds(work)  # type: ignore[arg-type]
            yield Row(job, new, length, name, ours, full, floor_ms(ceilings, new, length, index_type))


def train(ceilings: Ceilings, keys: int) -> Iterator[Row]:
    """Forward and backward: the attention part alone, and the layer with selection and the index loss."""
    for length in _lengths("train", keys):
        q, k, v = (random(length, h, WIDTH, grad=True) for h in (HEADS, GROUPS, GROUPS))
        qi, ki = random(length, GROUPS, WIDTH, grad=True), random(length, WIDTH, grad=True)
        by_out, batch = random(length, HEADS, WIDTH), Batch.single(length, length, DEVICE)
        ids = ops.select_blocks(qi.detach(), ki.detach(), batch, block=BLOCK, topk=KEPT)

        def attention(ids: Tensor = ids, x: Any = (q, k, v), batch: Batch = batch) -> Tensor:
            q, k, v = x
            return ops.sparse_attention(q, k, v, ids, batch, block=BLOCK, scale=SCALE)[0]

        def alone(by: Tensor = by_out, x: Any = (q, k, v), run: Any = attention) -> object:
            return torch.autograd.grad(run(), x, by)

        def layer(by: Tensor = by_out, x: Any = (q, k, v, qi, ki), batch: Batch = batch) -> object:
            q, k, v, qi, ki = x
            ids = ops.select_blocks(qi.detach(), ki.detach(), batch, block=BLOCK, topk=KEPT)
            out, lse = ops.sparse_attention(q, k, v, ids, batch, block=BLOCK, scale=SCALE)
            kl = ops.index_kl(q, k, lse, qi, ki, ids, batch, block=BLOCK, scale=SCALE, index_scale=SCALE)
            return torch.autograd.grad((out, kl), x, (by, torch.ones_like(kl)))

        def full(by: Tensor = by_out, x: Any = (q, k, v)) -> object:
            out = full_attention(*x, causal=True, backend=FULL_BACKENDS[0])
            return torch.autograd.grad(out.transpose(0, 1), x, by)

        with torch.no_grad():
            forward = milliseconds(attention)
            full_forward = full_ms(q.detach(), Layer(k.detach(), v.detach(), ki.detach()), causal=True)
        pairs = length * KEPT * BLOCK
        once = 4 * HEADS * WIDTH * pairs
        scores = 2 * GROUPS * WIDTH * length * length / 2
        teacher = 2 * HEADS * WIDTH * pairs
        full_both = milliseconds(full, warm=1, budget_ms=1.0)
        floor = ceilings.floor_ms
        for note, ours, theirs, least in (
            ("attention, forward", forward, full_forward, once),
            ("attention, forward + backward", milliseconds(alone), full_both, 3.5 * once),
            ("layer with index loss, both", milliseconds(layer), full_both, 3.5 * once + scores + teacher),
        ):
            yield Row("train", length, length, "bf16", ours, theirs, floor(least), note)


def tokens(ceilings: Ceilings, keys: int) -> Iterator[Row]:
    """1,024 new tokens: blocks chosen per group beside single tokens chosen for all heads.

    Bytes moved: keys and values as each kernel reads them, and what it writes in between and reads again.
    """
    for length in _lengths("tokens", keys):
        yield from _blocks_and_tokens(ceilings, length, TOKENS)


def _blocks_and_tokens(ceilings: Ceilings, length: int, new: int) -> Iterator[Row]:
    layer = Layer.random(length)
    q, qi, batch = random(new, HEADS, WIDTH), random(new, GROUPS, WIDTH), Batch.single(new, length, DEVICE)
    full = full_ms(q, layer, causal=False)
    key_bytes = 2 * WIDTH * 2  # a key and its value, one group
    ids = ops.select_blocks(qi, layer.ki_ND, batch, block=BLOCK, topk=KEPT)
    numbers = ids.long() + torch.arange(GROUPS, device=DEVICE)[:, None] * length
    _, chosen_by = numbers[ids >= 0].unique(return_counts=True)
    read = int(((chosen_by + 127) // 128).sum()) * BLOCK * key_bytes  # once per 128 queries that chose it
    between = 2 * new * (KEPT * HEADS * WIDTH * 2 + GROUPS * length // BLOCK * 4)
    distinct = statistics.mean(len(of[of >= 0].unique()) * BLOCK for of in ids[-64:])
    note = f"2048 keys per group, {distinct:.0f} distinct per token, {(read + between) / 1e9:.2f} GB moved"
    ours = milliseconds(lambda: layer.attend(q, qi, batch))
    yield Row("blocks", new, length, "bf16", ours, full, floor_ms(ceilings, new, length, BF16), note)

    def by_tokens() -> tuple[Tensor, Tensor]:
        return token_level_attention(q, layer.k_NGD, layer.v_NGD, qi, layer.ki_ND, weights, KEPT * BLOCK)

    weights = torch.rand(new, GROUPS, device=DEVICE)
    read, between = new * KEPT * BLOCK * key_bytes * GROUPS, 2 * new * length * 4
    distinct = statistics.mean(len(of.unique()) for of in by_tokens()[1][-64:])
    note = (
        f"2048 keys for all groups, {distinct:.0f} distinct per token, {(read + between) / 1e9:.2f} GB moved"
    )
    yield Row("tokens", new, length, "bf16", milliseconds(by_tokens), full, None, note)


RUNS: dict[str, Callable[[Ceilings, int], Iterator[Row]]] = dict(
    zip(JOBS, (prefill, chunks, steps, decode, train, tokens), strict=True)
)


if __name__ == "__main__":
    sys.exit(main())
