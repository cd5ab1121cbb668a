"""The command `pilotfish`. Each command is read here and done elsewhere; heavy modules load when one runs.

Standard output carries the result, and with `--json` exactly one JSON object, which is
`{"error": sentence}` when there is no result. Everything else goes to standard error. The exit status is 0
on success only, 2 when the command itself was wrong, 130 after Ctrl-C and 143 after SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from pilotfish.agent import (
    cli_changes,
    cli_code,
    cli_index,
    cli_look,
    cli_run,
    cli_serve,
    cli_steer,
    cli_train,
    cli_tui,
    cli_watch,
)
from pilotfish.agent.cli_bench import bench_app
from pilotfish.agent.cli_output import FAILED, USAGE, OutputError
from pilotfish.agent.stopping import STOPPED, ended_by_signals, exit_status


class Interrupted(Exception):
    """Ctrl-C or SIGTERM, which typer would turn into an exit status of its own."""


class _Commands(TyperGroup):
    def make_context(self, *words: Any, **extra: Any) -> Any:
        with _interruption_named():
            return super().make_context(*words, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _interruption_named():
            return super().invoke(ctx)


@contextlib.contextmanager
def _interruption_named() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted from error


app = typer.Typer(
    name="pilotfish",
    cls=_Commands,
    help="A computer-use and coding agent that runs MiniMax-M3 inside its own process.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
cli_run.add_to(app)
cli_tui.add_to(app)
cli_code.add_to(app)
app.add_typer(bench_app, name="bench")
cli_look.add_to(app)
app.add_typer(cli_index.index_app, name="index")
cli_changes.add_to(app)
cli_serve.add_to(app)
cli_train.add_to(app)
cli_watch.add_to(app)
cli_steer.add_to(app)


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
    with ended_by_signals():
        status = _main()
        if status >= STOPPED:
            _leave(status)
        sys.exit(status)


def _main() -> int:
    try:
        return app(prog_name="pilotfish", standalone_mode=False) or 0
    except (Interrupted, KeyboardInterrupt, asyncio.CancelledError):
        _say_as_json("The command was interrupted.")
        with contextlib.suppress(OSError):
            print("pilotfish: The command was interrupted.", file=sys.stderr, flush=True)
        return exit_status()
    except BrokenPipeError:
        # Whoever read our output has gone; nothing more can be said there.
        _drop_output()
        return FAILED
    except OutputError as error:
        print(f"pilotfish: {error}", file=sys.stderr)
        _drop_output()
        return FAILED
    except Exception as error:
        return _explain(error)


def _leave(status: int) -> NoReturn:
    """End the process here: nothing is left to be put in order, and taking down libraries that were being
    loaded takes seconds, or ends it by a signal of its own.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


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
    from pilotfish.agent.cli_usage import is_help, usage
    from pilotfish.agent.control.client import ControlError
    from pilotfish.agent.control.spawn import StartError
    from pilotfish.agent.events import LogError
    from pilotfish.agent.recorder import CaptureError
    from pilotfish.agent.settings import SettingsError
    from pilotfish.agent.show import say
    from pilotfish.model.protocol import ModelError
    from pilotfish.sandbox import SandboxError
    from pilotfish.tasks.reader import TaskError
    from pilotfish.tools.index.listing import IndexingError

    if hasattr(error, "format_message"):  # typer's own, about the command line
        sentence = usage(error)
        _say_as_json(sentence)
        say(sentence if is_help(error) else f"pilotfish: {sentence}", sys.stderr)
        return USAGE
    if isinstance(error, SettingsError | TaskError):
        _say_as_json(str(error))
        say(f"pilotfish: {error}", sys.stderr)
        return USAGE
    known = LogError | ModelError | SandboxError | CaptureError | IndexingError | ControlError | StartError
    if isinstance(error, known):
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
