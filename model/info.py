"""What a checkpoint is, in numbers: read from its configuration and its files' headers alone."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from pilotfish.model import checkpoint
from pilotfish.model.config import M3Config
from pilotfish.model.folder import find_folder
from pilotfish.model.tokenizer import Tokenizer

CACHE_VALUE_BYTES = 2
"""Bytes of a cached value in bf16."""

_PARTS = {
    "language_model.": "text",
    "vision_tower.": "vision",
    "multi_modal_projector.": "projector",
    "patch_merge_mlp.": "projector",
}


def describe(folder: Path | str) -> dict[str, Any]:
    """Describe a checkpoint folder (or `nano`) without reading its weights; flat, ready for JSON.

    Raises ModelError with one sentence when the folder is no checkpoint.
    """
    folder = find_folder(folder)
    config = M3Config.from_folder(folder)
    stored = checkpoint.read_headers(folder)
    text, vision = config.text, config.vision
    parts: Counter[str] = Counter()
    routed = 0
    for name, tensor in stored.items():
        part = next((part for prefix, part in _PARTS.items() if name.startswith(prefix)), None)
        if part is None or name.endswith(checkpoint.SCALE_SUFFIX):
            continue
        parts[part] += prod(tensor.shape)
        routed += prod(tensor.shape) if ".experts." in name else 0
    total = sum(parts.values())
    idle = routed - routed * text.num_experts_per_tok // text.num_local_experts
    files = sorted({tensor.file for tensor in stored.values()})
    per_token = cache_bytes_per_token(config)
    return {
        "name": folder.name,
        "folder": str(folder),
        "parameters": total,
        "parameters_text": parts["text"],
        "parameters_vision": parts["vision"],
        "parameters_projector": parts["projector"],
        "parameters_active": total - idle,
        "bytes": sum(file.stat().st_size for file in files),
        "files": len(files),
        "dtypes": dict(sorted(Counter(tensor.dtype for tensor in stored.values()).items())),
        "layers": text.num_hidden_layers,
        "layers_msa": sum(text.sparse_layers),
        "layers_full_attention": text.num_hidden_layers - sum(text.sparse_layers),
        "layers_moe": sum(text.moe_layers),
        "layers_dense_mlp": text.num_hidden_layers - sum(text.moe_layers),
        "hidden_size": text.hidden_size,
        "heads": text.num_attention_heads,
        "kv_groups": text.num_key_value_heads,
        "head_dim": text.head_dim,
        "experts": text.num_local_experts,
        "experts_per_token": text.num_experts_per_tok,
        "msa_block": text.block_size,
        "msa_blocks_kept": text.topk_blocks,
        "msa_tokens_seen": text.block_size * text.topk_blocks,
        "vision_layers": vision.num_hidden_layers,
        "vision_hidden_size": vision.hidden_size,
        "vocabulary": text.vocab_size,
        "tokenizer_ids": Tokenizer.from_folder(folder).vocab_size,
        "context_tokens": text.max_position_embeddings,
        "cache_bytes_per_token": per_token,
        "cache_bytes_full_context": per_token * text.max_position_embeddings,
        "unknown_keys": list(config.unknown_keys),
    }


def cache_bytes_per_token(config: M3Config) -> int:
    """Bytes one token takes in a bf16 cache: keys and values of every layer, index keys of the MSA layers."""
    text = config.text
    values = 2 * text.num_key_value_heads * text.head_dim * text.num_hidden_layers
    return (values + text.index_dim * sum(text.sparse_layers)) * CACHE_VALUE_BYTES
