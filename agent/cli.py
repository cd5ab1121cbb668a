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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.agent import cli_changes
from pilotfish.agent.cli_output import FAILED, INTERRUPTED, USAGE, Json, OutputError, Run, print_result

if TYPE_CHECKING:
    from pilotfish.agent.settings import Settings

app = typer.Typer(
    name="pilotfish",
    help="A computer-use and coding agent that runs MiniMax-M3 inside its own process.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
bench_app = typer.Typer(no_args_is_help=True, help="Measure a model on many tasks.", rich_markup_mode=None)
model_app = typer.Typer(no_args_is_help=True, help="Look at checkpoints.", rich_markup_mode=None)
app.add_typer(bench_app, name="bench")
app.add_typer(model_app, name="model")


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


ModelName = Annotated[
    str | None,
    typer.Option(
        help="nano (ships with pilotfish), a checkpoint folder, or solution (plays the task's own)."
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
Yes = Annotated[bool, typer.Option("--yes", help="Answer every approval question with yes.")]


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


def _settings(**flags: Any) -> Settings:
    from pilotfish.agent.settings import load_settings

    return load_settings(flags)


def _narrator(as_json: bool) -> Any:
    from pilotfish.agent.show import Narrator

    return Narrator(sys.stderr if as_json else sys.stdout)


def _asker(as_json: bool) -> Any:
    """Asks on the terminal where there is one; None where nobody can answer."""
    from pilotfish.agent.show import ask_on_terminal

    return ask_on_terminal if sys.stdin.isatty() and sys.stderr.isatty() and not as_json else None


def _finish_run(result: dict[str, Any], as_json: bool) -> None:
    notes = [result["host_desktop"]] if result["host_desktop"] else []
    print_result(result, as_json, [f"log   {result['folder']}", *notes])
    if result["end"] == "stopped":
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(0 if result["passed"] else FAILED)


@app.command()
def run(
    task: Annotated[
        str | None, typer.Argument(help="A task that ships, as suite/id, or the path of a task file.")
    ] = None,
    instruction: Annotated[str | None, typer.Option(help="What to do, instead of a task.")] = None,
    workspace: Annotated[
        Path | None, typer.Option(help="With --instruction: the folder to work in. Default: a fresh one.")
    ] = None,
    desktop: Annotated[
        bool, typer.Option("--desktop", help="With --instruction: give it a desktop.")
    ] = False,
    tools: Annotated[
        str | None, typer.Option(help="With --instruction: tools by name, as computer,shell,edit,browser.")
    ] = None,
    host: Annotated[
        bool,
        typer.Option(
            "--host", help="With --instruction: act on YOUR OWN X11 DESKTOP, NOT SANDBOXED, asking each time."
        ),
    ] = False,
    monitor: Annotated[
        str | None,
        typer.Option(help="With --host: a name or number of `xrandr --listmonitors`. Default: the primary."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a MiniWoB++ task.")] = None,
    review: Annotated[
        bool,
        typer.Option(
            "--review", help="With --workspace: work in a copy of it; `pilotfish apply` brings it over."
        ),
    ] = False,
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
    as_json: Json = False,
) -> None:
    """Do one task in a fresh sandbox, and record every step.

    The model watches the sandbox's screen and acts with its tools; nothing runs on this machine itself. With
    --host, mouse and keyboard act on your own desktop, and all else stays in the sandbox: Ctrl+Alt+Escape, or
    the pointer pushed into a corner, stops that at once. The run's folder holds the log and the frames;
    `pilotfish replay` shows it, `pilotfish resume` goes on with it. The exit status is 0 only if the task was
    solved.

    Examples:

      pilotfish run miniwob/click-tab --seed 7

      pilotfish run my-task.yaml --model ~/models/MiniMax-M3

      pilotfish run --instruction "Mend the failing test." --workspace ~/project

      pilotfish run --instruction "Read the manual at example.com." --allow-host example.com:443
    """
    if (task is None) == (instruction is None):
        raise typer.BadParameter("give either a TASK or --instruction")
    if task is not None and (workspace or desktop or tools or host):
        raise typer.BadParameter(
            "--workspace, --desktop, --host and --tools go with --instruction; a task file has its own"
        )
    if review and workspace is None:
        raise typer.BadParameter("--review goes with --workspace")
    if host and desktop:
        raise typer.BadParameter("--desktop is one in the sandbox, --host is your own; give one of them")
    if monitor is not None and not host:
        raise typer.BadParameter("--monitor goes with --host")
    from pilotfish.agent.run import Target, run_target

    settings = _settings(
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
    if host and settings.yes and not yes:
        raise typer.BadParameter("the setting yes does not hold for --host; give the flag --yes, or unset it")
    target = Target(
        task=_absolute(task),
        instruction=instruction,
        workspace=str(workspace.absolute()) if workspace else None,
        desktop=desktop,
        tools=tuple(name.strip() for name in tools.split(",") if name.strip()) if tools else (),
        seed=seed,
        review=review,
        host=host,
        monitor=monitor,
    )
    result = asyncio.run(run_target(target, settings, ask=_asker(as_json), on_event=_narrator(as_json)))
    _finish_run(result, as_json)


def _absolute(task: str | None) -> str | None:
    """A task file by its absolute path, so that the run can be resumed from anywhere."""
    return str(Path(task).absolute()) if task is not None and Path(task).exists() else task


@app.command()
def resume(folder: Run, yes: Yes = False, as_json: Json = False) -> None:
    """Go on with a run that was killed or stopped.

    Finished steps are kept. A call that was running when the run was killed is shown to the model as an
    unknown outcome and is not repeated. Where a screen cannot be brought back, the episode starts again and
    the log keeps both. A benchmark goes on with the first episode that has no end.
    """
    from pilotfish.agent.events import option_of, read_run
    from pilotfish.agent.show import say

    found = read_run(folder)
    for warning in found.warnings:
        say(warning, sys.stderr)
    started = found.started
    if found.ended is not None and found.ended.status == "finished":
        raise typer.BadParameter(f"the run {started.run} has finished; there is nothing to resume")
    saved = option_of(started, "settings")
    settings = _settings(**saved | ({"yes": True} if yes else {}))
    if started.command == "bench":
        from pilotfish.agent.bench_report import plan_of

        _bench(plan_of(started), settings, folder, as_json)
    from pilotfish.agent.run import resume_target

    result = asyncio.run(resume_target(found, settings, ask=_asker(as_json), on_event=_narrator(as_json)))
    _finish_run(result, as_json)


def _bench(plan: Any, settings: Settings, folder: Path | None, as_json: bool) -> None:
    from pilotfish.agent.bench import run_bench, slots, terminal_progress
    from pilotfish.agent.bench_report import table

    progress = terminal_progress(sum(1 for _ in slots(plan)))
    result = asyncio.run(run_bench(plan, settings, folder=folder, progress=progress))
    print(file=sys.stderr)
    lines = [table(result), f"log   {result['folder']}"]
    if not result["complete"]:
        lines.append(f"Not all was played; pilotfish resume {result['folder']} goes on where this ended.")
    print_result(result, as_json, lines)
    raise typer.Exit(0 if result["complete"] else INTERRUPTED)


def _start_bench(plan: Any, settings: Settings, resume: bool, as_json: bool) -> None:
    from pilotfish.agent.bench import find_unfinished

    _bench(plan, settings, find_unfinished(plan, settings) if resume else None, as_json)


Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the newest unfinished run of the same measurement.")
]


@bench_app.command("miniwob")
def bench_miniwob(
    tasks: Annotated[str, typer.Option(help="Tasks by name, as click-test,enter-text. Default: all.")] = "",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 10,
    seed: Annotated[
        int | None, typer.Option(min=0, help="First seed. Default: the first one that training never used.")
    ] = None,
    limits: Annotated[
        str, typer.Option(help="untimed, or classic: the page's own clock, 10 s in most tasks.")
    ] = "untimed",
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also play random clicks, as a baseline.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="Print the names of the tasks and end.")] = False,
    model: ModelName = None,
    attention: Attention = None,
    record_dir: RecordDir = None,
    max_steps: MaxSteps = None,
    temperature: Temperature = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Measure a model on MiniWoB++, from pixels alone, in the sandbox.

    Prints for each task the share of episodes that the page rewarded, with a 95 % Wilson interval, the
    steps, and the wall-clock seconds per step (median and 95th percentile). The exit status is 0 if the
    measurement is complete, however the model did.
    """
    from pilotfish.agent.bench import plan_miniwob
    from pilotfish.tasks.miniwob_tasks import HELD_OUT, MINIWOB_TASKS

    if listing:
        lines = [f"{name}{'  (held out)' if name in HELD_OUT else ''}" for name in MINIWOB_TASKS]
        print_result({"tasks": list(MINIWOB_TASKS), "held_out": sorted(HELD_OUT)}, as_json, lines)
        return
    if limits not in ("classic", "untimed"):
        raise typer.BadParameter(f"--limits is '{limits}'; choose classic or untimed")
    settings = _settings(
        model=model, attention=attention, record_dir=record_dir, max_steps=max_steps, temperature=temperature
    )
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    plan = plan_miniwob(names, episodes=episodes, seed=seed, limits=limits, baseline=baseline)
    _start_bench(plan, settings, resume, as_json)


@bench_app.command("tasks")
def bench_tasks(
    suites: Annotated[
        list[str] | None,
        typer.Argument(help="Suites that ship, or folders of task files. Default: all that ship."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 1,
    model: ModelName = None,
    attention: Attention = None,
    record_dir: RecordDir = None,
    max_steps: MaxSteps = None,
    temperature: Temperature = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Measure a model on suites of task files.

    With `--model solution` the reference solutions are played, which shows that every task can be done.
    """
    from pilotfish.agent.bench import plan_tasks

    settings = _settings(
        model=model, attention=attention, record_dir=record_dir, max_steps=max_steps, temperature=temperature
    )
    _start_bench(plan_tasks(suites or [], episodes=episodes), settings, resume, as_json)


@app.command()
def replay(
    folder: Run,
    out: Annotated[
        Path | None, typer.Option(help="Where to write. Default: replay.html in the run's folder.")
    ] = None,
    episode: Annotated[int | None, typer.Option(help="Only this episode of a benchmark.")] = None,
    atif: Annotated[
        Path | None, typer.Option(help="Write an ATIF v1.8 trajectory to this file instead of a page.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained page that replays a run, and print its path.

    The page needs no network. The arrow keys walk through steps and frames, space plays.
    """
    from pilotfish.agent.events import LogError, read_run
    from pilotfish.agent.replay import write_replay
    from pilotfish.agent.show import say

    found = read_run(folder)
    for warning in found.warnings:
        say(warning, sys.stderr)
    if atif is not None:
        from pilotfish.agent.atif import to_atif

        document = json.dumps(to_atif(found, episode), indent=1)
        try:
            atif.write_text(document + "\n", encoding="utf-8")
        except OSError as error:
            raise LogError(f"Cannot write {atif} ({error.strerror}); choose another file.") from error
        path = atif
    else:
        path = write_replay(found, out, episodes=None if episode is None else [episode])
    print_result({"run": found.started.run, "path": str(path)}, as_json, [str(path)])


cli_changes.add_to(app)


@app.command()
def doctor(model: ModelName = None, record_dir: RecordDir = None, as_json: Json = False) -> None:
    """Check every piece that a run needs, and say how to mend what is missing.

    The exit status is 0 if everything that is needed works; a GPU and the MiniWoB++ pages are optional.
    """
    from pilotfish.agent.doctor import OPTIONAL, examine

    pieces = examine(_settings(model=model, record_dir=record_dir))
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


@app.command()
def demo(
    model: ModelName = None, attention: Attention = None, record_dir: RecordDir = None, as_json: Json = False
) -> None:
    """Watch the model that ships solve a small task on a real page, and write the replay page.

    Runs in the sandbox and prints every step; afterwards it writes the replay page and prints its path. The
    exit status is 0 only if the task was solved.
    """
    from pilotfish.agent.events import read_run
    from pilotfish.agent.replay import write_replay
    from pilotfish.agent.run import DEMO_SEED, DEMO_TASK, Target, run_target

    settings = _settings(model=model, attention=attention, record_dir=record_dir)
    target = Target(task=DEMO_TASK, seed=DEMO_SEED)
    result = asyncio.run(run_target(target, settings, on_event=_narrator(as_json), command="demo"))
    result["replay"] = str(write_replay(read_run(Path(result["folder"]))))
    if not as_json:
        print_result(result, False, [f"page  {result['replay']}"])
    _finish_run(result, as_json)


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version."""
    from pilotfish import __version__

    print_result({"version": __version__}, as_json, [__version__])


if __name__ == "__main__":
    main()
