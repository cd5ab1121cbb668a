"""What the public functions refuse: each in one sentence that names the argument, by kernels and by twins."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pilotfish.kernels import checks, layer, ops, reference
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.selection import select_blocks

T, H, G, D, BLOCK, KEPT = 5, 4, 2, 64, 32, 2
QUERIES, KEYS = [3, 0, 2], [40, 0, 70]
SCALES = {"scale": D**-0.5, "index_scale": D**-0.5}


@pytest.fixture(params=[True, False])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Each test by the kernels and by their twins."""
    monkeypatch.setattr(ops, "has_kernels", lambda x: request.param)
    return bool(request.param)


def _inputs(device: torch.device) -> list[Tensor]:
    """q, k, v, qi, ki of two sequences and an empty one."""
    N = sum(KEYS)
    return [torch.randn(*s, device=device) for s in ((T, H, D), (N, G, D), (N, G, D), (T, G, D), (N, D))]


def _batch(device: torch.device) -> Batch:
    return Batch.packed(QUERIES, KEYS, device)


BAD: list[tuple[str, str]] = [
    ("q", "q is torch.int64 "),
    ("k", "k is torch.float32 [110, 2, 32]: torch.float32 [N, G, 64], as q, is accepted"),
    ("heads", "q has 34 heads for 2 KV groups: 1 to 16 heads per group are accepted"),
    ("lse", "lse is torch.float32 [4, 5]: torch.float32 [5, 4] is accepted"),
    ("qi", "qi is torch.float32 [5, 4, 64]"),
    ("ki", "ki is torch.float16 [110, 64]: torch.float32 [110, 64]"),
    ("ids", "ids is torch.int64 [5, 2, 2]"),
    ("kept", "ids keeps 33 blocks: up to 32 are accepted"),
    ("block", "block is 48: 32, 64 or 128 is accepted"),
    ("scale", "scale is nan: a number from 1e-30 to 1e+30 is accepted"),
    ("index_scale", "index_scale is 0.0: a number from 1e-30 to 1e+30 is accepted"),
    ("stride", "qi has strides (1, 10, 5): a contiguous last dimension is accepted"),
    ("width", "q is 16 and qi 64 wide: 64 or 128 is accepted"),
]


@pytest.mark.parametrize(("what", "sentence"), BAD)
def test_bad_input_is_refused_in_one_sentence(device: torch.device, what: str, sentence: str) -> None:
    q, k, _, qi, ki = (x.detach() for x in _inputs(device))
    lse, ids = torch.zeros(T, H, device=device), torch.zeros(T, G, KEPT, dtype=torch.int32, device=device)
    arguments: dict[str, Any] = {"block": BLOCK, **SCALES}
    match what:
        case "q":
            q = q.long()
        case "k":
            k = k[..., :32]
        case "heads":
            q = torch.zeros(T, 34, D, device=device)
        case "lse":
            lse = lse.T
        case "qi":
            qi = torch.zeros(T, 4, D, device=device)
        case "ki":
            ki = ki.half()
        case "ids":
            ids = ids.long()
        case "kept":
            ids = torch.zeros(T, G, 33, dtype=torch.int32, device=device)
        case "stride":
            qi = torch.zeros(D, G, T, device=device).permute(2, 1, 0)
            sentence = sentence.replace("(1, 10, 5)", str(qi.stride()))
        case "width":
            q, k = q[..., :16], k[..., :16]
        case "block":
            arguments["block"] = 48
        case "scale":
            arguments["scale"] = float("nan")
        case "index_scale":
            arguments["index_scale"] = 0.0
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        ops.index_kl(q, k, lse, qi, ki, ids, _batch(device), **arguments)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("kernels")
def test_selection_and_attention_refuse_the_same(device: torch.device) -> None:
    """By kernels or twins: a ValueError that begins with the argument's name."""
    q, k, v, qi, ki = (x.detach() for x in _inputs(device))
    ids = torch.zeros(T, G, KEPT, dtype=torch.int32, device=device)
    batch, single = _batch(device), Batch.single(T, 111, device)
    choose: list[tuple[str, Any]] = [
        ("qi", (qi[0], ki, batch, BLOCK, KEPT)),
        ("qi", (qi.long(), ki.long(), batch, BLOCK, KEPT)),
        ("ki", (qi, ki[:, :32], batch, BLOCK, KEPT)),
        ("block", (qi, ki, batch, 48, KEPT)),
        ("topk", (qi, ki, batch, BLOCK, 0)),
        ("ki has 110", (qi, ki, single, BLOCK, KEPT)),
    ]
    for name, (qi_, ki_, batch_, block, topk) in choose:
        with pytest.raises(ValueError, match=rf"^{name} "):
            ops.select_blocks(qi_, ki_, batch_, block=block, topk=topk)
    attend: list[tuple[str, Any]] = [
        ("q", (q[0], k, v, ids, batch, BLOCK, 1.0)),
        ("k", (q, k[0], v, ids, batch, BLOCK, 1.0)),
        ("v", (q, k, v[:-1], ids, batch, BLOCK, 1.0)),
        ("q", (q[:, :3], k, v, ids, batch, BLOCK, 1.0)),
        ("ids", (q, k, v, ids.long(), batch, BLOCK, 1.0)),
        ("ids", (q, k, v, ids[1:], batch, BLOCK, 1.0)),
        ("block", (q, k, v, ids, batch, 16, 1.0)),
        ("scale", (q, k, v, ids, batch, BLOCK, -1.0)),
        ("k has 110", (q, k, v, ids, single, BLOCK, 1.0)),
        ("k", (q, torch.empty(110, D, G, device=device).transpose(1, 2), v, ids, batch, BLOCK, 1.0)),
    ]
    for name, (q_, k_, v_, ids_, batch_, block, scale) in attend:
        with pytest.raises(ValueError, match=rf"^{name} "):
            ops.sparse_attention(q_, k_, v_, ids_, batch_, block=block, scale=scale)


def test_places_of_results_are_looked_at(device: torch.device, kernels: bool) -> None:
    q, k, v, qi, ki = (x.detach() for x in _inputs(device))
    ids = torch.zeros(T, G, KEPT, dtype=torch.int32, device=device)
    batch = _batch(device)
    out, lse = torch.empty_like(q), torch.empty(T, H, device=device)
    wrong = [(out[:, :2], lse), (out.half(), lse), (out, lse.half()), (torch.empty(3, *q.shape), lse)]
    if kernels:
        wrong += [(out[:1].expand(T, H, D), lse), (k.flatten()[: out.numel()].view_as(out), lse)]
    for place in wrong:
        with pytest.raises(ValueError, match=r"^(out|lse) "):
            ops.sparse_attention(q, k, v, ids, batch, block=BLOCK, scale=1.0, out=place)
    with pytest.raises(ValueError, match=r"^out "):
        ops.select_blocks(qi, ki, batch, block=BLOCK, topk=KEPT, out=ids.bool())
    with pytest.raises(ValueError, match=r"^k is on meta"):
        ops.sparse_attention(q, k.to("meta"), v, ids, batch, block=BLOCK, scale=1.0)
    with pytest.raises(ValueError, match=r"^ki is on meta"):
        ops.select_blocks(qi, ki.to("meta"), batch, block=BLOCK, topk=KEPT)


def test_what_no_kernel_takes_is_refused_before_it_is_compiled(device: torch.device) -> None:
    q, k, v, qi, ki = _inputs(device)
    ids = torch.zeros(T, G, KEPT, dtype=torch.int32, device=device)
    q.requires_grad_()
    short = (x.to(torch.float8_e4m3fn) for x in (k, v))
    with pytest.raises(ValueError, match=r"^k is .*gradient"):
        ops.sparse_attention(q, *short, ids, _batch(device), block=BLOCK, scale=1.0)
    lse = torch.zeros(T, H, dtype=torch.float64, device=device)
    with pytest.raises(ValueError, match=r"^lse "):
        ops.index_kl(q, k, lse, qi, ki, ids, _batch(device), block=BLOCK, **SCALES)
    spread = torch.empty(1, 1, D, device=device).as_strided((1, 1, D), (1 << 24, D, 1))
    few = Batch.single(1, 1, device)
    one = q.detach()[:1, :1].contiguous()
    with pytest.raises(ValueError, match=r"^k has strides"):
        ops.sparse_attention(one, spread, spread, ids[:1, :1], few, block=BLOCK, scale=1.0)


WRONG_TYPES: list[tuple[str, list[Any], str]] = [
    ("q", [None, [[[0.5]]], "q"], "a torch.Tensor is accepted"),
    ("k", [None, 3], "a torch.Tensor is accepted"),
    ("v", [None], "a torch.Tensor is accepted"),
    ("ids", [None, [[[0, 1]]]], "a torch.Tensor is accepted"),
    ("qi", [None], "a torch.Tensor is accepted"),
    ("ki", [None, ()], "a torch.Tensor is accepted"),
    ("lse", ["lse"], "a torch.Tensor is accepted"),
    ("batch", [None, (5, 110), torch.zeros(3)], "a kernels.batch.Batch is accepted"),
    ("block", [None, True, "32", 32.0, torch.tensor(32)], "a whole number is accepted"),
    ("topk", [None, True, "2", 2.0], "a whole number is accepted"),
    ("local", [None, True], "a whole number is accepted"),
    ("init", [None, False], "a whole number is accepted"),
    ("scale", [None, True, "1", torch.tensor(0.1)], "a number from 1e-30 to 1e+30 is accepted"),
    ("scale", [1e39, float("nan"), float("inf"), 0, -1.0, 1e-60], "a number from 1e-30 to 1e+30 is accepted"),
    ("index_scale", [None, 1e39, False], "a number from 1e-30 to 1e+30 is accepted"),
]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("name", "values", "accepted"), WRONG_TYPES)
def test_what_python_lets_pass_is_refused(
    device: torch.device, name: str, values: list[Any], accepted: str
) -> None:
    """By every function that takes the argument."""
    q, k, v, qi, ki = _inputs(device)
    ids, lse = torch.zeros(T, G, KEPT, dtype=torch.int32, device=device), torch.zeros(T, H, device=device)
    good: dict[str, Any] = {
        "q": q, "k": k, "v": v, "ids": ids, "lse": lse, "qi": qi, "ki": ki, "batch": _batch(device),
        "block": BLOCK, "topk": KEPT, "local": 1, "init": 0, **SCALES,
    }  # fmt: skip
    functions: list[tuple[Callable[..., Any], str, str]] = [
        (ops.select_blocks, "qi ki batch", "block topk local init"),
        (ops.sparse_attention, "q k v ids batch", "block scale"),
        (ops.index_kl, "q k lse qi ki ids batch", "block scale index_scale"),
        (ops.index_kl_dense, "q k lse qi ki batch", "scale index_scale"),
        (layer.selected_attention, "q k v qi ki batch", "block topk local init scale"),
    ]
    for function, positions, keywords in functions:
        if name not in (*positions.split(), *keywords.split()):
            continue
        for value in values:
            given = good | {name: value}
            with pytest.raises(ValueError, match=rf"^{name} is .*: {re.escape(accepted)}$"):
                function(*(given[n] for n in positions.split()), **{n: given[n] for n in keywords.split()})


@pytest.mark.usefixtures("kernels")
def test_what_is_no_pair_of_places_is_refused(device: torch.device) -> None:
    q, k, v, qi, ki = _inputs(device)
    ids = torch.zeros(T, G, KEPT, dtype=torch.int32, device=device)
    places: list[Any] = [q, (q,), 7, (None, q)]
    for place in places:
        with pytest.raises(ValueError, match=r"^out is "):
            ops.sparse_attention(q, k, v, ids, _batch(device), block=BLOCK, scale=1.0, out=place)
    nowhere: Any = [1]
    with pytest.raises(ValueError, match=r"^out is \[1\]: a torch.Tensor is accepted"):
        ops.select_blocks(qi, ki, _batch(device), block=BLOCK, topk=KEPT, out=nowhere)


LIES: list[tuple[str, dict[str, Any], str]] = [
    (
        "rows before the first sequence",
        {"query_starts": [2, 3, 3, 5]},
        "batch.query_starts is [2, 3, 3, 5]: ",
    ),
    ("sequences that run backwards", {"query_starts": [0, 3, 1, 5]}, "batch.query_starts is [0, 3, 1, 5]: "),
    ("more rows than there are", {"query_starts": [0, 3, 3, 6]}, "batch.query_starts is [0, 3, 3, 6]: "),
    ("no key", {"key_lengths": [40, -1, 70]}, "batch.key_lengths is [40, -1, 70]: 0 to batch.max_keys = 70"),
    ("endless keys", {"key_lengths": [2**31 - 1, 0, 70]}, "batch.key_lengths is [2147483647, 0, 70]: "),
    ("a bound of keys", {"max_keys": 69}, "batch.key_lengths is [40, 0, 70]: 0 to batch.max_keys = 69"),
    ("a bound of queries", {"max_queries": 2}, "batch.max_queries is 2, but a sequence has 3 new tokens"),
    ("a larger bound than keys", {"max_keys": 111}, "110 keys: fewer than batch.max_keys = 111"),
    ("keys before the first", {"key_starts": [-1, 40, 40, 110]}, "batch.key_starts is [-1, 40, 40, 110]: "),
    ("keys behind the last", {"key_starts": [0, 40, 41, 110]}, "batch.key_starts is [0, 40, 41, 110]: "),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the numbers are not read back")
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("changes", "sentence"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
def test_batches_that_contradict_themselves_are_refused(changes: dict[str, Any], sentence: str) -> None:
    cpu = torch.device("cpu")
    q, k, v, qi, ki = _inputs(cpu)
    ids = torch.zeros(T, G, KEPT, dtype=torch.int32)
    numbers = {
        n: torch.tensor(x, dtype=torch.int32) if isinstance(x, list) else x for n, x in changes.items()
    }
    batch = dataclasses.replace(_batch(cpu), **numbers)
    calls: list[Callable[[], object]] = [
        lambda: ops.select_blocks(qi, ki, batch, block=BLOCK, topk=KEPT),
        lambda: ops.sparse_attention(q, k, v, ids, batch, block=BLOCK, scale=1.0),
        lambda: ops.index_kl(q, k, torch.zeros(T, H), qi, ki, ids, batch, block=BLOCK, **SCALES),
        lambda: ops.index_kl_dense(q, k, None, qi, ki, batch, **SCALES),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=re.escape(sentence)):
            call()


def test_index_queries_with_heads_in_front_are_read_where_they_lie(device: torch.device) -> None:
    """As the projections of a prefill of 65,536 tokens leave them."""
    far = torch.zeros(2, 65_536, 64, dtype=torch.float16, device=device)
    far[:, :3].normal_()
    qi, ki = far.transpose(0, 1)[:3], torch.randn(300, 64, device=device).half()
    batch = Batch.single(3, 300, device)
    ids = ops.select_blocks(qi, ki, batch, block=BLOCK, topk=4)
    assert torch.equal(ids, ops.select_blocks(qi.contiguous(), ki, batch, block=BLOCK, topk=4))


def test_what_kernels_cannot_count_is_refused_before_they_start() -> None:
    """Sizes alone decide, so nothing need be there."""
    few, options = Batch.single(2, 300, "meta"), (BLOCK, 4, 1, 0)
    qi, ki = torch.empty(2, 2, 64, device="meta"), torch.empty(300, 64, device="meta")
    checks.check_selection(qi, ki, few, *options, kernels=True)
    spread = torch.empty_strided((2, 2, 64), (64, 1 << 31, 1), device="meta")
    with pytest.raises(ValueError, match=r"^qi has strides .*as qi\.contiguous\(\) has them"):
        checks.check_selection(spread, ki, few, *options, kernels=True)
    thin = torch.empty_strided((300, 64), (1 << 24, 1), device="meta")
    with pytest.raises(ValueError, match=r"^ki has strides .*as ki\.contiguous\(\) has it"):
        checks.check_selection(qi, thin, few, *options, kernels=True)
    crowd = Batch.packed([0] * 65_536, [1] * 65_536, "meta")
    many = torch.empty(65_536, 64, device="meta")
    with pytest.raises(ValueError, match=r"^batch has 65536 sequences: up to 65535 are accepted"):
        checks.check_selection(qi[:0], many, crowd, *options, kernels=True)
    endless = torch.empty(1 << 30, 32, dtype=torch.float16, device="meta")
    with pytest.raises(ValueError, match=r"^batch\.max_keys is 1073741824: up to 67107840 are accepted"):
        select_blocks(endless[:1, None], endless, Batch.single(1, 1 << 30, "meta"), block=32, topk=4)


def test_a_batch_is_made_of_numbers() -> None:
    starts, lengths = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    anything: Any = None
    for name, make in (
        ("queries", lambda: Batch.single(anything, 3, "cpu")),
        ("keys", lambda: Batch.single(1, 3.0, "cpu")),  # type: ignore[arg-type]
        ("queries", lambda: Batch.packed(anything, [3], "cpu")),
        (r"keys\[1\]", lambda: Batch.packed([1, 1], [3, True], "cpu")),
        (r"queries\[0\]", lambda: Batch.packed([-1], [3], "cpu")),
        ("keys", lambda: Batch.packed([1, 1], [2**31 - 256, 1], "cpu")),
        ("query_starts", lambda: Batch(anything, lengths, 1, 1)),
        ("key_lengths", lambda: Batch(starts, lengths[0], 1, 1)),
        ("pages", lambda: Batch(starts, lengths, 1, 1, pages=[[0]])),  # type: ignore[arg-type]
        ("max_keys", lambda: Batch(starts, lengths, 1, anything)),
        ("max_queries", lambda: Batch(starts, lengths, -1, 1)),
    ):
        with pytest.raises(ValueError, match=rf"^{name} (is|are|has) .* accepted$"):
            make()


def test_the_choice_in_the_model_s_layout_refuses_the_same() -> None:
    qi, ki = torch.randn(1, 2, 3, 16), torch.randn(1, 40, 16)
    options: list[tuple[str, dict[str, Any]]] = [
        ("q", {"q_BGTD": None}), ("q", {"q_BGTD": qi[0]}), ("k", {"k_BND": ki.long()}),
        ("start", {"start": 36}), ("start", {"start": -1}), ("start", {"start": None}),
        ("block", {"block": 0}), ("block", {"block": "32"}), ("topk", {"topk": 0}), ("topk", {"topk": True}),
        ("local", {"local": 3, "init": 2}), ("local", {"local": -1}), ("init", {"init": 1.5}),
    ]  # fmt: skip
    good: dict[str, Any] = {"q_BGTD": qi, "k_BND": ki, "start": 37, "block": 8, "topk": 4}
    assert reference.choose_blocks(**good).shape == (1, 2, 3, 4)
    for name, change in options:
        with pytest.raises(ValueError, match=rf"^{name} is .*accepted|^{name} is .* at most topk = 4"):
            reference.choose_blocks(**good | change)
