"""The in-process model: what an answer is, from its first token to its last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from torch import Tensor

from pilotfish.model.cache import Cache
from pilotfish.model.constraint import CallConstraint
from pilotfish.model.engine import Engine
from pilotfish.model.flat import FlatDecoder
from pilotfish.model.protocol import (
    CallChunk,
    Chunk,
    Limits,
    ModelError,
    ThinkingChunk,
    ToolSpec,
)
from pilotfish.model.tokenizer import IMAGE, THINK_END, THINK_START, TURN_END, TURN_START, Tokenizer

from .asking import HELLO, answer, chain, end_of, said, text_of


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


@pytest.mark.parametrize("stop", [(), ("computer",)])
async def test_what_is_guessed_ahead_changes_no_answer(
    tiny_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, stop: tuple[str, ...]
) -> None:
    """Guesses that are right, wrong, right at first, or none: the same tokens, to the last bit of each."""
    passes: list[int] = []
    decode, real = FlatDecoder.decode, CallConstraint.ahead

    def counted(self: FlatDecoder, ids: Sequence[int], caches: Sequence[Cache]) -> Tensor:
        passes.append(len(ids))
        return decode(self, ids, caches)

    monkeypatch.setattr(FlatDecoder, "decode", counted)
    guessers: dict[str, Callable[[CallConstraint], list[int]]] = {
        "none": lambda _: [],
        "real": real,
        "wrong": lambda _: [300, 301, 302, 303],
        "mixed": lambda self: [*real(self)[:1], 300, 301],
    }
    answers, counts = {}, {}
    for name, guesser in guessers.items():
        monkeypatch.setattr(CallConstraint, "ahead", guesser)
        engine, told = tiny_engine(), []
        for most in (9, 10, 11, 150):
            limits = Limits(
                max_tokens=most, temperature=1.0, seed=most, tool_choice="required", logprobs=True, stop=stop
            )
            chunks = await ask(engine, limits, CLICK)
            end = end_of(chunks)
            timeless = (end.reason, end.logprobs, end.usage.output_tokens, end.usage.cache_bytes)
            calls = [
                (c.call.name, c.call.arguments, c.confidence) if isinstance(c, CallChunk) else c
                for c in chunks[:-1]
            ]
            told.append((calls, timeless, engine.sequence.length))
        answers[name], counts[name] = told, list(passes)
        passes.clear()
    assert set(counts["none"]) == {1}
    assert len(counts["real"]) < 0.9 * len(counts["none"])
    assert 4 in counts["real"]
    assert len(counts["wrong"]) == len(counts["none"])
    for name in ("real", "wrong", "mixed"):
        assert answers[name] == answers["none"], name
