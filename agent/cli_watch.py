"""The command `pilotfish watch`: the replay page of a run that goes on, for browsers of this machine."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from pilotfish.agent.cli_output import Json, Run, print_result


def add_to(app: typer.Typer) -> None:
    """Make it a command of `pilotfish`."""
    app.command()(watch)


def watch(
    folder: Run,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    as_json: Json = False,
) -> None:
    """Serve the replay page of a run while it goes on, and print its address.

    Nothing but this machine can reach it, and only who has the token behind the # of the address. It goes on
    after the run has ended, until Ctrl-C.
    """
    from pilotfish.agent.events import LogError
    from pilotfish.agent.replay.following import Following
    from pilotfish.agent.replay.live import LivePage, serve_live
    from pilotfish.model.serving.run import close, listen

    following = Following(folder)
    opened, address = listen(port, None)

    async def serve() -> None:
        page = LivePage(following, opened.getsockname()[1])
        url = f"{address}/#{page.token}"
        result = {"run": folder.name, "url": url}
        await serve_live(page, opened, lambda: print_result(result, as_json, [url, "Ctrl-C ends it."]))

    try:
        asyncio.run(serve())
    except LogError:
        close(opened)
        raise
