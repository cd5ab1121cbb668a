"""Small engines: of noise, of fixed chains of tokens, and one that never ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pilotfish.model.engine import Engine
from pilotfish.model.tokenizer import THINK_END, Tokenizer


@pytest.fixture
def tiny_engine(tiny_folder: Path) -> Callable[..., Engine]:
    """A factory of engines over random weights: their answers are noise, but always the same noise."""

    def make(**settings: Any) -> Engine:
        return Engine(tiny_folder, device="cpu", **{"dtype": "float32", **settings})

    return make


@pytest.fixture
def speaker(tiny_folder: Path, tmp_path: Path) -> Callable[..., Engine]:
    """A factory of engines whose next token depends on the last one alone, as the given chains say."""

    def make(*chains: Sequence[int], **text_config: Any) -> Engine:
        folder = tmp_path / "speaker"
        shutil.copytree(tiny_folder, folder, dirs_exist_ok=True)
        state = load_file(folder / "model.safetensors")
        for name in state:
            if name.endswith(("o_proj.weight", "down_proj.weight", "w2.weight")):
                state[name] = torch.zeros_like(state[name])
        embed = torch.nn.functional.normalize(state["language_model.model.embed_tokens.weight"], dim=-1)
        head = torch.zeros_like(embed)
        for chain in chains:
            for token, following in pairwise(chain):
                head[following] += embed[token]
        state["language_model.model.embed_tokens.weight"] = embed.contiguous()
        state["language_model.lm_head.weight"] = head
        state["language_model.model.norm.weight"] = torch.zeros_like(
            state["language_model.model.norm.weight"]
        )
        save_file(state, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        config["text_config"].update(text_config)
        (folder / "config.json").write_text(json.dumps(config))
        return Engine(folder, device="cpu", dtype="float32")

    return make


@pytest.fixture
def tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny_folder)


@pytest.fixture
def endless(speaker: Callable[..., Engine], tokenizer: Tokenizer) -> Engine:
    """An engine that says the same words for ever."""
    words = tokenizer.encode(" round and")
    return speaker([tokenizer.id(THINK_END), *words, words[0]])
