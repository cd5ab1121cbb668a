"""The commands that look at what there is: show, replay, doctor, model info and version."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pilotfish.agent.cli_options import ModelName, RecordDir, settings_of
from pilotfish.agent.cli_output import FAILED, Json, Run, print_result
from pilotfish.agent.stopping import exit_status

MAX_MIB = 256
"""Of frames in a replay page, unless another limit is given."""
model_app = typer.Typer(no_args_is_help=True, help="Look at checkpoints.", rich_markup_mode=None)


def add_to(app: typer.Typer) -> None:
    """Make them commands of `pilotfish`."""
    for command in (show, replay, doctor, version):
        app.command()(command)
    app.add_typer(model_app, name="model")


def show(folder: Run, as_json: Json = False) -> None:
    """Tell the steps of a run from its log, what each answer cost, and what all of them did.

    A number behind a call is the probability that the model gave it.
    """
    from pilotfish.agent.accounts import in_words, totals
    from pilotfish.agent.events import Answered, EpisodeStarted, read_run, undone
    from pilotfish.agent.show import Narrator, say

    found = read_run(folder)
    for warning in found.warnings:
        say(warning, sys.stderr)
    started, used, gone = found.started, totals(found.events), undone(found.events)
    if as_json:
        answers = []
        episode = None
        for event in found.events:
            if isinstance(event, EpisodeStarted):
                episode = event.episode
            elif isinstance(event, Answered):
                said = event.model_dump(exclude={"v", "n", "t", "type"})
                answers.append({"episode": episode, "undone": event.n in gone, **said})
        status = found.ended.status if found.ended else "open"
        result = {"run": started.run, "model": started.model, "status": status, "usage": used.as_json()}
        print_result(result | {"answers": answers}, True, [])
        return
    narrate = Narrator(sys.stdout, accounts=True, undone=gone)
    for event in found.events:
        narrate(event)
    print_result({}, False, [f"used  {', '.join(in_words(used)) or 'nothing that is known'}"])


def replay(
    folder: Run,
    out: Annotated[
        Path | None, typer.Option(help="Where to write. Default: replay.html in the run's folder.")
    ] = None,
    episode: Annotated[int | None, typer.Option(help="Only this episode of a benchmark.")] = None,
    atif: Annotated[
        Path | None, typer.Option(help="Write an ATIF v1.8 trajectory to this file instead of a page.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Instead of a page: execute the calls again and tell where frames or texts differ.",
        ),
    ] = False,
    beside: Annotated[
        Path | None,
        typer.Option(
            "--with", readable=False, help="A run to show beside it: where they part, what each cost."
        ),
    ] = None,
    max_mib: Annotated[
        float, typer.Option(min=0, help="Of frames; what is beyond is left out, spread evenly.")
    ] = MAX_MIB,
    as_json: Json = False,
) -> None:
    """Write one self-contained page that replays a run, and print its path.

    The page needs no network. The arrow keys walk through steps and frames, space plays, ? tells the rest.

    With --check, the recorded calls are executed again in a fresh sandbox without a network or a model, on
    the files of before the first call; pictures of what differs lie beside the log. The exit status is then 0
    only if nothing differs.
    """
    from pilotfish.agent.events import LogError, read_run
    from pilotfish.agent.replay import write_replay
    from pilotfish.agent.run_folder import find_run
    from pilotfish.agent.show import say

    found = read_run(folder)
    for warning in found.warnings:
        say(warning, sys.stderr)
    if beside is not None and (check or atif is not None):
        raise typer.BadParameter("--with shows two runs in a page; leave out --check and --atif")
    if check:
        if out is not None or atif is not None:
            raise typer.BadParameter("--check writes no page; leave out --out and --atif")
        from pilotfish.agent.check_report import check_run, report_lines

        report = check_run(found, episode, as_json=as_json)
        print_result(report, as_json, report_lines(report))
        raise typer.Exit(exit_status() if report["stopped"] else 0 if report["equal"] else FAILED)
    if atif is not None:
        from pilotfish.agent.atif import to_atif
        from pilotfish.agent.whole_file import write_whole

        document = json.dumps(to_atif(found, episode), indent=1)
        try:
            write_whole(atif, f"{document}\n".encode())
        except OSError as error:
            raise LogError(f"Cannot write {atif} ({error.strerror}); choose another file.") from error
        path = atif
    else:
        other = None if beside is None else read_run(find_run(beside))
        shown = None if episode is None else [episode]
        path = write_replay(found, out, episodes=shown, other=other, max_mib=max_mib)
    print_result({"run": found.started.run, "path": str(path)}, as_json, [str(path)])


def doctor(model: ModelName = None, record_dir: RecordDir = None, as_json: Json = False) -> None:
    """Check every piece that a run needs, and say how to mend what is missing.

    The exit status is 0 if everything that is needed works; a GPU and the MiniWoB++ pages are optional.
    """
    from pilotfish.agent.doctor import OPTIONAL, examine

    pieces = examine(settings_of(model=model, record_dir=record_dir))
    lines = []
    for piece in pieces:
        mark = "ok     " if piece.ok else ("absent " if piece.name in OPTIONAL else "MISSING")
        mend = f"; {piece.mend}" if piece.mend and not piece.ok else ""
        lines.append(f"{mark} {piece.name}: {piece.detail}{mend}")
    good = all(piece.ok or piece.name in OPTIONAL for piece in pieces)
    found = [
        {"name": p.name, "ok": p.ok, "needed": p.name not in OPTIONAL, "detail": p.detail, "mend": p.mend}
        for p in pieces
    ]
    print_result({"ok": good, "pieces": found}, as_json, lines)
    raise typer.Exit(0 if good else FAILED)


@model_app.command("info")
def model_info(
    path: Annotated[str, typer.Argument(help="nano, or the folder of a checkpoint.")] = "nano",
    as_json: Json = False,
) -> None:
    """Describe a checkpoint: sizes, layers, tokenizer, memory."""
    from pilotfish.model.info import describe

    facts = describe(path)
    print_result(facts, as_json, [f"{name}: {value}" for name, value in facts.items()])


def version(as_json: Json = False) -> None:
    """Print the version."""
    from pilotfish import __version__

    print_result({"version": __version__}, as_json, [__version__])
