"""Models behind an OpenAI-compatible server, over real sockets: what is sent and what is read."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

from pilotfish.model.protocol import (
    CallChunk,
    Clip,
    Image,
    Limits,
    Message,
    TextChunk,
    ToolCall,
)
from pilotfish.model.remote import RemoteModel

from ..scripted_server import (
    DONE,
    ScriptedServer,
    answer,
    call_delta,
    delta,
    event,
    reply,
    stream,
)
from .remote_play import NS, TOOLS, WAIT, calls_of, end_of, play, text_of, thought_of


async def test_an_answer_is_streamed_and_counted() -> None:
    usage = {
        "prompt_tokens": 90,
        "completion_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 64},
    }
    with ScriptedServer([answer("I wait a bit.", WAIT, usage)]) as server:
        chunks = await play(server, key="secret-key", limits=Limits(max_tokens=99, temperature=0.5, seed=7))
    assert text_of(chunks) == "I wait a bit."
    assert sum(isinstance(chunk, TextChunk) for chunk in chunks) > 1, "it comes as it is written"
    assert calls_of(chunks) == WAIT
    end = end_of(chunks)
    assert (end.reason, end.faults) == ("end", ())
    assert (end.usage.input_tokens, end.usage.cached_tokens, end.usage.output_tokens) == (90, 64, 12)
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == "Bearer secret-key"
    wanted = {"model": "m", "stream": True, "max_tokens": 99, "temperature": 0.5, "seed": 7}
    assert wanted.items() <= asked.body.items()
    assert asked.body["messages"] == [{"role": "user", "content": "Hello."}]
    assert asked.body["tools"][0]["function"]["parameters"] == TOOLS[0].parameters


async def test_the_limits_are_passed_on() -> None:
    content = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -2}]
    piece = delta(content="ab")
    piece["choices"][0]["logprobs"] = {"content": content}
    limits = Limits(top_p=0.9, top_k=5, min_p=0.1, stop=("END",), tool_choice="required", logprobs=True)
    with ScriptedServer([stream(piece, delta("stop"), DONE)]) as server:
        assert end_of(await play(server, limits=limits)).logprobs == (-0.5, -2.0)
        assert end_of(await play(server)).logprobs is None
    asked, plain = (asked.body for asked in server.asked)
    names = {
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "stop": ["END"],
        "tool_choice": "required",
        "logprobs": True,
    }
    assert names.items() <= asked.items()
    assert plain.keys().isdisjoint(names)


async def test_a_server_that_does_not_count_is_estimated() -> None:
    with ScriptedServer([answer("x" * 40)]) as server:
        usage = end_of(await play(server)).usage
    assert usage.output_tokens == 10
    unknown = (usage.input_tokens, usage.cached_tokens, usage.queue_s, usage.vision_s, usage.cache_bytes)
    assert unknown == (None,) * 5
    assert (usage.device, usage.sequences) == (None, None)
    assert usage.prefill_s is not None
    assert usage.decode_s is not None
    assert "authorization" not in server.asked[0].headers


def frames(seed: int) -> Clip:
    """Three different frames, the second one twice."""
    rng = np.random.default_rng(seed)
    a, b, c = rng.integers(0, 256, (3, 20, 30, 3), dtype=np.uint8)
    return Clip(np.stack([a, b, b, c]), (0.0, 0.1, 0.2, 0.9))


CALLED = ToolCall("c1", "wait", {"duration": 1})
OTHER = ToolCall("c2", "wait", {})


async def test_a_conversation_is_sent_whole() -> None:
    first, second = frames(1), frames(2)
    picture = Image(second.frames[0])
    conversation = [
        Message("root", ("You are.",)),
        Message("developer", ("You act.",)),
        Message("user", (first, "Do it.")),
        Message("assistant", ("I do.",), "I think.", (CALLED, OTHER)),
        Message("tool", ("ok\nsettled", picture, second)),
        Message("tool", ("not executed",)),
        Message("user", ("Go on.",)),
    ]
    with ScriptedServer([stream(delta(reasoning="So.", content="a"), delta("stop"), DONE)]) as server:
        model = RemoteModel(server.url, "m")
        for length in (4, 6, 7):
            await play(model, conversation[:length])
    shorter, longer, longest = (asked.body["messages"] for asked in server.asked)
    assert shorter == [{k: v for k, v in m.items() if k != "reasoning"} for m in longer[:3]]
    assert longer[:-1] == longest[:-1], "only the end grows"
    system, user, assistant, told, refused, shown = longest
    assert system == {"role": "system", "content": "You are.\n\nYou act."}
    assert _seen(user["content"]) == pytest.approx(first.frames[[0, 1, 3]])
    assert [part["text"] for part in user["content"] if part["type"] == "text"] == [
        "The screen at 0.0 seconds:",
        "The screen at 0.1 to 0.2 seconds:",
        "The screen at 0.9 seconds:",
        "Do it.",
    ]
    function = {"name": "wait", "arguments": '{"duration": 1}'}
    assert assistant["tool_calls"][0] == {"id": "c1", "type": "function", "function": function}
    assert assistant["reasoning"] == "I think.", "sent back under the name that the server uses"
    assert told == {"role": "tool", "tool_call_id": "c1", "content": "ok\nsettled"}
    assert (refused["tool_call_id"], refused["content"]) == ("c2", "not executed")
    assert shown["role"] == "user"
    assert _seen(shown["content"]) == pytest.approx(second.frames[[0, 0, 1, 3]])
    assert shown["content"][-1] == {"type": "text", "text": "Go on."}


def _seen(content: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    """The pictures of a message, decoded."""
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    return np.stack([_decoded(url.removeprefix("data:image/png;base64,")) for url in urls]).astype(int)


def _decoded(data: str) -> np.ndarray[Any, Any]:
    return np.asarray(Pictures.open(io.BytesIO(base64.b64decode(data, validate=True))).convert("RGB"))


async def test_a_clip_is_sent_as_a_video_where_that_is_wanted() -> None:
    ramp = np.linspace(0, 255, 4 * 32 * 32 * 3).reshape(4, 32, 32, 3).astype(np.uint8)
    clip = Clip(ramp, (0.0, 0.1, 0.2, 0.3))
    with ScriptedServer([answer("ok")]) as server:
        await play(server, [Message("user", (clip, "What?"))], clips="video")
    (video,) = (p for p in server.asked[0].body["messages"][0]["content"] if p["type"] == "video_url")
    data = video["video_url"]["url"].removeprefix("data:video/jpeg;base64,").split(",")
    difference = np.stack([_decoded(frame) for frame in data]).astype(int) - ramp
    assert len(data) == 4
    assert np.abs(difference).mean() < 3


def _m3(text: str) -> list[bytes | dict[str, Any] | float]:
    return [delta(content=part) for part in (text[n : n + 5] for n in range(0, len(text), 5))]


M3_CALL = (
    f'{NS}<tool_call>\n{NS}<invoke name="wait">{NS}<duration>2{NS}</duration>{NS}</invoke>\n{NS}</tool_call>'
)


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        pytest.param(
            [
                call_delta("{}", index=1, id="b", name="wait"),
                call_delta('{"dur', index=0),
                call_delta(index=0, id="a", name="wait"),
                call_delta('ation": 1}', index=0),
            ],
            [("wait", {"duration": 1}), ("wait", {})],
            id="out of order, the name late",
        ),
        pytest.param(
            [
                call_delta('{"dura', index=0, name="wait"),
                call_delta('{"duration": 2}', index=1, name="wait"),
                call_delta('tion": 1}', index=0),
            ],
            [("wait", {"duration": 1}), ("wait", {"duration": 2})],
            id="interleaved, without ids",
        ),
        pytest.param(
            [
                call_delta('{"duration":', index=None, id="a", name="wait"),
                call_delta(" 1}", index=None),
                call_delta('{"duration": 2}', index=None, id="b", name="wait"),
            ],
            [("wait", {"duration": 1}), ("wait", {"duration": 2})],
            id="without index",
        ),
        pytest.param(
            [
                call_delta('{"duration": 1}', index=0, id="a", name="wait"),
                call_delta('{"duration":', index=0, id="b", name="wait"),
                call_delta(" 2}", index=0),
            ],
            [("wait", {"duration": 1}), ("wait", {"duration": 2})],
            id="every call counted as 0",
        ),
        pytest.param(
            [call_delta('{"duration": ', id="a", name="wait"), call_delta('"3"}', id="a", name="wait")],
            [("wait", {"duration": 3})],
            id="id and name repeated, a number as text",
        ),
        pytest.param([call_delta({"duration": 4}, name="wait")], [("wait", {"duration": 4})], id="an object"),
        pytest.param([call_delta(id="a", name="wait")], [("wait", {})], id="no arguments"),
        pytest.param(_m3(f"Soon. {M3_CALL}"), [("wait", {"duration": 2})], id="M3's grammar in the text"),
        pytest.param(
            [*_m3(M3_CALL), call_delta('{"duration": 5}', name="wait")],
            [("wait", {"duration": 5})],
            id="the same call in the text and beside it",
        ),
    ],
)
async def test_calls_are_put_together(
    pieces: list[bytes | dict[str, Any] | float], calls: list[tuple[str, dict[str, Any]]]
) -> None:
    with ScriptedServer([stream(*pieces, delta("tool_calls"), DONE)]) as server:
        chunks = await play(server)
    assert calls_of(chunks) == calls
    assert end_of(chunks).faults == ()
    ids = [chunk.call.id for chunk in chunks if isinstance(chunk, CallChunk)]
    assert all(ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("piece", "says"),
    [
        (call_delta('{"duration": 1', name="wait"), "not a JSON object"),
        (call_delta("[1]", name="wait"), "not a JSON object"),
        (call_delta('{"duration": NaN}', name="wait"), "NaN"),
        (call_delta('{"a":' * 5000, name="wait"), "not a JSON object"),
        (call_delta('{"duration": 1}', id="a"), "names no tool"),
    ],
)
async def test_a_call_that_cannot_be_read_is_a_fault(piece: dict[str, Any], says: str) -> None:
    good = call_delta('{"duration": 1}', index=1, id="g", name="wait")
    with ScriptedServer([stream(piece, good, delta("tool_calls"), DONE)]) as server:
        chunks = await play(server)
    (fault,) = end_of(chunks).faults
    assert says in fault
    assert "not executed" in fault
    assert calls_of(chunks) == [("wait", {"duration": 1})]


@pytest.mark.parametrize("arguments", ['{"duration": 1, "why": "be', ""])
async def test_a_call_that_the_limit_cuts_is_not_passed_on(arguments: str) -> None:
    pieces = [call_delta(arguments, name="wait"), delta("length"), DONE]
    with ScriptedServer([stream(*pieces)]) as server:
        chunks = await play(server, limits=Limits(max_tokens=20))
    assert calls_of(chunks) == []
    end = end_of(chunks)
    assert end.reason == "length"
    assert end.faults == (
        "the limit of 20 tokens was reached inside a call of 'wait', so it was not executed",
    )


async def test_thinking_that_uses_up_the_limit_is_a_fault() -> None:
    with ScriptedServer([stream(delta(reasoning="Hm. " * 9), delta("length"), DONE)]) as server:
        end = end_of(await play(server, limits=Limits(max_tokens=20)))
    assert (end.reason, end.faults) == (
        "length",
        ("the limit of 20 tokens was used up before an answer began",),
    )


@pytest.mark.parametrize(
    "pieces",
    [
        [delta(reasoning_content="I th"), delta(reasoning_content="ink.")],
        [delta(reasoning="I think.", reasoning_content="I think.")],
        _m3("<mm:think>I think.</mm:think>"),
    ],
)
async def test_thinking_is_told_apart(pieces: list[bytes | dict[str, Any] | float]) -> None:
    with ScriptedServer([stream(*pieces, delta(content="Yes."), delta("stop"), DONE)]) as server:
        chunks = await play(server)
    assert (thought_of(chunks), text_of(chunks)) == ("I think.", "Yes.")


async def test_an_answer_that_is_not_streamed_is_read_too() -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "wait", "arguments": '{"duration": 1}'}}]
    whole = {
        "choices": [{"message": {"content": "Hm.", "tool_calls": calls}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    with ScriptedServer([reply(200, json.dumps(whole))]) as server:
        chunks = await play(server)
    assert (text_of(chunks), calls_of(chunks)) == ("Hm.", [("wait", {"duration": 1})])
    assert end_of(chunks).usage.output_tokens == 4


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_the_bytes_may_be_cut_anywhere(size: int) -> None:
    raw = b"\xef\xbb\xbf: hello\r\n\r\n" + event(delta(content="Grüße 👋")).replace(b"\n", b"\r\n")
    raw += b'data: {"choices": [{"delta": \rdata: {"content": "."}}]}\r\r' + event(delta("stop"))
    with ScriptedServer([stream(*(raw[n : n + size] for n in range(0, len(raw), size)))]) as server:
        chunks = await play(server)
    assert text_of(chunks) == "Grüße 👋."


async def test_the_end_may_lack_its_marks() -> None:
    """No empty line and no [DONE], or a connection that stays open: the answer had ended before."""
    with ScriptedServer([stream(delta(content="a"), event(delta("stop"))[:-2])]) as server:
        assert text_of(await play(server)) == "a"
