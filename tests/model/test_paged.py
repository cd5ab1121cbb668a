"""Decoding over pages with fixed shapes: the same scores as attending sequence by sequence, within rounding.

On a GPU passes are captured in CUDA graphs. Here the plain twins of the kernels run in the same places, and
once the kernels themselves, in Triton's interpreter.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pilotfish.kernels import ops
from pilotfish.model import checkpoint
from pilotfish.model.flat import FlatDecoder
from pilotfish.model.folder import find_folder
from pilotfish.model.graphs import PagedDecoder, decoder_of
from pilotfish.model.images import clip_patches
from pilotfish.model.m3 import M3
from pilotfish.model.pages import PagePool
from pilotfish.model.protocol import Clip
from pilotfish.model.sequence import Tokens, TokenSequence, append_ahead, append_each, pool_for
from pilotfish.model.training.loader import decode
from pilotfish.model.training.samples import SampleMaker

from .drawing import drawn_episode

IDS = np.random.default_rng(1).integers(10, 500, (4, 1200)).tolist()
LENGTHS = [1, 610, 95, 400]
WIDE: dict[str, Any] = {
    "head_dim": 64,
    "sparse_attention_config": {
        "sparse_index_dim": 32,
        "sparse_num_index_heads": 2,
        "sparse_topk_blocks": 2,
        "sparse_block_size": 32,
        "sparse_attention_freq": [0, 1, 1],
    },
}
"""Sizes that the kernels take."""


def no_features(number: int) -> Tensor:
    raise AssertionError("there are no pictures")


@pytest.fixture(scope="module")
def nano() -> M3:
    model, _ = checkpoint.load(find_folder("nano"), torch.device("cpu"), torch.float32)
    return model


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes seconds for a pass."""
    monkeypatch.setattr(ops, "INTERPRET", False)


def sequences(model: M3, pool: PagePool, lengths: Sequence[int] = LENGTHS) -> list[TokenSequence]:
    made = [TokenSequence(model, chunk=64, pool=pool) for _ in lengths]
    for one, ids, length in zip(made, IDS, lengths, strict=False):
        one.extend(Tokens.lay_out(ids[:length], (), ()), no_features)
    return made


@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize("attention", ["sparse", "dense"])
def test_paged_rows_score_as_each_sequence(nano: M3, attention: str) -> None:
    """Past the sparse budget, in changing order and number, with pages that grow and buffers that move."""
    pool, twin = pool_for(nano), pool_for(nano)
    ours, theirs = sequences(nano, pool), sequences(nano, twin)
    for one in theirs:
        one.attention = attention  # type: ignore[assignment]
    decoder = PagedDecoder(nano, pool, attention, graphs=False)  # type: ignore[arg-type]
    draw = np.random.default_rng(2)
    for step in range(14):
        some = draw.permutation(len(LENGTHS))[: draw.integers(1, 5)].tolist()
        ids = draw.integers(10, 500, len(some)).tolist()
        before = pool.generation
        if step == 7:
            pool.take(2 * pool.held + 64)  # another conversation
            assert pool.generation > before
        rows = decoder.decode(ids, [ours[i].cache for i in some])
        expected = torch.stack(append_each([theirs[i] for i in some], ids))
        assert (rows - expected).abs().max() < 2e-4
    assert [one.length for one in ours] == [one.length for one in theirs]


@pytest.mark.usefixtures("twins")
def test_padding_writes_into_no_sequence(nano: M3) -> None:
    pool = pool_for(nano)
    first, *others = sequences(nano, pool)
    before = [{name: x.clone() for name, x in one.cache.tensors(one.length).items()} for one in others]
    decoder = PagedDecoder(nano, pool, "sparse", graphs=False)
    for token in range(10, 18):
        decoder.decode([token], [first.cache])
    for one, old in zip(others, before, strict=True):
        for name, x in one.cache.tensors(one.length).items():
            assert torch.equal(x, old[name])


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_the_kernels_decode_the_same(tiny_model: Callable[..., M3], device: str) -> None:
    """Sizes the kernels take; captured in a graph where there is a GPU."""
    model = tiny_model(0, **WIDE).to(device).requires_grad_(False)
    pool, twin = pool_for(model), pool_for(model)
    ours, theirs = sequences(model, pool, [100, 33]), sequences(model, twin, [100, 33])
    decoder = PagedDecoder(model, pool, "sparse", graphs=device == "cuda")
    for ids in ([5, 6], [7, 8]):
        rows = decoder.decode(ids, [one.cache for one in ours])
        expected = model.decode(ids, [one.cache for one in theirs], "sparse")
        assert (rows - expected).abs().max() < 2e-4


@pytest.mark.usefixtures("twins")
def test_stacked_experts_are_the_experts(tiny_model: Callable[..., M3]) -> None:
    """Stacking keeps names, values and training, and follows weights that were replaced."""
    model = tiny_model(0, **WIDE).requires_grad_(False)
    state = {name: x.clone() for name, x in model.state_dict().items()}
    pool = pool_for(model)
    for change in (0.0, 0.5):
        for expert in model.language_model.model.layers[1].block_sparse_moe.experts:
            expert.w1.weight.data = expert.w1.weight.data + change
        one, twin = TokenSequence(model, chunk=64, pool=pool), TokenSequence(model, chunk=64, pool=pool)
        for each in (one, twin):
            each.extend(Tokens.lay_out(IDS[0][:90], (), ()), no_features)
        rows = PagedDecoder(model, pool, "sparse", graphs=False).decode([7], [one.cache])
        assert (rows[0] - twin.append(7)).abs().max() < 1e-4
        if not change:
            assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_grouped_experts_compute_what_chosen_ones_do(nano: M3, device: str) -> None:
    """An expert that nobody chose, and one that everybody did, among them."""
    moe = copy.deepcopy(nano.language_model.model.layers[3].block_sparse_moe).to(device, torch.bfloat16)
    moe.e_score_correction_bias[2], moe.e_score_correction_bias[5] = -10.0, 10.0
    moe.requires_grad_(False)
    x = torch.randn(300, nano.config.text.hidden_size, device=device).bfloat16()
    _, chosen = moe._choose(x)
    picks = chosen.flatten().sort().values
    assert (chosen == 5).any(1).all()
    assert not (chosen == 2).any()
    rows = x.repeat_interleave(chosen.shape[1], dim=0)
    grouped, plain = moe._in_groups(rows, picks), moe._one_by_one(rows, picks)
    torch.testing.assert_close(
        grouped.float(), plain.float(), rtol=2e-2, atol=2e-2 * plain.abs().max().item()
    )
    assert torch.equal(grouped, moe._in_groups(rows, picks))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_pool_has_a_decoder_for_each_attention_and_ends_with_them(tiny_model: Callable[..., M3]) -> None:
    model = tiny_model(0, **WIDE).to("cuda").requires_grad_(False)
    pool = pool_for(model)
    sparse, dense = decoder_of(model, pool, "sparse"), decoder_of(model, pool, "dense")
    assert sparse is decoder_of(model, pool, "sparse")
    assert sparse is not dense
    gone = weakref.ref(pool)
    del pool, sparse, dense
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("attention", ["sparse", "dense"])
def test_flat_rows_score_as_layer_by_layer(nano: M3, attention: str) -> None:
    """Past the sparse budget, in changing order and number, on pages that lie apart and buffers that move."""
    model = copy.deepcopy(nano)
    pool, alone, twin = pool_for(model), pool_for(model), pool_for(nano)
    ours, single, theirs = sequences(model, pool), sequences(model, alone), sequences(nano, twin)
    decoder, other = decoder_of(model, pool, attention), decoder_of(model, alone, attention)  # type: ignore[arg-type]
    assert isinstance(decoder, FlatDecoder)
    assert isinstance(other, FlatDecoder)
    draw = np.random.default_rng(2)
    for step in range(40):
        some = draw.permutation(len(LENGTHS))[: draw.integers(1, 5)].tolist()
        ids = draw.integers(10, 500, len(some)).tolist()
        if step == 7:
            pool.take(2 * pool.held + 64)
        if step == 9:
            pool.take(1)  # the next page of each lies elsewhere
        rows = decoder.decode(ids, [ours[i].cache for i in some])
        expected = nano.decode(ids, [theirs[i].cache for i in some], attention)  # type: ignore[arg-type]
        assert (rows - expected).abs().max() < 2e-4
        lone = [other.decode([token], [single[i].cache]) for token, i in zip(ids, some, strict=True)]
        assert torch.equal(rows, torch.cat(lone))
    assert not all(one.cache.in_one_run for one in ours)
    assert [one.length for one in ours] == [one.length for one in theirs]
    kept = nano.state_dict()
    assert all(torch.equal(x, kept[name]) for name, x in model.state_dict().items())


def test_answers_to_real_prompts_are_those_layer_by_layer(nano: M3) -> None:
    """What nano would do on screens it is shown, token by token; where two tokens are as good as each other
    within rounding, either may come.
    """
    maker = SampleMaker(find_folder("nano"), 0)
    words = 0
    for seed in range(4):
        sample = maker.episode(drawn_episode(seed, 2), 2)
        begin = int(np.flatnonzero(sample.weights)[0])  # of the first answer
        assert sample.episode is not None
        frames = np.stack([decode(sample.episode.frames[n]) for n in sample.frames])
        clip = Clip(frames[list(sample.clips[0])], (0.0, 0.1, 0.2, 0.3))
        patches, grids = clip_patches(clip)
        media = nano.encode_media(torch.from_numpy(patches), grids)
        places = (nano.config.image_token_id, nano.config.video_token_id)
        prompt = Tokens.lay_out(sample.ids[:begin], [clip], places)
        ours, theirs = (TokenSequence(nano, chunk=512, pool=pool_for(nano)) for _ in range(2))
        scores, expected = (one.extend(prompt, lambda number, media=media: media) for one in (ours, theirs))
        assert scores is not None
        assert expected is not None
        assert isinstance(decoder_of(nano, ours.cache.pool, "sparse"), FlatDecoder)
        for _ in range(48):
            first, second = expected.topk(2).values.tolist()
            token = int(expected.argmax())
            assert int(scores.argmax()) == token or first - second < 1e-3
            if token == maker.tokenizer.eos_id:
                break
            words += 1
            scores = append_each([ours], [token])[0]
            expected = nano.decode([token], [theirs.cache], "sparse")[0]
        else:
            pytest.fail("the answer has no end")
    assert words > 60


def test_tokens_ahead_score_as_one_after_the_other(nano: M3) -> None:
    """To the last bit, over the border of a page and of the sparse budget."""
    pool, twin = pool_for(nano), pool_for(nano)
    (ours,), (theirs,) = sequences(nano, pool, [509]), sequences(nano, twin, [509])
    ids = IDS[1][509:545]
    for first in range(0, len(ids), 4):
        rows = append_ahead(ours, ids[first : first + 4])
        assert torch.equal(rows, torch.stack([theirs.append(token) for token in ids[first : first + 4]]))
        ours.truncate(ours.length - 2)  # guesses that were wrong
        assert torch.equal(append_ahead(ours, ids[first + 2 : first + 4]), rows[2:])
    assert ours.length == theirs.length == 545


@pytest.mark.parametrize("kept", [{"init_blocks": 1}, {"local_blocks": 2}])
def test_flat_rows_of_other_sizes(tiny_model: Callable[..., M3], kept: dict[str, int]) -> None:
    """Index heads of another width than the others, forced blocks, and scores that are no numbers."""
    sizes = copy.deepcopy(WIDE)
    names = {"init_blocks": "sparse_init_block", "local_blocks": "sparse_local_block"}
    sizes["sparse_attention_config"] |= {names[name]: n for name, n in kept.items()}
    model = tiny_model(0, **sizes).requires_grad_(False)
    pool, twin = pool_for(model), pool_for(model)
    ours, theirs = sequences(model, pool, [150, 33]), sequences(model, twin, [150, 33])
    for one in (*ours, *theirs):
        one.cache.pool.buffers["index.1"][0, 40:44] = torch.tensor([[float("nan")], [float("inf")]] * 2)
    decoder, another = FlatDecoder(model, pool, "sparse"), FlatDecoder(model, pool, "sparse")
    text = model.language_model.model
    for ids in ([5, 6], [7, 8], [9, 10], [11, 12], [13, 14]):
        rows = decoder.decode(ids, [one.cache for one in ours])
        expected = model.decode(ids, [one.cache for one in theirs], "sparse")
        torch.testing.assert_close(rows, expected, rtol=0, atol=2e-4, equal_nan=True)
        if ids == [5, 6]:
            text.norm.weight.add_(0.5)  # in place, as training does
        if ids == [7, 8]:
            text.layers[1].self_attn.q_proj.weight.data = text.layers[1].self_attn.q_proj.weight.data * 1.5
        decoder, another = another, decoder
    assert decoder._layers[0].into.data_ptr() == another._layers[0].into.data_ptr()
