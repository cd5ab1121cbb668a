"""Random tiny checkpoints for the tests of the model room."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pilotfish.model
from pilotfish.model import checkpoint
from pilotfish.model.config import M3Config
from pilotfish.model.m3 import M3
from pilotfish.model.protocol import Clip, Image
from pilotfish.model.tokenizer import IMAGE, TURN_END, VIDEO, Tokenizer

NANO = Path(pilotfish.model.__file__).parent / "nano"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices this small only lose time to a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., M3Config]:
    """A factory of configurations in the published form, with changes to `text_config`."""

    def make(vocab: int = 512, image: int = 500, video: int = 501, eos: int = 2, **text: Any) -> M3Config:
        sparse = {
            "sparse_index_dim": 16,
            "sparse_num_index_heads": 2,
            "sparse_topk_blocks": 4,
            "sparse_block_size": 16,
            "sparse_attention_freq": [0, 1, 1],
        }
        return M3Config.from_dict(
            {
                "model_type": "minimax_m3_vl",
                "image_token_index": image,
                "video_token_index": video,
                "projector_hidden_size": 64,
                "text_config": {
                    "hidden_size": 64,
                    "num_hidden_layers": 3,
                    "vocab_size": vocab,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                    "head_dim": 16,
                    "rotary_dim": 8,
                    "intermediate_size": 32,
                    "shared_intermediate_size": 32,
                    "dense_intermediate_size": 96,
                    "num_local_experts": 4,
                    "num_experts_per_tok": 2,
                    "moe_layer_freq": [0, 1, 1],
                    "max_position_embeddings": 4096,
                    "eos_token_id": eos,
                    "sparse_attention_config": sparse,
                    **text,
                },
                "vision_config": {
                    "hidden_size": 48,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "intermediate_size": 64,
                },
            }
        )

    return make


@pytest.fixture(scope="session")
def tiny_model(tiny_config: Callable[..., M3Config]) -> Callable[..., M3]:
    """A factory of random models whose every norm and routing bias matters."""

    def make(seed: int = 0, **sizes: Any) -> M3:
        torch.manual_seed(seed)
        model = M3(tiny_config(**sizes))
        randomise(model)
        return model.eval()

    return make


def randomise(model: torch.nn.Module) -> None:
    """Draw every weight anew, wide enough that a wrong step shows in the logits."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.ndim > 1:
                tensor.normal_(std=0.5 / tensor[0].numel() ** 0.5 * 2)
            else:
                tensor.normal_(std=0.1)
            if name.endswith((".layer_norm1.weight", ".layer_norm2.weight", ".pre_layrnorm.weight")):
                tensor.add_(1)


@pytest.fixture(scope="session")
def tiny_folder(tiny_model: Callable[..., M3], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint that speaks nano's tokenizer and template, in fp32."""
    tokenizer = Tokenizer.from_folder(NANO)
    model = tiny_model(
        vocab=tokenizer.vocab_size,
        image=tokenizer.id(IMAGE),
        video=tokenizer.id(VIDEO),
        eos=tokenizer.id(TURN_END),
    )
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint.save(model, folder)
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(NANO / name, folder / name)
    return folder


@pytest.fixture
def make_clip() -> Callable[..., Clip]:
    """A factory of clips of noise: the same seed gives the same pixels."""

    def make(seed: int = 0, height: int = 56, width: int = 84) -> Clip:
        frames = np.random.default_rng(seed).integers(0, 256, (4, height, width, 3), dtype=np.uint8)
        return Clip(frames, (0.0, 0.1, 0.2, 0.3))

    return make


@pytest.fixture
def make_image() -> Callable[..., Image]:
    """A factory of pictures of noise: the same seed gives the same pixels."""

    def make(seed: int = 0, height: int = 56, width: int = 56) -> Image:
        return Image(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))

    return make
