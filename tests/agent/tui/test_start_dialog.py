"""The dialog that starts a task, as keys alone meet it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pilotfish.agent.settings import Settings
from pilotfish.agent.tui.app import Interface
from pilotfish.agent.tui.fields import PlainInput, Tick
from pilotfish.agent.tui.start_dialog import StartDialog

from ...waiting import until
from .screens import shown_text


@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
async def test_what_is_typed_takes_the_place_of_the_model_and_space_presses_start(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    app = Interface(tmp_path / "runs")
    async with app.run_test(size=size) as pilot:
        app.push_screen(dialog := StartDialog(Settings(record_dir=str(tmp_path / "runs"))))
        await pilot.pause()
        model = dialog.query_one("#model", PlainInput)
        assert model.value == "nano"
        while app.focused is not model:
            await pilot.press("tab")
        await pilot.press(*"solution")
        assert model.value == "solution"
        start = dialog.query_one("#start")
        while app.focused is not start:
            await pilot.press("tab")
        await pilot.press("space")
        await until(lambda: "Write what is to be done first" in " ".join(shown_text(app).split()))


async def test_a_start_says_what_it_waits_for_and_can_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))
    app = Interface(tmp_path / "runs")
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(dialog := StartDialog(Settings(record_dir=str(tmp_path / "runs"))))
        await pilot.pause()
        await pilot.press(*"web/sign-in", "ctrl+s")
        await until(lambda: "Waiting for its process to start (" in shown_text(app))
        dialog._tell_wait("the model nano to be loaded")
        await until(lambda: "Waiting for the model nano to be loaded (" in shown_text(app))
        await pilot.press("escape")
        await until(lambda: app.screen is not dialog and not dialog.is_attached)
        await dialog._tell("web/sign-in", "nano")  # as one that was under way when it was left


async def test_the_beginning_of_a_name_is_no_instruction(tmp_path: Path) -> None:
    app = Interface(tmp_path / "runs")
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(StartDialog(Settings(record_dir=str(tmp_path / "runs"))))
        await pilot.pause()
        await pilot.press(*"web/", "ctrl+s")
        await until(lambda: "'web/' begins the names of 6 tasks" in " ".join(shown_text(app).split()))
    assert not (tmp_path / "runs").exists()


async def test_a_task_is_not_asked_where_and_the_tick_aimed_at_is_the_one_hit(tmp_path: Path) -> None:
    app = Interface(tmp_path / "runs")
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(dialog := StartDialog(Settings(record_dir=str(tmp_path / "runs"))))
        await until(lambda: "Suites of tasks: browser," in shown_text(app))
        await pilot.press("ctrl+s")
        await until(lambda: "Write what is to be done first" in shown_text(app))
        await pilot.press(*"web/", "tab", "tab", "space")
        assert dialog.query_one("#ask", Tick).value
        assert "Write what is to be done first" not in shown_text(app)
        await until(lambda: "The right arrow key completes it to web/" in shown_text(app))
        assert not dialog.query_one("#where").display
        await pilot.press("shift+tab", "shift+tab", *" and more")
        assert dialog.query_one("#where").display
