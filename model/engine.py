"""The in-process `Model`: renders a conversation, computes what is new of it, and writes the answer.

The network runs in one worker thread, so the event loop stays free; the thread looks at every answer's `stop`
before every layer while it reads a prompt, and before every token.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from pilotfish.model import checkpoint
from pilotfish.model.answer import Answer
from pilotfish.model.chat import ChatFormat, Thinking
from pilotfish.model.config import M3Config
from pilotfish.model.constraint import CallConstraints
from pilotfish.model.features import Features
from pilotfish.model.folder import find_folder
from pilotfish.model.images import Media, clip_grid
from pilotfish.model.memory import keep_freed_memory, memory_named
from pilotfish.model.parser import AnswerParser
from pilotfish.model.prefixes import Prefixes
from pilotfish.model.protocol import (
    Chunk,
    EndChunk,
    Limits,
    Message,
    ModelError,
    ProgressChunk,
    ToolSpec,
    Usage,
)
from pilotfish.model.rows import WIDTH
from pilotfish.model.sampling import MEDIA_TOKENS, Sampler
from pilotfish.model.saved import key_of
from pilotfish.model.scheduler import Append, Need, Scheduler, Steps
from pilotfish.model.sequence import Tokens, TokenSequence
from pilotfish.model.stopping import StopFilter
from pilotfish.model.text import AttentionKind
from pilotfish.model.tokenizer import DOCUMENT_START, TURN_START, Tokenizer

DTypeName = Literal["auto", "bfloat16", "float32"]
Reason = Literal["end", "length", "time", "stop"]

CPU_CHUNK, GPU_CHUNK, WIDE_GPU_CHUNK = 256, 8192, 2048
"""Tokens computed at once; on a GPU so many that computing takes about as long as launching it."""
WIDE = 2048
"""Width of the text tower from which on fewer do."""
AT_ONCE = WIDTH
"""Answers computed at once; others wait. One decoding pass is enough for them."""


@dataclass
class Request:
    """What was asked, whom to tell, and what it cost so far in wall seconds."""

    conversation: Sequence[Message]
    tools: Sequence[ToolSpec]
    limits: Limits
    stopped: Callable[[], bool]
    tell: Callable[[Chunk], None]
    came_s: float
    deadline_s: float | None = None
    begun_s: float | None = None
    vision_s: float = 0.0
    prefill_s: float = 0.0
    together: int = 1
    """The most answers that were computed at once meanwhile."""

    def cut_short(self) -> Reason | None:
        """Why the answer ends now, if it does."""
        if self.stopped():
            return "stop"
        return None if self.deadline_s is None or time.perf_counter() < self.deadline_s else "time"


class Engine:
    """A checkpoint that answers conversations on this machine.

    It keeps the caches of the last prompts: a prompt that begins like one of them is computed from where it
    differs. Several answers are computed at once (see `scheduler.py`). An answer depends neither on what was
    cached (see `sequence.py`) nor on what is computed beside it (see `rows.py`).
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
            keep_freed_memory()
        self.tokenizer = Tokenizer.from_folder(folder)
        self.format = ChatFormat.from_folder(folder, self.tokenizer, clip_grid)
        with memory_named(f"the weights of {folder.name} on {chosen}", "choose a smaller checkpoint"):
            self.model, self.config = checkpoint.load(folder, chosen, pick_dtype(dtype, chosen))
        self._stop_ids, self._forbidden = self._token_roles()
        self._constraints = CallConstraints(self.tokenizer, self._stop_ids)
        self.prefixes = Prefixes(self.model, chunk=chunk_for(self.config, chosen), attention=attention)
        self.sequence = self.prefixes.new()
        self.features = Features(self.model)
        self._scheduler = Scheduler(AT_ONCE)
        self._device = device_name(chosen)

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
        other weights, another tokenizer, or on another device. Nothing is lost then, but that idle
        conversations made room for a file that was damaged behind its header.
        """
        return await self._work(lambda: self.prefixes.load(path, self._key))

    async def _work(self, job: Callable[[], int]) -> int:
        return await asyncio.wrap_future(self._scheduler.run(job))

    @functools.cached_property
    def _key(self) -> dict[str, str]:
        return key_of(self.model, self.tokenizer)

    def count(
        self, conversation: Sequence[Message], tools: Sequence[ToolSpec], thinking: Thinking = "disabled"
    ) -> int:
        """Tokens of a conversation as a prompt; raises ModelError when it cannot be rendered."""
        return len(self.format.render(conversation, tools, thinking).ids)

    def count_text(self, text: str) -> int:
        """Tokens of a text by itself."""
        return len(self.tokenizer.encode(text))

    def name_of(
        self, conversation: Sequence[Message], tools: Sequence[ToolSpec], thinking: Thinking = "disabled"
    ) -> str:
        """A name for what is computed of a conversation: another where weights, tokenizer, device, kind of
        numbers or attention, or one token differ. Raises ModelError when it cannot be rendered.
        """
        pool = self.prefixes.pool
        about = [self._key, self._device, str(pool.dtype), self.prefixes.attention, self.prefixes.chunk]
        ids = self.format.render(conversation, tools, thinking).ids
        return hashlib.sha256(json.dumps([*about, ids]).encode()).hexdigest()

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

        def tell(chunk: Chunk | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed on the way
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        request = Request(
            conversation, tools, limits, lambda: stop.is_set() or left.is_set(), tell, time.perf_counter()
        )
        task = self._scheduler.submit(self._answer(request), lambda: request.cut_short() is not None)
        task.add_done_callback(lambda _: tell(None))

        async def leave_the_queue() -> None:
            await stop.wait()
            if self._scheduler.leave(task):
                chunks.put_nowait(EndChunk("stop"))

        leaving = asyncio.create_task(leave_the_queue())
        try:
            while (chunk := await chunks.get()) is not None:
                yield chunk
            if not task.cancelled():
                task.result()
        finally:
            # Whoever leaves early must not leave an answer behind that is still computed.
            leaving.cancel()
            left.set()
            if not self._scheduler.leave(task) and not task.done():
                await asyncio.wait([asyncio.wrap_future(task)])

    def close(self) -> None:
        """Wait for all answers to end."""
        self._scheduler.close()

    def _answer(self, request: Request) -> Steps:
        """Compute one answer, step by step, and tell its chunks."""
        limits = request.limits
        request.deadline_s = time.perf_counter() + limits.max_seconds
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
            self._constraints.start(request.tools, in_thinking=in_thinking, choice=limits.tool_choice)
            if limits.constrained
            else None
        )
        prompt = self.format.render(request.conversation, request.tools, limits.thinking)
        place_ids = (self.config.image_token_id, self.config.video_token_id)
        tokens = Tokens.lay_out(prompt.ids, prompt.media, place_ids)
        room = self.context - len(tokens)
        if room < 1:
            raise ModelError(
                f"The conversation has {len(tokens)} tokens and {self.name} reads at most "
                f"{self.context - 1}; drop its oldest clips or start a new one."
            )
        answer = Answer(
            AnswerParser(request.tools, starts_in_thinking=in_thinking),
            self.tokenizer.decoder(),
            sampler,
            constraint,
            StopFilter(limits.stop),
        )
        most = max(0, min(limits.max_tokens, room))
        with memory_named(f"a conversation of {len(tokens)} tokens", "drop its oldest clips"):
            sequence = yield from self._sequence(tokens, most, request)
            cached = 0 if sequence is None else sequence.length
            scores, reason = None, None
            try:
                if sequence is not None:
                    scores = yield from self._read(sequence, tokens, prompt.media, request)
                read_s = time.perf_counter()
                if sequence is not None and scores is not None:
                    reason = yield from self._write(sequence, scores, answer, most, request)
            finally:
                held = 0
                if sequence is not None:
                    self.prefixes.put_back(sequence)
                    held = self.prefixes.pool.bytes_for(sequence.length)
        for chunk in answer.close():
            request.tell(chunk)
        usage = Usage(
            input_tokens=len(tokens),
            cached_tokens=cached,
            output_tokens=len(answer.logprobs),
            queue_s=(request.begun_s or read_s) - request.came_s,
            vision_s=request.vision_s,
            prefill_s=request.prefill_s,
            decode_s=time.perf_counter() - read_s,
            cache_bytes=held,
            device=self._device,
            sequences=request.together,
        )
        request.tell(
            EndChunk(
                reason or request.cut_short() or "stop",
                usage,
                tuple(answer.parser.faults),
                tuple(answer.logprobs) if limits.logprobs else None,
                answer.stops.found,
            )
        )

    def _sequence(
        self, tokens: Tokens, most: int, request: Request
    ) -> Generator[Need, Tensor | None, TokenSequence | None]:
        """Wait for a sequence with room for a prompt and its answer; None when the answer is cut short."""
        try:
            while request.cut_short() is None:
                sequence = self.prefixes.pick(tokens, most)
                if sequence is not None:
                    self.sequence = sequence
                    request.begun_s = time.perf_counter()
                    return sequence
                yield "wait"
            return None
        finally:
            self.prefixes.leave(tokens)

    def _read(
        self, sequence: TokenSequence, tokens: Tokens, media: Sequence[Media], request: Request
    ) -> Generator[Need, Tensor | None, Tensor | None]:
        """Compute a prompt, other answers taking turns; returns the scores after it, None if cut short."""

        def features(number: int) -> Tensor:
            began_s = self.features.seconds
            found = self.features.of(tokens.spans[number].content, media[number])
            request.vision_s += self.features.seconds - began_s
            return found

        def cancelled() -> bool:
            self._scheduler.look()
            return request.cut_short() is not None

        steps = sequence.extending(tokens, features, cancelled)
        done = sequence.length
        while True:
            request.tell(ProgressChunk(done, len(tokens)))
            request.together = max(request.together, self._scheduler.active)
            began_s, seen_s = time.perf_counter(), request.vision_s
            try:
                done = next(steps)
            except StopIteration as end:
                scores: Tensor | None = end.value
                if scores is not None:
                    if scores.is_cuda:  # a GPU computes behind what asks it, and its time counts here
                        torch.cuda.synchronize(scores.device)
                    request.tell(ProgressChunk(len(tokens), len(tokens)))
                return scores
            finally:
                request.prefill_s += time.perf_counter() - began_s - (request.vision_s - seen_s)
            yield "turn"

    def _write(
        self, sequence: TokenSequence, scores: Tensor, answer: Answer, most: int, request: Request
    ) -> Generator[Need, Tensor | None, Reason | None]:
        """Write an answer of at most `most` tokens; returns why it ended, None if it was cut short."""
        while request.cut_short() is None:
            if len(answer.logprobs) == most:
                return "length"
            token = answer.choose(scores)
            if token in self._stop_ids:
                return "end"
            for chunk in answer.read(token):
                request.tell(chunk)
            if answer.stops.found is not None:
                return "end"
            if len(answer.logprobs) == most:
                return "length"
            following = yield Append(sequence, token)
            request.together = max(request.together, self._scheduler.active)
            if following is None:
                break
            scores = following
        return None

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


def chunk_for(config: M3Config, device: torch.device) -> int:
    """Tokens of a prompt that are computed at once."""
    if device.type == "cpu":
        return CPU_CHUNK
    return GPU_CHUNK if config.text.hidden_size < WIDE else WIDE_GPU_CHUNK


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


def device_name(device: torch.device) -> str:
    """A device as a person knows it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


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
