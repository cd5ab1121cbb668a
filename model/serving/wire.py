"""What both interfaces share: a request as the model takes it, pictures, and errors with their status."""

from __future__ import annotations

import base64
import io
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from PIL import Image as Pillow
from PIL import ImageOps
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pilotfish.model.protocol import Image, Limits, Message, Part, ToolSpec

MAX_PICTURE_PIXELS = 40_000_000
MAX_REQUEST_PIXELS = 400_000_000
"""Pixels of all pictures of a request, which take 3 bytes each: 200 screens of 1920 by 1080 fit."""
MAX_ANSWER_SECONDS = 3600.0
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


class RequestError(Exception):
    """A request that cannot be served. message: one sentence. param: the part of the request at fault. code:
    OpenAI's word for it, where its status does not say.
    """

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code


class Body(BaseModel):
    """Base of all parts of a request; words we do not know are passed over, as both interfaces grow."""

    model_config = ConfigDict(extra="ignore", frozen=True)


B = TypeVar("B", bound=Body)
T = TypeVar("T")
Many = Annotated[list[T], Field(fail_fast=True)]
"""A list whose first fault is enough: a body of many faults would fill the memory with their descriptions."""


@dataclass(frozen=True)
class Request:
    """One question to the model."""

    model: str
    conversation: Sequence[Message]
    tools: Sequence[ToolSpec]
    limits: Limits
    stream: bool
    usage_in_stream: bool = True


def parse(kind: type[B], body: bytes) -> B:
    """A request's body as its type; raises RequestError naming the first part that is wrong."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("The body is not valid JSON; send one JSON object in UTF-8.") from None
    if not isinstance(value, dict):
        raise RequestError(f"The body is a JSON {type(value).__name__}; send one JSON object.")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = ".".join(str(step) for step in first["loc"])
        if first["type"] == "missing":
            raise RequestError(f"{param} is missing; send it.", param=param) from None
        given = json.dumps(first["input"], default=str)[:80]
        what = first["msg"].replace("Input should be", "must be")
        raise RequestError(f"{param} is {given}, but {what[0].lower()}{what[1:]}.", param=param) from None


class Pictures:
    """Reads the pictures of one request, as many as memory is meant for."""

    def __init__(self) -> None:
        self._left = MAX_REQUEST_PIXELS

    def read(self, data: str, param: str) -> Image:
        """The picture in base64 `data`, what is transparent on white; raises RequestError."""
        try:
            raw = base64.b64decode(data, validate=True)
            with Pillow.open(io.BytesIO(raw), formats=FORMATS) as opened:
                self._admit(opened.size, param)
                pixels = np.asarray(_opaque(opened))
        except Pillow.DecompressionBombError:
            raise RequestError(
                f"{param} has too many pixels; send at most {MAX_PICTURE_PIXELS:,}.", param=param
            ) from None
        except RequestError:
            raise
        except Exception as error:  # a file made to do harm may raise anything, and all of it means the same
            raise RequestError(
                f"{param} is no picture that can be read ({type(error).__name__}); "
                "send base64 of a PNG, JPEG, WebP, GIF or BMP.",
                param=param,
            ) from None
        return Image(pixels)

    def _admit(self, size: tuple[int, int], param: str) -> None:
        width, height = size
        if width * height > MAX_PICTURE_PIXELS:
            raise RequestError(
                f"{param} has {width}x{height} pixels; send at most {MAX_PICTURE_PIXELS:,}.", param=param
            )
        self._left -= width * height
        if self._left < 0:
            raise RequestError(
                f"The pictures up to {param} have more than {MAX_REQUEST_PIXELS:,} pixels together; "
                "send fewer or smaller ones.",
                param=param,
            )


def _opaque(opened: Pillow.Image) -> Pillow.Image:
    ImageOps.exif_transpose(opened, in_place=True)
    if opened.mode.startswith("I;16"):  # Pillow would cut off what is brighter than 255
        opened = Pillow.fromarray((np.asarray(opened) >> 8).astype(np.uint8))
    if not opened.has_transparency_data:
        return opened.convert("RGB")
    paper = Pillow.new("RGBA", opened.size, "white")
    paper.alpha_composite(opened.convert("RGBA"))
    return paper.convert("RGB")


def arguments(text: str, param: str) -> dict[str, Any]:
    """A call's arguments from their JSON; raises RequestError."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestError(f"{param} is {text[:80]!r}; send a JSON object.", param=param)
    return value


def in_order(results: dict[str, tuple[Part, ...]], calls: Sequence[str], param: str) -> list[Message]:
    """Tool results as turns in the order of the calls they answer, by which M3 tells them apart.

    Raises RequestError when one answers no call, or a call has no answer.
    """
    for call_id in results:
        if call_id not in calls:
            raise RequestError(f"{param} answers the call {call_id[:80]!r}, which is not open.", param=param)
    for call_id in calls:
        if call_id not in results:
            raise RequestError(f"{param}: the call {call_id[:80]!r} has no result; send one.", param=param)
    return [Message("tool", results[call_id]) for call_id in calls]


def chosen(
    tools: Sequence[ToolSpec], choice: Literal["auto", "required", "none"], only: str | None, param: str
) -> tuple[Sequence[ToolSpec], Literal["auto", "required", "none"]]:
    """The tools and the choice of a request that may name the one to call; raises RequestError."""
    if only is not None:
        named = [tool for tool in tools if tool.name == only]
        if not named:
            raise RequestError(f"{param} names the tool {only[:80]!r}, which is not in tools.", param=param)
        return named, "required"
    if choice == "required" and not tools:
        raise RequestError(f"{param} requires a call, but tools is empty; send tools.", param=param)
    return tools, choice


def new_id(prefix: str) -> str:
    """A fresh id."""
    return prefix + secrets.token_hex(12)


def event(data: object, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
