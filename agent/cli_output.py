"""What all commands share: the exit status, `--json`, and how a result is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

FAILED, USAGE = 1, 2

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]


def found_run(named: Path) -> Path:
    """The folder of a run that a command line names. Raises `LogError`."""
    from pilotfish.agent.run_folder import find_run

    return find_run(named)


Run = Annotated[
    Path,
    typer.Argument(
        callback=found_run,
        readable=False,  # typer would say it without the owner and the mend
        help="A run: its folder, or its id alone, such as 20261129-120000-ab12cd.",
    ),
]


class OutputError(Exception):
    """Standard output takes nothing."""


def print_result(result: dict[str, Any], as_json: bool, lines: list[str]) -> None:
    """Print a result: as one JSON object, or as these lines."""
    from pilotfish.agent.show import say

    try:
        if as_json:
            print(json.dumps(result), flush=True)
        for line in () if as_json else lines:
            say(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"Cannot write the result ({error.strerror}); send it elsewhere.") from error
