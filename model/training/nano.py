"""The sizes of `nano`, the M3 that ships: the published architecture at about 19 M parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pilotfish.model.config import M3Config, TextConfig, VisionConfig
from pilotfish.model.tokenizer import Tokenizer

DENSE_LAYERS = 2
LAYERS = 8


def nano_config(tokenizer: Tokenizer) -> M3Config:
    """Two dense layers, then six with MSA and experts; each query sees 16 blocks of 32 keys, 512 in all.

    One observation (a clip of 336 x 420 pixels) is about 390 tokens and a prompt starts at about 750, so
    MSA is active from the first answer on.
    """
    sparse = tuple(layer >= DENSE_LAYERS for layer in range(LAYERS))
    text = TextConfig(
        hidden_size=384,
        num_hidden_layers=LAYERS,
        vocab_size=tokenizer.vocab_size,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=96,
        shared_intermediate_size=160,
        dense_intermediate_size=1024,
        num_local_experts=8,
        num_experts_per_tok=2,
        sparse_layers=sparse,
        moe_layers=sparse,
        index_heads=2,
        index_dim=64,
        block_size=32,
        topk_blocks=16,
        rope_theta=10_000.0,
        rotary_dim=32,
        max_position_embeddings=32_768,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
    )
    vision = VisionConfig(
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=896,
        image_size=672,
    )
    return M3Config(text, vision, text.hidden_size, tokenizer.image_id, tokenizer.video_id)


def sized(config: M3Config, sizes: Mapping[str, Mapping[str, Any]]) -> M3Config:
    """The same with other sizes of its `text` and `vision`; the first `DENSE_LAYERS` layers stay dense.

    Raises `ValueError` for sizes that do not go together.
    """
    text, vision = dict(sizes.get("text", {})), dict(sizes.get("vision", {}))
    layers = int(text.get("num_hidden_layers", config.text.num_hidden_layers))
    sparse = tuple(layer >= DENSE_LAYERS for layer in range(layers))
    new = replace(config.text, **text, sparse_layers=sparse, moe_layers=sparse)
    groups = new.num_key_value_heads
    for number, multiple, what in (
        (new.num_attention_heads, groups, "query heads"),
        (new.index_heads, groups, "index heads"),
        (new.rotary_dim, 2, "rotary dimensions"),
    ):
        if number % multiple:
            raise ValueError(f"{number} {what} are no multiple of {multiple}")
    for part, whole, what in (
        (new.rotary_dim, new.head_dim, "rotary dimensions of a head of"),
        (new.num_experts_per_tok, new.num_local_experts, "experts a token, and there are"),
    ):
        if part > whole:
            raise ValueError(f"{part} {what} {whole}")
    return replace(
        config, text=new, vision=replace(config.vision, **vision), projector_hidden_size=new.hidden_size
    )
