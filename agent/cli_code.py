"""The command `pilotfish code`, and what it prints."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from pilotfish.agent.cli_options import (
    AllowHost,
    Attention,
    FolderTo,
    MaxSeconds,
    MaxSteps,
    ModelName,
    RecordDir,
    SandboxLevel,
    Supervised,
    Temperature,
    Thinking,
    Yes,
    people,
    settings_of,
    watched,
)
from pilotfish.agent.cli_output import FAILED, Json, print_result
from pilotfish.agent.stopping import exit_status

_DIFF_LINES = 200


def add_to(app: typer.Typer) -> None:
    """Make it a command of `pilotfish`."""
    app.command()(code)


def code(
    repository: Annotated[Path, typer.Argument(help="A git repository of any kind, or a plain folder.")],
    instruction: Annotated[str, typer.Argument(help="What to do there.")],
    test: Annotated[
        str | None, typer.Option(help="The command that runs the tests. Default: found from its files.")
    ] = None,
    test_seconds: Annotated[
        float, typer.Option(min=1, help="After which a run of the tests is ended.")
    ] = 900,
    attempts: Annotated[int, typer.Option(min=1, help="How often the work is tested and may go on.")] = 3,
    branch: Annotated[
        str | None, typer.Option(help="Make the result a new branch of your repository, not checked out.")
    ] = None,
    patch: Annotated[
        Path | None, typer.Option(help="Write the patch here. Default: into the run's folder.")
    ] = None,
    context_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="What of the repository stands before the task, in tokens. Default: half of the model's "
            "context, at most 262,144, and nothing for a server's model. 0: nothing.",
        ),
    ] = None,
    model: ModelName = None,
    attention: Attention = None,
    record_dir: RecordDir = None,
    max_steps: MaxSteps = None,
    max_seconds: MaxSeconds = None,
    temperature: Temperature = None,
    thinking: Thinking = None,
    sandbox_level: SandboxLevel = None,
    allow_host: AllowHost = None,
    yes: Yes = False,
    supervised: Supervised = False,
    folder_to: FolderTo = None,
    as_json: Json = False,
) -> None:
    """Have a change made to a whole repository, tested, and handed back as a patch.

    The work is done in a copy, with what is not committed in it; your folder, index, refs and settings stay
    as they are. The project's own tests are run before and after, in the sandbox, and the model is told what
    fails. The exit status is 0 if the model said that it has finished and no test fails that passed before.
    Settings without a flag, in pilotfish.toml or as PILOTFISH_NAME: answer_tokens and answer_seconds (of one
    answer), max_tokens (of all), top_p, server, limits, rules, default_verdict; docs/code.md explains them.

    Examples:

      pilotfish code ~/project "Mend the failing test." --model ~/models/MiniMax-M3

      pilotfish code . "Add a --quiet flag." --test "make check" --branch quiet
    """
    from pilotfish.agent.code import CodeTarget, run_code

    settings = settings_of(
        model=model,
        attention=attention,
        record_dir=record_dir,
        max_steps=max_steps,
        max_seconds=max_seconds,
        temperature=temperature,
        thinking=thinking,
        sandbox_level=sandbox_level,
        network=allow_host or None,
        yes=yes or None,
    )
    target = CodeTarget(
        repository=str(repository.absolute()),
        instruction=instruction,
        tests=test,
        test_seconds=test_seconds,
        attempts=attempts,
        branch=branch,
        patch=None if patch is None else str(patch.absolute()),
        context_tokens=context_tokens,
    )
    who = people(as_json, supervised, folder_to)
    result = asyncio.run(run_code(target, settings, people=who, **watched(as_json)))
    finish_code(result, as_json)


def finish_code(result: dict[str, Any], as_json: bool) -> None:
    """Print what came of it, and end with its exit status."""
    print_result(result, as_json, [] if as_json else result_lines(result))
    if result["end"] == "stopped":
        raise typer.Exit(exit_status())
    good = result["passed"] if result["graded"] else result["end"] in ("done", "answered")
    raise typer.Exit(0 if good and not result["undone"] else FAILED)


def result_lines(result: dict[str, Any]) -> list[str]:
    """The result for a person: the diff, the summary, the tests, and how to go on."""
    from pilotfish.agent.safetext import visible
    from pilotfish.sandbox.runs_later import who_runs

    lines = []
    if result["patch"]:
        # At line feeds alone, as git does: what stands behind another mark keeps the + before its line.
        text = Path(result["patch"]).read_bytes().decode("utf-8", "replace").removesuffix("\n").split("\n")
        lines += text[:_DIFF_LINES]
        lines += (
            [f"({len(text) - _DIFF_LINES} more lines are in the patch)"] if len(text) > _DIFF_LINES else []
        )
    lines += ["", result["answer"].strip(), ""] if result["answer"].strip() else []
    for one in result["changed"]:
        later = who_runs(one["path"])
        was = f" (was {one['before']})" if one["before"] else ""
        runs = f"  (look at it: run or obeyed by {later})" if later else ""
        lines.append(visible(f"{one['how']} {one['path']}{was}{runs}", one_line=True))
    lines += [] if result["changed"] else ["Nothing was changed."]
    lines += [visible(note, one_line=True) for note in result["notes"]]
    lines += [visible(told, one_line=True) for told in result["undone"]]
    if result["tests"]:
        lines.append(f"tests  {result['tests']['command']}: {result['tests']['verdict'] or 'not run again'}")
    if result["branch"]:
        lines.append(f"branch {result['branch']} at {result['commit'][:12]}, not checked out")
    if result["patch"]:
        lines.append(f"patch  {result['patch']}")
        # git looks for a relative path in the repository; a bare one has no files to put it on.
        if not all((Path(result["repository"]) / name).exists() for name in ("HEAD", "objects", "refs")):
            put = ["git", "-C", result["repository"], "apply", str(Path(result["patch"]).absolute())]
            lines.append(f"Put it on your folder with: {shlex.join(put)}")
    lines.append(f"log    {result['folder']}")
    if result["end"] == "stopped":
        lines.append(f"Go on with:  pilotfish resume {shlex.quote(result['folder'])}")
    return lines
