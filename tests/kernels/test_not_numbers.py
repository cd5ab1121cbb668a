"""NaN and infinity in what the kernels read: how far they reach, and what they leave alone.

The promise is that of docs/kernels.md, "Bad input": a key, value or query that is no number may spoil the
rows of its group that read its block, and the gradients of the blocks that those rows read; nothing else.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pilotfish.kernels import backward, plain_selection, plain_training, selection, training, warmup
from pilotfish.kernels.attention import sparse_attention
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.kv_outer import KVOuterTiles
from pilotfish.kernels.plain_attention import plain_sparse_attention
from pilotfish.kernels.query_outer import QueryOuterTiles

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of the interpreter

T, H, G, D, BLOCK = 9, 4, 2, 64, 32
QUERIES, KEYS = [6, 3], [128, 64]
"""Tokens 0 to 2 read blocks 0 and 1 of the first sequence, 3 to 5 blocks 2 and 3; the others the second's."""
WALKS = {"key blocks outside": KVOuterTiles(piece=16), "queries outside": QueryOuterTiles(), "twin": None}


class Layer(NamedTuple):
    """What a call reads."""

    q: Tensor
    k: Tensor
    v: Tensor
    qi: Tensor
    ki: Tensor
    ids: Tensor
    batch: Batch

    def spoilt(self, name: str, value: float) -> Layer:
        """With one number of group 0 in the first block, or of the first token, replaced."""
        x = getattr(self, name).clone()
        x.view(len(x), -1)[1, 5] = value
        return self._replace(**{name: x})


@pytest.fixture
def layer(device: torch.device) -> Layer:
    N = sum(KEYS)
    shapes = ((T, H, D), (N, G, D), (N, G, D), (T, G, D), (N, D))
    ids = torch.tensor([[0, 1]] * 3 + [[2, 3]] * 3 + [[0, 1]] * 3, dtype=torch.int32, device=device)
    return Layer(
        *(torch.randn(*shape, device=device) for shape in shapes),
        ids[:, None].expand(T, G, 2).contiguous(),
        Batch.packed(QUERIES, KEYS, device),
    )


def _attend(x: Layer, walk: str) -> tuple[Tensor, Tensor]:
    arguments: Any = (x.q, x.k, x.v, x.ids, x.batch)
    if WALKS[walk] is None:
        return plain_sparse_attention(*arguments, block=BLOCK, scale=0.1)
    return sparse_attention(*arguments, block=BLOCK, scale=0.1, tiles=WALKS[walk])


def _same(ours: Tensor, plain: Tensor, *, exact: bool = True) -> None:
    """exact: False for the twins' gradients, which torch adds up on a GPU in any order."""
    if exact:
        assert torch.equal(ours, plain)
    else:
        torch.testing.assert_close(ours, plain)
    assert ours.isfinite().all()


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_keys_and_values_reach_the_rows_of_their_group_that_read_the_block(
    layer: Layer, walk: str, value: float
) -> None:
    before = _attend(layer, walk)
    for name in "kv":
        for ours, plain in zip(_attend(layer.spoilt(name, value), walk), before, strict=True):
            _same(ours[3:], plain[3:])
            _same(ours[:, H // G :], plain[:, H // G :])


@pytest.mark.parametrize("walk", WALKS)
def test_a_query_reaches_itself(layer: Layer, walk: str) -> None:
    others = torch.ones(T, H, dtype=torch.bool, device=layer.q.device)
    others[1, 0] = False
    for ours, plain in zip(_attend(layer.spoilt("q", math.nan), walk), _attend(layer, walk), strict=True):
        _same(ours[others], plain[others])


@pytest.mark.parametrize("walk", WALKS)
def test_pages_reach_the_sequences_that_have_them(layer: Layer, walk: str) -> None:
    pages = torch.tensor([[3, 0, 5, 2], [1, 4, 6, 6]], dtype=torch.int32, device=layer.q.device)
    pool = torch.randn(7, BLOCK, G, D, device=layer.q.device)
    paged = layer._replace(k=pool, v=pool, batch=Batch.packed(QUERIES, KEYS, layer.q.device, pages))
    spoilt = pool.clone()
    spoilt[[3, 0, 5, 2], :, 0] = math.nan
    for ours, plain in zip(
        _attend(paged._replace(k=spoilt, v=spoilt), walk), _attend(paged, walk), strict=True
    ):
        _same(ours[6:], plain[6:])


@pytest.mark.parametrize("kernels", [True, False])
def test_gradients_of_other_rows_and_of_blocks_that_those_read(layer: Layer, kernels: bool) -> None:
    walk = "key blocks outside" if kernels else "twin"
    differentiate: Any = backward.sparse_attention_backward
    if not kernels:
        differentiate = plain_training.plain_sparse_attention_backward
    dout, dlse = torch.randn_like(layer.q), torch.randn(T, H, device=layer.q.device)
    # A third choice of nothing: what is not there must not become NaN somewhere else.
    ids = torch.cat((layer.ids, torch.full_like(layer.ids[..., :1], -1)), -1)

    def gradients(x: Layer) -> tuple[Tensor, Tensor, Tensor]:
        x = x._replace(ids=ids)
        out, lse = _attend(x, walk)
        found = differentiate(dout, dlse, x.q, x.k, x.v, ids, out, lse, x.batch, block=BLOCK, scale=0.1)
        return found[0], found[1], found[2]

    plain_dq, *plain = gradients(layer)
    for name in "qkv":
        dq, *ours = gradients(layer.spoilt(name, math.nan))
        _same(dq[3:], plain_dq[3:], exact=kernels)
        _same(dq[:, H // G :], plain_dq[:, H // G :], exact=kernels)
        for by_keys, wanted in zip(ours, plain, strict=True):
            _same(by_keys[64:], wanted[64:], exact=kernels)
            _same(by_keys[:, 1], wanted[:, 1], exact=kernels)


@pytest.mark.parametrize("kernels", [True, False])
def test_gradients_of_the_index_branch(layer: Layer, kernels: bool) -> None:
    chosen: Any = training.index_kl if kernels else plain_training.plain_index_kl
    dense: Any = warmup.index_kl_dense if kernels else plain_training.plain_index_kl_dense
    _, lse = _attend(layer, "twin")
    scales: dict[str, Any] = {"scale": 0.1, "index_scale": 0.1}

    def gradients(x: Layer) -> list[Tensor]:
        _, dqi, dki = chosen(x.q, x.k, lse, x.qi, x.ki, x.ids, x.batch, block=BLOCK, **scales)
        _, dense_dqi, dense_dki = dense(x.q, x.k, None, x.qi, x.ki, x.batch, **scales)
        return [dqi[3:], dki[64:], dense_dqi[6:], dense_dki[128:]]

    plain = gradients(layer)
    for name in ("k", "qi", "ki"):
        for ours, wanted in zip(gradients(layer.spoilt(name, math.nan)), plain, strict=True):
            _same(ours, wanted, exact=kernels)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_index_keys_and_queries_change_the_choice_of_those_who_see_them(layer: Layer, value: float) -> None:
    options: dict[str, Any] = {"block": BLOCK, "topk": 2}
    before = selection.select_blocks(layer.qi, layer.ki, layer.batch, **options)
    for name, same in (("qi", [0, *range(2, T)]), ("ki", [6, 7, 8])):
        x = layer.spoilt(name, value)
        ids = selection.select_blocks(x.qi, x.ki, x.batch, **options)
        assert torch.equal(ids[same], before[same])
        assert torch.equal(ids, plain_selection.select_blocks(x.qi, x.ki, x.batch, **options))
