"""The options that several commands share, and what is made of them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pilotfish.agent.control.attending import People
    from pilotfish.agent.settings import Settings

ModelName = Annotated[
    str | None,
    typer.Option(
        help="nano (ships with pilotfish), a checkpoint folder, openai:URL#NAME (a server's model), or "
        "solution (plays the task's own)."
    ),
]
Attention = Annotated[
    str | None, typer.Option(help="sparse (M3's own) or dense (attends to every key, for comparison).")
]
RecordDir = Annotated[Path | None, typer.Option(help="Where run folders are made. Default: runs.")]
MaxSteps = Annotated[int | None, typer.Option(help="Calls per episode. Default: the task's own limit.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Seconds per episode. Default: the task's own limit.")]
Temperature = Annotated[float | None, typer.Option(help="0 takes the likeliest token each time.")]
Thinking = Annotated[str | None, typer.Option(help="enabled, disabled or adaptive.")]
Logprobs = Annotated[
    bool, typer.Option("--logprobs", help="Keep every token's log-probability in the run's log.")
]
SandboxLevel = Annotated[
    int | None,
    typer.Option(help="3 (default), 2 (no namespaces, display or browser) or 0 (NO SANDBOX AT ALL)."),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST:PORT",
        help="A host that programs inside may reach, as example.com:443; may be repeated. Default: none.",
    ),
]
Repositories = Annotated[
    Path | None, typer.Option(help="For SWE-bench: the folder of clones, as OWNER/NAME or OWNER__NAME.")
]
TestCommand = Annotated[
    str | None,
    typer.Option(
        help="For SWE-bench: the bash command that runs the tests, {files} for their files. Default: pytest."
    ),
]
TestEnvironment = Annotated[
    Path | None,
    typer.Option(
        help="For SWE-bench: a virtual environment to work and test with. Default: python3 with pytest."
    ),
]
Supervised = Annotated[
    bool,
    typer.Option("--supervised", help="Wait for somebody to connect who answers questions (pilotfish tui)."),
]
FolderTo = Annotated[
    int | None,
    typer.Option(
        "--folder-to", hidden=True, help="A descriptor to write to what is waited for, then the run's folder."
    ),
]
DefaultVerdict = Annotated[
    str | None,
    typer.Option(help="What is done with calls that no rule names: allow (default), ask or deny."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Allow every call that is asked about.")]


def settings_of(**flags: Any) -> Settings:
    """The settings with these flags over them; None was not given. Tells of variables that are none."""
    from pilotfish.agent.settings import Settings, load_settings
    from pilotfish.agent.spelling import unknown_variables

    for warning in unknown_variables(Settings.model_fields):
        warn(warning)
    return load_settings(flags)


def swe_bench(
    repositories: Path | None, test_command: str | None, test_environment: Path | None
) -> dict[str, Any] | None:
    """The table of settings in these flags; None where none was given."""
    given = {
        "repositories": repositories,
        "test_command": test_command,
        "test_environment": test_environment,
    }
    return {name: value for name, value in given.items() if value is not None} or None


def warn(sentence: str) -> None:
    """Tell a person something that does not keep the command from going on."""
    from pilotfish.agent.show import say

    say(f"pilotfish: {sentence}", sys.stderr)


def names_in(words: Iterable[str]) -> list[str]:
    """The names in a list that a person typed, with commas or spaces between them."""
    return [name for word in words for name in word.replace(",", " ").split()]


def watched(as_json: bool) -> dict[str, Any]:
    """Who tells the steps of a run, where they are not in the way of the result, as arguments of the run."""
    from pilotfish.agent.show import Narrator

    narrator = Narrator(sys.stderr if as_json else sys.stdout)
    return {"on_event": narrator, "on_progress": narrator.on_progress}


def people(as_json: bool, supervised: bool = False, folder_to: int | None = None) -> People:
    """Who is beside a run: somebody at the terminal, where there is one, and whoever is expected."""
    from pilotfish.agent.control.attending import People
    from pilotfish.agent.terminal_approval import ask_on_terminal

    if folder_to is not None:
        with contextlib.suppress(OSError):
            os.set_inheritable(folder_to, False)  # it is to end with this process, not with a program of it

    def wait(what: str) -> None:
        if folder_to is not None:
            with contextlib.suppress(OSError):
                os.write(folder_to, os.fsencode(what) + b"\n")

    def tell(folder: Path) -> None:
        if folder_to is not None:
            with contextlib.suppress(OSError):
                os.write(folder_to, os.fsencode(folder.absolute()) + b"\n")
                os.close(folder_to)

    at_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty() and not as_json
    return People(ask_on_terminal if at_terminal else None, supervised, tell, wait)
