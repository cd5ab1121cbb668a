"""The command `pilotfish serve`: the in-process model for other agents, over HTTP on this machine."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from pilotfish.agent.cli_options import Attention, ModelName, settings_of
from pilotfish.agent.cli_output import Json, print_result

TOKEN_FILE = Path("~/.config/pilotfish/token")


def add_to(app: typer.Typer) -> None:
    """Make it a command of `pilotfish`."""
    app.command()(serve)


def serve(
    model: ModelName = None,
    attention: Attention = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")
    ] = 8765,
    socket: Annotated[
        Path | None, typer.Option(help="A Unix socket instead of a port; only you can use it.")
    ] = None,
    token_file: Annotated[
        Path, typer.Option(help="Holds the token that clients send as API key; made if it is not there.")
    ] = TOKEN_FILE,
    as_json: Json = False,
) -> None:
    """Serve the model to other agents: OpenAI's chat completions and Anthropic's messages.

    Prints the address once it listens, and serves until Ctrl-C. Nothing but this machine can reach it.
    """
    from pilotfish.agent.show import say
    from pilotfish.model.engine import Engine
    from pilotfish.model.serving.run import close, listen, token_in
    from pilotfish.model.serving.run import serve as answer

    settings = settings_of(model=model, attention=attention)
    token_file = token_file.expanduser()
    token = token_in(token_file)
    opened, address = listen(port, socket)
    try:
        say(f"Loading {settings.model} ...", sys.stderr)
        engine = Engine(settings.model, attention=settings.attention)
    except BaseException:
        close(opened)
        raise

    def ready() -> None:
        result = {"address": address, "model": engine.name, "token_file": str(token_file)}
        lines = [
            f"Serving {engine.name} at {address}; the token is in {token_file}.",
            f"OpenAI clients: base URL {address}/v1. Anthropic clients: base URL {address}. Ctrl-C ends it.",
        ]
        print_result(result, as_json, lines)

    began_s = time.monotonic()

    def leaving(words: str) -> None:
        say(f"Stopping; served in {round(time.monotonic() - began_s):,} s: {words}.", sys.stderr)

    try:
        asyncio.run(answer(engine, token, opened, ready, leaving))
    finally:
        engine.close()
