"""The scripted model keeps the contract of `Model`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pilotfish.model.protocol import (
    CallChunk,
    Chunk,
    EndChunk,
    Limits,
    Message,
    Model,
    ModelError,
    ProgressChunk,
    TextChunk,
    ThinkingChunk,
    ToolCall,
    ToolSpec,
    Usage,
)
from pilotfish.model.scripted import Answer, Script, ScriptedModel

ASK = [Message("user", ("Hello.",))]
NS = "]<]minimax[>["
WAIT = (
    f'{NS}<tool_call>\n{NS}<invoke name="wait">{NS}<duration>2{NS}</duration>{NS}</invoke>\n{NS}</tool_call>'
)
TOOLS = [ToolSpec("wait", "", {"type": "object", "properties": {"duration": {"type": "integer"}}})]


async def play(
    script: Script | ScriptedModel, limits: Limits | None = None, stop: asyncio.Event | None = None
) -> list[Chunk]:
    model: Model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
    stop = asyncio.Event() if stop is None else stop
    return [chunk async for chunk in model.respond(ASK, TOOLS, stop=stop, limits=limits or Limits())]


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))


async def test_a_turn_is_played_in_order() -> None:
    call = ToolCall("7", "wait", {"duration": 2})
    *said, end = await play([Message("assistant", ("One two.",), reasoning="Hm.", tool_calls=(call,))])
    assert said == [ThinkingChunk("Hm."), TextChunk("One"), TextChunk(" two."), CallChunk(call)]
    assert end == EndChunk("end", Usage(output_tokens=4))


async def test_raw_text_goes_through_the_parser() -> None:
    chunks = await play([f"Soon. {WAIT}"])
    assert text_of(chunks) == "Soon. "
    calls = [chunk.call for chunk in chunks if isinstance(chunk, CallChunk)]
    assert [(call.name, call.arguments) for call in calls] == [("wait", {"duration": 2})]
    thinking = await play(["Hm.</mm:think>Hello."], Limits(thinking="enabled"))
    assert thinking[:2] == [ThinkingChunk("Hm."), TextChunk("Hello.")]


async def test_chunks_are_played_and_may_hold_their_own_end() -> None:
    end = EndChunk("length", Usage(output_tokens=9))
    assert await play([[TextChunk("Hi"), end]]) == [TextChunk("Hi"), end]
    assert (await play([[TextChunk("Hi")]]))[-1] == EndChunk("end", Usage(output_tokens=1))
    assert await play([""]) == [EndChunk("end")]


async def test_how_far_a_prompt_is_costs_nothing() -> None:
    script = [[ProgressChunk(0, 9), ProgressChunk(9, 9), TextChunk("Hi")]]
    said = await play(script, Limits(max_tokens=1))
    assert said == [*script[0], EndChunk("end", Usage(output_tokens=1))]


async def test_answers_follow_one_another_and_end_in_an_error() -> None:
    model = ScriptedModel(["one", "two"])
    assert text_of(await play(model)) == "one"
    assert text_of(await play(model)) == "two"
    assert model.requests == [(tuple(ASK), tuple(TOOLS))] * 2
    with pytest.raises(ModelError, match="ends after 2 answers"):
        await play(model)


async def test_functions_answer_from_the_conversation() -> None:
    def answer(conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Answer:
        return f"{conversation[0].parts[0]} {tools[0].name}"

    async def later(conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Answer:
        await asyncio.sleep(0.01)
        return answer(conversation, tools)

    assert text_of(await play(answer)) == text_of(await play(later)) == "Hello. wait"


async def test_an_error_of_the_function_is_raised() -> None:
    async def answer(conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Answer:
        raise ModelError("the server is gone; start it again")

    with pytest.raises(ModelError, match="start it again"):
        await play(answer)


@pytest.mark.parametrize("answer", ["a b c d", Message("assistant", ("a b c d",)), [TextChunk("a b c d")]])
async def test_the_token_limit_ends_an_answer(answer: Answer) -> None:
    chunks = await play([answer], Limits(max_tokens=2))
    assert text_of(chunks) == "a b"
    assert chunks[-1] == EndChunk("length", Usage(output_tokens=2))
    assert (await play([answer], Limits(max_tokens=4)))[-1] == EndChunk("end", Usage(output_tokens=4))


async def test_text_that_waited_is_not_lost_at_the_token_limit() -> None:
    chunks = await play([f"Now {NS} and more words"], Limits(max_tokens=2))
    assert text_of(chunks) == f"Now {NS}"


async def test_stop_and_time_end_an_answer_that_never_comes() -> None:
    cancelled = []

    async def never(conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Answer:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return ""

    assert await play(never, Limits(max_seconds=0.05)) == [EndChunk("time")]
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    assert await play(never, stop=stop) == [EndChunk("stop")]
    assert cancelled == [True, True]


async def test_stop_ends_a_long_answer_between_words() -> None:
    stop = asyncio.Event()
    said = []
    async for chunk in ScriptedModel(["word " * 1000]).respond(
        ASK, [], stop=stop, limits=Limits(max_tokens=5000)
    ):
        said.append(chunk)
        if len(said) == 3:
            stop.set()
    assert len(said) == 4
    assert said[-1] == EndChunk("stop", Usage(output_tokens=3))
