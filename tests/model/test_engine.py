"""The in-process model: real weights small enough for a test, the shipped tokenizer and template."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pilotfish.model import checkpoint
from pilotfish.model.device import CPU_CHUNK, cpu_threads, pick_device, pick_dtype
from pilotfish.model.engine import AT_ONCE, Engine
from pilotfish.model.features import Features
from pilotfish.model.m3 import M3
from pilotfish.model.protocol import (
    CallChunk,
    Chunk,
    Clip,
    EndChunk,
    Image,
    Limits,
    Message,
    ModelError,
    Part,
    ProgressChunk,
    TextChunk,
    ThinkingChunk,
    ToolCall,
    ToolSpec,
)
from pilotfish.model.tokenizer import IMAGE, THINK_END, THINK_START, TURN_END, TURN_START, Tokenizer

HELLO = (Message("user", ("Say hello.",)),)
FILLER = "The quick brown fox jumps over the lazy dog. " * 40


async def answer(
    engine: Engine, conversation: Sequence[Message], stop: asyncio.Event | None = None, **limits: Any
) -> list[Chunk]:
    stop = stop or asyncio.Event()
    return [c async for c in said(engine, conversation, stop, Limits(**limits))]


async def said(
    engine: Engine, conversation: Sequence[Message], stop: asyncio.Event, limits: Limits, *tools: ToolSpec
) -> AsyncGenerator[Chunk, None]:
    """An answer without the reports of how far its prompt is."""
    async with aclosing(engine.respond(conversation, tools, stop=stop, limits=limits)) as stream:
        async for chunk in stream:
            if not isinstance(chunk, ProgressChunk):
                yield chunk


async def holds(engine: Engine, tokens: int, task: asyncio.Task[Any]) -> None:
    """Wait until the engine has computed so many tokens for a task."""
    while engine.sequence.length < tokens and not task.done():  # noqa: ASYNC110 - the engine signals nothing
        await asyncio.sleep(0.001)


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(c.text for c in chunks if isinstance(c, TextChunk))


def end_of(chunks: Sequence[Chunk]) -> EndChunk:
    assert [isinstance(c, EndChunk) for c in chunks] == [False] * (len(chunks) - 1) + [True]
    end = chunks[-1]
    assert isinstance(end, EndChunk)
    return end


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


def chain(tokenizer: Tokenizer, *parts: str) -> list[int]:
    ids = [i for part in parts for i in tokenizer.encode_markers(part)]
    assert len(set(ids)) == len(ids), "a chain visits each token once"
    return ids


async def test_an_answer_from_first_to_last_token(
    speaker: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    ids = chain(tokenizer, THINK_END, "Hey wörld", TURN_END)
    chunks = await answer(speaker(ids), HELLO)
    assert text_of(chunks) == "Hey wörld"
    end = end_of(chunks)
    assert end.reason == "end"
    assert end.usage.output_tokens == len(ids) - 1, "the end of the turn is a token the model wrote"
    assert end.usage.cached_tokens == 0
    assert end.usage.prefill_s > 0
    assert end.usage.decode_s > 0
    assert end.usage.vision_s == 0


async def test_thinking_is_told_apart(speaker: Callable[..., Engine], tokenizer: Tokenizer) -> None:
    engine = speaker(chain(tokenizer, THINK_START, "plan", THINK_END, "Hey", TURN_END))
    chunks = await answer(engine, HELLO, thinking="enabled")
    assert "".join(c.text for c in chunks if isinstance(c, ThinkingChunk)) == "plan"
    assert text_of(chunks) == "Hey"
    assert text_of(await answer(engine, HELLO, thinking="disabled")) == "Hey"


async def test_the_token_limit(speaker: Callable[..., Engine], tokenizer: Tokenizer) -> None:
    ids = chain(tokenizer, THINK_END, "Hey wörld", TURN_END)
    engine = speaker(ids)
    for count in range(len(ids) + 1):
        end = end_of(await answer(engine, HELLO, max_tokens=count))
        assert end.usage.output_tokens == min(count, len(ids) - 1)
        assert end.reason == ("end" if count >= len(ids) - 1 else "length")


async def test_a_character_cut_by_the_limit_is_marked(
    speaker: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    ids = chain(tokenizer, THINK_END, "\N{SNOWMAN}", TURN_END)
    assert len(ids) > 3, "the snowman is more than one token"
    assert text_of(await answer(speaker(ids), HELLO, max_tokens=1)) == "\N{REPLACEMENT CHARACTER}"


async def test_a_new_turn_ends_the_answer(speaker: Callable[..., Engine], tokenizer: Tokenizer) -> None:
    """A model that plays the user next must not be believed."""
    chunks = await answer(speaker(chain(tokenizer, THINK_END, "Hey", TURN_START, "user")), HELLO)
    assert text_of(chunks) == "Hey"
    assert end_of(chunks).reason == "end"


async def test_placeholders_are_never_written(speaker: Callable[..., Engine], tokenizer: Tokenizer) -> None:
    """The best-scored token is a picture's; the second best comes instead."""
    picture = chain(tokenizer, THINK_END, IMAGE)
    words = chain(tokenizer, THINK_END, "Hey", TURN_END)
    chunks = await answer(speaker(picture, picture, words), HELLO)
    assert text_of(chunks) == "Hey"


async def ask(engine: Engine, limits: Limits, *tools: ToolSpec) -> list[Chunk]:
    return [chunk async for chunk in said(engine, HELLO, asyncio.Event(), limits, *tools)]


async def test_a_stop_string_ends_the_answer_where_it_begins(
    speaker: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    engine = speaker(chain(tokenizer, THINK_END, "Hey wörld", TURN_END))
    for stop, text in [("ö", "Hey w"), ("wör", "Hey "), ("Hey wörld!", "Hey wörld"), ("H", "")]:
        chunks = await ask(engine, Limits(stop=(stop, "nowhere")))
        assert text_of(chunks) == text
        assert end_of(chunks).reason == "end"
    with pytest.raises(ModelError, match="stop string"):
        await ask(engine, Limits(stop=("",)))


async def test_log_probabilities_come_on_request(
    speaker: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    ids = chain(tokenizer, THINK_END, "Hey", TURN_END)
    engine = speaker(ids)
    assert end_of(await answer(engine, HELLO)).logprobs is None
    end = end_of(await answer(engine, HELLO, logprobs=True))
    assert end.logprobs is not None
    assert len(end.logprobs) == end.usage.output_tokens
    assert all(value <= 0 for value in end.logprobs)


CLICK = ToolSpec(
    "computer",
    "",
    {
        "type": "object",
        "properties": {
            "action": {"enum": ["left_click", "wait"]},
            "coordinate": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        },
        "required": ["action", "coordinate"],
    },
)


async def test_noise_makes_calls_that_fit_their_schema(tiny_engine: Callable[..., Engine]) -> None:
    """Random weights, a required call: whatever they say is a call that can be made."""
    engine = tiny_engine()
    made = 0
    for seed in range(4):
        limits = Limits(max_tokens=150, temperature=1.0, seed=seed, tool_choice="required")
        chunks = await ask(engine, limits, CLICK)
        for chunk in chunks:
            if isinstance(chunk, CallChunk):
                made += 1
                assert chunk.call.arguments["action"] in ("left_click", "wait")
                x, y = chunk.call.arguments["coordinate"]
                assert isinstance(x, int)
                assert isinstance(y, int)
                assert chunk.confidence is not None
                assert 0 <= chunk.confidence < 1
        end = end_of(chunks)
        assert end.reason == "length" or end.faults == ()
    assert made > 0


@pytest.fixture
def endless(speaker: Callable[..., Engine], tokenizer: Tokenizer) -> Engine:
    """An engine that says the same words for ever."""
    words = tokenizer.encode(" round and")
    return speaker([tokenizer.id(THINK_END), *words, words[0]])


async def test_stop_ends_an_answer(endless: Engine) -> None:
    stop = asyncio.Event()
    chunks: list[Chunk] = []
    async for chunk in said(endless, HELLO, stop, Limits(max_seconds=1e6, max_tokens=3900)):
        chunks.append(chunk)
        if len(chunks) == 3:
            stop.set()
    end = end_of(chunks)
    assert end.reason == "stop"
    assert 3 <= end.usage.output_tokens < 3900


async def test_stop_before_the_start(endless: Engine) -> None:
    stop = asyncio.Event()
    stop.set()
    end = end_of(await answer(endless, HELLO, stop))
    assert (end.reason, end.usage.output_tokens) == ("stop", 0)
    assert endless.sequence.length == 0, "nothing was computed"


async def test_stop_while_reading_a_long_prompt(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    conversation = (Message("user", (FILLER * 2,)),)
    stop = asyncio.Event()
    task = asyncio.create_task(answer(engine, conversation, stop))
    await holds(engine, CPU_CHUNK, task)
    stop.set()
    end = end_of(await task)
    assert (end.reason, end.usage.output_tokens) == ("stop", 0)
    assert engine.sequence.length < end.usage.input_tokens
    again = await answer(engine, conversation, max_tokens=5)
    assert end_of(again).usage.cached_tokens >= CPU_CHUNK
    assert text_of(again) == text_of(await answer(tiny_engine(), conversation, max_tokens=5))


async def test_progress_and_costs_are_told(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    long = (Message("user", (FILLER * 2,)),)
    chunks = [c async for c in engine.respond(long, (), stop=asyncio.Event(), limits=Limits(max_tokens=3))]
    progress = [chunk for chunk in chunks if isinstance(chunk, ProgressChunk)]
    total = progress[0].total
    assert [chunk.done for chunk in progress] == [*range(0, total, CPU_CHUNK), total]
    assert {chunk.total for chunk in progress} == {total}
    assert chunks[: len(progress)] == progress, "it comes before the answer"
    usage = end_of(chunks[len(progress) :]).usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (total, 0, 3)
    assert usage.cache_bytes == engine.bytes_for(total + 2), "the last token is not computed"
    assert usage.device is not None
    assert usage.device.startswith("cpu, ")
    assert usage.sequences == 1
    assert usage.queue_s is not None
    assert 0 <= usage.queue_s < 60
    both = await asyncio.gather(answer(engine, HELLO, max_tokens=99), answer(engine, HELLO, max_tokens=99))
    assert [end_of(one).usage.sequences for one in both] == [2, 2]


async def test_the_time_limit(endless: Engine) -> None:
    end = end_of(await answer(endless, HELLO, max_seconds=0.0))
    assert (end.reason, end.usage.output_tokens) == ("time", 0)
    end = end_of(await answer(endless, HELLO, max_seconds=0.2, max_tokens=3900))
    assert end.reason == "time"
    assert end.usage.output_tokens > 0


async def test_the_event_loop_stays_free(endless: Engine) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(tick())
    await answer(endless, HELLO, max_tokens=50)
    ticker.cancel()
    assert ticks > 50


async def test_others_go_on_while_a_large_prompt_is_rendered(endless: Engine) -> None:
    large = (Message("user", ("The quick brown fox, 1 2 3. " * 150_000,)),)
    rendering = asyncio.create_task(answer(endless, large))
    await asyncio.sleep(0)
    writing = end_of(await answer(endless, HELLO, max_tokens=3))
    assert writing.usage.output_tokens == 3
    assert not rendering.done(), "it did not wait for the other's rendering"
    with pytest.raises(ModelError, match="reads at most"):
        await rendering


async def test_a_prompt_being_rendered_is_stopped_and_timed(endless: Engine) -> None:
    large = (Message("user", ("The quick brown fox, 1 2 3. " * 20_000,)),)
    assert await answer(endless, large, max_seconds=0.01) == [EndChunk("time")]
    stop = asyncio.Event()
    stopped = asyncio.create_task(answer(endless, large, stop))
    await asyncio.sleep(0)
    stop.set()
    assert await stopped == [EndChunk("stop")]


async def test_nothing_is_rendered_for_who_has_gone(endless: Engine) -> None:
    large = (Message("user", ("The quick brown fox.\nOver it. " * 50_000,)),)
    began_s = time.perf_counter()
    endless.count(large, ())
    whole_s = time.perf_counter() - began_s
    stop = asyncio.Event()
    task = asyncio.create_task(answer(endless, large, stop))
    await asyncio.sleep(0)
    stop.set()
    assert await task == [EndChunk("stop")]
    began_s = time.perf_counter()
    endless.close()
    assert time.perf_counter() - began_s < whole_s / 2


def test_a_loop_that_is_closed_in_the_midst_leaves_nothing_behind(endless: Engine) -> None:
    loop = asyncio.new_event_loop()
    stream = endless.respond(
        HELLO, (), stop=asyncio.Event(), limits=Limits(max_seconds=1e6, max_tokens=10**6)
    )
    loop.run_until_complete(anext(stream))
    loop.close()
    began_s = time.perf_counter()
    endless.close()
    assert time.perf_counter() - began_s < 20
    del stream


async def test_leaving_early_stops_the_work(endless: Engine) -> None:
    stream = said(endless, HELLO, asyncio.Event(), Limits(max_tokens=3900, max_seconds=1e6))
    async for _ in stream:
        break
    await stream.aclose()
    length = endless.sequence.length
    assert length < 3000
    await asyncio.sleep(0.05)
    assert endless.sequence.length == length
    assert end_of(await answer(endless, HELLO, max_tokens=3)).reason == "length"


async def test_cancelling_the_task_stops_the_work(endless: Engine) -> None:
    task = asyncio.create_task(answer(endless, HELLO, max_tokens=3900, max_seconds=1e6))
    await holds(endless, 1, task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    length = endless.sequence.length
    assert length < 3000
    await asyncio.sleep(0.05)
    assert endless.sequence.length == length


async def test_answers_are_the_same_alone_and_together(tiny_engine: Callable[..., Engine]) -> None:
    """More at once than there are rows in a pass, long prompts and short ones, with and without a seed."""
    engine = tiny_engine()
    asked: list[tuple[Message, dict[str, Any]]] = [
        (Message("user", (FILLER[: 400 * i] + f"Say {i}.",)), {"max_tokens": 25 - 3 * i, "logprobs": True})
        for i in range(7)
    ]
    asked[2][1].update(temperature=1.0, seed=5)
    together = await asyncio.gather(*(answer(engine, (one,), **limits) for one, limits in asked))
    for (one, limits), chunks in zip(asked, together, strict=True):
        alone = await answer(tiny_engine(), (one,), **limits)
        assert text_of(chunks) == text_of(alone)
        assert end_of(chunks).logprobs == end_of(alone).logprobs


async def test_answers_that_begin_alike_compute_it_once(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    asked = [(Message("user", (FILLER * 2 + f"Say {i}.",)),) for i in range(4)]
    ends = [end_of(one) for one in await asyncio.gather(*(answer(engine, c, max_tokens=3) for c in asked))]
    common = ends[0].usage.input_tokens // CPU_CHUNK * CPU_CHUNK
    assert common >= 3 * CPU_CHUNK
    assert sorted(end.usage.cached_tokens for end in ends) == [0, common, common, common]


async def test_one_that_fails_does_not_trouble_the_others(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    good = answer(engine, HELLO, max_tokens=20)
    bad = answer(engine, HELLO, max_tokens=20, temperature=-1.0)
    found = await asyncio.gather(good, bad, return_exceptions=True)
    assert isinstance(found[1], Exception)
    assert isinstance(found[0], list)
    assert text_of(found[0]) == text_of(await answer(tiny_engine(), HELLO, max_tokens=20))


async def test_who_waits_for_a_turn_may_leave_before_it_comes(endless: Engine) -> None:
    stop, left = asyncio.Event(), asyncio.Event()
    running = [said(endless, HELLO, stop, Limits(max_tokens=3900, max_seconds=1e6)) for _ in range(AT_ONCE)]
    for stream in running:
        await anext(stream)
    first = running[0]
    second = said(endless, HELLO, left, Limits())
    waiting = asyncio.ensure_future(anext(second))
    third = asyncio.ensure_future(anext(said(endless, HELLO, stop, Limits())))
    await asyncio.sleep(0.1)
    left.set()
    assert await asyncio.wait_for(waiting, 20) == EndChunk("stop")
    third.cancel()
    await asyncio.wait([third], timeout=20)
    assert third.cancelled()
    assert isinstance(await anext(first), TextChunk), "the first goes on"
    stop.set()
    for stream in running:
        assert end_of([chunk async for chunk in stream]).reason == "stop"


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
