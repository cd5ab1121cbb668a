"""The interface and a real run in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from pilotfish.agent.control.client import ControlError, RunClient
from pilotfish.agent.control.wire import AddRule, Control, Decide, Pause
from pilotfish.agent.events import Decided, Paused, Resulted, Spoken, read_run
from pilotfish.agent.tui.app import Interface
from pilotfish.agent.tui.approval import ApprovalDialog
from pilotfish.agent.tui.rules import RulesScreen
from pilotfish.agent.tui.run_screen import RunScreen
from pilotfish.agent.tui.terminal import Terminal
from pilotfish.agent.tui.text import Plain

from .test_interface import shown, until


async def test_a_task_is_started_approved_paused_told_and_stopped(tmp_path: Path) -> None:
    app = Interface(tmp_path, terminal=Terminal("blocks"))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, lambda: "Press n to start a task" in shown(app))
        await pilot.press("n")
        await until(pilot, lambda: "an instruction" in shown(app))
        await pilot.press(*"web/sign-in")
        await until(pilot, lambda: "A task: Sign in as the user" in shown(app))
        await pilot.press("tab", "ctrl+u", *"solution", "tab", "space", "ctrl+s")
        await until(pilot, lambda: isinstance(app.screen, ApprovalDialog) and app.screen.listening, 60)
        assert "Step 1: may computer run this?" in shown(app)
        run = app.screen_stack[-2]
        assert isinstance(run, RunScreen)
        theme = app.theme
        await pilot.press("f2", "f4", "f4")
        assert isinstance(app.screen, RulesScreen)
        assert app.theme != theme
        await pilot.press("escape", "y")  # just after it was closed a key is none for the question
        await until(pilot, lambda: isinstance(app.screen, ApprovalDialog) and app.screen.listening)
        assert "Step 1: may computer run this?" in shown(app)
        await pilot.press("y")
        await until(pilot, lambda: "Step 2: may computer run this?" in shown(app))
        await until(pilot, lambda: isinstance(app.screen, ApprovalDialog) and app.screen.listening)
        await pilot.press("escape", "p")
        await until(pilot, lambda: "paused" in shown(app))
        await pilot.press("2")
        await until(pilot, lambda: "Proposed: type marina" in shown(app))
        await pilot.press("m", *"Hurry", "enter")
        await until(pilot, lambda: "1 message unread" in shown(app))
        await pilot.press("m")
        run._later = None  # as if it came only now: what is being written answers nothing
        run.answer_questions()
        await pilot.press(*"yet")
        assert app.screen is run
        assert "Step 2 waits for you" in shown(app)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, ApprovalDialog) and app.screen.listening)
        await pilot.press("y")
        await until(pilot, lambda: app.screen is run and run.link is not None and not run.link.questions)
        await pilot.press("q")
        await until(pilot, lambda: "1 run, 1 running" in shown(app))
        await pilot.press("x", "y")
        await until(pilot, lambda: "1 run, 0 running" in shown(app))
        await until(pilot, lambda: "stopped" in shown(app))
    events = read_run(run.folder).events
    assert [event.verdict for event in events if isinstance(event, Decided)] == ["once", "once"]
    assert any(isinstance(event, Paused) for event in events)
    assert [event.text for event in events if isinstance(event, Spoken)] in (["Hurry"], [])


def bottom(app: Interface) -> str:
    """The last row."""
    return shown(app).splitlines()[-1].rstrip()


async def edit_what_is_denied(app: Interface, pilot: Pilot[Any]) -> None:
    """Write arguments that the run refuses: they are there to be mended."""
    run = app.screen
    assert isinstance(run, RunScreen)
    assert await run.ask_run(AddRule(rule={"verdict": "deny", "action": "right_click"}), "") is None
    await pilot.press("a")
    await until(pilot, lambda: isinstance(app.screen, ApprovalDialog) and app.screen.listening)
    first = app.screen
    assert isinstance(first, ApprovalDialog)
    first._take_arguments({"action": "right_click", "coordinate": [1, 2]})
    await until(pilot, lambda: first.listening)
    await pilot.press("y")
    await until(pilot, lambda: isinstance(app.screen, ApprovalDialog) and app.screen is not first)
    await until(pilot, lambda: isinstance(app.screen, ApprovalDialog) and app.screen.listening)
    assert "you have edited the arguments" in shown(app)
    assert "These arguments are denied" in shown(app)
    await pilot.press("escape")


async def take_over_what_waits(app: Interface, pilot: Pilot[Any]) -> None:
    """That a call is denied by it is said before, and there is a way back."""
    run = app.screen
    assert isinstance(run, RunScreen)
    assert run.link is not None
    await pilot.press("o")
    await until(pilot, lambda: "y Take over" in shown(app))
    said = str(app.screen.query_one(".question", Plain).content)
    assert "The call that waits for you is denied by it, and the agent is told so: computer" in said
    await pilot.press("n")
    await until(pilot, lambda: app.screen is run)
    assert run.link.questions
    await pilot.press("o")
    await until(pilot, lambda: "y Take over" in shown(app))
    await pilot.press("y")
    await until(pilot, lambda: "Mouse and keyboard are yours; the waiting call is denied" in shown(app))
    await pilot.press("ctrl+right_square_bracket", "enter")
    await until(pilot, lambda: "you handed mouse and keyboard back" in shown(app))
    denied = next(event for event in read_run(run.folder).events if isinstance(event, Resulted))
    assert "The user took mouse and keyboard over before it was answered" in denied.text


async def open_rules_while_another_answers(app: Interface, pilot: Pilot[Any], other: RunClient) -> None:
    """What is written in the rules stays, and the next question comes when they are closed."""
    dialog = app.screen
    assert isinstance(dialog, ApprovalDialog)
    step = dialog.question.step
    await pilot.press("f4")
    rules = app.screen
    assert isinstance(rules, RulesScreen)
    await pilot.press("n", "ctrl+s")
    assert len(rules.rules) == 1
    await other.ask(Decide(question=dialog.question.question, verdict="deny"))
    run = app.screen_stack[1]
    assert isinstance(run, RunScreen)
    await until(pilot, lambda: run.link is not None and dialog.question.question + 1 in run.link.questions)
    assert app.screen is rules
    await pilot.press("escape", "escape")
    await until(pilot, lambda: f"Step {step + 1}: may computer run this?" in shown(app))
    await until(pilot, lambda: isinstance(app.screen, ApprovalDialog) and app.screen.listening)


async def test_another_client_keeps_the_control_until_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pilotfish.agent.control.spawn import start_supervised

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    words = ["run", "web/sign-in", "--model", "solution", "--default-verdict", "ask"]
    folder = await start_supervised(words, tmp_path)
    other = await RunClient.connect(folder)
    await other.ask(Control())
    app = Interface(tmp_path, run=folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, ApprovalDialog) and app.screen.listening, 60)
        assert "Another window or program controls this run" in shown(app)
        await pilot.press("y")
        await until(pilot, lambda: "y Take it" in shown(app))
        await pilot.press("n")  # then it was no answer, and the question is there again
        await until(pilot, lambda: isinstance(app.screen, ApprovalDialog) and app.screen.listening)
        await pilot.press("escape")
        await until(pilot, lambda: "another controls it, c takes it" in shown(app))
        await until(pilot, lambda: bottom(app).startswith("a Answer q Back m Message "))
        await until(pilot, lambda: bottom(app).endswith(" w Replay ? Help"))
        await pilot.resize_terminal(40, 24)
        await until(pilot, lambda: bottom(app).startswith("a Answer q Back m Message "))
        await until(pilot, lambda: bottom(app).endswith(" ? All keys"))
        await pilot.resize_terminal(80, 24)
        await pilot.press("p")
        await until(pilot, lambda: "Another window or program controls this run" in shown(app))
        await pilot.press("y")
        await until(pilot, lambda: "you control it" in shown(app))
        await edit_what_is_denied(app, pilot)
        await take_over_what_waits(app, pilot)
        await pilot.press("q")
    await other.ask(Control(take=True, force=True))
    await other.ask(Pause(on=False))
    app = Interface(tmp_path, run=folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, ApprovalDialog) and app.screen.listening)
        await open_rules_while_another_answers(app, pilot, other)
        await pilot.press("escape", "x")
        await until(pilot, lambda: "It can be resumed later" in shown(app))
        await pilot.press("y")
        await until(pilot, lambda: "Another window or program controls this run" in shown(app))
        await pilot.press("y")
        await until(pilot, lambda: "stopped" in shown(app))
        await pilot.press("q")
    await other.close()
    for _ in range(100):
        try:
            await (await RunClient.connect(folder)).close()
        except ControlError:
            break
        await asyncio.sleep(0.1)
    assert read_run(folder).ended is not None
