"""The command `pilotfish`. Each command is read here and done elsewhere; heavy modules load when one runs.

Standard output carries the result, and with `--json` exactly one JSON object, which is
`{"error": sentence}` when there is no result. Everything else goes to standard error. The exit status is 0
on success only, 2 when the command itself was wrong, 130 after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import traceback
from typing import Annotated

import typer

from pilotfish.agent import cli_changes, cli_look, cli_run, cli_serve
from pilotfish.agent.cli_bench import bench_app
from pilotfish.agent.cli_output import FAILED, INTERRUPTED, USAGE, OutputError

app = typer.Typer(
    name="pilotfish",
    help="A computer-use and coding agent that runs MiniMax-M3 inside its own process.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
cli_run.add_to(app)
app.add_typer(bench_app, name="bench")
cli_look.add_to(app)
cli_changes.add_to(app)
cli_serve.add_to(app)


def _tell_version(asked: bool) -> None:
    if asked:
        from pilotfish import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A computer-use and coding agent that runs MiniMax-M3 inside its own process."""


def main() -> None:
    """The entry point: runs the command and turns every failure into one sentence and an exit status."""
    try:
        app()
    except SystemExit as ended:
        # typer tells on standard error what is wrong with the command itself; Ctrl-C it ends silently.
        why = ended.__context__
        if (told := getattr(why, "format_message", None)) is not None:
            _say_as_json(told())
        elif isinstance(why, typer.Exit) and isinstance(why.__cause__, KeyboardInterrupt):
            _say_as_json("The command was interrupted.")
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say_as_json("The command was interrupted.")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; nothing more can be said there.
        _drop_output()
        sys.exit(FAILED)
    except OutputError as error:
        print(f"pilotfish: {error}", file=sys.stderr)
        _drop_output()
        sys.exit(FAILED)
    except Exception as error:
        sys.exit(_explain(error))


def _drop_output() -> None:
    """Let what standard output still holds go nowhere, so that ending the process does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_as_json(sentence: str) -> None:
    """Give the reason for there being no result to whoever asked for a JSON object."""
    if "--json" in sys.argv[1:]:
        with contextlib.suppress(OSError):
            print(json.dumps({"error": sentence}), flush=True)


def _explain(error: Exception) -> int:
    """Say what went wrong; returns the exit status."""
    from pilotfish.agent.events import LogError
    from pilotfish.agent.recorder import CaptureError
    from pilotfish.agent.settings import SettingsError
    from pilotfish.agent.show import say
    from pilotfish.model.protocol import ModelError
    from pilotfish.sandbox import SandboxError
    from pilotfish.tasks.reader import TaskError

    if isinstance(error, SettingsError | TaskError):
        _say_as_json(str(error))
        say(f"pilotfish: {error}", sys.stderr)
        return USAGE
    if isinstance(error, LogError | ModelError | SandboxError | CaptureError):
        _say_as_json(str(error))
        say(f"pilotfish: {error}", sys.stderr)
        return FAILED
    if isinstance(error, PermissionError) and error.filename is not None:
        sentence = f"Cannot use {error.filename} ({error.strerror}); check its permissions."
        _say_as_json(sentence)
        say(f"pilotfish: {sentence}", sys.stderr)
        return FAILED
    with tempfile.NamedTemporaryFile("w", prefix="pilotfish-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    kind = type(error).__name__
    sentence = f"An unexpected {kind} stopped the command; its traceback is in {file.name}."
    _say_as_json(sentence)
    say(f"pilotfish: {sentence}", sys.stderr)
    return FAILED


if __name__ == "__main__":
    main()
