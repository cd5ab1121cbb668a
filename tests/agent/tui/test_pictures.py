"""How the interface's screens look, at three sizes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from pilotfish.agent import events as log
from pilotfish.agent.settings import Settings
from pilotfish.agent.tui.app import Interface
from pilotfish.agent.tui.dialogs import Confirm
from pilotfish.agent.tui.run_screen import RunScreen
from pilotfish.agent.tui.start_dialog import StartDialog
from pilotfish.agent.tui.terminal import Terminal

from . import made_runs
from .pictures import SIZES, assert_picture
from .test_interface import shown, until


@pytest.fixture(autouse=True)
def _same_clock_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def _several(place: Path) -> None:
    """Runs that stand in every way that needs no process."""
    folder = place / "20260101-000500-aaaaa5"
    made_runs.at_fixed_times(folder, made_runs.start(folder, made_runs.NASTY), made_runs.step(1, "ls", ""))
    folder = place / "20260101-000400-aaaaa4"
    made_runs.at_fixed_times(folder, made_runs.start(folder), [log.RunEnded(status="interrupted")])
    made_runs.eventful(place / "20260101-000300-aaaaa3")
    folder = place / "20260101-000200-aaaaa2"
    graded = log.EpisodeEnded(episode=1, end="done", score=1.0, passed=True, steps=1, seconds=3)
    begun, task = made_runs.start(folder, "Sign in as the user marina.")
    task = task.model_copy(update={"task": "web/sign-in"})
    ended = log.RunEnded(status="finished")
    made_runs.at_fixed_times(folder, [begun, task, *made_runs.step(1, "x", ""), graded, ended])
    (place / "20260101-000100-aaaaa1").mkdir()
    (place / "20260101-000100-aaaaa1" / log.EVENTS).mkdir()


async def _home(app: Interface, pilot: Pilot[Any]) -> None:
    await until(pilot, lambda: "5 runs, 0 running" in shown(app) and "unreadable" in shown(app))


async def _start(app: Interface, pilot: Pilot[Any]) -> None:
    app.push_screen(StartDialog(Settings(record_dir=app.record_dir)))
    await until(pilot, lambda: "an instruction" in shown(app))
    await pilot.press(*"Mend it")
    await until(pilot, lambda: "An instruction." in shown(app))


async def _stop(app: Interface, pilot: Pilot[Any]) -> None:
    await pilot.press("escape")
    app.push_screen(Confirm("Stop this run? It can be resumed later.", "Stop it"))
    await until(pilot, lambda: "y Stop it" in shown(app))


async def _run(app: Interface, pilot: Pilot[Any]) -> None:
    if isinstance(app.screen, Confirm):
        await pilot.press("n")
    await _home(app, pilot)
    await pilot.press("down", "down", "enter")
    await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.steps.count == 9)
    await pilot.press("up")
    run = app.screen
    await until(pilot, lambda: isinstance(run, RunScreen) and run.steps.cursor == 7)


async def _details(app: Interface, pilot: Pilot[Any]) -> None:
    await pilot.press("enter")
    await until(pilot, lambda: "Thinking" in shown(app))


async def _screen(app: Interface, pilot: Pilot[Any]) -> None:
    await pilot.press("escape", "home", "down", "down", "down", "2")
    await until(pilot, lambda: "▀" in shown(app))
    await pilot.pause(0.5)


async def _plan(app: Interface, pilot: Pilot[Any]) -> None:
    await pilot.press("3")
    await until(pilot, lambda: "[>] Mend it" in shown(app))


async def _changes(app: Interface, pilot: Pilot[Any]) -> None:
    await pilot.press("4")
    await until(pilot, lambda: "snapshots:" in shown(app))


async def _search(app: Interface, pilot: Pilot[Any]) -> None:
    await pilot.press("1", "escape", "slash", *"pass", "enter")
    await until(pilot, lambda: bool(app.screen._matches))  # type: ignore[attr-defined]
    await pilot.press("n", "slash")


async def _help(app: Interface, pilot: Pilot[Any]) -> None:
    await pilot.press("escape", "question_mark")
    await until(pilot, lambda: "What this is" in shown(app))


SCENES = (_home, _start, _stop, _run, _details, _screen, _plan, _changes, _search, _help)


@pytest.mark.parametrize("size", SIZES)
async def test_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    """One walk through all screens."""
    monkeypatch.chdir(tmp_path)
    _several(Path("runs"))
    app = Interface(Path("runs"), terminal=Terminal("blocks"))
    async with app.run_test(size=size) as pilot:
        for scene in SCENES:
            await scene(app, pilot)
            await assert_picture(pilot, f"tui{scene.__name__.replace('_', '-')}")


@pytest.mark.parametrize("size", SIZES)
async def test_picture_of_an_empty_home(tmp_path: Path, size: tuple[int, int]) -> None:
    app = Interface(tmp_path)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "No runs yet" in shown(app))
        await assert_picture(pilot, "tui-empty")


async def test_picture_in_the_light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _several(Path("runs"))
    app = Interface(Path("runs"), terminal=Terminal("blocks"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f2")
        for scene in (_home, _start, _stop, _run, _details, _screen, _search, _help):
            await scene(app, pilot)
            if scene not in (_home, _details):
                await assert_picture(pilot, f"tui{scene.__name__.replace('_', '-')}-light")
