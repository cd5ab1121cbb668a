"""Anthropic's messages: requests in, answers and streams out.

Source: the published API reference of `POST /v1/messages` and its streaming events.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
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
    chosen,
    event,
    in_order,
    new_id,
    parse,
)


class _Text(Body):
    type: Literal["text"]
    text: str


class _Source(Body):
    type: Literal["base64"]
    data: str


class _Image(Body):
    type: Literal["image"]
    source: _Source


class _ToolUse(Body):
    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: dict[str, Any] = Field(default_factory=dict)


_Shown = Annotated[_Text | _Image, Field(discriminator="type")]


class _ToolResult(Body):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Many[_Shown] | None = None
    is_error: bool | None = False


class _Thinking(Body):
    type: Literal["thinking"]
    thinking: str


class _Redacted(Body):
    type: Literal["redacted_thinking"]


_Block = Annotated[
    _Text | _Image | _ToolUse | _ToolResult | _Thinking | _Redacted, Field(discriminator="type")
]


class _Message(Body):
    role: Literal["user", "assistant"]
    content: str | Many[_Block]


class _Tool(Body):
    type: Literal["custom"] | None = None
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    description: str = ""
    input_schema: dict[str, Any]


class _Choice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class _ThinkingMode(Body):
    type: Literal["enabled", "disabled", "adaptive"]


class _Count(Body):
    model: str
    messages: Many[_Message] = Field(min_length=1)
    system: str | Many[_Text] | None = None
    tools: Many[_Tool] = Field(default_factory=list)
    tool_choice: _Choice = _Choice(type="auto")
    thinking: _ThinkingMode | None = None


class _Messages(_Count):
    max_tokens: int = Field(ge=1)
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    stop_sequences: Many[str] = Field(default_factory=list)
    stream: bool | None = False


_CHOICES: dict[str, Literal["auto", "required", "none"]] = {"any": "required", "none": "none"}


def request(body: bytes) -> Request:
    """The question in a request's body; raises RequestError."""
    wire = parse(_Messages, body)
    limits = Limits(
        max_tokens=wire.max_tokens,
        temperature=1.0 if wire.temperature is None else wire.temperature,
        top_p=1.0 if wire.top_p is None else wire.top_p,
        top_k=wire.top_k or 0,
        stop=tuple(wire.stop_sequences),
    )
    return _asked(wire, limits, bool(wire.stream))


def count_request(body: bytes) -> Request:
    """The question whose tokens are to be counted; raises RequestError."""
    return _asked(parse(_Count, body), Limits(), False)


def _asked(wire: _Count, limits: Limits, stream: bool) -> Request:
    tools = [ToolSpec(tool.name, tool.description, tool.input_schema) for tool in wire.tools]
    choice = wire.tool_choice
    if choice.type == "tool" and choice.name is None:
        raise RequestError("tool_choice.name is missing; name the tool.", param="tool_choice.name")
    tools_left, how = chosen(
        tools,
        _CHOICES.get(choice.type, "auto"),
        choice.name if choice.type == "tool" else None,
        "tool_choice",
    )
    turns: list[Message] = []
    if wire.system:
        text = wire.system if isinstance(wire.system, str) else "\n\n".join(b.text for b in wire.system)
        turns.append(Message("developer", (text,)))
    return Request(
        model=wire.model,
        conversation=[*turns, *_conversation(wire.messages)],
        tools=tools_left,
        limits=Limits(
            **{
                **vars(limits),
                "max_seconds": MAX_ANSWER_SECONDS,
                "tool_choice": how,
                "thinking": wire.thinking.type if wire.thinking else "disabled",
            }
        ),
        stream=stream,
    )


def _conversation(messages: Sequence[_Message]) -> list[Message]:
    turns: list[Message] = []
    open_calls: list[str] = []
    pictures = Pictures()
    for n, message in enumerate(messages):
        where = f"messages.{n}.content"
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [_Text(type="text", text=blocks)]
        results = {
            block.tool_use_id: _result(block, f"{where}.{i}", pictures)
            for i, block in enumerate(blocks)
            if isinstance(block, _ToolResult)
        }
        turns += in_order(results, open_calls, where)
        open_calls = []
        calls = tuple(ToolCall(b.id, b.name, b.input) for b in blocks if isinstance(b, _ToolUse))
        parts = _parts([b for b in blocks if isinstance(b, _Text | _Image)], where, pictures)
        if message.role == "user":
            if calls:
                raise RequestError(
                    f"{where} is a user's and holds a tool_use block; those are the assistant's."
                )
            turns += [Message("user", parts)] if parts else []
            continue
        thinking = "".join(b.thinking for b in blocks if isinstance(b, _Thinking))
        open_calls = [call.id for call in calls]
        turns.append(Message("assistant", parts, thinking or None, calls))
    if open_calls:
        raise RequestError("messages: the last call has no tool_result; send one.", param="messages")
    if turns and turns[-1].role == "assistant":
        raise RequestError("The last message is the assistant's; end with a user's.", param="messages")
    if not any(turn.role == "user" for turn in turns):
        raise RequestError("messages holds no text or picture of a user; send one.", param="messages")
    return turns


def _parts(blocks: Sequence[_Text | _Image], where: str, pictures: Pictures) -> tuple[Part, ...]:
    parts: list[Part] = []
    for n, block in enumerate(blocks):
        if isinstance(block, _Image):
            parts.append(pictures.read(block.source.data, f"{where}.{n}.source.data"))
        elif block.text:
            parts.append(block.text)
    return tuple(parts)


def _result(block: _ToolResult, where: str, pictures: Pictures) -> tuple[Part, ...]:
    content = block.content or ""
    parts = (content,) if isinstance(content, str) else _parts(content, f"{where}.content", pictures)
    return ("error: ", *parts) if block.is_error else parts


async def answer(asked: Request, chunks: AsyncIterator[Chunk]) -> dict[str, Any]:
    """A whole answer as the body of a response."""
    blocks: list[dict[str, Any]] = []
    end = EndChunk("end")
    async for chunk in chunks:
        if isinstance(chunk, EndChunk):
            end = chunk
        elif isinstance(chunk, CallChunk):
            blocks.append(_tool_use(chunk.call))
        elif isinstance(chunk, TextChunk | ThinkingChunk):
            kind = "text" if isinstance(chunk, TextChunk) else "thinking"
            if not blocks or blocks[-1]["type"] != kind:
                blocks.append(_empty(kind))
            blocks[-1][kind] += chunk.text
    called = any(block["type"] == "tool_use" for block in blocks)
    return {**_head(asked.model), "content": blocks, **_stop(end, called), "usage": _usage(end.usage)}


async def stream(asked: Request, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
    """An answer as server-sent events."""

    def say(kind: str, **data: Any) -> bytes:
        return event({"type": kind, **data}, kind)

    start = {
        **_head(asked.model),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(Usage()),
    }
    yield say("message_start", message=start)
    index, kind, called = -1, "", False
    async for chunk in chunks:
        if isinstance(chunk, ProgressChunk):
            yield ping()
            continue
        wanted = {TextChunk: "text", ThinkingChunk: "thinking", CallChunk: "call"}.get(type(chunk), "")
        if index >= 0 and kind and (wanted != kind or wanted == "call"):
            yield say("content_block_stop", index=index)
            kind = ""
        if isinstance(chunk, TextChunk | ThinkingChunk):
            if kind != wanted:
                index, kind = index + 1, wanted
                yield say("content_block_start", index=index, content_block=_empty(wanted))
            delta = {"type": f"{wanted}_delta", wanted: chunk.text}
            yield say("content_block_delta", index=index, delta=delta)
        elif isinstance(chunk, CallChunk):
            index, kind, called = index + 1, "call", True
            block = {**_tool_use(chunk.call), "input": {}}
            yield say("content_block_start", index=index, content_block=block)
            text = json.dumps(chunk.call.arguments, ensure_ascii=False)
            delta = {"type": "input_json_delta", "partial_json": text}
            yield say("content_block_delta", index=index, delta=delta)
        else:
            yield say("message_delta", delta=_stop(chunk, called), usage=_usage(chunk.usage))
    yield say("message_stop")


def ping() -> bytes:
    """What keeps a stream alive while nothing of the answer is there."""
    return event({"type": "ping"}, "ping")


def error(failed: RequestError) -> dict[str, Any]:
    """The body of an error."""
    kinds = {
        401: "authentication_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
    }
    kind = kinds.get(failed.status, "api_error" if failed.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": failed.message}}


def _head(name: str) -> dict[str, Any]:
    return {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": name}


def _empty(kind: str) -> dict[str, Any]:
    return {"type": "text", "text": ""} if kind == "text" else {"type": kind, "thinking": "", "signature": ""}


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": call.arguments}


def _stop(end: EndChunk, called: bool) -> dict[str, Any]:
    if end.reason in ("length", "time"):
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if end.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop_string}
    return {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": (usage.input_tokens or 0) - (usage.cached_tokens or 0),
        "output_tokens": usage.output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens or 0,
    }
