"""The numbers of a checkpoint, and that the network has exactly the published size."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest
import torch

from pilotfish.model.config import M3Config
from pilotfish.model.info import cache_bytes_per_token, describe
from pilotfish.model.m3 import M3, count_parameters
from pilotfish.model.pages import PagePool
from pilotfish.model.protocol import ModelError


def published_config(sparse_layers: int = 57, experts: int = 128) -> M3Config:
    """The sizes of MiniMaxAI/MiniMax-M3's config.json, or of a shorter M3 with fewer experts."""
    sparse = [0] * 3 + [1] * sparse_layers
    return M3Config.from_dict(
        {
            "model_type": "minimax_m3_vl",
            "image_token_index": 200025,
            "video_token_index": 200026,
            "projector_hidden_size": 6144,
            "text_config": {
                "model_type": "minimax_m2",
                "hidden_size": 6144,
                "num_hidden_layers": len(sparse),
                "vocab_size": 200064,
                "num_attention_heads": 64,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "intermediate_size": 3072,
                "shared_intermediate_size": 3072,
                "dense_intermediate_size": 12288,
                "num_local_experts": experts,
                "num_experts_per_tok": min(4, experts),
                "rotary_dim": 64,
                "partial_rotary_factor": 0.5,
                "moe_layer_freq": sparse,
                "max_position_embeddings": 1048576,
                "sparse_attention_config": {
                    "sparse_index_dim": 128,
                    "sparse_num_index_heads": 4,
                    "sparse_topk_blocks": 16,
                    "sparse_block_size": 128,
                    "sparse_attention_freq": sparse,
                },
            },
            "vision_config": {
                "hidden_size": 1280,
                "num_attention_heads": 16,
                "num_hidden_layers": 32,
                "intermediate_size": 5120,
            },
        }
    )


def size(sparse_layers: int, experts: int) -> tuple[int, int]:
    """Tensors and values of an M3."""
    with torch.device("meta"):
        state = M3(published_config(sparse_layers, experts)).state_dict()
    return len(state), sum(prod(tensor.shape) for tensor in state.values())


def test_the_published_size() -> None:
    """Tensors and values of the bf16 release, as counted in its headers.

    Both grow by the same steps with every layer and expert, so three small models tell the size of the large
    one.
    """
    small, more_experts, more_layers = size(1, 1), size(1, 2), size(2, 1)
    found = []
    for base, with_expert, with_layer in zip(small, more_experts, more_layers, strict=True):
        expert, layer = with_expert - base, with_layer - base
        found.append(base - layer + 57 * (layer + 127 * expert))
    assert found == [23_416, 427_040_140_160]


def test_the_published_cache() -> None:
    assert cache_bytes_per_token(published_config()) == 122_880 + 14_592


def test_a_checkpoint_is_described(tiny_folder: Path, tiny_config: Callable[..., M3Config]) -> None:
    facts = describe(tiny_folder)
    config = M3Config.from_folder(tiny_folder)
    assert facts["parameters"] == count_parameters(M3(config))
    parts = [facts[f"parameters_{part}"] for part in ("text", "vision", "projector")]
    assert sum(parts) == facts["parameters"]
    assert min(parts) > 0
    experts = 2 * 4 * 3 * 32 * 64
    assert facts["parameters_active"] == facts["parameters"] - experts // 2
    assert (facts["layers"], facts["layers_msa"], facts["layers_moe"]) == (3, 2, 2)
    assert facts["msa_tokens_seen"] == 64
    assert facts["bytes"] == (tiny_folder / "model.safetensors").stat().st_size
    assert json.loads(json.dumps(facts)) == facts


def test_the_cache_is_as_large_as_described(tiny_config: Callable[..., M3Config]) -> None:
    config = tiny_config()
    pool = PagePool(config, "cpu", torch.bfloat16)
    assert pool.bytes_for(1024) == 1024 * cache_bytes_per_token(config)
    pool.take(64)
    assert pool.bytes == sum(x.nbytes for x in pool.buffers.values()) == pool.bytes_for(1024)


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        describe(tmp_path)
