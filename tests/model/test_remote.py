"""Models behind an OpenAI-compatible server, over real sockets: what is sent and read, what fails how."""

from __future__ import annotations

import asyncio
import base64
import email.utils
import io
import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

from pilotfish.model.protocol import (
    CallChunk,
    Chunk,
    Clip,
    EndChunk,
    Image,
    Limits,
    Message,
    Model,
    ModelError,
    TextChunk,
    ThinkingChunk,
    ToolCall,
    ToolSpec,
)
from pilotfish.model.remote import RemoteModel
from pilotfish.model.remote_http import Patience

from ..scripted_server import (
    DONE,
    ScriptedServer,
    Step,
    answer,
    call_delta,
    delta,
    error,
    event,
    reply,
    silent,
    stream,
)

ASK = [Message("user", ("Hello.",))]
NS = "]<]minimax[>["
TOOLS = [
    ToolSpec(
        "wait",
        "Wait.",
        {"type": "object", "properties": {"duration": {"type": "integer"}, "why": {"type": "string"}}},
    )
]
QUICK = Patience(retries=2, pause_s=0.01)
WAIT = [("wait", {"duration": 2, "why": '日本 "quoted"'})]


async def play(
    server: ScriptedServer | Model,
    conversation: Sequence[Message] = ASK,
    limits: Limits | None = None,
    stop: asyncio.Event | None = None,
    **options: Any,
) -> list[Chunk]:
    model: Any = server
    if isinstance(server, ScriptedServer):
        model = RemoteModel(server.url, "m", **({"patience": QUICK} | options))
    answering = model.respond(conversation, TOOLS, stop=stop or asyncio.Event(), limits=limits or Limits())
    return [chunk async for chunk in answering]


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))


def thought_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, ThinkingChunk))


def calls_of(chunks: Sequence[Chunk]) -> list[tuple[str, dict[str, Any]]]:
    return [(chunk.call.name, chunk.call.arguments) for chunk in chunks if isinstance(chunk, CallChunk)]


def end_of(chunks: Sequence[Chunk]) -> EndChunk:
    assert isinstance(chunks[-1], EndChunk)
    assert sum(isinstance(chunk, EndChunk) for chunk in chunks) == 1
    return chunks[-1]


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
        assert end_of(await play(server)).usage.output_tokens == 10
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


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (reply(200, "<html>Welcome</html>", "text/html"), "text/html instead of a chat completion"),
        (reply(200, "\x00\x01", "image/png"), "image/png"),
        (error(400, "too many images"), "too many images"),
        (error(401, "bad key secret-key"), "refuses the key (status 401: bad key ***); check OPENAI_API_KEY"),
        (error(404, "no such model"), "model's name, 'm'"),
        (reply(302, "", Location="http://elsewhere.example/v1"), "redirects to http://elsewhere.example"),
        (reply(429, '{"error": {"message": "no", "code": "insufficient_quota"}}'), "nothing left"),
        (error(429, "slow", Retry_After="3600"), "3600 s"),
        (stream(b"data: \xff\xfe\n\n"), "not UTF-8"),
        (stream(b"data: " + b"x" * (9 * 1024**2)), "more than 8388608 bytes"),
        (stream(*[b"data: " + b"x" * 1024**2 + b"\n"] * 9), "more than 8388608 bytes"),
        (stream({"error": {"message": "no such tool", "code": 400}}), "sent an error (no such tool)"),
        (stream(delta(content="a"), delta("content_filter")), "withheld"),
    ],
)
async def test_what_cannot_succeed_is_not_asked_again(step: Step, says: str) -> None:
    with ScriptedServer([step]) as server:
        with pytest.raises(ModelError) as caught:
            await play(server, key="secret-key")
        assert len(server.asked) == 1
    assert says in str(caught.value)
    assert "secret-key" not in str(caught.value)
    assert "\n" not in str(caught.value)


def _slam(connection: Any) -> None:
    """Close without a word."""


SHORT = email.utils.formatdate(time.time() - 60, usegmt=True)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (_slam, "broke the connection"),
        (stream(), "ended the connection"),
        (stream(b": keep alive\n\n"), "ended the connection"),
        (stream(b'data: {"choices": [{"del'), "not JSON"),
        (reply(200, '{"choices": [{"mess'), "not JSON"),
        (reply(200, '{"detail": "hm"}'), "ended the connection"),
        (stream(b"data: 5\n\n"), "not a JSON object"),
        (stream({"error": {"message": "overloaded", "code": 503}}), "overloaded"),
        (reply(500, "<html>" + "x" * 99, "text/html"), "status 500 (Said)"),
        (error(503, "loading the model", Retry_After="0"), "loading the model"),
        (error(429, "slow down", Retry_After=SHORT), "slow down"),
        (reply(200, b"\x1f\x8b broken", Content_Encoding="gzip"), "broke the connection"),
    ],
)
async def test_what_may_pass_is_asked_again_a_few_times(step: Step, says: str) -> None:
    with ScriptedServer([step, step, answer("There.", WAIT)]) as server:
        chunks = await play(server)
        assert (text_of(chunks), calls_of(chunks)) == ("There.", WAIT)
        assert (len(server.asked), end_of(chunks).usage.retries) == (3, 2)
        assert server.asked[0].body == server.asked[2].body
    with ScriptedServer([step]) as server:
        with pytest.raises(ModelError, match="3 times") as caught:
            await play(server)
        assert len(server.asked) == 3
    assert says in str(caught.value)


async def test_a_server_that_is_not_there() -> None:
    with ScriptedServer([]) as server:
        pass
    with pytest.raises(ModelError, match=r"The server at http.* cannot be reached .*3 times"):
        await play(server)


async def test_what_the_server_asks_for_is_waited() -> None:
    began_s = time.monotonic()
    with ScriptedServer([error(429, "slow", Retry_After="1"), answer("Now.")]) as server:
        assert text_of(await play(server)) == "Now."
    assert time.monotonic() - began_s > 0.9


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([], "ended the connection"),
        ([b'data: {"choices": [{"del'], "not JSON"),
        (['data: {"choices": "ü'.encode()[:-1]], "within a character"),
        ([b"data: nonsense\n\n", delta("stop")], "not JSON"),
        ([{"error": {"message": "out of memory"}}], "out of memory"),
        ([1.0], "sent nothing for 0.3 s"),
    ],
)
async def test_an_answer_that_breaks_off_is_not_acted_on(
    pieces: list[bytes | dict[str, Any] | float], says: str
) -> None:
    broken = stream(delta(content="I wait. "), call_delta('{"duration": 1}', index=0, name="wait"), *pieces)
    script = [broken, answer("Well."), broken, broken, broken]
    with ScriptedServer(script) as server:
        model = RemoteModel(server.url, "m", patience=Patience(piece_s=0.3, retries=2))
        chunks = await play(model)
        assert (text_of(chunks), calls_of(chunks)) == ("I wait. ", [])
        (fault,) = end_of(chunks).faults
        assert says in fault
        assert "nothing of it was executed" in fault
        assert len(server.asked) == 1, "what was begun is not asked again"
        assert end_of(await play(model)).faults == ()
        assert [len(end_of(await play(model)).faults) for _ in range(2)] == [1, 1]
        with pytest.raises(ModelError, match="3 answers in a row"):
            await play(model)


async def test_a_server_that_never_answers() -> None:
    with ScriptedServer([silent]) as server:
        with pytest.raises(ModelError, match=r"has sent nothing for 0\.2 s"):
            await play(server, patience=Patience(first_byte_s=0.2))
        assert server.hung_up.wait(10)
        assert len(server.asked) == 1
        chunks = await play(server, limits=Limits(max_seconds=0.2))
        assert end_of(chunks).reason == "time"


async def test_the_whole_answer_has_its_time() -> None:
    drip = stream(call_delta('{"duration": 1}', name="wait"), *[delta(content="x"), 0.05] * 400)
    with ScriptedServer([drip]) as server:
        chunks = await play(server, limits=Limits(max_seconds=0.5))
        assert server.hung_up.wait(10)
    assert end_of(chunks).reason == "time"
    assert set(text_of(chunks)) == {"x"}


async def until_asked(server: ScriptedServer) -> None:
    """Wait until a request has come and its answer had time to begin."""
    while not server.asked:  # noqa: ASYNC110 (a thread fills the list)
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)


@pytest.mark.parametrize("place", ["before", "connecting", "waiting", "reading", "pausing"])
async def test_stop_ends_it_at_once(place: str) -> None:
    stop = asyncio.Event()
    steps = {
        "reading": stream(delta(content="x"), call_delta("{}", name="wait"), then=silent),
        "pausing": error(429, "slow", Retry_After="60"),
    }
    with ScriptedServer([steps.get(place, silent)]) as server:
        model = RemoteModel(server.url, "m")
        answering = asyncio.ensure_future(play(model, stop=stop))
        if place == "connecting":
            await asyncio.sleep(0)
        elif place != "before":
            await until_asked(server)
        stop.set()
        began_s = time.monotonic()
        chunks = await asyncio.wait_for(answering, 30)
        assert time.monotonic() - began_s < 1
        if place in ("waiting", "reading"):
            assert server.hung_up.wait(10), "the server is let go"
    assert end_of(chunks).reason == "stop"
    assert calls_of(chunks) == []


async def test_whoever_leaves_early_lets_the_server_go() -> None:
    with ScriptedServer([stream(delta(content="x"), then=silent)]) as server:
        answering = asyncio.ensure_future(play(server, patience=Patience()))
        await until_asked(server)
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert server.hung_up.wait(10)


async def test_fields_that_a_server_refuses_are_left_out() -> None:
    refusals = [
        error(400, "Unrecognized request argument supplied: chat_template_kwargs"),
        error(400, "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."),
        error(422, "Extra inputs are not permitted: parallel_tool_calls"),
    ]
    with ScriptedServer([*refusals, answer("a"), answer("b")]) as server:
        model = RemoteModel(server.url, "m", extra={"top_k": 5})
        assert text_of(await play(model)) == "a"
        assert text_of(await play(model)) == "b"
    *_, last = (asked.body for asked in server.asked)
    assert len(server.asked) == 5
    assert {"chat_template_kwargs", "max_tokens", "parallel_tool_calls"}.isdisjoint(last)
    assert (last["max_completion_tokens"], last["top_k"]) == (512, 5)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://example.com/v1", "http or https"),
        ("example.com/v1", "http or https"),
        ("http://", "http or https"),
        ("http://user:pass@example.com/v1", "a name or a password"),
        ("http://user:pass@[::1/v1", "a name or a password"),
        ("https://example.com/v1?key=1", "more than an address"),
        ("http://example.com:99999/v1", "cannot be read"),
        ("http://[::1/v1", "cannot be read"),
    ],
)
def test_urls_that_cannot_be_used(url: str, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        RemoteModel(url, "m")
    assert "pass@" not in str(caught.value)


def test_keys_that_cannot_be_sent() -> None:
    with pytest.raises(ModelError, match="no key has"):
        RemoteModel("http://127.0.0.1/v1", "m", key="a\nb")
    assert RemoteModel("http://127.0.0.1/v1/chat/completions/", "m", key=" \n").server.url.endswith("/v1")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of this machine's own making, for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=127.0.0.1"
    words = [*make.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(words, check=True, capture_output=True)
    return certificate, key


async def test_certificates_are_checked(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    with ScriptedServer([answer("Hello.")], tls) as server:
        with pytest.raises(ModelError, match="certificate that cannot be trusted"):
            await play(server, key="secret-key")
        assert server.asked == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert text_of(await play(server)) == "Hello."


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer([answer("Hello.")]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", "")
        assert text_of(await play(RemoteModel("http://model.invalid/v1", "m"))) == "Hello."
        assert proxy.asked[0].path == "http://model.invalid/v1/chat/completions"
        monkeypatch.setenv("http_proxy", "nonsense://127.0.0.1")
        with pytest.raises(ModelError, match="proxy of the environment cannot be used"):
            await play(RemoteModel("http://model.invalid/v1", "m"))


async def test_a_missing_key_is_told_with_its_variable() -> None:
    refused = pytest.raises(ModelError, match=r"refuses a request without a key .*; set OPENAI_API_KEY")
    with ScriptedServer([error(401, "who are you")]) as server, refused:
        await play(RemoteModel(server.url, "m"))


async def test_models_are_listed() -> None:
    listing = json.dumps({"data": [{"id": "a"}, {"id": "b"}]})
    with ScriptedServer([reply(200, listing), error(401, "no"), reply(200, "<html>")]) as server:
        model = RemoteModel(server.url, "a")
        assert await model.server.models() == ["a", "b"]
        for says in ("status 401", "lists no models"):
            with pytest.raises(ModelError, match=says):
                await model.server.models()
