"""The served model, asked by the official clients and by clients that get it wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import numpy as np
import openai
import pytest
from PIL import Image as Pillow

from pilotfish.model.protocol import (
    CallChunk,
    EndChunk,
    Image,
    Message,
    ModelError,
    ProgressChunk,
    TextChunk,
    ThinkingChunk,
    ToolCall,
    ToolSpec,
    Usage,
)

from .stage import (
    CLICK,
    END,
    HELLO,
    PATHS,
    TOKEN,
    TOOL,
    Stage,
    data_url,
    picture_url,
    post,
    with_pictures,
)


@pytest.fixture
def gpt(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


@pytest.fixture
def claude(address: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=address, api_key=TOKEN, max_retries=0) as client:
        yield client


OPENAI_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "click", "description": "Click.", "parameters": TOOL}}
]
CLAUDE_TOOLS: list[Any] = [{"name": "click", "description": "Click.", "input_schema": TOOL}]


def test_openai_answers_whole(gpt: openai.OpenAI, stage: Stage) -> None:
    stage.chunks = (ThinkingChunk("Hm."), TextChunk("Hello"), TextChunk(" there"), CLICK, END)
    done = gpt.chat.completions.create(
        model="stage",
        messages=[{"role": "system", "content": "Be kind."}, *HELLO],
        tools=OPENAI_TOOLS,
        temperature=0,
        top_p=0.5,
        max_tokens=99,
        stop=["\n"],
        seed=4,
    )
    (choice,) = done.choices
    assert choice.message.content == "Hello there"
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("click", CLICK.call.arguments)
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (12, 7, 19)
    ((conversation, tools, limits),) = stage.asked
    assert conversation == [Message("developer", ("Be kind.",)), Message("user", ("Hello",))]
    assert tools == [ToolSpec("click", "Click.", TOOL)]
    assert (limits.temperature, limits.top_p, limits.max_tokens, limits.seed) == (0, 0.5, 99, 4)
    assert limits.stop == ("\n",)


def test_openai_streams(gpt: openai.OpenAI, stage: Stage) -> None:
    stage.chunks = (TextChunk("Hello"), TextChunk(" there"), CLICK, CLICK, END)
    with gpt.chat.completions.stream(
        model="stage", messages=HELLO, tools=OPENAI_TOOLS, stream_options={"include_usage": True}
    ) as stream:
        done = stream.get_final_completion()
    (choice,) = done.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello there", "tool_calls")
    assert choice.message.tool_calls is not None
    for call in choice.message.tool_calls:
        assert json.loads(call.function.arguments) == CLICK.call.arguments
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert done.usage is not None
    assert done.usage.prompt_tokens == 12


def raw_stream(address: str, path: str, body: dict[str, Any]) -> str:
    headers = {"authorization": f"Bearer {TOKEN}"}
    return httpx2.post(f"{address}{path}", json={**body, "stream": True}, headers=headers, timeout=30).text


def test_a_prompt_being_computed_keeps_streams_alive(
    gpt: openai.OpenAI, claude: anthropic.Anthropic, stage: Stage, address: str
) -> None:
    progress = (ProgressChunk(0, 30), ProgressChunk(10, 30), ProgressChunk(30, 30))
    stage.chunks = (*progress, TextChunk("Hello"), TextChunk(" there"), CLICK, END)
    with gpt.chat.completions.stream(model="stage", messages=HELLO, tools=OPENAI_TOOLS) as stream:
        (choice,) = stream.get_final_completion().choices
    assert (choice.message.content, choice.finish_reason) == ("Hello there", "tool_calls")
    with claude.messages.stream(model="stage", max_tokens=50, messages=HELLO, tools=CLAUDE_TOOLS) as stream:
        done = stream.get_final_message()
    assert [block.type for block in done.content] == ["text", "tool_use"]
    assert gpt.chat.completions.create(model="stage", messages=HELLO).choices[0].message.content
    assert claude.messages.create(model="stage", max_tokens=50, messages=HELLO).content
    body = {"model": "stage", "messages": HELLO, "max_tokens": 50}
    assert raw_stream(address, "/v1/messages", body).count('event: ping\ndata: {"type": "ping"}\n\n') == 3
    assert raw_stream(address, "/v1/chat/completions", body).count(": ping\n\n") == 3


def test_what_a_model_does_not_know_is_nothing_to_clients(
    gpt: openai.OpenAI, claude: anthropic.Anthropic, stage: Stage
) -> None:
    stage.chunks = (TextChunk("Hello"), EndChunk("end", Usage(output_tokens=1)))
    done = gpt.chat.completions.create(model="stage", messages=HELLO)
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.total_tokens) == (0, 1)
    said = claude.messages.create(model="stage", max_tokens=50, messages=HELLO)
    assert (said.usage.input_tokens, said.usage.output_tokens) == (0, 1)


def test_openai_conversation_with_calls_results_and_pictures(gpt: openai.OpenAI, stage: Stage) -> None:
    def call(call_id: str) -> Any:
        return {"id": call_id, "type": "function", "function": {"name": "click", "arguments": '{"x": 1}'}}

    gpt.chat.completions.create(
        model="stage",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look:"},
                    {"type": "image_url", "image_url": {"url": data_url()}},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "b", "content": "second"},
            {"role": "tool", "tool_call_id": "a", "content": "first"},
        ],
        tools=OPENAI_TOOLS,
        tool_choice={"type": "function", "function": {"name": "click"}},
    )
    ((conversation, _, limits),) = stage.asked
    user, assistant, first, second = conversation
    assert user.parts[0] == "Look:"
    assert isinstance(user.parts[1], Image)
    assert user.parts[1].pixels.shape == (2, 3, 3)
    assert np.all(user.parts[1].pixels == (250, 10, 20))
    assert [c.arguments for c in assistant.tool_calls] == [{"x": 1}, {"x": 1}]
    assert (first.parts, second.parts) == (("first",), ("second",)), "in the order of the calls"
    assert limits.tool_choice == "required"


def test_claude_answers_whole(claude: anthropic.Anthropic, stage: Stage) -> None:
    stage.chunks = (ThinkingChunk("Hm."), TextChunk("Hello"), TextChunk(" there"), CLICK, END)
    done = claude.messages.create(
        model="stage",
        max_tokens=50,
        system="Be kind.",
        messages=HELLO,
        tools=CLAUDE_TOOLS,
        tool_choice={"type": "any"},
        stop_sequences=["!"],
    )
    assert [block.type for block in done.content] == ["thinking", "text", "tool_use"]
    assert done.content[1].text == "Hello there"
    assert done.content[2].input == CLICK.call.arguments
    assert done.stop_reason == "tool_use"
    assert (done.usage.input_tokens, done.usage.cache_read_input_tokens, done.usage.output_tokens) == (
        7,
        5,
        7,
    )
    ((conversation, tools, limits),) = stage.asked
    assert conversation == [Message("developer", ("Be kind.",)), Message("user", ("Hello",))]
    assert tools == [ToolSpec("click", "Click.", TOOL)]
    assert (limits.tool_choice, limits.stop, limits.max_tokens) == ("required", ("!",), 50)


def test_claude_streams(claude: anthropic.Anthropic, stage: Stage) -> None:
    stopped = EndChunk("end", END.usage, stop_string="!")
    stage.chunks = (ThinkingChunk("Hm."), TextChunk("Hello"), TextChunk(" there"), CLICK, CLICK, stopped)
    with claude.messages.stream(model="stage", max_tokens=50, messages=HELLO, tools=CLAUDE_TOOLS) as stream:
        assert "".join(stream.text_stream) == "Hello there"
        done = stream.get_final_message()
    assert [block.type for block in done.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input for block in done.content[2:]] == [CLICK.call.arguments] * 2
    assert (done.stop_reason, done.stop_sequence) == ("stop_sequence", "!")
    assert (done.usage.input_tokens, done.usage.output_tokens) == (7, 7)


def test_claude_conversation_with_calls_results_and_pictures(
    claude: anthropic.Anthropic, stage: Stage
) -> None:
    picture: Any = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data_url().partition(",")[2]},
    }
    claude.messages.create(
        model="stage",
        max_tokens=5,
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Look:"}, picture]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "tool_use", "id": "a", "name": "click", "input": {"x": 1}},
                    {"type": "tool_use", "id": "b", "name": "click", "input": {"x": 2}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "b", "content": [picture]},
                    {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True},
                    {"type": "text", "text": "Go on."},
                ],
            },
        ],
        tools=CLAUDE_TOOLS,
    )
    ((conversation, _, _),) = stage.asked
    assert [turn.role for turn in conversation] == ["user", "assistant", "tool", "tool", "user"]
    assert conversation[1].reasoning == "Hm."
    assert conversation[2].parts == ("error: ", "no")
    assert isinstance(conversation[3].parts[0], Image)
    assert conversation[4].parts == ("Go on.",)


def test_claude_counts_tokens(claude: anthropic.Anthropic) -> None:
    counted = claude.messages.count_tokens(model="stage", messages=HELLO, tools=CLAUDE_TOOLS)
    assert counted.input_tokens == 42


def test_models_are_listed(gpt: openai.OpenAI) -> None:
    assert [model.id for model in gpt.models.list()] == ["stage"]


@pytest.mark.parametrize("path", PATHS)
def test_no_one_without_the_token(address: str, stage: Stage, path: str) -> None:
    for headers in (
        {"x-other": "1"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": "Bearer"},
        {"x-api-key": TOKEN[:-1]},
    ):
        answer = post(address, path, PATHS[path], **headers)
        assert answer.status_code == 401
        assert "token" in answer.json()["error"]["message"]
    assert stage.asked == []
    assert post(address, path, PATHS[path], **{"x-api-key": TOKEN}).status_code == 200


BAD: list[tuple[Any, int, str]] = [
    (b"{", 400, "not valid JSON"),
    (b"\xff\xfe", 400, "not valid JSON"),
    (b"[" * 100_000, 400, "not valid JSON"),
    ([], 400, "one JSON object"),
    ({"messages": []}, 400, "messages"),
    ({"messages": "hi"}, 400, 'messages is "hi", but must be a valid list'),
    ({"messages": [{"role": "robot", "content": "hi"}]}, 400, "messages.0.role"),
    ({"messages": [{"role": "assistant", "content": "hi"}]}, 400, "assistant's"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"temperature": "hot"}, 400, "temperature"),
    ({"temperature": 9}, 400, "temperature"),
    ({"tools": [{"name": "a b"}]}, 400, "tools.0"),
    ({"model": "other"}, 404, "no model 'other'"),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("wrong", "status", "words"), BAD)
def test_wrong_requests_get_the_code_and_body_of_the_protocol(
    address: str, stage: Stage, path: str, wrong: Any, status: int, words: str
) -> None:
    body = {**PATHS[path], **wrong} if isinstance(wrong, dict) else wrong
    answer = post(address, path, body)
    assert answer.status_code == status
    told = answer.json()
    assert words in told["error"]["message"]
    assert "\n" not in told["error"]["message"]
    assert ("param" in told["error"]) == (path == "/v1/chat/completions")
    assert (told.get("type") == "error") == (path == "/v1/messages")
    assert stage.asked == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"n": 2}, "n is 2, but must be 1"),
        ({"logprobs": True}, "logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [*HELLO, {"role": "system", "content": "x"}]}, "at the start only"),
        ({"messages": [*HELLO, {"role": "tool", "tool_call_id": "z", "content": "x"}]}, "not open"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "tool_call_id"),
        ({"tool_choice": "required"}, "tools is empty"),
        ({"tool_choice": {"type": "function", "function": {"name": "no"}}}, "not in tools"),
    ]
    + [
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]},
            words,
        )
        for url, words in (
            ("https://example.org/a.png", "data: URL"),
            ("data:image/png;base64,!!", "no picture"),
            ("data:image/png;base64,aGVsbG8=", "no picture"),
            ("data:image/svg+xml;base64,PHN2Zy8+", "no picture"),
        )
    ],
)
def test_what_openai_clients_may_get_wrong(address: str, wrong: dict[str, Any], words: str) -> None:
    path = "/v1/chat/completions"
    answer = post(address, path, {**PATHS[path], **wrong})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_pictures_look_as_a_person_would_see_them(address: str, stage: Stage) -> None:
    grey = Pillow.fromarray(np.full((3, 3), 128 << 8, dtype=np.uint16))
    clear = Pillow.new("RGBA", (3, 3), (0, 0, 0, 0))
    palette = Pillow.new("P", (3, 3))
    palette.info["transparency"] = 0
    print_ink = Pillow.new("CMYK", (3, 3), (0, 0, 0, 0))
    urls = [picture_url(grey), picture_url(clear), picture_url(palette), picture_url(print_ink, "JPEG")]
    assert post(address, "/v1/chat/completions", with_pictures(*urls)).status_code == 200
    ((conversation, _, _),) = stage.asked
    seen = [part.pixels[0, 0].tolist() for part in conversation[0].parts if isinstance(part, Image)]
    assert seen == [[128] * 3, [255] * 3, [255] * 3, [255] * 3]


def test_pictures_made_to_fill_memory(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = picture_url(Pillow.new("1", (20_000, 20_000)))
    monkeypatch.setattr("pilotfish.model.serving.wire.MAX_REQUEST_PIXELS", 10)
    for urls in ((bomb,), (data_url(), data_url())):
        answer = post(address, "/v1/chat/completions", with_pictures(*urls))
        assert answer.status_code == 400
        assert "pixels" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
def test_half_a_character_in_an_answer(address: str, stage: Stage, path: str) -> None:
    stage.chunks = (TextChunk("a\ud800"), CallChunk(ToolCall("x", "click", {"x": "\ud800"})), END)
    for streaming in (False, True):
        answer = post(address, path, {**PATHS[path], "stream": streaming})
        assert answer.status_code == 200
        assert "a?" in answer.text
    stage.chunks = (ModelError("No \ud800."),)
    assert post(address, path, PATHS[path]).status_code == 400


def test_a_call_without_its_result_is_refused(address: str) -> None:
    use = {"type": "tool_use", "id": "a", "name": "click", "input": {}}
    messages = [*HELLO, {"role": "assistant", "content": [use]}, {"role": "user", "content": "And?"}]
    answer = post(address, "/v1/messages", {**PATHS["/v1/messages"], "messages": messages})
    assert answer.status_code == 400
    assert "has no result" in answer.json()["error"]["message"]


def test_other_paths_and_methods(address: str) -> None:
    nothing = post(address, "/v1/nothing", {})
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "unknown_url")
    assert httpx2.get(f"{address}/v1/messages", headers={"x-api-key": TOKEN}).status_code == 405
    assert httpx2.get(f"{address}/health").json() == {"status": "ok"}


@pytest.mark.parametrize("path", PATHS)
def test_a_model_that_refuses_before_it_begins(address: str, stage: Stage, path: str) -> None:
    stage.chunks = (ModelError("The conversation has 9 tokens and reads 8."),)
    for streaming in (False, True):
        answer = post(address, path, {**PATHS[path], "stream": streaming})
        assert answer.status_code == 400
        assert "has 9 tokens" in answer.json()["error"]["message"]


def test_a_model_that_fails_in_the_middle_of_a_stream(
    gpt: openai.OpenAI, claude: anthropic.Anthropic, stage: Stage
) -> None:
    stage.chunks = (TextChunk("Hel"), ModelError("There is not enough memory."))
    with pytest.raises(openai.APIError, match="not enough memory"):
        list(gpt.chat.completions.create(model="stage", messages=HELLO, stream=True))
    with (
        pytest.raises(anthropic.APIError, match="not enough memory"),
        claude.messages.stream(model="stage", max_tokens=5, messages=HELLO) as stream,
    ):
        stream.get_final_message()
