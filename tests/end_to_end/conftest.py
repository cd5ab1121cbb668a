"""What the end-to-end tests share: a small web task, a shell task, and episodes with a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pilotfish.agent.cli import main
from pilotfish.agent.events import EventLog
from pilotfish.agent.limits import Budget
from pilotfish.agent.loop import Episode
from pilotfish.agent.policy import Policy
from pilotfish.model.protocol import Message, Model, ToolCall
from pilotfish.model.scripted import ScriptedModel
from pilotfish.sandbox import Sandbox
from pilotfish.tasks.environments import environment_for
from pilotfish.tasks.format import Task
from pilotfish.tasks.load import load_task
from pilotfish.tools.registry import make_tools

PAGE = """<!doctype html><title>Two buttons</title>
<style>
body { margin: 0; background: #fff }
button { position: absolute; width: 168px; height: 100px; left: 0 }
</style>
<button style="top: 0" onclick="state.pressed = 'Yes'; document.body.style.background = '#0f0'">Yes</button>
<button style="top: 110px" onclick="state.pressed = 'No'">No</button>
<script>var state = { pressed: null };</script>
"""
WEB = """
instruction: Press the Yes button.
environment: {kind: web, page: page.html}
limits: {steps: 6, seconds: 60}
graders: [{kind: page_state, expression: state.pressed, equals: "Yes"}]
solution: [{tool: computer, arguments: {action: left_click, coordinate: [500, 200]}}]
"""
SHELL = """
instruction: Write the word done to result.txt.
tools: [shell]
environment: {kind: shell}
limits: {steps: 8, seconds: 60}
graders: [{kind: file_equals, path: result.txt, text: "done\\n"}]
solution: [echo done > result.txt]
"""


@pytest.fixture
def web_task(tmp_path: Path) -> Task:
    """A page that turns green when its upper button is pressed."""
    folder = tmp_path / "suite" / "two-buttons"
    folder.mkdir(parents=True)
    (folder / "page.html").write_text(PAGE)
    (folder / "task.yaml").write_text(WEB)
    return load_task(folder)


@pytest.fixture
def shell_task(tmp_path: Path) -> Task:
    """A workspace in which one file is to be written."""
    folder = tmp_path / "suite"
    folder.mkdir(exist_ok=True)
    (folder / "write-done.yaml").write_text(SHELL)
    return load_task(folder / "write-done.yaml")


def without_words(task: Task) -> None:
    """Take the words from the page: a browser may draw the same text in other shades another time."""
    page = task.folder / "page.html"
    page.write_text(page.read_text().replace(">Yes<", "><").replace(">No<", "><"))


def call(name: str = "computer", *, id: str = "c", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, arguments)


def turn(*calls: ToolCall, text: str = "", reasoning: str | None = None) -> Message:
    """One answer of the scripted model."""
    return Message("assistant", (text,) if text else (), reasoning, calls)


def shell(command: str, **more: Any) -> Message:
    """An answer that runs a command. more: as of `call`."""
    return turn(call("shell", command=command, **more))


class Said(NamedTuple):
    """How the command ended, and what it wrote."""

    status: object
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def command_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`pilotfish` in this process, in `tmp_path`. For what ends before a run begins: a process of its own
    takes longer to start than that.
    """
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["pilotfish", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Said(ended.value.code, *capsys.readouterr())

    return run


Open = Callable[..., "contextlib.AbstractAsyncContextManager[Episode]"]


@pytest.fixture
def open_episode(tmp_path: Path) -> Open:
    """Open a sandbox and an episode of a task in it, not yet run."""

    @contextlib.asynccontextmanager
    async def open_it(
        task: Task, script: Sequence[Message] | Model, policy: Policy | None = None, **changes: Any
    ) -> AsyncIterator[Episode]:
        environment = environment_for(task)
        model = ScriptedModel(script) if isinstance(script, Sequence) else script
        limits = changes.pop("limits", task.limits)
        async with Sandbox.open(environment.sandbox_spec()) as box:
            with EventLog(tmp_path / "run") as events:
                yield Episode(
                    number=0,
                    task=task.name,
                    environment=environment,
                    box=box,
                    tools=make_tools(task.tools),
                    model=model,
                    events=events,
                    policy=policy or Policy(),
                    budget=Budget(limits.steps, limits.seconds, limits.tokens),
                    stop=asyncio.Event(),
                    **changes,
                )

    return open_it
