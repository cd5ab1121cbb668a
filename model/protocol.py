"""What the agent and a model say to each other.

A `Model` takes an append-only conversation and streams back thinking, text and tool calls. There are three:
the in-process engine, a remote server, and a scripted model for tests; the agent cannot tell them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Role = Literal["root", "developer", "user", "assistant", "tool"]
FRAMES_PER_CLIP = 4


@dataclass(frozen=True, eq=False)
class Clip:
    """Exactly four frames of one size that span an action, oldest first.

    frames: uint8 RGB, shape [4, height, width, 3].
    times_s: seconds of each frame since the first one (so times_s[0] == 0.0).
    settled: whether the screen was quiet when the last frame was taken.
    """

    frames: npt.NDArray[np.uint8]
    times_s: tuple[float, float, float, float]
    settled: bool = True

    def __post_init__(self) -> None:
        shape = self.frames.shape
        if self.frames.dtype != np.uint8 or len(shape) != 4 or shape[0] != FRAMES_PER_CLIP or shape[3] != 3:
            raise ValueError(f"a clip holds {FRAMES_PER_CLIP} uint8 RGB frames of one size, not {shape}")


@dataclass(frozen=True, eq=False)
class Image:
    """One picture: uint8 RGB, shape [height, width, 3]."""

    pixels: npt.NDArray[np.uint8]


Part = str | Clip | Image


@dataclass(frozen=True)
class ToolCall:
    """One call the model made; its arguments are typed by the tool's JSON schema where it names them."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Message:
    """One turn. `parts` are in order; `reasoning` and `tool_calls` belong to assistant turns only."""

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it: `parameters` is a JSON schema of type object.

    exact: a narrower schema that calls are held to while they are written; the model is not shown it.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    exact: dict[str, Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Limits:
    """Bounds and sampling for one answer.

    temperature: 0 is greedy. top_p, top_k, min_p: see `Sampler`; 1, 0 and 0 keep all tokens.
    stop: texts that end the answer where one of them begins; it is not part of the answer.
    tool_choice: "required" makes everything but thinking a call, "none" lets no call begin.
    constrained: hold calls to the tools' schemas token by token, where a model can.
    logprobs: give every token's log-probability at the end.
    """

    max_tokens: int = 512
    max_seconds: float = 120.0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    thinking: Literal["enabled", "disabled", "adaptive"] = "disabled"
    stop: tuple[str, ...] = ()
    tool_choice: Literal["auto", "required", "none"] = "auto"
    constrained: bool = True
    logprobs: bool = False


@dataclass(frozen=True)
class Usage:
    """What one answer cost, as far as its model knows; None is unknown, and 0 is none.

    input_tokens, cached_tokens: of the prompt, and of these the ones that were not computed again.
    output_tokens: written, thinking and calls included; estimated for a server that does not count.
    queue_s: wall seconds until the model turned to it.
    vision_s, prefill_s: wall seconds of encoding pictures and of computing the rest of the prompt; of a
        server, `prefill_s` is all the time until its answer began.
    decode_s: wall seconds of writing.
    cache_bytes: memory that the caches of the conversation hold when the answer ends.
    device: what computed it.
    sequences: the most conversations that the model computed at once meanwhile, this one included.
    retries: how often a server was asked again before it began to answer.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    queue_s: float | None = None
    vision_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    cache_bytes: int | None = None
    device: str | None = None
    sequences: int | None = None
    retries: int = 0


@dataclass(frozen=True)
class ProgressChunk:
    """How far a prompt is computed, sent before the answer and again whenever more of it is.

    done, total: tokens of the prompt that are in the cache, those found there included, and all of them;
        done grows up to total, which does not change. Whoever has no use for it passes over it.
    """

    done: int
    total: int


@dataclass(frozen=True)
class ThinkingChunk:
    text: str


@dataclass(frozen=True)
class TextChunk:
    text: str


@dataclass(frozen=True)
class CallChunk:
    """A call. confidence: the probability the model gave to its tokens, all together, where that is known."""

    call: ToolCall
    confidence: float | None = None


@dataclass(frozen=True)
class EndChunk:
    """Always the last chunk.

    reason: end = the model ended its turn; length, time = a limit; stop = asked to.
    faults: one sentence for each call that could not be read, and so was not passed on, or for an answer that
        broke off, of which no call was.
    logprobs: natural logarithm of the probability of each token written, if asked for and known.
    stop_string: the one of `Limits.stop` that ended the answer.
    """

    reason: Literal["end", "length", "time", "stop"]
    usage: Usage = field(default_factory=Usage)
    faults: tuple[str, ...] = ()
    logprobs: tuple[float, ...] | None = None
    stop_string: str | None = None


Chunk = ProgressChunk | ThinkingChunk | TextChunk | CallChunk | EndChunk


class ModelError(Exception):
    """A model cannot answer; the message is one sentence with the mend."""


class Model(Protocol):
    """Anything that can answer a conversation."""

    @property
    def name(self) -> str: ...

    def respond(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        stop: asyncio.Event,
        limits: Limits,
    ) -> AsyncIterator[Chunk]:
        """Stream one answer; the last chunk is an `EndChunk`. Setting `stop` ends it within a second."""
        ...


@runtime_checkable
class KeepsPrefixes(Model, Protocol):
    """A model whose tokens can be counted, and what it has computed of a prompt kept in files: the engine."""

    @property
    def context(self) -> int: ...

    def count_text(self, text: str) -> int: ...

    def bytes_for(self, tokens: int) -> int: ...

    def name_of(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        thinking: Literal["enabled", "disabled", "adaptive"] = "disabled",
    ) -> str:
        """A name for what is computed of a conversation: another where weights, tokenizer, device or one
        token differ.
        """
        ...

    async def save(self, path: Path | str) -> int: ...

    async def load(self, path: Path | str) -> int: ...
