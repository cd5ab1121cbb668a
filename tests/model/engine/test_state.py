"""What an engine keeps between answers, what it is made of, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pilotfish.model import checkpoint
from pilotfish.model.device import CPU_CHUNK, cpu_threads, pick_device, pick_dtype
from pilotfish.model.engine import Engine
from pilotfish.model.features import Features
from pilotfish.model.m3 import M3
from pilotfish.model.protocol import (
    Clip,
    Image,
    Message,
    ModelError,
    Part,
    ToolCall,
)
from pilotfish.model.tokenizer import THINK_END, TURN_END, Tokenizer

from .asking import FILLER, HELLO, answer, chain, end_of, text_of


def turns(*parts: Part | tuple[Part, ...]) -> tuple[Message, ...]:
    """User, assistant, tool, assistant, tool, ... turns."""
    messages: list[Message] = []
    for number, part in enumerate(parts):
        shown = part if isinstance(part, tuple) else (part,)
        if number == 0:
            messages.append(Message("user", shown))
            continue
        call = ToolCall(str(number), "computer", {"action": "click"})
        messages += [Message("assistant", (), tool_calls=(call,)), Message("tool", shown)]
    return tuple(messages)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_what_was_cached_does_not_matter(
    tiny_engine: Callable[..., Engine],
    make_clip: Callable[..., Clip],
    make_image: Callable[..., Image],
    dtype: str,
) -> None:
    """Conversations that grow, lose old clips, and change, against engines that saw nothing before."""
    engine = tiny_engine(dtype=dtype)
    first = (make_clip(0, 112, 140), FILLER)
    conversations = [
        turns(first),
        turns(first, ("ok", make_clip(1))),
        turns(first, ("ok", make_clip(1)), ("ok", make_image(2)), FILLER),
        turns(first, ("ok", make_clip(1)), ("ok", make_image(3)), FILLER),
        turns((make_clip(5, 112, 140), FILLER), ("ok", make_clip(1))),
        turns(FILLER),
        turns(first, ("ok", make_clip(1))),
    ]
    cached = []
    for conversation in conversations:
        warm = await answer(engine, conversation, max_tokens=12)
        cold = await answer(tiny_engine(dtype=dtype), conversation, max_tokens=12)
        assert warm[:-1] == cold[:-1]
        one, two = end_of(warm).usage, end_of(cold).usage
        assert (one.input_tokens, one.output_tokens) == (two.input_tokens, two.output_tokens)
        assert two.cached_tokens == 0
        cached.append(one.cached_tokens)
    assert all(count % CPU_CHUNK == 0 for count in cached)
    assert cached[0] == cached[4] == 0
    assert min(cached[1:4]) > 0


async def test_pictures_are_encoded_once(
    tiny_engine: Callable[..., Engine], make_clip: Callable[..., Clip]
) -> None:
    engine = tiny_engine()
    assert end_of(await answer(engine, turns(make_clip(0)), max_tokens=1)).usage.vision_s > 0
    again = end_of(await answer(engine, turns(("Look.", make_clip(0))), max_tokens=1)).usage
    assert again.vision_s == 0
    assert end_of(await answer(engine, turns(make_clip(1)), max_tokens=1)).usage.vision_s > 0


def test_kept_pictures_are_bounded(tiny_model: Callable[..., M3], make_image: Callable[..., Image]) -> None:
    model = tiny_model()
    one = Features(model).of(b"0", make_image(0))
    features = Features(model, limit_bytes=2 * one.nbytes)
    for seed in (0, 1, 0, 2):
        features.of(str(seed).encode(), make_image(seed))
    assert features.bytes == 2 * one.nbytes
    features.seconds = 0.0
    assert torch.equal(features.of(b"0", make_image(0)), one)
    assert features.seconds == 0, "the one used last stayed"
    features.of(b"1", make_image(1))
    assert features.seconds > 0, "the one unused longest went"


async def test_the_context_limit(speaker: Callable[..., Engine], tokenizer: Tokenizer) -> None:
    ids = chain(tokenizer, THINK_END, "Hey wörld", TURN_END)
    needed = end_of(await answer(speaker(ids), HELLO)).usage.input_tokens
    with pytest.raises(ModelError, match=f"has {needed} tokens .* at most {needed - 1}"):
        await answer(speaker(ids, max_position_embeddings=needed), HELLO)
    tight = end_of(await answer(speaker(ids, max_position_embeddings=needed + 2), HELLO))
    assert (tight.reason, tight.usage.output_tokens) == ("length", 2)


async def test_seeds(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()

    async def say(seed: int | None) -> str:
        return text_of(await answer(engine, HELLO, temperature=1.0, seed=seed, max_tokens=12))

    assert await say(1) == await say(1) == await say(1)
    assert await say(1) != await say(2)


async def test_dense_attention_answers_differently(tiny_engine: Callable[..., Engine]) -> None:
    conversation = (Message("user", (FILLER,)),)
    sparse = await answer(tiny_engine(), conversation, max_tokens=20)
    dense = await answer(tiny_engine(attention="dense"), conversation, max_tokens=20)
    assert text_of(sparse) != text_of(dense)


async def test_errors_leave_a_working_engine(
    tiny_engine: Callable[..., Engine], make_image: Callable[..., Image]
) -> None:
    engine = tiny_engine()
    expected = text_of(await answer(engine, HELLO, max_tokens=8))
    orphan = (Message("tool", ("ok",)),)
    for conversation, limits in [
        (orphan, {}),
        (turns(make_image(height=4, width=1200)), {}),
        (HELLO, {"temperature": -1.0}),
        (HELLO, {"top_p": 0.0}),
        (HELLO, {"thinking": "sometimes"}),
    ]:
        with pytest.raises(ModelError):
            await answer(engine, conversation, **limits)
        assert text_of(await answer(engine, HELLO, max_tokens=8)) == expected


async def test_weights_that_are_no_numbers(speaker: Callable[..., Engine], tokenizer: Tokenizer) -> None:
    engine = speaker(chain(tokenizer, THINK_END, "Hey", TURN_END))
    with torch.no_grad():
        engine.model.language_model.model.norm.weight[0] = torch.nan
    with pytest.raises(ModelError, match="best score is nan"):
        await answer(engine, HELLO)


def broken(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "broken")


def test_folders_that_cannot_answer(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer"):
        Engine(tmp_path)
    folder = broken(tiny_folder, tmp_path)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="chat"):
        Engine(folder)


def test_files_of_different_checkpoints(
    tiny_folder: Path, tmp_path: Path, tiny_model: Callable[..., M3]
) -> None:
    folder = broken(tiny_folder, tmp_path)
    checkpoint.save(tiny_model(vocab=600), folder)
    with pytest.raises(ModelError, match="the weights have 600"):
        Engine(folder)
    checkpoint.save(tiny_model(vocab=3000), folder)
    with pytest.raises(ModelError, match="pictures and clips at ids"):
        Engine(folder)


def test_devices_and_dtypes() -> None:
    cpu = pick_device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda")
    assert pick_dtype("float32", cpu) == torch.float32
    assert pick_dtype("auto", cpu) in (torch.float32, torch.bfloat16)
    assert pick_dtype("auto", torch.device("cuda")) == torch.bfloat16
    for name in ("cuda:99", "toaster", ""):
        with pytest.raises(ModelError, match="no device"):
            pick_device(name)
    with pytest.raises(ModelError, match="float16"):
        pick_dtype("float16", cpu)  # type: ignore[arg-type]


def test_threads_leave_room_for_the_desktop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert cpu_threads() >= 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert cpu_threads() == 3


def test_the_name_is_the_folders(tiny_engine: Callable[..., Engine], tiny_folder: Path) -> None:
    engine = tiny_engine()
    assert engine.name == tiny_folder.name
    engine.close()
