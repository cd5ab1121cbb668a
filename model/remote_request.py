"""A conversation as the body of a chat-completions request.

Tool results are text in that protocol, so the clips and pictures of results follow them in a user's turn.
Like `chat.py`, this is append-only: a longer conversation starts with the messages of the shorter one, and on
that a server's prefix cache lives.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pilotfish.model.protocol import Clip, Image, Limits, Message, ToolCall, ToolSpec

Clips = Literal["frames", "video"]
Part = dict[str, Any]

# What a server may refuse by name, and by what it is then replaced.
OPTIONAL: dict[str, str | None] = {
    "max_tokens": "max_completion_tokens",
    "temperature": None,
    "top_p": None,
    "top_k": None,
    "min_p": None,
    "seed": None,
    "logprobs": None,
    "stream_options": None,
    "parallel_tool_calls": None,
    "chat_template_kwargs": None,
}


class Media:
    """Clips and pictures as message parts; each is encoded once while its conversation lives."""

    def __init__(self, clips: Clips) -> None:
        """clips: "frames" sends pictures, a frame that equals the one before not again; "video" one video of
        the four frames in the form that vLLM reads (`data:video/jpeg`, the frames separated by commas).
        """
        self._clips = clips
        self._known: WeakKeyDictionary[Clip | Image, list[Part]] = WeakKeyDictionary()

    def parts(self, item: Clip | Image) -> list[Part]:
        """The message parts that show a clip or a picture."""
        if item not in self._known:
            self._known[item] = self._encode(item)
        return self._known[item]

    def _encode(self, item: Clip | Image) -> list[Part]:
        if isinstance(item, Image):
            return [_picture(_base64(item.pixels, "PNG"))]
        if self._clips == "video":
            frames = ",".join(_base64(frame, "JPEG") for frame in item.frames)
            times = ", ".join(f"{time:.1f}" for time in item.times_s)
            return [
                _text(f"The screen at {times} seconds:"),
                {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{frames}"}},
            ]
        parts: list[Part] = []
        for n, frame in enumerate(item.frames):
            if n and np.array_equal(frame, item.frames[n - 1]):
                continue
            same = next((k for k in range(n + 1, 4) if not np.array_equal(frame, item.frames[k])), 4) - 1
            until = f" to {item.times_s[same]:.1f}" if same > n else ""
            parts += [
                _text(f"The screen at {item.times_s[n]:.1f}{until} seconds:"),
                _picture(_base64(frame, "PNG")),
            ]
        return parts


def request_body(
    conversation: Sequence[Message],
    tools: Sequence[ToolSpec],
    limits: Limits,
    *,
    model: str,
    media: Media,
    reasoning_field: str | None,
) -> dict[str, Any]:
    """The request as JSON values. reasoning_field: how to send thinking back; None leaves it out."""
    body: dict[str, Any] = {
        "model": model,
        "messages": messages(conversation, media, reasoning_field),
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": limits.max_tokens,
        "temperature": limits.temperature,
        "chat_template_kwargs": {"thinking_mode": limits.thinking},
    }
    given = {
        "top_p": limits.top_p if limits.top_p != 1 else None,
        "top_k": limits.top_k or None,
        "min_p": limits.min_p or None,
        "seed": limits.seed,
        "stop": list(limits.stop) or None,
        "logprobs": limits.logprobs or None,
    }
    body |= {name: value for name, value in given.items() if value is not None}
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in tools
        ]
        body["parallel_tool_calls"] = False
        if limits.tool_choice != "auto":
            body["tool_choice"] = limits.tool_choice
    return body


def messages(conversation: Sequence[Message], media: Media, reasoning_field: str | None) -> list[Part]:
    """The messages of a conversation."""
    sent: list[Part] = []
    waiting: list[str] = []  # ids of calls whose results have not come
    shown: list[Part] = []  # what results show; it has to stand behind the last of them
    for message in conversation:
        if message.role != "tool" and shown:
            _add(sent, "user", shown)
            shown = []
        match message.role:
            case "assistant":
                waiting = [call.id for call in message.tool_calls]
                sent.append(_assistant(message, reasoning_field))
            case "tool" if waiting:
                texts = [part for part in message.parts if isinstance(part, str)]
                sent.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": "\n".join(texts)})
                shown += [
                    each for part in message.parts if not isinstance(part, str) for each in media.parts(part)
                ]
            case "root" | "developer":
                _add(sent, "system", _parts(message, media))
            case _:
                _add(sent, "user", _parts(message, media))
    if shown:
        _add(sent, "user", shown)
    for message_ in sent:
        if isinstance(message_["content"], list):
            message_["content"] = _plain(message_["content"])
    return sent


def _add(sent: list[Part], role: str, parts: list[Part]) -> None:
    """Add a turn, or add to the last one of the same role: some templates want them to alternate."""
    if sent and sent[-1]["role"] == role:
        sent[-1]["content"] += parts
    else:
        sent.append({"role": role, "content": list(parts)})


def _plain(parts: list[Part]) -> str | list[Part]:
    """Parts as one string where they are only text, which every server takes."""
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _assistant(message: Message, reasoning_field: str | None) -> Part:
    text = "".join(part for part in message.parts if isinstance(part, str))
    sent: Part = {"role": "assistant", "content": text or None}
    if message.reasoning and reasoning_field:
        sent[reasoning_field] = message.reasoning
    if message.tool_calls:
        sent["tool_calls"] = [_call(call) for call in message.tool_calls]
    return sent


def _call(call: ToolCall) -> Part:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _parts(message: Message, media: Media) -> list[Part]:
    parts: list[Part] = []
    for part in message.parts:
        parts += [_text(part)] if isinstance(part, str) else media.parts(part)
    return parts


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _picture(data: str) -> Part:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def _base64(pixels: npt.NDArray[np.uint8], kind: Literal["PNG", "JPEG"]) -> str:
    """A frame as a picture file: without loss as PNG, nearly so as JPEG."""
    from PIL import Image as Pictures

    file = io.BytesIO()
    options = {"compress_level": 1} if kind == "PNG" else {"quality": 95, "subsampling": 0}
    Pictures.fromarray(np.ascontiguousarray(pixels)).save(file, format=kind, **options)
    return base64.b64encode(file.getvalue()).decode("ascii")
