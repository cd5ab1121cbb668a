"""The commands that play one task or instruction: run, resume and demo."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pilotfish.agent.cli_bench import measure
from pilotfish.agent.cli_options import (
    AllowHost,
    Attention,
    DefaultVerdict,
    FolderTo,
    Logprobs,
    MaxSeconds,
    MaxSteps,
    ModelName,
    RecordDir,
    Repositories,
    SandboxLevel,
    Supervised,
    Temperature,
    TestCommand,
    TestEnvironment,
    Thinking,
    Yes,
    names_in,
    people,
    settings_of,
    swe_bench,
    warn,
    watched,
)
from pilotfish.agent.cli_output import FAILED, Json, Run, print_result
from pilotfish.agent.stopping import exit_status


def add_to(app: typer.Typer) -> None:
    """Make them commands of `pilotfish`."""
    for command in (run, resume, demo):
        app.command()(command)


def _finish_run(result: dict[str, Any], as_json: bool) -> None:
    from pilotfish.agent.accounts import Totals, in_words

    used = in_words(Totals(**result["usage"]))
    lines = [f"used  {', '.join(used)}"] if used else []
    lines.append(f"log   {result['folder']}")
    lines += [f"made  {path}" for path in result["predictions"]]
    lines += [result["host_desktop"]] if result["host_desktop"] else []
    folder = shlex.quote(result["folder"])
    lines.append(f"See it with: pilotfish replay {folder}")
    if result["end"] == "stopped" and not result["host_desktop"]:
        lines.append(f"Go on with:  pilotfish resume {folder}")
    if not as_json:
        from pilotfish.agent.changes import ways_back
        from pilotfish.agent.events import read_run

        lines += ways_back(read_run(Path(result["folder"])))
    print_result(result, as_json, lines)
    if result["end"] == "stopped":
        raise typer.Exit(exit_status())
    # Where nothing is graded, the model's word that it has finished is all there is.
    good = result["passed"] if result["graded"] else result["end"] in ("done", "answered")
    raise typer.Exit(0 if good else FAILED)


def run(
    task: Annotated[
        str | None,
        typer.Argument(
            help="A task that ships, as suite/id, the path of a task file, or FILE/id in a data set."
        ),
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
    repositories: Repositories = None,
    test_command: TestCommand = None,
    test_environment: TestEnvironment = None,
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
    logprobs: Logprobs = False,
    sandbox_level: SandboxLevel = None,
    allow_host: AllowHost = None,
    default_verdict: DefaultVerdict = None,
    yes: Yes = False,
    supervised: Supervised = False,
    folder_to: FolderTo = None,
    as_json: Json = False,
) -> None:
    """Do one task in a fresh sandbox, and record every step.

    The model watches the sandbox's screen and acts with its tools; nothing runs on this machine itself. With
    --host, mouse and keyboard act on your own desktop, and all else stays in the sandbox: Ctrl+Alt+Escape, or
    the pointer pushed into a corner, stops that at once. The run's folder holds the log and the frames;
    `pilotfish replay` shows it, `pilotfish resume` goes on with it. The exit status is 0 only if the graders
    passed it; an instruction has none, and there it is 0 if the model said that it has finished.

    Examples:

      pilotfish run miniwob/click-tab --seed 7

      pilotfish run my-task.yaml --model ~/models/MiniMax-M3

      pilotfish run my-task.yaml --model openai:http://127.0.0.1:8000/v1#MiniMaxAI/MiniMax-M3

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

    settings = settings_of(
        model=model,
        attention=attention,
        record_dir=record_dir,
        max_steps=max_steps,
        max_seconds=max_seconds,
        temperature=temperature,
        thinking=thinking,
        logprobs=logprobs or None,
        sandbox_level=sandbox_level,
        network=allow_host or None,
        default_verdict=default_verdict,
        yes=yes or None,
        swe_bench=swe_bench(repositories, test_command, test_environment),
    )
    if host and settings.yes and not yes:
        raise typer.BadParameter("the setting yes does not hold for --host; give the flag --yes, or unset it")
    target = Target(
        task=_absolute(task),
        instruction=instruction,
        workspace=str(workspace.absolute()) if workspace else None,
        desktop=desktop,
        tools=tuple(names_in([tools or ""])),
        seed=seed,
        review=review,
        host=host,
        monitor=monitor,
    )
    who = people(as_json, supervised, folder_to)
    result = asyncio.run(run_target(target, settings, people=who, **watched(as_json), warn=warn))
    _finish_run(result, as_json)


def _absolute(task: str | None) -> str | None:
    """A task file by its absolute path, so that the run can be resumed from anywhere."""
    if task is None:
        return None
    path = Path(task)
    return str(path.absolute()) if path.exists() or path.parent.is_file() else task


def resume(
    folder: Run,
    yes: Yes = False,
    supervised: Supervised = False,
    folder_to: FolderTo = None,
    as_json: Json = False,
) -> None:
    """Go on with a run that was killed or stopped.

    Finished steps are kept. A call that was running when the run was killed is shown to the model as an
    unknown outcome and is not repeated. A screen is brought back by doing its finished steps again; where
    that cannot be, the episode starts again and the log keeps both. A benchmark goes on with the first
    episode that has no end.
    """
    from pilotfish.agent.events import LogError, option_of, read_run
    from pilotfish.agent.show import say

    found = read_run(folder)
    for warning in found.warnings:
        say(warning, sys.stderr)
    started = found.started
    if found.ended is not None and found.ended.status == "finished":
        raise LogError(f"The run {started.run} has finished; there is nothing to resume.")
    saved = option_of(started, "settings")
    settings = settings_of(**saved | ({"yes": True} if yes else {}))
    who = people(as_json, supervised, folder_to)
    if started.command == "bench":
        from pilotfish.agent.bench_report import plan_of

        parallel = started.options.get("parallel")
        at_once = parallel if isinstance(parallel, int) and 1 <= parallel <= 64 else 1
        measure(plan_of(started), settings, folder, as_json, at_once)
    if started.command == "code":
        from pilotfish.agent.cli_code import finish_code
        from pilotfish.agent.code import resume_code

        work = resume_code(found, settings, people=who, **watched(as_json))
        finish_code(asyncio.run(work), as_json)
    from pilotfish.agent.run import resume_target

    result = asyncio.run(resume_target(found, settings, people=who, **watched(as_json)))
    _finish_run(result, as_json)


def demo(
    model: ModelName = None,
    attention: Attention = None,
    record_dir: RecordDir = None,
    supervised: Supervised = False,
    folder_to: FolderTo = None,
    as_json: Json = False,
) -> None:
    """Watch the model that ships solve a small task on a real page, and write the replay page.

    Runs in the sandbox and prints every step; afterwards it writes the replay page and prints its path. The
    exit status is 0 only if the task was solved.
    """
    from pilotfish.agent.events import read_run
    from pilotfish.agent.replay import write_replay
    from pilotfish.agent.run import DEMO_SEED, DEMO_TASK, Target, run_target

    settings = settings_of(model=model, attention=attention, record_dir=record_dir)
    target = Target(task=DEMO_TASK, seed=DEMO_SEED)
    who = people(as_json, supervised, folder_to)
    result = asyncio.run(run_target(target, settings, people=who, **watched(as_json), command="demo"))
    result["replay"] = str(write_replay(read_run(Path(result["folder"]))))
    if not as_json:
        print_result(result, False, [f"page  {result['replay']}"])
    _finish_run(result, as_json)
