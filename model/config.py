"""The published `config.json` of MiniMax-M3 as typed sizes.

The file has traps: `text_config.model_type` says "minimax_m2"; sparse layers are listed in
`sparse_attention_config.sparse_attention_freq` (published) or `layer_types` (written by transformers); the
rotary width is `head_dim * partial_rotary_factor`, and `rotary_dim` alone is only a fallback; RoPE settings
may sit flat or under `rope_parameters`; without a sparse configuration every layer is full attention.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotfish.model.config_fields import (
    FIXED,
    FIXED_QUANTISATION,
    FIXED_ROPE,
    FIXED_SPARSE,
    FIXED_TEXT,
    FIXED_VISION,
    KNOWN_TOP,
    FieldReader,
)
from pilotfish.model.protocol import ModelError

ARCHITECTURE = "MiniMaxM3SparseForConditionalGeneration"
MAX_LAYERS = 1000
_FREQ = {0: False, 1: True}


@dataclass(frozen=True)
class TextConfig:
    """Sizes of the text tower. Names follow the published file."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int  # of one routed expert
    shared_intermediate_size: int
    dense_intermediate_size: int
    num_local_experts: int
    num_experts_per_tok: int
    sparse_layers: tuple[bool, ...]  # MSA (True) or full attention, per layer
    moe_layers: tuple[bool, ...]  # MoE (True) or dense MLP, per layer
    index_heads: int = 4
    index_dim: int = 128
    block_size: int = 128
    topk_blocks: int = 16
    init_blocks: int = 0
    local_blocks: int = 1
    rope_theta: float = 5_000_000.0
    rotary_dim: int = 64
    rms_norm_eps: float = 1e-6
    routed_scaling_factor: float = 2.0
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    swiglu_beta: float = 1.0
    max_position_embeddings: int = 1_048_576
    bos_token_id: int | None = None
    eos_token_id: int | None = None


@dataclass(frozen=True)
class VisionConfig:
    """Sizes of the vision tower; lengths in pixels are per patch side."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int = 14
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    num_channels: int = 3
    image_size: int = 2016
    rope_theta: float = 10_000.0
    layer_norm_eps: float = 1e-5
    segment_max_frames: int = 4  # temporal patches that attend to each other

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def patch_dim(self) -> int:
        """Values in one patch vector: channel x time x height x width."""
        return self.num_channels * self.temporal_patch_size * self.patch_size**2


@dataclass(frozen=True)
class M3Config:
    """Everything the network needs to be built, plus what the file said that is not understood."""

    text: TextConfig
    vision: VisionConfig
    projector_hidden_size: int
    image_token_id: int
    video_token_id: int
    unknown_keys: tuple[str, ...] = field(default=(), compare=False)

    @staticmethod
    def from_folder(folder: Path | str) -> M3Config:
        """Read `config.json` of a checkpoint folder; raises ModelError with one sentence."""
        path = Path(folder) / "config.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelError(
                f"{folder} holds no config.json; point --model at a checkpoint folder."
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(f"{path} cannot be read as JSON ({error}); copy the checkpoint again.") from None
        if not isinstance(data, dict):
            raise ModelError(
                f"{path} holds a {type(data).__name__}, not an object; copy the checkpoint again."
            )
        return M3Config.from_dict(data)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> M3Config:
        """Typed sizes from the published form or the form transformers writes."""
        top = FieldReader(data, "config.json")
        top.require(FIXED)
        top.maybe("quantization_config").require(FIXED_QUANTISATION)
        if (kind := data.get("model_type", "minimax_m3_vl")) != "minimax_m3_vl":
            raise ModelError(f"config.json says model_type {kind!r}; this runtime reads 'minimax_m3_vl'.")
        text = _text_config(top.sub("text_config"))
        vision_reader = top.sub("vision_config")
        vision = _vision_config(vision_reader)
        config = M3Config(
            text=text,
            vision=vision,
            projector_hidden_size=top.integer("projector_hidden_size", text.hidden_size),
            image_token_id=top.integer("image_token_index", top.integer("image_token_id", 200025)),
            video_token_id=top.integer("video_token_index", top.integer("video_token_id", 200026)),
            unknown_keys=tuple(top.unknown(KNOWN_TOP)),
        )
        _check(config)
        return config

    def to_dict(self, dtype: str = "bfloat16") -> dict[str, Any]:
        """The published form; transformers and `from_dict` read it back to the same sizes."""
        t, v = self.text, self.vision
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "minimax_m3_vl",
            "torch_dtype": dtype,
            "image_token_index": self.image_token_id,
            "video_token_index": self.video_token_id,
            "process_image_mode": "dynamic_res",
            "projector_hidden_size": self.projector_hidden_size,
            "projector_hidden_act": "gelu",
            "multimodal_projector_bias": True,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "tie_word_embeddings": False,
            "text_config": {
                "hidden_size": t.hidden_size,
                "num_hidden_layers": t.num_hidden_layers,
                "vocab_size": t.vocab_size,
                "num_attention_heads": t.num_attention_heads,
                "num_key_value_heads": t.num_key_value_heads,
                "head_dim": t.head_dim,
                "intermediate_size": t.intermediate_size,
                "shared_intermediate_size": t.shared_intermediate_size,
                "dense_intermediate_size": t.dense_intermediate_size,
                "max_position_embeddings": t.max_position_embeddings,
                "rms_norm_eps": t.rms_norm_eps,
                "use_gemma_norm": True,
                "rope_theta": t.rope_theta,
                "rotary_dim": t.rotary_dim,
                "partial_rotary_factor": t.rotary_dim / t.head_dim,
                "use_qk_norm": True,
                "qk_norm_type": "per_head",
                "attention_output_gate": False,
                "hidden_act": "swigluoai",
                "swiglu_alpha": t.swiglu_alpha,
                "swiglu_limit": t.swiglu_limit,
                "swiglu_beta": t.swiglu_beta,
                "num_local_experts": t.num_local_experts,
                "num_experts_per_tok": t.num_experts_per_tok,
                "n_shared_experts": 1,
                "scoring_func": "sigmoid",
                "use_routing_bias": True,
                "routed_scaling_factor": t.routed_scaling_factor,
                "moe_layer_freq": [int(flag) for flag in t.moe_layers],
                "tie_word_embeddings": False,
                "bos_token_id": t.bos_token_id,
                "eos_token_id": t.eos_token_id,
                "sparse_attention_config": {
                    "use_sparse_attention": True,
                    "sparse_index_dim": t.index_dim,
                    "sparse_num_index_heads": t.index_heads,
                    "sparse_topk_blocks": t.topk_blocks,
                    "sparse_block_size": t.block_size,
                    "sparse_score_type": "max",
                    "sparse_init_block": t.init_blocks,
                    "sparse_local_block": t.local_blocks,
                    "sparse_attention_freq": [int(flag) for flag in t.sparse_layers],
                    "sparse_disable_index_value": [int(flag) for flag in t.sparse_layers],
                },
            },
            "vision_config": {
                "hidden_size": v.hidden_size,
                "num_attention_heads": v.num_attention_heads,
                "num_hidden_layers": v.num_hidden_layers,
                "intermediate_size": v.intermediate_size,
                "patch_size": v.patch_size,
                "temporal_patch_size": v.temporal_patch_size,
                "spatial_merge_size": v.spatial_merge_size,
                "image_size": v.image_size,
                "num_channels": v.num_channels,
                "position_embedding_type": "rope",
                "rope_mode": "3d",
                "rope_theta": v.rope_theta,
                "hidden_act": "gelu",
                "layer_norm_eps": v.layer_norm_eps,
                "vision_segment_max_frames": v.segment_max_frames,
                "img_token_compression_config": {
                    "image_token_compression_method": "patch_merge",
                    "spatial_merge_size": v.spatial_merge_size,
                    "temporal_patch_size": v.temporal_patch_size,
                },
            },
        }


def _text_config(r: FieldReader) -> TextConfig:
    r.require(FIXED_TEXT)
    r.maybe("sparse_attention_config").require(FIXED_SPARSE)
    r.maybe("rope_parameters").require(FIXED_ROPE)
    layers = r.integer("num_hidden_layers")
    if not 1 <= layers <= MAX_LAYERS:
        raise ModelError(f"{r.name}: num_hidden_layers is {layers}; it must lie in 1..{MAX_LAYERS}.")
    sparse = r.maybe("sparse_attention_config")
    attention_marks = {"full_attention": False, "minimax_m3_sparse": True}
    sparse_layers = r.flags("layer_types", layers, attention_marks)
    if sparse_layers is None and sparse.data.get("use_sparse_attention", True):
        sparse_layers = sparse.flags("sparse_attention_freq", layers, _FREQ)
    moe_layers = r.flags("mlp_layer_types", layers, {"dense": False, "sparse": True})
    if moe_layers is None:
        moe_layers = r.flags("moe_layer_freq", layers, _FREQ)
    heads = r.integer("num_attention_heads")
    hidden = r.integer("hidden_size")
    head_dim = r.integer("head_dim", hidden // max(heads, 1))
    rope = r.maybe("rope_parameters")
    fallback = r.number("rotary_dim", head_dim) / head_dim if head_dim else 1.0
    factor = rope.number("partial_rotary_factor", r.number("partial_rotary_factor", fallback))
    expert = r.integer("intermediate_size")
    return TextConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        vocab_size=r.integer("vocab_size"),
        num_attention_heads=heads,
        num_key_value_heads=r.integer("num_key_value_heads"),
        head_dim=head_dim,
        intermediate_size=expert,
        shared_intermediate_size=r.integer("shared_intermediate_size", expert),
        dense_intermediate_size=r.integer("dense_intermediate_size", 4 * expert),
        num_local_experts=r.integer("num_local_experts"),
        num_experts_per_tok=r.integer("num_experts_per_tok"),
        sparse_layers=sparse_layers or (False,) * layers,
        moe_layers=moe_layers or (True,) * layers,
        index_heads=sparse.integer("sparse_num_index_heads", r.integer("index_n_heads", 4)),
        index_dim=sparse.integer("sparse_index_dim", r.integer("index_head_dim", 128)),
        block_size=sparse.integer("sparse_block_size", r.integer("index_block_size", 128)),
        topk_blocks=sparse.integer("sparse_topk_blocks", r.integer("index_topk_blocks", 16)),
        init_blocks=sparse.integer("sparse_init_block", 0),
        local_blocks=sparse.integer("sparse_local_block", r.integer("index_local_blocks", 1)),
        rope_theta=rope.number("rope_theta", r.number("rope_theta", 5_000_000.0)),
        # Truncated as transformers does, but a quotient such as 30 / 44 must come back as 30.
        rotary_dim=int(head_dim * factor + 1e-6),
        rms_norm_eps=r.number("rms_norm_eps", 1e-6),
        routed_scaling_factor=r.number("routed_scaling_factor", 2.0),
        swiglu_alpha=r.number("swiglu_alpha", 1.702),
        swiglu_limit=r.number("swiglu_limit", 7.0),
        swiglu_beta=r.number("swiglu_beta", 1.0),
        max_position_embeddings=r.integer("max_position_embeddings", 524_288),
        bos_token_id=r.token("bos_token_id"),
        eos_token_id=r.token("eos_token_id"),
    )


def _vision_config(r: FieldReader) -> VisionConfig:
    r.require(FIXED_VISION)
    merge = r.maybe("img_token_compression_config")
    rope = r.maybe("rope_parameters")
    return VisionConfig(
        hidden_size=r.integer("hidden_size"),
        num_hidden_layers=r.integer("num_hidden_layers"),
        num_attention_heads=r.integer("num_attention_heads"),
        intermediate_size=r.integer("intermediate_size"),
        patch_size=r.integer("patch_size", 14),
        temporal_patch_size=merge.integer("temporal_patch_size", r.integer("temporal_patch_size", 2)),
        spatial_merge_size=merge.integer("spatial_merge_size", r.integer("spatial_merge_size", 2)),
        num_channels=r.integer("num_channels", 3),
        image_size=r.integer("image_size", 2016),
        rope_theta=rope.number("rope_theta", r.number("rope_theta", 10_000.0)),
        layer_norm_eps=r.number("layer_norm_eps", 1e-5),
        segment_max_frames=r.integer("vision_segment_max_frames", 4),
    )


def _check(config: M3Config) -> None:
    t, v = config.text, config.vision
    positive = {
        "text_config.hidden_size": t.hidden_size,
        "text_config.vocab_size": t.vocab_size,
        "text_config.num_attention_heads": t.num_attention_heads,
        "text_config.num_key_value_heads": t.num_key_value_heads,
        "text_config.head_dim": t.head_dim,
        "text_config.intermediate_size": t.intermediate_size,
        "text_config.shared_intermediate_size": t.shared_intermediate_size,
        "text_config.dense_intermediate_size": t.dense_intermediate_size,
        "text_config.max_position_embeddings": t.max_position_embeddings,
        "text_config.sparse_index_dim": t.index_dim,
        "text_config.num_local_experts": t.num_local_experts,
        "text_config.sparse_block_size": t.block_size,
        "text_config.sparse_topk_blocks": t.topk_blocks,
        "text_config.sparse_local_block": t.local_blocks,
        "vision_config.hidden_size": v.hidden_size,
        "vision_config.num_attention_heads": v.num_attention_heads,
        "vision_config.intermediate_size": v.intermediate_size,
        "projector_hidden_size": config.projector_hidden_size,
    }
    for name, value in positive.items():
        if value < 1:
            raise ModelError(f"config.json: {name} is {value}; it must be at least 1.")
    rules = [
        (
            t.num_attention_heads % t.num_key_value_heads == 0,
            "num_attention_heads must be a multiple of num_key_value_heads",
        ),
        (
            1 <= t.num_experts_per_tok <= t.num_local_experts,
            "num_experts_per_tok must lie in 1..num_local_experts",
        ),
        (
            not any(t.sparse_layers) or t.index_heads == t.num_key_value_heads,
            "sparse_num_index_heads must equal num_key_value_heads",
        ),
        (
            0 <= t.rotary_dim <= t.head_dim and t.rotary_dim % 2 == 0,
            "the rotary width must be even and at most head_dim",
        ),
        (
            not any(t.sparse_layers) or t.rotary_dim <= t.index_dim,
            "the rotary width must be at most sparse_index_dim",
        ),
        (
            v.hidden_size % v.num_attention_heads == 0,
            "vision hidden_size must be a multiple of its num_attention_heads",
        ),
        (
            0 <= config.image_token_id < t.vocab_size and 0 <= config.video_token_id < t.vocab_size,
            "image_token_index and video_token_index must be below vocab_size",
        ),
        (
            (v.patch_size, v.temporal_patch_size, v.spatial_merge_size, v.num_channels) == (14, 2, 2, 3),
            "patches must be 14 pixels, 2 frames, 3 channels, merged 2 by 2",
        ),
        (t.rope_theta > 0 and v.rope_theta > 0, "rope_theta must be above 0"),
        (t.rms_norm_eps >= 0 and v.layer_norm_eps >= 0, "rms_norm_eps and layer_norm_eps must be at least 0"),
    ]
    for ok, rule in rules:
        if not ok:
            raise ModelError(f"config.json is impossible: {rule}.")
