"""Our network against transformers' MiniMax-M3 on the same random weights.

Both run in fp32. transformers' own checkpoint writer and our loader carry the weights across, so the
published names are part of what is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLConfig

from pilotfish.kernels import reference
from pilotfish.model import checkpoint
from pilotfish.model.cache import Cache
from pilotfish.model.layers import text_rotary
from pilotfish.model.m3 import M3
from pilotfish.model.sampling import Sampler
from pilotfish.model.sequence import pool_for

IMAGE_ID, VIDEO_ID, EOS = 500, 501, 2
TOLERANCE = 1e-5

SPARSE, FULL = "minimax_m3_sparse", "full_attention"
CONFIGS: dict[str, dict[str, Any]] = {
    "two groups, short budget": {
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "index_head_dim": 16,
        "index_block_size": 8, "index_topk_blocks": 2, "layer_types": [FULL, FULL, SPARSE, SPARSE],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "swiglu_limit": 0.3,
    },
    "one group, wide heads": {
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "index_head_dim": 32,
        "index_block_size": 16, "index_topk_blocks": 4, "layer_types": [SPARSE, FULL, SPARSE],
        "mlp_layer_types": ["sparse"] * 3, "num_experts_per_tok": 1, "routed_scaling_factor": 1.3,
    },
    "a group per head": {
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "index_head_dim": 32,
        "index_block_size": 8, "index_topk_blocks": 16, "layer_types": [FULL, SPARSE],
        "mlp_layer_types": ["sparse", "dense"], "swiglu_alpha": 1.1, "partial_rotary_factor": 1.0,
    },
    "four groups of two": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "index_head_dim": 16,
        "index_block_size": 16, "index_topk_blocks": 2, "layer_types": [SPARSE, SPARSE],
        "mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 4, "partial_rotary_factor": 0.25,
    },
}  # fmt: skip


class Pair(NamedTuple):
    """The same weights twice."""

    theirs: Any
    ours: M3

    @property
    def budget(self) -> int:
        """Keys up to which sparse attention sees everything."""
        return self.ours.config.text.topk_blocks * self.ours.config.text.block_size


def build_theirs(seed: int = 0, **text: Any) -> Any:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 32, "dense_intermediate_size": 96,
        "shared_intermediate_size": 48, "num_local_experts": 8, "num_experts_per_tok": 2,
        "partial_rotary_factor": 0.5, "num_hidden_layers": len(text["layer_types"]),
        "index_n_heads": text["num_key_value_heads"], "bos_token_id": 1, "eos_token_id": EOS,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    vision = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
        "patch_size": 14, "image_size": 56,
    }  # fmt: skip
    config = MiniMaxM3VLConfig(
        text_config={**sizes, **text}, vision_config=vision, projector_hidden_size=80,
        image_token_index=IMAGE_ID, video_token_index=VIDEO_ID,
    )  # fmt: skip
    model = MiniMaxM3SparseForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("norm.weight") or tensor.ndim == 1:
                # Norms and the routing bias start at values that would hide mistakes.
                tensor.add_(torch.randn_like(tensor) * 0.2)
            else:
                tensor.normal_(std=tensor[0].numel() ** -0.5)
    return model


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("oracle"), **CONFIGS[request.param])


def make_pair(folder: Path, **text: Any) -> Pair:
    theirs = build_theirs(**text)
    theirs.save_pretrained(folder)
    return Pair(theirs, checkpoint.load(folder)[0])


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def random_ids(length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, IMAGE_ID, (1, length), generator=torch.Generator().manual_seed(seed))


def difference(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


def test_text_logits_at_every_kind_of_length(pair: Pair) -> None:
    block = pair.ours.config.text.block_size
    borders = {1, 2, block - 1, block, block + 1, pair.budget - 1, pair.budget, pair.budget + 1}
    for length in sorted(borders | {pair.budget + block, pair.budget + block + 1, 5 * pair.budget + 3}):
        ids = random_ids(length, seed=length)
        assert difference(pair.theirs(input_ids=ids).logits, pair.ours(ids)) < TOLERANCE, length


def test_picture_and_clip_logits(pair: Pair) -> None:
    torch.manual_seed(1)
    picture, clip, long_clip = torch.randn(24, 1176), torch.randn(48, 1176), torch.randn(64, 1176)
    shown = [IMAGE_ID] * 6 + [7, 8] + [VIDEO_ID] * 12 + [9] * 5 + [VIDEO_ID] * 16
    ids = torch.tensor([[1, 5, 6, *shown, *range(10, 90)]])
    expected = pair.theirs(
        input_ids=ids,
        pixel_values=picture,
        image_grid_thw=torch.tensor([[1, 4, 6]]),
        pixel_values_videos=torch.cat((clip, long_clip)),
        video_grid_thw=torch.tensor([[2, 6, 4], [4, 4, 4]]),
    ).logits
    media = pair.ours.encode_media(torch.cat((picture, clip, long_clip)), [(1, 4, 6), (2, 6, 4), (4, 4, 4)])
    assert difference(expected, pair.ours(ids, media=media)) < TOLERANCE


def test_vision_features_depend_on_time_rows_and_columns(pair: Pair) -> None:
    """The same patches under another grid are another picture: the rotary embedding has three axes."""
    torch.manual_seed(2)
    patches = torch.randn(32, 1176)
    features = {}
    for grid in [(1, 4, 8), (1, 8, 4), (2, 4, 4)]:
        features[grid] = pair.ours.encode_media(patches, [grid])
        expected = pair.theirs.get_image_features(patches, torch.tensor([grid])).pooler_output[0]
        assert difference(expected, features[grid]) < TOLERANCE
    first, *others = features.values()
    assert all(difference(first, other) > 1e-2 for other in others)


@pytest.mark.parametrize("chunk", [1, 5, 16, 61])
def test_cached_prefill_in_chunks(pair: Pair, chunk: int) -> None:
    ids = random_ids(pair.budget + 40, seed=chunk)[:, -130:]
    expected = pair.theirs(input_ids=ids).logits
    cache = Cache(pool_for(pair.ours))
    parts = [pair.ours(part, cache) for part in ids.split(chunk, dim=1)]
    assert cache.length == ids.shape[1]
    assert difference(expected, torch.cat(parts, dim=1)) < TOLERANCE


def test_gathering_blocks_equals_masking(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prefills gather the kept blocks instead of masking a whole matrix."""
    monkeypatch.setattr(reference, "MASKED_PATH_LIMIT", 0)
    monkeypatch.setattr(reference, "GATHER_ROWS", 17)
    ids = random_ids(pair.budget + 50)
    assert difference(pair.theirs(input_ids=ids).logits, pair.ours(ids)) < TOLERANCE


def test_greedy_tokens_are_identical(pair: Pair) -> None:
    prompt = random_ids(pair.budget + 9, seed=3)
    banned = [EOS, IMAGE_ID, VIDEO_ID]
    expected = pair.theirs.generate(
        input_ids=prompt, max_new_tokens=64, do_sample=False, suppress_tokens=banned
    )[0, prompt.shape[1] :]
    sampler = Sampler(forbidden=banned)
    cache = Cache(pool_for(pair.ours))
    ids, tokens = prompt, []
    for _ in range(64):
        tokens.append(sampler.choose(pair.ours(ids, cache, last_only=True)[0, -1]).token)
        ids = torch.tensor([tokens[-1:]])
    assert tokens == expected.tolist()


def test_selected_blocks_are_theirs(pair: Pair) -> None:
    c = pair.ours.config.text
    length = 3 * pair.budget + 5
    hidden = torch.randn(1, length, c.hidden_size, generator=torch.Generator().manual_seed(4))
    positions = torch.arange(length)
    sparse = c.sparse_layers.index(True)
    tower = pair.theirs.model.language_model
    indexer = tower.layers[sparse].self_attn.indexer
    theirs = indexer(hidden, tower.rotary_emb(hidden, positions[None]), None, positions[None])
    attention = pair.ours.language_model.model.layers[sparse].self_attn
    queries, keys = attention._index(hidden, text_rotary(positions, c.rotary_dim, c.rope_theta))
    scores = reference.block_scores(queries, keys, 0, c.block_size)
    ours = reference.select_blocks(scores, 0, c.block_size, c.topk_blocks)
    blocks = -(-length // c.block_size)
    assert torch.equal(chosen(theirs, blocks), chosen(ours, blocks))
    groups = chosen(ours, blocks)[0]
    assert c.num_key_value_heads == 1 or not torch.equal(groups[0], groups[1]), (
        "each group selects for itself"
    )


def chosen(ids_BGTK: Tensor, blocks: int) -> Tensor:
    """The selection as a mask over blocks, whatever its order and padding."""
    mask = torch.zeros(*ids_BGTK.shape[:-1], blocks + 1, dtype=torch.bool)
    return mask.scatter_(-1, ids_BGTK.masked_fill(ids_BGTK < 0, blocks), True)[..., :blocks]


def test_dense_equals_sparse_up_to_the_budget_and_not_past_it(pair: Pair) -> None:
    ids = random_ids(pair.budget + 60, seed=5)
    within = ids[:, : pair.budget]
    assert difference(pair.ours(within), pair.ours(within, attention="dense")) < 1e-5
    sparse, dense = pair.ours(ids), pair.ours(ids, attention="dense")
    assert difference(sparse[:, : pair.budget], dense[:, : pair.budget]) < 1e-5
    assert difference(sparse[:, pair.budget + 1 :], dense[:, pair.budget + 1 :]) > 1e-3


def test_ties_keep_the_lower_blocks_and_the_own_one() -> None:
    """The official case: all scores equal, 18 blocks of 128, 16 kept."""
    queries, keys = torch.zeros(1, 1, 1, 16), torch.zeros(1, 2304, 16)
    scores = reference.block_scores(queries, keys, 2303, 128)
    ids = reference.select_blocks(scores, 2303, 128, 16)
    assert ids.flatten().tolist() == [*range(15), 17]


def test_bfloat16_stays_close(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, **CONFIGS["two groups, short budget"])
    half, _ = checkpoint.load(tmp_path, dtype=torch.bfloat16)
    ids = random_ids(14)
    exact, rough = pair.ours(ids), half(ids).float()
    assert torch.nn.functional.cosine_similarity(exact.flatten(), rough.flatten(), dim=0) > 0.995
    assert half.language_model.lm_head.weight.dtype == torch.bfloat16
