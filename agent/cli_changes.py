"""The commands that look at what a run did to its workspace, and go back: snapshots, diff, restore, apply."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pilotfish.agent.cli_output import FAILED, Json, Run, print_result
from pilotfish.agent.safetext import counted, visible


def add_to(app: typer.Typer) -> None:
    """Make them commands of `pilotfish`."""
    for command in (snapshots, diff, restore, apply):
        app.command()(command)


def _changes(folder: Path) -> Any:
    from pilotfish.agent.changes import Changes
    from pilotfish.agent.events import read_run

    return Changes(read_run(folder))


def snapshots(
    folder: Run,
    remove: Annotated[str | None, typer.Option(help="Forget this snapshot, or all.")] = None,
    as_json: Json = False,
) -> None:
    """List what a run's workspace was before each call that could write to it.

    The snapshots lie in the run's folder and go with it; --remove frees their space earlier.
    """
    from dataclasses import asdict
    from datetime import datetime

    changes = _changes(folder)
    gone = 0
    if remove is not None:
        gone = len(changes.all()) + len(changes.damaged())
        changes.remove(remove)
        gone -= len(changes.all()) + len(changes.damaged())
    found = changes.all()
    damaged = changes.damaged()
    lines = [
        f"{one.id:>5}  {datetime.fromtimestamp(one.time):%Y-%m-%d %H:%M:%S}  {counted(one.files, 'file'):>13}"
        f" {counted(one.bytes, 'byte'):>20}  {one.label}"
        + (f", without {visible(one.missing, one_line=True)}" if one.others else "")
        for one in found
    ]
    lines += [f"But {sentence}" for sentence in damaged]
    if remove is not None:
        lines.insert(0, f"Removed: {gone}.")
    data = {"snapshots": [asdict(one) for one in found], "removed": gone, "damaged": damaged}
    print_result(data, as_json, lines or ["There are none."])


def diff(
    folder: Run,
    before: Annotated[str | None, typer.Argument(help="A snapshot. Default: the first.")] = None,
    after: Annotated[str | None, typer.Argument(help="A later one. Default: what is there now.")] = None,
    names: Annotated[bool, typer.Option("--names", help="Only the names, not the lines.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a run changed in its workspace, and first what is run or obeyed by itself later.

    Such are hooks and settings of git, build files, settings of editors, instructions for agents.
    """
    from pilotfish.agent.changes import diff_data, diff_lines

    found = _changes(folder).diff(before, after)
    print_result(diff_data(found), as_json, diff_lines(found, text=not names))


def restore(
    folder: Run,
    snapshot: Annotated[str | None, typer.Argument(help="Which. Default: the first.")] = None,
    as_json: Json = False,
) -> None:
    """Bring the workspace of a run back to what it was; what is there now is kept as a snapshot before.

    The exit status is 0 only if all came back.
    """
    from pilotfish.agent.changes import restored_lines

    done = _changes(folder).restore(snapshot)
    print_result(done, as_json, restored_lines(done))
    raise typer.Exit(FAILED if done["problems"] else 0)


def apply(
    folder: Run,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Where both sides changed a file, take the run's.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring what a run with --review did over to the folder it was given.

    What you changed there meanwhile stays. If a file was changed on both sides, nothing is done and the files
    are named. The exit status is 0 only if all was brought over.
    """
    from pilotfish.agent.changes import diff_data, diff_lines, written_or_removed

    changes = _changes(folder)
    work = changes.diff(None, None)
    done = changes.apply(overwrite=overwrite) | diff_data(work)
    if done["applied"]:
        lines = diff_lines(work, text=False)
        lines += [f"In {visible(done['folder'], one_line=True)} {written_or_removed(done['changed'])}."]
        if not done["ended"]:
            lines.append("The run had not come to its end: what it did may be unfinished.")
        lines += [f"The run's {visible(path, one_line=True)} replaced yours." for path in done["conflicts"]]
    else:
        lines = [
            "Nothing was brought over, as these were changed on both sides; --overwrite takes the run's:"
        ]
        lines += [f"  {visible(path, one_line=True)}" for path in done["conflicts"]]
    lines += [f"But {visible(problem, one_line=True)}." for problem in done["problems"]]
    print_result(done, as_json, lines)
    raise typer.Exit(0 if done["applied"] and not done["problems"] else FAILED)
