"""`python -m pilotfish.model.soak`: thousands of short requests, some at a time, most of them let finish.

Half of them reach the model directly, half through its server on a Unix socket. Every third or so is left on
the way: stopped, cancelled, hung up, or out of time. Every answer is held against what the same request gave
alone, and what the process holds on to is counted after a warm-up and at the end; the exit status is 1 if an
answer differs, a request hangs, or anything grew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from pathlib import Path

import httpx2

from pilotfish.model.engine import AT_ONCE, Engine
from pilotfish.model.protocol import EndChunk, Limits, Message, ProgressChunk, TextChunk
from pilotfish.model.serving.run import listen, serve

WARM_UP = 200
PATIENCE_S = 300.0
"""Seconds after which a request counts as hung."""
SLACK = 8
"""Descriptors and threads that the libraries' pools may have more at one moment than at another."""
MEMORY_SLACK_MB = 40
"""What the interpreter's and the libraries' own caches may add, however many requests there were."""
WORDS = "press the button then write a short note about the green door and close it again"
TOKEN = "a-token-for-this-process-alone"


@dataclass(frozen=True)
class Ask:
    """One of the requests that are asked again and again."""

    words: str
    limits: Limits


@dataclass(frozen=True)
class Count:
    """What a process holds on to."""

    descriptors: int
    threads: int
    memory_mb: float
    pages: int

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {getattr(self, field.name):g}" for field in fields(self))


def asks(many: int = 24) -> list[Ask]:
    """Requests of different lengths: greedy and sampled, some of which begin alike."""
    made = []
    for number in range(many):
        draw = random.Random(number)
        words = draw.choices(WORDS.split(), k=draw.choice([3, 10, 40, 150]))
        if number % 3 == 0:
            words = [WORDS] * 10 + words
        temperature = draw.choice([0.0, 0.0, 1.0])
        made.append(Ask(" ".join(words), Limits(max_tokens=12, temperature=temperature, seed=number)))
    return made


def count(engine: Engine) -> Count:
    """What there is now."""
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return Count(
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
        round(resident * 4096 / 1e6, 1),
        engine.prefixes.pool.held,
    )


def grew(before: Count, after: Count) -> list[str]:
    """The names of what grew."""
    slack = {"descriptors": SLACK, "threads": SLACK}
    names = [name for name, more in slack.items() if getattr(after, name) > getattr(before, name) + more]
    return names + (["memory"] if after.memory_mb > before.memory_mb + MEMORY_SLACK_MB else [])


class Soak:
    """Asks an engine, directly and through its server, and notes what went wrong."""

    def __init__(self, engine: Engine, client: httpx2.AsyncClient, seed: int = 0) -> None:
        self.engine, self.client = engine, client
        self.asks, self.draw = asks(), random.Random(seed)
        self.expected: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.faults: list[str] = []

    async def learn(self) -> None:
        """Ask every request alone."""
        for ask in self.asks:
            self.expected.append(await self._whole(ask, ask.limits))

    async def play(self, requests: int, at_once: int, progress: bool = True) -> None:
        """Ask so many, some at a time."""
        numbers = iter(range(requests))
        began_s = time.monotonic()

        async def one_after_another() -> None:
            for number in numbers:
                await self._one()
                if progress and (number + 1) % 250 == 0:
                    rate = (number + 1) / (time.monotonic() - began_s)
                    so_far = f"{rate:.1f} a second, {len(self.faults)} faults, {count(self.engine)}"
                    print(f"{number + 1} of {requests}, {so_far}", file=sys.stderr, flush=True)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(one_after_another())

    async def _one(self) -> None:
        number = self.draw.randrange(len(self.asks))
        ways = {"whole": 4, "served": 4, "stopped": 1, "cancelled": 1, "left": 1, "late": 1, "hung up": 2}
        way = self.draw.choices(list(ways), weights=list(ways.values()))[0]
        self.kinds[way] += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                said = await self._ask(way, self.asks[number])
        except TimeoutError:
            self.faults.append(f"request {number}, {way}, did not end within {PATIENCE_S:g} s")
            return
        expected = self.expected[number]
        whole = way in ("whole", "served")
        # What is cut in the midst of a character ends with a mark in its place.
        if said != expected if whole else not expected.startswith(said.rstrip("\ufffd")):
            self.faults.append(f"request {number}, {way}, said {said!r} and alone {expected!r}")

    async def _ask(self, way: str, ask: Ask) -> str:
        if way == "whole":
            return await self._whole(ask, ask.limits)
        if way == "late":
            return await self._whole(ask, replace(ask.limits, max_seconds=self.draw.uniform(0, 0.3)))
        if way == "served":
            return await self._served(ask)
        if way == "hung up":
            await self._hang_up(ask)
            return ""
        if way == "cancelled":
            task = asyncio.ensure_future(self._whole(ask, ask.limits))
            await asyncio.wait([task], timeout=self.draw.uniform(0, 0.3))
            task.cancel()
            await asyncio.wait([task])
            return "" if task.cancelled() else task.result()
        return await self._part(ask, way == "left")

    async def _whole(self, ask: Ask, limits: Limits) -> str:
        message = Message("user", (ask.words,))
        chunks = [c async for c in self.engine.respond((message,), (), stop=asyncio.Event(), limits=limits)]
        assert isinstance(chunks[-1], EndChunk)
        return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))

    async def _part(self, ask: Ask, leave: bool) -> str:
        """Stop, or leave, after some chunks."""
        most, said, stop = self.draw.randrange(8), "", asyncio.Event()
        message = Message("user", (ask.words,))
        answer = self.engine.respond((message,), (), stop=stop, limits=ask.limits)
        async with aclosing(answer) as stream:  # type: ignore[type-var]
            number = 0
            async for chunk in stream:
                if isinstance(chunk, TextChunk):
                    said += chunk.text
                number += not isinstance(chunk, ProgressChunk)
                if number > most:
                    if leave:
                        break
                    stop.set()
        return said

    def _body(self, ask: Ask, stream: bool) -> dict[str, object]:
        return {
            "model": self.engine.name,
            "messages": [{"role": "user", "content": ask.words}],
            "max_completion_tokens": ask.limits.max_tokens,
            "temperature": ask.limits.temperature,
            "seed": ask.limits.seed,
            "stream": stream,
        }

    async def _served(self, ask: Ask) -> str:
        stream = self.draw.random() < 0.5
        answer = await self.client.post("/v1/chat/completions", json=self._body(ask, stream))
        answer.raise_for_status()
        if not stream:
            return str(answer.json()["choices"][0]["message"]["content"] or "")
        said = ""
        for line in answer.text.splitlines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    said += choice["delta"].get("content") or ""
        return said

    async def _hang_up(self, ask: Ask) -> None:
        body, pieces = self._body(ask, True), self.draw.randrange(6)
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_bytes():
                pieces -= 1
                if pieces < 0:
                    return


async def soak(
    engine: Engine, requests: int, at_once: int = AT_ONCE, warm_up: int = WARM_UP
) -> tuple[Count, Count, Soak]:
    """Ask `warm_up` and then `requests` times; returns the counts after each part, and what was noted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "socket"
        opened, _ = listen(None, path)
        ready = asyncio.Event()
        serving = asyncio.create_task(serve(engine, TOKEN, opened, ready.set))
        await ready.wait()
        transport = httpx2.AsyncHTTPTransport(uds=str(path))
        headers = {"authorization": f"Bearer {TOKEN}"}
        try:
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://here", headers=headers, timeout=PATIENCE_S
            ) as client:
                soaking = Soak(engine, client)
                await soaking.learn()
                counts = []
                for part in (warm_up, requests):
                    await soaking.play(part, at_once, progress=part == requests)
                    await asyncio.sleep(0.5)
                    counts.append(count(engine))
        finally:
            serving.cancel()
            await asyncio.wait([serving])
    return counts[0], counts[1], soaking


def main() -> None:
    """Read the command line, ask, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help=f"after {WARM_UP} that warm it up")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="how many are asked at a time")
    parser.add_argument("--model", default="nano", help="nano, or a checkpoint's folder")
    given = parser.parse_args()
    began_s = time.monotonic()
    engine = Engine(given.model)
    before, after, soaking = asyncio.run(soak(engine, given.requests, given.at_once))
    print(f"after {WARM_UP} requests: {before}")
    print(f"after {WARM_UP + given.requests} requests: {after}")
    print(", ".join(f"{many} {kind}" for kind, many in sorted(soaking.kinds.items())))
    for fault in soaking.faults[:20]:
        print(fault)
    names = grew(before, after)
    print(f"grew: {', '.join(names)}" if names else "nothing grew")
    many = f"{len(soaking.faults)} answers differ or hang" if soaking.faults else "every answer as alone"
    print(f"{many}; {time.monotonic() - began_s:.0f} s")
    sys.exit(1 if names or soaking.faults else 0)


if __name__ == "__main__":
    main()
