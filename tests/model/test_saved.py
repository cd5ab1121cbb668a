"""Conversations on disk: they go on where they were, and no other file is taken for one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pilotfish.model.engine import CPU_CHUNK, Engine
from pilotfish.model.m3 import M3
from pilotfish.model.prefixes import Prefixes
from pilotfish.model.protocol import Clip, Limits, Message, ModelError, ProgressChunk
from pilotfish.model.saved import key_of, load, save
from pilotfish.model.sequence import Tokens, TokenSequence
from pilotfish.model.tokenizer import Tokenizer

CHUNK = 32
KEY = {"weights": "one", "tokenizer": "two"}
TOKENS = Tokens.lay_out([i % 400 + 10 for i in range(150)], (), ())


@pytest.fixture
def sequence(tiny_model: Callable[..., M3]) -> TokenSequence:
    sequence = TokenSequence(tiny_model(0).requires_grad_(False), chunk=CHUNK)
    sequence.extend(TOKENS, lambda number: torch.empty(0))
    return sequence


@pytest.fixture
def path(sequence: TokenSequence, tmp_path: Path) -> Path:
    path = tmp_path / "sequence"
    assert save(sequence, path, KEY) == 128
    assert [file.name for file in tmp_path.iterdir()] == ["sequence"]
    return path


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], object]) -> None:
    with safe_open(path, framework="pt") as reader:
        about = reader.metadata()
    tensors = {name: x.clone() for name, x in load_file(path).items()}
    change(tensors, about)
    save_file(tensors, path, metadata=about)


def test_a_saved_sequence_goes_on(sequence: TokenSequence, path: Path) -> None:
    found = load(path, sequence, KEY)
    other = TokenSequence(sequence.model, chunk=CHUNK)
    other.fill(found.tokens, found.tensors)
    assert other.reusable(TOKENS) == 128
    one, two = (s.extend(TOKENS, lambda number: torch.empty(0)) for s in (sequence, other))
    assert one is not None
    assert two is not None
    assert torch.equal(one, two)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.999])
def test_a_file_cut_short(sequence: TokenSequence, path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(ModelError, match="is damaged or no saved conversation"):
        load(path, sequence, KEY)


def test_damage_anywhere(sequence: TokenSequence, path: Path) -> None:
    """One bit, in the header or among the numbers."""
    whole = path.read_bytes()
    for place in (0, 5, 9, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(ModelError, match="saved"):
            load(path, sequence, KEY)
    path.write_bytes(whole)
    load(path, sequence, KEY)


def test_files_of_something_else(sequence: TokenSequence, path: Path) -> None:
    for content in (b"", b"hello", b"\0" * 1000, b'{"a": 1}'):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="is damaged or no saved conversation"):
            load(path, sequence, KEY)
    save_file({"x": torch.zeros(3)}, path)
    with pytest.raises(ModelError, match="is no saved conversation of this version"):
        load(path, sequence, KEY)
    with pytest.raises(ModelError, match="is missing"):
        load(path.with_name("none"), sequence, KEY)
    with pytest.raises(ModelError, match="saved conversation"):
        load(path.parent, sequence, KEY)


def test_tensors_that_do_not_fit(sequence: TokenSequence, path: Path) -> None:
    rewrite(path, lambda tensors, about: tensors.pop("index.1"))
    with pytest.raises(ModelError, match="its numbers do not add up"):
        load(path, sequence, KEY)


def test_pictures_of_another_conversation(sequence: TokenSequence, path: Path) -> None:
    rewrite(path, lambda tensors, about: about.update(spans='[[0, 4, "00"]]'))
    with pytest.raises(ModelError, match="its numbers do not add up"):
        load(path, sequence, KEY)


def test_other_conditions(sequence: TokenSequence, path: Path) -> None:
    for name in KEY:
        with pytest.raises(ModelError, match=f"was saved with {name} '{KEY[name]}', and here it is 'other'"):
            load(path, sequence, {**KEY, name: "other"})
    wider = TokenSequence(sequence.model, chunk=2 * CHUNK)
    with pytest.raises(ModelError, match="was saved with chunk '32', and here it is '64'"):
        load(path, wider, KEY)
    half = TokenSequence(sequence.model.to(torch.bfloat16), chunk=CHUNK)
    with pytest.raises(ModelError, match=r"was saved with dtype 'torch\.float32'"):
        load(path, half, KEY)


def test_one_weight_makes_another_key(tiny_model: Callable[..., M3], tiny_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(tiny_folder)
    model, twin = tiny_model(0), tiny_model(0)
    assert key_of(model, tokenizer) == key_of(twin, tokenizer)
    with torch.no_grad():
        twin.language_model.lm_head.weight[3, 5] += 1
    assert key_of(model, tokenizer)["weights"] != key_of(twin, tokenizer)["weights"]
    assert key_of(model, tokenizer)["tokenizer"] == key_of(twin, tokenizer)["tokenizer"]


def test_what_cannot_be_written(sequence: TokenSequence, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "none" / "sequence", tmp_path / "folder"):
        with pytest.raises(ModelError, match="cannot be written"):
            save(sequence, path, KEY)
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]
    sequence.truncate(CHUNK - 1)
    with pytest.raises(ModelError, match="has 31 tokens and is kept in steps of 32"):
        save(sequence, tmp_path / "sequence", KEY)


def test_a_file_too_large_for_the_memory(sequence: TokenSequence, path: Path) -> None:
    prefixes = Prefixes(sequence.model, chunk=CHUNK, limit_bytes=7 * sequence.cache.pool.page_bytes)
    with pytest.raises(ModelError, match=r"128 tokens takes .* enough for 112 tokens"):
        prefixes.load(path, KEY)
    assert len(prefixes) == 0


async def test_an_engine_goes_on_where_another_was(
    tiny_folder: Path, tmp_path: Path, make_clip: Callable[..., Clip]
) -> None:
    """A clip and text, saved by one engine; another answers the same and computes only the end."""
    conversation = (Message("user", (make_clip(0, 112, 140), "The quick brown fox jumps. " * 16)),)

    async def answer(engine: Engine) -> list[object]:
        stream = engine.respond(conversation, (), stop=asyncio.Event(), limits=Limits(max_tokens=12))
        return [chunk async for chunk in stream if not isinstance(chunk, ProgressChunk)]

    first, second, third = (Engine(tiny_folder, device="cpu", dtype="float32") for _ in range(3))
    expected = await answer(first)
    saved = await first.save(tmp_path / "prefix")
    assert saved >= CPU_CHUNK
    assert await second.load(tmp_path / "prefix") == saved
    said = await answer(second)
    assert said[:-1] == expected[:-1]
    assert said[-1].usage.cached_tokens == saved
    other = Engine(tiny_folder, device="cpu", dtype="float32", attention="dense")
    before = await answer(other)
    with pytest.raises(ModelError, match="saved with attention 'sparse', and here it is 'dense'"):
        await other.load(tmp_path / "prefix")
    again = await answer(other)
    assert again[:-1] == before[:-1]
    assert again[-1].usage.cached_tokens > 0, "a refused file costs nothing that was kept"
    with pytest.raises(ModelError, match="has 0 tokens"):
        await third.save(tmp_path / "prefix")
