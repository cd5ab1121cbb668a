"""The in-process `Model`: renders a conversation, computes what is new of it, and writes the answer.

Prompts are rendered in threads of their own and the network runs in one worker thread, so the event loop
stays free and no answer waits for another's rendering; the worker looks at every answer's `stop` before every
layer while it reads a prompt, and before every token.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pilotfish.model import checkpoint
from pilotfish.model.answer import Answer
from pilotfish.model.chat import ChatFormat, Thinking
from pilotfish.model.constraint import CallConstraints
from pilotfish.model.device import DTypeName, chunk_for, cpu_threads, device_name, pick_device, pick_dtype
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
from pilotfish.model.rendering import Renderers
from pilotfish.model.request import Reason, Request
from pilotfish.model.rows import WIDTH
from pilotfish.model.sampling import MEDIA_TOKENS, Sampler
from pilotfish.model.saved import key_of
from pilotfish.model.scheduler import Append, Need, Scheduler, Steps
from pilotfish.model.sequence import Tokens, TokenSequence
from pilotfish.model.stopping import StopFilter
from pilotfish.model.text import AttentionKind
from pilotfish.model.tokenizer import DOCUMENT_START, TURN_START, Tokenizer

AT_ONCE = WIDTH
"""Answers computed at once; others wait. One decoding pass is enough for them."""


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
        place_ids = (self.config.image_token_id, self.config.video_token_id)
        self._renderers = Renderers(self.format, self.name, self.context, place_ids)
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
        came_s = time.perf_counter()
        prompt = await self._renderers.render(conversation, tools, limits, stop)
        if prompt is None:
            yield EndChunk("stop" if stop.is_set() else "time")
            return
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()
        left = threading.Event()

        def tell(chunk: Chunk | None) -> None:
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:  # the loop was closed on the way, and nobody will read on
                left.set()

        request = Request(
            prompt, tools, limits, lambda: stop.is_set() or left.is_set(), tell, came_s, time.perf_counter()
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
            left.set()
            if not loop.is_closed():
                leaving.cancel()
                if not self._scheduler.leave(task) and not task.done():
                    await asyncio.wait([asyncio.wrap_future(task)])

    def close(self) -> None:
        """Wait for all answers to end."""
        self._renderers.close()
        self._scheduler.close()

    def _answer(self, request: Request) -> Steps:
        """Compute one answer, step by step, and tell its chunks."""
        limits = request.limits
        request.deadline_s = time.perf_counter() + limits.max_seconds - (request.rendered_s - request.came_s)
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
        tokens, media = request.prompt.tokens, request.prompt.media
        answer = Answer(
            AnswerParser(request.tools, starts_in_thinking=in_thinking),
            self.tokenizer.decoder(),
            sampler,
            constraint,
            StopFilter(limits.stop),
        )
        most = max(0, min(limits.max_tokens, self.context - len(tokens)))
        with memory_named(f"a conversation of {len(tokens)} tokens", "drop its oldest clips"):
            sequence = yield from self._sequence(tokens, most, request)
            cached = 0 if sequence is None else sequence.length
            scores, reason = None, None
            try:
                if sequence is not None:
                    scores = yield from self._read(sequence, tokens, media, request)
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
        ahead: list[tuple[int, Tensor]] = []  # computed already: tokens that may come, and the scores behind
        try:
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
                if ahead and ahead[0][0] == token:
                    scores = ahead.pop(0)[1]
                    continue
                sequence.truncate(sequence.length - len(ahead))
                ahead = []
                guesses = answer.guesses(most - len(answer.logprobs) - 1)
                following = yield Append(sequence, token, guesses)
                request.together = max(request.together, self._scheduler.active)
                if following is None:
                    break
                scores = following[0]
                ahead = list(zip(guesses, following[1:], strict=False))
            return None
        finally:
            sequence.truncate(sequence.length - len(ahead))

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
