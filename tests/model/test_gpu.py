"""The shipped model on a GPU, by the kernels, gives the CPU's tokens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from pilotfish.model import checkpoint
from pilotfish.model.config import M3Config
from pilotfish.model.folder import find_folder
from pilotfish.model.m3 import M3
from pilotfish.model.sequence import Tokens, TokenSequence
from pilotfish.model.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PROMPTS, LENGTH, MADE = 20, 4096, 8


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """This repository's own documents and code, as the model reads them."""
    root = Path(__file__).parents[2]
    files = [
        *sorted(root.glob("docs/*.md")),
        *sorted(root.glob("agent/*.py")),
        *sorted(root.glob("tools/*.py")),
    ]
    text = "\n".join(path.read_text("utf-8") for path in files)
    ids = Tokenizer.from_folder(find_folder("nano")).encode(text)
    step = (len(ids) - LENGTH) // PROMPTS
    return [ids[i * step : i * step + LENGTH] for i in range(PROMPTS)]


def _load(device: str, dtype: torch.dtype) -> tuple[M3, M3Config]:
    return checkpoint.load(find_folder("nano"), torch.device(device), dtype)


def _greedy(
    model: M3, config: M3Config, prompt: list[int], forced: list[int] | None = None
) -> tuple[list[int], list[float]]:
    """The best token at each place and by how much it leads; `forced` tokens are appended in their stead."""
    sequence = TokenSequence(model, chunk=2048)
    places = (config.image_token_id, config.video_token_id)
    scores = sequence.extend(Tokens.lay_out(prompt, (), places), lambda number: torch.empty(0))
    tokens, leads = [], []
    for i in range(MADE):
        assert scores is not None
        best = scores.float().topk(2)
        tokens.append(int(best.indices[0]))
        leads.append(float(best.values[0] - best.values[1]))
        scores = sequence.append(tokens[-1] if forced is None else forced[i])
    return tokens, leads


def test_greedy_tokens_are_the_cpu_s(prompts: list[list[int]]) -> None:
    """fp32 exactly; bf16 except where the CPU's best two tokens are as good as equal."""
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    cpu, exact, rough = (
        _load(device, dtype)
        for device, dtype in (("cpu", torch.float32), ("cuda", torch.float32), ("cuda", torch.bfloat16))
    )
    for prompt in prompts:
        tokens, leads = _greedy(*cpu, prompt)
        assert _greedy(*exact, prompt, tokens)[0] == tokens
        for ours, theirs, lead in zip(_greedy(*rough, prompt, tokens)[0], tokens, leads, strict=True):
            assert ours == theirs or lead < 0.5
