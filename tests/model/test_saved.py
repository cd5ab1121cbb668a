"""Conversations on disk: they go on where they were, and no other file is taken for one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pilotfish.model import transfer
from pilotfish.model.device import CPU_CHUNK
from pilotfish.model.engine import Engine
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


@pytest.fixture
def empty(sequence: TokenSequence) -> TokenSequence:
    return TokenSequence(sequence.model, chunk=CHUNK)


def refused(path: Path, sequence: TokenSequence, key: dict[str, str], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        load(path, sequence, key)
    assert (sequence.length, len(sequence.tokens), sequence.cache.pool.held) == (0, 0, 0)


def test_a_saved_sequence_goes_on(sequence: TokenSequence, empty: TokenSequence, path: Path) -> None:
    assert load(path, empty, KEY) == 128
    assert empty.reusable(TOKENS) == 128
    one, two = (s.extend(TOKENS, lambda number: torch.empty(0)) for s in (sequence, empty))
    assert one is not None
    assert two is not None
    assert torch.equal(one, two)


def test_other_programs_can_read_it(sequence: TokenSequence, path: Path) -> None:
    tensors = load_file(path)
    assert tensors.pop("ids").tolist() == TOKENS.ids[:128].tolist()
    assert not tensors.pop("is_place").any()
    held = sequence.cache.tensors(128)
    assert tensors.keys() == held.keys()
    assert all(torch.equal(x, held[name][0]) for name, x in tensors.items())


@pytest.mark.parametrize("pages", [3, 8])
def test_pages_that_lie_apart(
    sequence: TokenSequence, path: Path, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """Saved from pages in a row and loaded into scattered ones, or the other way, in pieces of some pages."""
    pool = sequence.cache.pool
    monkeypatch.setattr(transfer, "PIECE_BYTES", pages * pool.block * 4 * 4)
    save(sequence, path, KEY)
    whole = path.read_bytes()
    apart = TokenSequence(sequence.model, chunk=CHUNK, pool=pool)
    taken = [pool.take(1) for _ in range(20)]
    for number in (1, 2, 4, 7, 9, 10, 13, 15, 18):
        pool.release(taken[number])
    monkeypatch.setattr(pool, "most", lambda: len(sequence.cache) + 20)
    assert load(path, apart, KEY) == 128
    assert len(apart.cache.rows(0, 128)) > 3
    for name, x in sequence.cache.tensors(128).items():
        assert torch.equal(x, apart.cache.tensors(128)[name])
    save(apart, path, KEY)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.999])
def test_a_file_cut_short(empty: TokenSequence, path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))
    refused(path, empty, KEY, "is damaged or no saved conversation")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_file_cut_short_while_it_is_read(empty: TokenSequence, path: Path, share: float) -> None:
    def cut(tokens: int) -> None:
        os.truncate(path, int(path.stat().st_size * share))

    with pytest.raises(ModelError, match="it ends at byte"):
        load(path, empty, KEY, cut)
    assert (empty.length, empty.cache.pool.held) == (0, 0)


def test_a_file_written_over_while_it_is_read(empty: TokenSequence, path: Path) -> None:
    def write(tokens: int) -> None:
        with path.open("r+b") as file:
            file.seek(-9000, os.SEEK_END)
            file.write(b"other")

    with pytest.raises(ModelError, match="its numbers do not add up"):
        load(path, empty, KEY, write)
    assert (empty.length, empty.cache.pool.held) == (0, 0)


def test_damage_anywhere(empty: TokenSequence, path: Path) -> None:
    """One bit, in the header or among the numbers."""
    whole = path.read_bytes()
    for place in (0, 3, 5, 7, 9, 60, *range(70, len(whole), 999), len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        refused(path, empty, KEY, "saved")
    path.write_bytes(whole)
    load(path, empty, KEY)


def test_files_of_something_else(empty: TokenSequence, path: Path) -> None:
    for content in (b"", b"hello", b"\0" * 1000, b'{"a": 1}', b"\2\0\0\0\0\0\0\0[]", b"\xff" * 50):
        path.write_bytes(content)
        refused(path, empty, KEY, "is damaged or no saved conversation")
    save_file({"x": torch.zeros(3)}, path)
    refused(path, empty, KEY, "is no saved conversation of this version")
    refused(path.with_name("none"), empty, KEY, "is missing")
    refused(path.parent, empty, KEY, "saved conversation")


def test_headers_that_do_not_fit(empty: TokenSequence, path: Path) -> None:
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    changes: list[Callable[[dict[str, dict[str, object]]], object]] = [
        lambda header: header.pop("index.1"),
        lambda header: header["ids"].update(shape=[64]),
        lambda header: header["ids"].update(shape=[]),
        lambda header: header["ids"].update(shape=["x"]),
        lambda header: header["ids"].update(shape=[-128]),
        lambda header: header["ids"].update(shape=[10**30]),
        lambda header: header.update(ids=header["keys.0"]),
        lambda header: header["keys.0"].update(header["values.0"]),
        lambda header: header["__metadata__"].update(spans="[[0, 4]]"),
        lambda header: header["__metadata__"].update(spans="["),
        lambda header: header["__metadata__"].update(spans='[[0, 4, "00"]]'),
        lambda header: header["__metadata__"].update(sum=None),
    ]
    for change in changes:
        changed = json.loads(json.dumps(header))
        change(changed)
        text = json.dumps(changed).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
        refused(path, empty, KEY, "is damaged or no saved conversation")


def test_other_conditions(sequence: TokenSequence, empty: TokenSequence, path: Path) -> None:
    for name in KEY:
        sentence = f"was saved with {name} '{KEY[name]}', and here it is 'other'"
        refused(path, empty, {**KEY, name: "other"}, sentence)
    wider = TokenSequence(sequence.model, chunk=2 * CHUNK)
    refused(path, wider, KEY, "was saved with chunk '32', and here it is '64'")
    half = TokenSequence(sequence.model.to(torch.bfloat16), chunk=CHUNK)
    refused(path, half, KEY, r"was saved with dtype 'torch\.float32'")


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
    conversation = (Message("user", (make_clip(0, 112, 140), "The quick brown fox jumps. " * 32)),)

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
