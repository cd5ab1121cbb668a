"""The in-process `Model`: renders a conversation, computes what is new of it, and writes the answer.

The network runs in one worker thread, so the event loop stays free; the thread looks at `stop` before every
layer while it reads the prompt, and before every token of the answer.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from pilotfish.model import checkpoint
from pilotfish.model.chat import ChatFormat, Thinking
from pilotfish.model.constraint import CallConstraint, CallConstraints
from pilotfish.model.folder import find_folder
from pilotfish.model.images import Media, clip_grid, clip_patches
from pilotfish.model.m3 import M3
from pilotfish.model.memory import memory_named
from pilotfish.model.parser import AnswerParser, Event
from pilotfish.model.prefixes import Prefixes
from pilotfish.model.protocol import CallChunk, Chunk, EndChunk, Limits, Message, ModelError, ToolSpec, Usage
from pilotfish.model.sampling import MEDIA_TOKENS, Sampler
from pilotfish.model.saved import key_of
from pilotfish.model.sequence import Tokens
from pilotfish.model.stopping import StopFilter
from pilotfish.model.text import AttentionKind
from pilotfish.model.tokenizer import DOCUMENT_START, TURN_START, IncrementalDecoder, Tokenizer

DTypeName = Literal["auto", "bfloat16", "float32"]
Reason = Literal["end", "length", "time", "stop"]

CPU_CHUNK, GPU_CHUNK = 256, 2048
FEATURE_BYTES = 256 * 1024**2


class Engine:
    """A checkpoint that answers conversations on this machine.

    It keeps the caches of the last prompts: a prompt that begins like one of them is computed from where it
    differs. Answers do not depend on that (see `sequence.py`). Answers are computed one at a time.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        device: str = "auto",
        dtype: DTypeName = "auto",
        attention: AttentionKind = "sparse",
    ):
        """Load a checkpoint folder, or `nano`, the one that ships.

        device: "auto" takes a CUDA GPU when there is one. dtype: "auto" is bf16, but fp32 on a CPU without
        bf16 arithmetic. attention: "dense" shows what MSA changes. Raises ModelError with one sentence.
        """
        folder = find_folder(folder)
        self._name = folder.name
        chosen = pick_device(device)
        on_cpu = chosen.type == "cpu"
        if on_cpu:
            torch.set_num_threads(cpu_threads())
        self.tokenizer = Tokenizer.from_folder(folder)
        self.format = ChatFormat.from_folder(folder, self.tokenizer, clip_grid)
        with memory_named(f"the weights of {folder.name} on {chosen}", "choose a smaller checkpoint"):
            self.model, self.config = checkpoint.load(folder, chosen, pick_dtype(dtype, chosen))
        self._stop_ids, self._forbidden = self._token_roles()
        self._constraints = CallConstraints(self.tokenizer, self._stop_ids)
        self.prefixes = Prefixes(self.model, chunk=CPU_CHUNK if on_cpu else GPU_CHUNK, attention=attention)
        self.sequence = self.prefixes.new()
        self.features = Features(self.model)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    @property
    def name(self) -> str:
        """The checkpoint folder's name."""
        return self._name

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.config.text.max_position_embeddings

    def bytes_for(self, tokens: int) -> int:
        """Memory that the cache of a conversation of so many tokens takes."""
        return self.prefixes.pool.bytes_for(tokens)

    async def save(self, path: Path | str) -> int:
        """Write to a file what the last conversation has for its next prompt; returns its tokens.

        Raises ModelError when it is too short or the file cannot be written.
        """
        return await self._work(lambda: self.prefixes.save(path, self._key))

    async def load(self, path: Path | str) -> int:
        """Read what an engine alike saved, so that prompts which begin so need not compute it.

        Returns its tokens. Raises ModelError when the file is missing, damaged, or not this engine's: made by
        other weights, another tokenizer, or on another device; nothing is lost then.
        """
        return await self._work(lambda: self.prefixes.load(path, self._key))

    async def _work(self, job: Callable[[], int]) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._worker, job)

    @functools.cached_property
    def _key(self) -> dict[str, str]:
        return key_of(self.model, self.tokenizer)

    def count(
        self, conversation: Sequence[Message], tools: Sequence[ToolSpec], thinking: Thinking = "disabled"
    ) -> int:
        """Tokens of a conversation as a prompt; raises ModelError when it cannot be rendered."""
        return len(self.format.render(conversation, tools, thinking).ids)

    async def respond(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        stop: asyncio.Event,
        limits: Limits,
    ) -> AsyncIterator[Chunk]:
        """Stream one answer; the last chunk is an `EndChunk`. Setting `stop` ends it within one step.

        Raises ModelError when the conversation cannot be rendered or does not fit the context, when memory
        runs out, and when the network's scores are not numbers.
        """
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()
        left = threading.Event()

        def work() -> None:
            try:
                for chunk in self._answer(
                    conversation, tools, limits, lambda: stop.is_set() or left.is_set()
                ):
                    loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            finally:
                loop.call_soon_threadsafe(chunks.put_nowait, None)

        async def leave_the_queue() -> None:
            await stop.wait()
            if job.cancel():
                chunks.put_nowait(EndChunk("stop"))
                chunks.put_nowait(None)

        job = self._worker.submit(work)
        running = asyncio.wrap_future(job)
        leaving = asyncio.create_task(leave_the_queue())
        try:
            while (chunk := await chunks.get()) is not None:
                yield chunk
            if not job.cancelled():
                await running
        finally:
            # Whoever leaves early must not leave a thread behind that still writes to the cache.
            leaving.cancel()
            left.set()
            job.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()

    def close(self) -> None:
        """Wait for the worker thread to end."""
        self._worker.shutdown()

    def _answer(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        limits: Limits,
        stopped: Callable[[], bool],
    ) -> Iterator[Chunk]:
        deadline_s = time.monotonic() + limits.max_seconds

        def cut_short() -> Reason | None:
            if stopped():
                return "stop"
            return "time" if time.monotonic() >= deadline_s else None

        sampler = Sampler(
            temperature=limits.temperature,
            top_p=limits.top_p,
            top_k=limits.top_k,
            min_p=limits.min_p,
            seed=limits.seed,
            forbidden=self._forbidden,
        )
        in_thinking = limits.thinking == "enabled"
        constraint = (
            self._constraints.start(tools, in_thinking=in_thinking, choice=limits.tool_choice)
            if limits.constrained
            else None
        )
        prompt = self.format.render(conversation, tools, limits.thinking)
        place_ids = (self.config.image_token_id, self.config.video_token_id)
        tokens = Tokens.lay_out(prompt.ids, prompt.media, place_ids)
        room = self.context - len(tokens)
        if room < 1:
            raise ModelError(
                f"The conversation has {len(tokens)} tokens and {self.name} reads at most "
                f"{self.context - 1}; drop its oldest clips or start a new one."
            )
        most = max(0, min(limits.max_tokens, room))
        began_s, self.features.seconds = time.perf_counter(), 0.0
        with memory_named(f"a conversation of {len(tokens)} tokens", "drop its oldest clips"):
            self.sequence = self.prefixes.pick(tokens, most)
            cached = self.sequence.length
            scores = self.sequence.extend(
                tokens,
                lambda number: self.features.of(tokens.spans[number].content, prompt.media[number]),
                lambda: cut_short() is not None,
            )
            read_s = time.perf_counter()
            answer = _Answer(
                AnswerParser(tools, starts_in_thinking=in_thinking),
                self.tokenizer.decoder(),
                sampler,
                constraint,
                StopFilter(limits.stop),
            )
            reason = yield from self._write(scores, answer, most, cut_short)
        vision_s = self.features.seconds
        yield EndChunk(
            reason,
            Usage(
                input_tokens=len(tokens),
                cached_tokens=cached,
                output_tokens=len(answer.logprobs),
                vision_s=vision_s,
                prefill_s=read_s - began_s - vision_s,
                decode_s=time.perf_counter() - read_s,
            ),
            tuple(answer.parser.faults),
            tuple(answer.logprobs) if limits.logprobs else None,
            answer.stops.found,
        )

    def _write(
        self,
        scores: Tensor | None,
        answer: _Answer,
        most: int,
        cut_short: Callable[[], Reason | None],
    ) -> Generator[Chunk, None, Reason]:
        """Write an answer of at most `most` tokens; returns why it ended."""
        reason = cut_short()
        while reason is None and scores is not None:
            if len(answer.logprobs) == most:
                reason = "length"
                break
            token = answer.choose(scores)
            if token in self._stop_ids:
                reason = "end"
                break
            yield from answer.read(token)
            if answer.stops.found is not None:
                reason = "end"
                break
            if len(answer.logprobs) < most:
                scores = self.sequence.append(token)
            reason = cut_short()
        yield from answer.close()
        return reason or "stop"

    def _token_roles(self) -> tuple[frozenset[int], list[int]]:
        """Ids that end an answer, and ids that are never written; raises ModelError if files disagree."""
        tokenizer, config = self.tokenizer, self.config
        vocab = config.text.vocab_size
        if tokenizer.vocab_size > vocab:
            raise ModelError(
                f"tokenizer.json of {self.name} has {tokenizer.vocab_size} ids, the weights have {vocab}; "
                "copy both from the same checkpoint."
            )
        ours, theirs = (
            (config.image_token_id, config.video_token_id),
            (tokenizer.image_id, tokenizer.video_id),
        )
        if ours != theirs:
            raise ModelError(
                f"config.json of {self.name} has pictures and clips at ids {ours}, tokenizer.json at "
                f"{theirs}; copy both from the same checkpoint."
            )
        # A model that opens the next turn itself has ended its own.
        ends = {tokenizer.eos_id, tokenizer.id(TURN_START), tokenizer.id(DOCUMENT_START)}
        if config.text.eos_token_id is not None:
            ends.add(config.text.eos_token_id)
        known = [tokenizer.markers[marker] for marker in MEDIA_TOKENS if marker in tokenizer.markers]
        return frozenset(ends), [*known, *range(tokenizer.vocab_size, vocab)]


@dataclass
class _Answer:
    """One answer while it is written: how its tokens are chosen, and what they say."""

    parser: AnswerParser
    decoder: IncrementalDecoder
    sampler: Sampler
    constraint: CallConstraint | None
    stops: StopFilter
    logprobs: list[float] = field(default_factory=list)
    _call_began: int | None = None
    """How many tokens stood before the call being written."""

    def choose(self, scores: Tensor) -> int:
        """The next token."""
        allowed = None if self.constraint is None else self.constraint.allowed(self.parser.in_code)
        choice = self.sampler.choose(scores, allowed)
        if self.constraint is not None:
            self.constraint.take(choice.token)
        self.logprobs.append(choice.logprob)
        return choice.token

    def read(self, token: int) -> Iterator[Chunk]:
        """What became certain with a token."""
        yield from self._marked(self.parser.feed(self.decoder.feed(token)))
        if self._call_began is None and self.parser.in_call:
            self._call_began = len(self.logprobs) - 1

    def close(self) -> Iterator[Chunk]:
        """What was still waiting when the answer ended."""
        yield from self._marked([*self.parser.feed(self.decoder.close()), *self.parser.close()])
        yield from self.stops.close()

    def _marked(self, events: Sequence[Event]) -> Iterator[Chunk]:
        for event in self.stops.filter(events):
            if isinstance(event, CallChunk) and self._call_began is not None:
                confidence = math.exp(math.fsum(self.logprobs[self._call_began :]))
                self._call_began = len(self.logprobs)
                event = replace(event, confidence=confidence)
            yield event


class Features:
    """Vision tokens by the pixels they came from, kept while there is room; those unused longest go first.

    seconds: time spent on encoding since someone set it to zero.
    """

    def __init__(self, model: M3, limit_bytes: int = FEATURE_BYTES):
        self.model, self.limit_bytes, self.seconds = model, limit_bytes, 0.0
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()

    @torch.no_grad()
    def of(self, content: bytes, media: Media) -> Tensor:
        """The vision tokens [tokens, hidden] of a picture or clip with this content hash."""
        if content in self._kept:
            self._kept.move_to_end(content)
            return self._kept[content]
        began_s = time.perf_counter()
        patches, grids = clip_patches(media)
        device = self.model.language_model.lm_head.weight.device
        # A copy: torch aligns its memory, numpy does not, and the last bits of a product may depend on it.
        features = self.model.encode_media(torch.from_numpy(patches).to(device, copy=True), grids)
        self._kept[content] = features
        while len(self._kept) > 1 and self.bytes > self.limit_bytes:
            self._kept.popitem(last=False)
        self.seconds += time.perf_counter() - began_s
        return features

    @property
    def bytes(self) -> int:
        """Memory the kept vision tokens hold."""
        return sum(features.nbytes for features in self._kept.values())


def pick_device(name: str) -> torch.device:
    """The device a setting means; raises ModelError for one that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise ModelError(f"There is no device {name!r} here; choose auto or cpu.") from None
    return device


def pick_dtype(name: DTypeName, device: torch.device) -> torch.dtype:
    """The dtype a setting means on a device; raises ModelError for a name outside `DTypeName`."""
    if name == "auto":
        name = "bfloat16" if device.type != "cpu" or cpu_has_bf16() else "float32"
    if name not in ("bfloat16", "float32"):
        raise ModelError(f"dtype is {name!r}; choose auto, bfloat16 or float32.")
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def cpu_has_bf16() -> bool:
    """Whether this CPU multiplies bf16 natively; without, bf16 is several times slower than fp32."""
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def cpu_threads() -> int:
    """Threads for the network: half the cores, because the desktop and the browser run beside it.

    More threads than free cores make every small product wait for the slowest: on two busy cores two threads
    were measured twenty times slower than one. OMP_NUM_THREADS overrides.
    """
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(os.environ["OMP_NUM_THREADS"]))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)
