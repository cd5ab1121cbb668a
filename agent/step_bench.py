"""How long a step of the model takes: `python -m pilotfish.agent.step_bench`.

A conversation as the agent has it, each time with the clip of a screen that was drawn for it, which the
model has not seen. A step is timed from handing the conversation over to having its call whole: encoding the
clip, the prompt behind what is cached, and writing. The mouse, the page and the wait for the screen to come
to rest are not in it. The first two steps, in which libraries are loaded, do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch

from pilotfish.agent.conversation import Conversation
from pilotfish.agent.prompt import developer_turn, first_turn, tool_turn
from pilotfish.agent.reply import read_reply
from pilotfish.agent.stats import percentile
from pilotfish.kernels.busy import warn_when_busy
from pilotfish.model.engine import Engine
from pilotfish.model.protocol import Clip, Limits, Message, ModelError, ToolCall, Usage
from pilotfish.model.training.loader import decode
from pilotfish.model.training.studies.drawn import screen
from pilotfish.model.training.words import training_words

SIZES, STEPS_EACH, ANSWER_TOKENS = ("320x420", "1280x800"), 6, 128


@dataclass(frozen=True)
class Step:
    """One step: wall seconds, and what the model says of it."""

    seconds: float
    usage: Usage


async def measure(engine: Engine, width: int, height: int, steps: int) -> list[Step]:
    """So many steps, in episodes of at most `STEPS_EACH`, after one of two steps that is left out."""
    done: list[Step] = []
    words = training_words()
    for episode in range(1 + -(-steps // STEPS_EACH)):
        conversation = Conversation([developer_turn()], max_clips=words.max_clips, block=words.clip_block)
        shown = screen(random.Random(f"{width}x{height}:{episode}"), (width, height), 12, STEPS_EACH + 1)
        frames = [decode(png) for png in shown.frames]
        for n in range(min(STEPS_EACH, steps - len(done)) if episode else 2):
            clip = Clip(np.stack([frames[n], *[frames[n + 1]] * 3]), (0.0, 0.1, 0.2, 0.3))
            if n == 0:
                conversation.append(first_turn(shown.instruction, clip))
            else:
                conversation.append(tool_turn("ok", "settled", clip))
            limits = Limits(max_tokens=ANSWER_TOKENS, tool_choice="required")
            began = time.perf_counter()
            stop = asyncio.Event()
            reply = await read_reply(
                engine.respond(conversation.messages, [words.tool], stop=stop, limits=limits)
            )
            seconds = time.perf_counter() - began
            target = shown.steps[n + 1]["action"]  # what went before is right, whatever was answered
            conversation.append(Message("assistant", (), None, (ToolCall(str(n), "computer", target),)))
            if episode:
                done.append(Step(seconds, reply.end.usage))
    return done


def line(size: str, steps: list[Step]) -> str:
    """A row of the table."""
    seconds = [step.seconds for step in steps]

    def mean(name: str) -> float:
        return sum(getattr(step.usage, name) or 0 for step in steps) / len(steps)

    new = mean("input_tokens") - mean("cached_tokens")
    return (
        f"{size:<10} {len(steps):>5} {percentile(seconds, 0.5):>7.2f} {percentile(seconds, 0.95):>7.2f}"
        f" {mean('vision_s'):>8.2f} {mean('prefill_s'):>8.2f} {mean('decode_s'):>8.2f}"
        f" {new:>10.0f} {mean('output_tokens'):>8.1f}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure and print the table; 2 for bad arguments."""
    parser = argparse.ArgumentParser(prog="python -m pilotfish.agent.step_bench", description=__doc__)
    parser.add_argument("--model", default="nano", help="nano, or a checkpoint's folder")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--sizes", default=",".join(SIZES), help="of screens, in pixels, by comma")
    parser.add_argument("--steps", type=int, default=30, help="steps of each size")
    parser.add_argument("--threads", type=int, help="of a processor (default: half its cores)")
    given = parser.parse_args(arguments)
    sizes = []
    for size in given.sizes.split(","):
        width, _, height = size.partition("x")
        if not (width.isdecimal() and height.isdecimal() and 56 <= min(int(width), int(height)) <= 4096):
            print(f"--sizes has {size!r}; write sizes like 1280x800, of 56 to 4096 pixels.", file=sys.stderr)
            return 2
        sizes.append((size, int(width), int(height)))
    if given.steps < 1 or (given.threads is not None and not 1 <= given.threads <= 1024):
        print("--steps is at least 1, and --threads 1 to 1024.", file=sys.stderr)
        return 2
    warn_when_busy()
    try:
        engine = Engine(given.model, device=given.device)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    print(f"{engine.name}, {torch.get_num_threads()} threads; seconds, of one step and of its parts (means)")
    print("screen     steps     p50     p95   vision   prompt  writing new tokens  written")
    for size, width, height in sizes:
        print(line(size, asyncio.run(measure(engine, width, height, given.steps))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
