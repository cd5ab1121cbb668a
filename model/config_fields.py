"""Typed access to the fields of a `config.json`, and which of their values this runtime implements."""

from __future__ import annotations

import math
from typing import Any

from pilotfish.model.protocol import ModelError

KNOWN_TOP = frozenset(
    {
        "architectures",
        "auto_map",
        "model_type",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "image_token_index",
        "video_token_index",
        "image_token_id",
        "video_token_id",
        "image_seq_length",
        "process_image_mode",
        "image_grid_pinpoints",
        "img_token_compression_config",
        "multimodal_projector_bias",
        "projector_hidden_act",
        "projector_hidden_size",
        "patch_merge_bias",
        "vision_feature_layer",
        "vision_feature_select_strategy",
        "num_reward_heads",
        "tie_word_embeddings",
        "text_config",
        "vision_config",
        "quantization_config",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "merged_hidden_size",  # written by transformers, follows from the rest
    }
)


# Settings of which the network implements one value. Another value would load and then answer nonsense.
FIXED: dict[str, tuple[Any, ...]] = {
    "tie_word_embeddings": (False,),
    "projector_hidden_act": ("gelu",),
    "multimodal_projector_bias": (True,),
    "vision_feature_layer": (-1,),
}
FIXED_TEXT: dict[str, tuple[Any, ...]] = {
    "tie_word_embeddings": (False,),
    "use_gemma_norm": (True,),
    "use_qk_norm": (True,),
    "qk_norm_type": ("per_head",),
    "attention_output_gate": (False,),
    "hidden_act": ("swigluoai", "silu"),  # transformers writes silu and computes swigluoai
    "scoring_func": ("sigmoid",),
    "use_routing_bias": (True,),
    "n_shared_experts": (1,),
    "rope_scaling": (),
}
FIXED_SPARSE: dict[str, tuple[Any, ...]] = {"sparse_score_type": ("max",)}
FIXED_ROPE: dict[str, tuple[Any, ...]] = {"rope_type": ("default", "axial")}
FIXED_VISION: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu",),
    "position_embedding_type": ("rope",),
    "rope_mode": ("3d",),
}
FIXED_QUANTISATION: dict[str, tuple[Any, ...]] = {"quant_method": ("mxfp8",)}


class FieldReader:
    """Typed access to one JSON object; every error names the key."""

    def __init__(self, data: dict[str, Any], name: str):
        self.data, self.name = data, name

    def sub(self, key: str) -> FieldReader:
        """The object under a key, which must be there."""
        value = self.data.get(key)
        if not isinstance(value, dict):
            raise ModelError(
                f"{self.name} has no object {key!r}; it is not the configuration of a MiniMax-M3."
            )
        return FieldReader(value, f"{self.name}: {key}")

    def maybe(self, key: str) -> FieldReader:
        """The object under a key, an empty one where there is none."""
        value = self.data.get(key)
        return FieldReader(value if isinstance(value, dict) else {}, f"{self.name}: {key}")

    def integer(self, key: str, default: int | None = None) -> int:
        """The integer under a key."""
        value = self.data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.name}: {key} is {value!r}; it must be an integer.")
        return value

    def number(self, key: str, default: float) -> float:
        """The finite number under a key."""
        value = self.data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelError(f"{self.name}: {key} is {value!r}; it must be a finite number.")
        return float(value)

    def token(self, key: str) -> int | None:
        """The id under a key, the first one of a list, or None."""
        value = self.data.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        return value if isinstance(value, int) else None

    def flags(self, key: str, layers: int, marks: dict[Any, bool]) -> tuple[bool, ...] | None:
        """One flag for each layer, as `marks` reads them; None where the key is not given."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != layers or any(mark not in marks for mark in value):
            raise ModelError(
                f"{self.name}: {key} must list one of {sorted(map(str, marks))} for each of {layers} layers."
            )
        return tuple(marks[mark] for mark in value)

    def require(self, fixed: dict[str, tuple[Any, ...]]) -> None:
        """Raise ModelError when a key is given (and not null) with a value outside those implemented."""
        for key, allowed in fixed.items():
            value = self.data.get(key)
            if value is not None and value not in allowed:
                only = " or ".join(map(repr, allowed)) or "null"
                raise ModelError(f"{self.name}: {key} is {value!r}; this runtime implements {only} only.")

    def unknown(self, known: frozenset[str]) -> list[str]:
        """The keys that are not among those known."""
        return sorted(key for key in self.data if key not in known)
