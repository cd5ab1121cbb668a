"""The commands `pilotfish runs` and `steer`: which runs there are, and one thing done to one that is being
played, for scripts too.
"""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.agent.cli_options import RecordDir, settings_of
from pilotfish.agent.cli_output import Json, Run, print_result

if TYPE_CHECKING:
    from pilotfish.agent.control.client import RunClient
    from pilotfish.agent.control.runs import RunInfo
    from pilotfish.agent.control.wire import Question, Request, State


class Steer(StrEnum):
    """What can be done to a run."""

    STATUS = "status"
    PAUSE = "pause"
    GO_ON = "go-on"
    STEP = "step"
    TELL = "tell"
    ALLOW = "allow"
    APPROVE = "approve"
    """An older word for it."""
    DENY = "deny"
    STOP = "stop"


def add_to(app: typer.Typer) -> None:
    """Make them commands of `pilotfish`."""
    for command in (runs, steer):
        app.command()(command)


def runs(record_dir: RecordDir = None, as_json: Json = False) -> None:
    """List the runs there are, newest first: which of them are running, and what they are about."""
    from pilotfish.agent.control.runs import newest_first, runs_in
    from pilotfish.agent.events import LogError
    from pilotfish.agent.run_folder import places_of_runs
    from pilotfish.agent.safetext import shortened
    from pilotfish.agent.show import say

    settings = settings_of(record_dir=record_dir)
    folder = settings.record_dir
    several: list[RunInfo] = []
    for place in places_of_runs(settings):
        try:
            several += runs_in(place)
        except LogError as error:
            if place == folder:
                raise
            say(str(error), sys.stderr)
    found = newest_first(several)
    lines = [
        f"{shortened(run.id, 40)}  {run.outcome:13}  {run.unread or shortened(run.what or run.command, 80)}"
        for run in found
    ]
    listed = [vars(run) | {"folder": str(run.folder)} for run in found]
    print_result({"runs": listed}, as_json, lines or [f"There are no runs in {folder}."])


def steer(
    folder: Run,
    action: Annotated[Steer, typer.Argument(help="What to do.")],
    text: Annotated[str | None, typer.Argument(help="What to tell, or why a call is denied.")] = None,
    this_run: Annotated[
        bool,
        typer.Option("--this-run", "--task", help="With allow: whatever is like it too, for this run."),
    ] = False,
    digest: Annotated[
        str | None,
        typer.Option(help="With allow: the call that is meant, as `status --json` tells it, and no other."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Take the control from another client.")] = False,
    as_json: Json = False,
) -> None:
    """Steer a run that is being played: what waits, pause, go on, one step, a message, allow, deny, the end.

    A run asks somebody only where there is somebody: one that is to wait for you is started with
    --supervised.

    Examples:

      pilotfish steer 20261129-120000-ab12cd status

      pilotfish steer 20261129-120000-ab12cd tell "Use the second form."

      pilotfish steer 20261129-120000-ab12cd allow

      pilotfish steer 20261129-120000-ab12cd deny "Not in my home folder."
    """
    if action is Steer.TELL and not (text or "").strip():
        raise typer.BadParameter("tell needs a TEXT")
    if text is not None and action not in (Steer.TELL, Steer.DENY):
        raise typer.BadParameter(f"{action} takes no text; tell and deny do")
    if (this_run or digest) and action not in (Steer.ALLOW, Steer.APPROVE):
        raise typer.BadParameter("--this-run and --digest go with allow")
    result = asyncio.run(_steer(folder, action, text or "", this_run, digest, force))
    print_result(result, as_json, [result["done"]] if result["done"] else _lines(result))


async def _steer(
    folder: Path, action: Steer, text: str, this_run: bool, digest: str | None, force: bool
) -> dict[str, Any]:
    from pilotfish.agent.control.client import RunClient
    from pilotfish.agent.control.wire import Control, call_digest

    client = await RunClient.connect(folder)
    try:
        state, question = await _now(client)
        note = ""
        if action is not Steer.STATUS:
            if force:
                await client.ask(Control(force=True))
            note = (await client.ask(_request(action, text, this_run, digest, question))).note
    finally:
        await client.close()
    asked = None
    if question is not None:
        call = question.call
        asked = question.model_dump(mode="json", exclude={"type"})
        asked["digest"] = call_digest(call.name, call.arguments)
    shown = state.model_dump(mode="json", exclude={"type"})
    return {"run": client.hello.run, "done": note, "state": shown, "question": asked}


async def _now(client: RunClient) -> tuple[State, Question | None]:
    """What the run does, and what waits."""
    from pilotfish.agent.control.client import ControlError
    from pilotfish.agent.control.wire import Question, QuestionOver, State

    state: State | None = None
    async for message in client.messages():
        if isinstance(message, State):
            state = message
        if isinstance(message, Question) and state is not None:
            return state, message
        # A question that waits comes right after the state that says so.
        if state is not None and (state.phase != "asking" or isinstance(message, QuestionOver)):
            return state, None
    raise ControlError("The run has ended meanwhile; look at its log.")


def _request(
    action: Steer, text: str, this_run: bool, digest: str | None, question: Question | None
) -> Request:
    from pilotfish.agent.control.client import ControlError
    from pilotfish.agent.control.wire import Decide, Pause, Stop, Tell, call_digest

    match action:
        case Steer.PAUSE:
            return Pause()
        case Steer.GO_ON:
            return Pause(on=False)
        case Steer.STEP:
            return Pause(single=True)
        case Steer.TELL:
            return Tell(text=text)
        case Steer.STOP:
            return Stop()
    if question is None:
        raise ControlError("No call waits for an answer; `status` tells what the run does.")
    if action is Steer.DENY:
        return Decide(question=question.question, verdict="deny", reason=text)
    shown = digest or call_digest(question.call.name, question.call.arguments)
    return Decide(question=question.question, verdict="task" if this_run else "once", digest=shown)


def _lines(result: dict[str, Any]) -> list[str]:
    from pilotfish.agent.control.wire import Question
    from pilotfish.agent.terminal_approval import question_text

    state = result["state"]
    words = [f"{state['phase']}, step {state['step']}"]
    if state["paused"] and state["phase"] != "paused":
        words.append("holds before the next step")
    if state["tokens"]:
        words.append(f"{state['computed']:,} of {state['tokens']:,} tokens read")
    if state["messages"]:
        words.append(f"{state['messages']} not told yet")
    if state["controller"]:
        words.append(f"client {state['controller']} controls it")
    asked = result["question"]
    return ["; ".join(words), *([question_text(Question(**asked))] if asked else [])]
