"""The commands that measure a model on many tasks: bench miniwob, bench edits and bench tasks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.agent.cli_options import (
    Attention,
    Logprobs,
    MaxSteps,
    ModelName,
    RecordDir,
    Repositories,
    Temperature,
    TestCommand,
    TestEnvironment,
    names_in,
    settings_of,
    swe_bench,
    warn,
)
from pilotfish.agent.cli_output import Json, print_result
from pilotfish.agent.stopping import exit_status

if TYPE_CHECKING:
    from pilotfish.agent.settings import Settings

bench_app = typer.Typer(no_args_is_help=True, help="Measure a model on many tasks.", rich_markup_mode=None)


def measure(plan: Any, settings: Settings, folder: Path | None, as_json: bool, parallel: int = 1) -> None:
    """Play a plan, in a new folder or on in an unfinished run's, and print its table. Does not return."""
    from pilotfish.agent.bench import run_bench, slots, terminal_progress
    from pilotfish.agent.bench_report import table

    progress = terminal_progress(sum(1 for _ in slots(plan, settings)))
    result = asyncio.run(
        run_bench(plan, settings, folder=folder, parallel=parallel, progress=progress, warn=warn)
    )
    print(file=sys.stderr)
    lines = [table(result), f"log   {result['folder']}"]
    lines += [f"made  {path}" for path in result["predictions"]]
    if plan.suite == "miniwob":
        from pilotfish.agent.bench_miniwob import add_miniwob, in_sentences
        from pilotfish.agent.bench_page import write_page

        result = add_miniwob(result)
        result["page"] = write_page(result)
        lines[1:1] = in_sentences(result)
        lines.append(f"page  {result['page']}")
    if not result["complete"]:
        lines.append(f"Not all was played; pilotfish resume {result['folder']} goes on where this ended.")
    print_result(result, as_json, lines)
    raise typer.Exit(0 if result["complete"] else exit_status())


def _start_bench(plan: Any, settings: Settings, resume: bool, as_json: bool, parallel: int = 1) -> None:
    from pilotfish.agent.bench import find_unfinished

    measure(plan, settings, find_unfinished(plan, settings) if resume else None, as_json, parallel)


Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the newest unfinished run of the same measurement.")
]

Parallel = Annotated[
    int, typer.Option(min=1, max=64, help="Episodes played at once, with one model in this process.")
]


@bench_app.command("miniwob")
def bench_miniwob(
    more: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="")] = None,
    tasks: Annotated[str, typer.Option(help="Tasks by name, as click-test,enter-text. Default: all.")] = "",
    every: Annotated[
        bool, typer.Option("--all", help="All tasks, 50 episodes each unless --episodes says otherwise.")
    ] = False,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes per task. Default: 10.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="First seed. Default: the first one that training never used.")
    ] = None,
    limits: Annotated[
        str, typer.Option(help="untimed, or classic: the page's own clock, 10 s in most tasks.")
    ] = "untimed",
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also play random clicks, as a baseline.")
    ] = False,
    parallel: Parallel = 1,
    listing: Annotated[bool, typer.Option("--list", help="Print the names of the tasks and end.")] = False,
    model: ModelName = None,
    attention: Attention = None,
    record_dir: RecordDir = None,
    max_steps: MaxSteps = None,
    temperature: Temperature = None,
    logprobs: Logprobs = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Measure a model on MiniWoB++, from pixels alone, in the sandbox.

    Prints for each task the share of episodes that the page rewarded, with a 95 % Wilson interval, the
    steps, and the wall-clock seconds per step (median and 95th percentile), and writes the same as a page,
    report.html, beside the log. The exit status is 0 if the measurement is complete, however the model did.
    """
    from pilotfish.agent.bench import plan_miniwob
    from pilotfish.tasks.miniwob_names import HELD_OUT, MINIWOB_TASKS

    if listing:
        lines = [f"{name}{'  (held out)' if name in HELD_OUT else ''}" for name in MINIWOB_TASKS]
        print_result({"tasks": list(MINIWOB_TASKS), "held_out": sorted(HELD_OUT)}, as_json, lines)
        return
    if limits not in ("classic", "untimed"):
        raise typer.BadParameter(f"--limits is '{limits}'; choose classic or untimed")
    settings = settings_of(
        model=model,
        attention=attention,
        record_dir=record_dir,
        max_steps=max_steps,
        temperature=temperature,
        logprobs=logprobs or None,
    )
    names = names_in([tasks, *(more or [])])
    if every and names:
        raise typer.BadParameter(f"--all and --tasks {','.join(names)} contradict each other; give one")
    count = episodes or (50 if every else 10)
    plan = plan_miniwob(names, episodes=count, seed=seed, limits=limits, baseline=baseline)
    _start_bench(plan, settings, resume, as_json, parallel)


@bench_app.command("edits")
def bench_edits(
    packages: Annotated[
        list[str] | None,
        typer.Argument(help="Packages, by import name or folder. Default: those that training never uses."),
    ] = None,
    context_tokens: Annotated[
        int, typer.Option(min=0, help="What of the model's context the package laid out may take.")
    ] = 60_000,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per package and kind of edit.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    parallel: Parallel = 1,
    model: ModelName = None,
    attention: Attention = None,
    record_dir: RecordDir = None,
    max_steps: MaxSteps = None,
    temperature: Temperature = None,
    logprobs: Logprobs = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Measure a model on small edits of real packages: rename, change a value, mend an off-by-one.

    Works as `pilotfish code` does: the package laid out before the task, the same words, the same tools.
    """
    from pilotfish.agent.edit_work import plan_edits

    settings = settings_of(
        model=model,
        attention=attention,
        record_dir=record_dir,
        max_steps=max_steps,
        temperature=temperature,
        logprobs=logprobs or None,
    )
    plan = plan_edits(packages or [], episodes=episodes, seed=seed, tokens=context_tokens)
    _start_bench(plan, settings, resume, as_json, parallel)


@bench_app.command("tasks")
def bench_tasks(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            help="Suites that ship, folders of task files, or data sets of SWE-bench or HumanEval "
            "(.jsonl, .jsonl.gz, .json). Default: all that ship."
        ),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="Tasks of these suites by name, as fix-shuffle,code/off-by-one. Default: all.")
    ] = "",
    listing: Annotated[bool, typer.Option("--list", help="Print the names of the tasks and end.")] = False,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 1,
    parallel: Parallel = 1,
    repositories: Repositories = None,
    test_command: TestCommand = None,
    test_environment: TestEnvironment = None,
    model: ModelName = None,
    attention: Attention = None,
    record_dir: RecordDir = None,
    max_steps: MaxSteps = None,
    temperature: Temperature = None,
    logprobs: Logprobs = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Measure a model on suites of task files.

    With `--model solution` the reference solutions are played, which shows that every task can be done.
    """
    from pilotfish.agent.bench import plan_tasks

    settings = settings_of(
        model=model,
        attention=attention,
        record_dir=record_dir,
        max_steps=max_steps,
        temperature=temperature,
        swe_bench=swe_bench(repositories, test_command, test_environment),
        logprobs=logprobs or None,
    )
    # A path may hold what stands between names.
    names = [name for word in suites or [] for name in ([word] if Path(word).exists() else names_in([word]))]
    plan = plan_tasks(names, names_in([tasks]), episodes=episodes)
    if listing:
        print_result({"tasks": list(plan.tasks)}, as_json, list(plan.tasks))
        return
    _start_bench(plan, settings, resume, as_json, parallel)
