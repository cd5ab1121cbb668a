"""`pilotfish` with a scripted model. The first two arguments are files: the calls that it makes, and what it
was told so far; the rest is the command line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pilotfish.agent import cli, run
from pilotfish.model.protocol import Message, ToolCall, ToolSpec
from pilotfish.model.scripted import ScriptedModel


def main() -> None:
    """Each call is an object of arguments; `{"think": seconds}` before one makes the model slow."""
    calls = json.loads(Path(sys.argv.pop(1)).read_text())
    seen = Path(sys.argv.pop(1))

    async def answer(conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        texts = [part for message in conversation for part in message.parts if isinstance(part, str)]
        await asyncio.to_thread(seen.write_text, "\n".join(texts))
        call = dict(calls.pop(0))
        await asyncio.sleep(call.pop("think", 0))
        name = call.pop("tool", "computer")
        return Message("assistant", (), None, (ToolCall("c", name, call),))

    run.open_model = lambda settings: lambda task: ScriptedModel(answer)  # type: ignore[assignment]
    cli.main()


if __name__ == "__main__":
    main()
