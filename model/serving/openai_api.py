"""OpenAI's chat completions: requests in, answers and streams out.

Source: the published API reference of `POST /v1/chat/completions`. Parts that a single local model cannot
honour (several choices, penalties, remote pictures, log-probabilities) are refused by name.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from pilotfish.model.protocol import (
    CallChunk,
    Chunk,
    EndChunk,
    Limits,
    Message,
    Part,
    ProgressChunk,
    TextChunk,
    ThinkingChunk,
    ToolCall,
    ToolSpec,
    Usage,
)
from pilotfish.model.serving.wire import (
    MAX_ANSWER_SECONDS,
    Body,
    Many,
    Pictures,
    Request,
    RequestError,
    arguments,
    chosen,
    event,
    in_order,
    new_id,
    parse,
)

DEFAULT_TOKENS = 4096
_DATA = "data:image/"


class _Url(Body):
    url: str


class _TextPart(Body):
    type: Literal["text"]
    text: str


class _ImagePart(Body):
    type: Literal["image_url"]
    image_url: _Url


class _RefusalPart(Body):
    type: Literal["refusal"]
    refusal: str


_Part = Annotated[_TextPart | _ImagePart | _RefusalPart, Field(discriminator="type")]


class _CalledFunction(Body):
    name: str = Field(min_length=1)
    arguments: str = "{}"


class _Call(Body):
    id: str
    type: Literal["function"] = "function"
    function: _CalledFunction


class _Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Many[_Part] | None = None
    tool_calls: Many[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class _Function(Body):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})


class _Tool(Body):
    type: Literal["function"]
    function: _Function


class _NamedFunction(Body):
    name: str


class _NamedChoice(Body):
    type: Literal["function"]
    function: _NamedFunction


class _StreamOptions(Body):
    include_usage: bool = False


class _Format(Body):
    type: Literal["text"]


class _Completion(Body):
    model: str
    messages: Many[_Message] = Field(min_length=1)
    tools: Many[_Tool] = Field(default_factory=list)
    tool_choice: Literal["auto", "required", "none"] | _NamedChoice = "auto"
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stop: str | Many[str] | None = None
    seed: int | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    reasoning_effort: str | None = None
    n: Literal[1] | None = 1
    presence_penalty: Literal[0] | None = 0
    frequency_penalty: Literal[0] | None = 0
    logprobs: Literal[False] | None = False
    response_format: _Format | None = None


def request(body: bytes) -> Request:
    """The question in a request's body; raises RequestError."""
    wire = parse(_Completion, body)
    tools = [
        ToolSpec(tool.function.name, tool.function.description, tool.function.parameters)
        for tool in wire.tools
    ]
    named = wire.tool_choice if isinstance(wire.tool_choice, _NamedChoice) else None
    tools_left, choice = chosen(
        tools,
        "required" if isinstance(wire.tool_choice, _NamedChoice) else wire.tool_choice,
        named.function.name if named else None,
        "tool_choice",
    )
    stops = [wire.stop] if isinstance(wire.stop, str) else wire.stop or []
    thinks = wire.reasoning_effort not in (None, "none", "minimal")
    return Request(
        model=wire.model,
        conversation=_conversation(wire.messages),
        tools=tools_left,
        limits=Limits(
            max_tokens=wire.max_completion_tokens or wire.max_tokens or DEFAULT_TOKENS,
            max_seconds=MAX_ANSWER_SECONDS,
            temperature=1.0 if wire.temperature is None else wire.temperature,
            top_p=1.0 if wire.top_p is None else wire.top_p,
            seed=wire.seed,
            thinking="enabled" if thinks else "disabled",
            stop=tuple(stops),
            tool_choice=choice,
        ),
        stream=bool(wire.stream),
        usage_in_stream=wire.stream_options is not None and wire.stream_options.include_usage,
    )


def _conversation(messages: Sequence[_Message]) -> list[Message]:
    turns: list[Message] = []
    pictures = Pictures()
    first = 0
    instructions = []
    while first < len(messages) and messages[first].role in ("system", "developer"):
        instructions.append(_text(messages[first], f"messages.{first}"))
        first += 1
    if instructions:
        turns.append(Message("developer", ("\n\n".join(instructions),)))
    open_calls: list[str] = []
    results: dict[str, tuple[Part, ...]] = {}
    for n, message in enumerate(messages[first:], first):
        where = f"messages.{n}"
        if message.role == "tool":
            if message.tool_call_id is None:
                raise RequestError(f"{where}.tool_call_id is missing; name the call.", param=where)
            results[message.tool_call_id] = _parts(message, where, pictures)
            continue
        turns += in_order(results, open_calls, where)
        open_calls, results = [], {}
        if message.role in ("system", "developer"):
            raise RequestError(
                f"{where} has the role {message.role!r}; this model takes instructions at the start only.",
                param=where,
            )
        if message.role == "user":
            turns.append(Message("user", _parts(message, where, pictures)))
            continue
        calls = tuple(
            ToolCall(
                call.id,
                call.function.name,
                arguments(call.function.arguments, f"{where}.tool_calls.{i}.function.arguments"),
            )
            for i, call in enumerate(message.tool_calls or ())
        )
        open_calls = [call.id for call in calls]
        turns.append(Message("assistant", _parts(message, where, pictures), message.reasoning_content, calls))
    turns += in_order(results, open_calls, "messages")
    if turns and turns[-1].role == "assistant":
        raise RequestError(
            "The last message is the assistant's; end with a user's or a tool's.", param="messages"
        )
    if not any(turn.role == "user" for turn in turns):
        raise RequestError("messages holds no user message; send one.", param="messages")
    return turns


def _parts(message: _Message, where: str, pictures: Pictures) -> tuple[Part, ...]:
    if message.content is None or isinstance(message.content, str):
        return (message.content,) if message.content else ()
    parts: list[Part] = []
    for n, part in enumerate(message.content):
        if isinstance(part, _TextPart):
            parts.append(part.text)
        elif isinstance(part, _RefusalPart):
            parts.append(part.refusal)
        else:
            param = f"{where}.content.{n}.image_url"
            head, comma, data = part.image_url.url.partition(",")
            if not comma or not head.startswith(_DATA) or not head.endswith(";base64"):
                raise RequestError(
                    f"{param} is {part.image_url.url[:60]!r}; send a data: URL in base64.",
                    param=param,
                )
            parts.append(pictures.read(data, param))
    return tuple(parts)


def _text(message: _Message, where: str) -> str:
    parts = _parts(message, where, Pictures())
    if not all(isinstance(part, str) for part in parts):
        raise RequestError(f"{where} holds a picture; instructions are text.", param=where)
    return "".join(part for part in parts if isinstance(part, str))


async def answer(asked: Request, chunks: AsyncIterator[Chunk]) -> dict[str, Any]:
    """A whole answer as the body of a response."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: list[dict[str, Any]] = []
    end = EndChunk("end")
    async for chunk in chunks:
        if isinstance(chunk, TextChunk):
            message["content"] = (message["content"] or "") + chunk.text
        elif isinstance(chunk, ThinkingChunk):
            message["reasoning_content"] = message.get("reasoning_content", "") + chunk.text
        elif isinstance(chunk, CallChunk):
            calls.append(_call(chunk.call))
        elif isinstance(chunk, EndChunk):
            end = chunk
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(end, bool(calls))}
    return {**_head(asked.model, "chat.completion"), "choices": [choice], "usage": _usage(end.usage)}


async def stream(asked: Request, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
    """An answer as server-sent events."""
    head, with_usage = _head(asked.model, "chat.completion.chunk"), asked.usage_in_stream
    if with_usage:
        head["usage"] = None

    def delta(content: dict[str, Any], reason: str | None = None) -> bytes:
        return event(
            {**head, "choices": [{"index": 0, "delta": content, "logprobs": None, "finish_reason": reason}]}
        )

    yield delta({"role": "assistant", "content": ""})
    calls = 0
    async for chunk in chunks:
        if isinstance(chunk, TextChunk):
            yield delta({"content": chunk.text})
        elif isinstance(chunk, ThinkingChunk):
            yield delta({"reasoning_content": chunk.text})
        elif isinstance(chunk, CallChunk):
            for piece in _call_pieces(chunk.call, calls):
                yield delta({"tool_calls": [piece]})
            calls += 1
        elif isinstance(chunk, ProgressChunk):
            yield ping()
        else:
            yield delta({}, _reason(chunk, calls > 0))
            if with_usage:
                yield event({**head, "choices": [], "usage": _usage(chunk.usage)})
    yield b"data: [DONE]\n\n"


def ping() -> bytes:
    """What keeps a stream alive while nothing of the answer is there: a comment, which clients pass over."""
    return b": ping\n\n"


def error(failed: RequestError) -> dict[str, Any]:
    """The body of an error."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(failed.status, "server_error" if failed.status >= 500 else "invalid_request_error")
    codes = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
    code = failed.code or codes.get(failed.status)
    return {"error": {"message": failed.message, "type": kind, "param": failed.param, "code": code}}


def models(names: Sequence[str], created: int) -> dict[str, Any]:
    """The list of models."""
    data = [{"id": name, "object": "model", "created": created, "owned_by": "pilotfish"} for name in names]
    return {"object": "list", "data": data}


def _head(name: str, kind: str) -> dict[str, Any]:
    return {"id": new_id("chatcmpl-"), "object": kind, "created": int(time.time()), "model": name}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": new_id("call_"), "type": "function", "function": function}


def _call_pieces(call: ToolCall, index: int) -> Iterator[dict[str, Any]]:
    whole = _call(call)
    text = whole["function"]["arguments"]
    yield {"index": index, **whole, "function": {"name": call.name, "arguments": ""}}
    yield {"index": index, "function": {"arguments": text}}


def _reason(end: EndChunk, called: bool) -> str:
    if end.reason in ("length", "time"):
        return "length"
    return "tool_calls" if called else "stop"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens or 0,
        "completion_tokens": usage.output_tokens,
        "total_tokens": (usage.input_tokens or 0) + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
    }
