"""The interface driven by keys, on real run folders."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from pilotfish.agent.settings import Settings
from pilotfish.agent.tui.app import Interface
from pilotfish.agent.tui.keys import written
from pilotfish.agent.tui.run_screen import RunScreen
from pilotfish.agent.tui.start_dialog import hint
from pilotfish.agent.tui.terminal import Terminal
from pilotfish.agent.tui.text import notify
from pilotfish.agent.tui.text_view import TextView

from . import made_runs
from .screens import shown_text as shown


async def until(pilot: Pilot[Any], holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return
        await pilot.pause(0.05)
    raise AssertionError(shown(pilot.app))


async def test_runs_show_up_by_themselves_and_open(tmp_path: Path) -> None:
    app = Interface(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "No runs yet" in shown(app))
        made_runs.finished(tmp_path / "20260101-000000-aaaaaa", instruction=made_runs.NASTY)
        await until(pilot, lambda: "\\x1b[31mred" in shown(app))
        await pilot.press("enter")
        await until(pilot, lambda: "shell pytest tests/test_3.py" in shown(app))
        await pilot.press("home", "down")
        await until(pilot, lambda: "[@click=app.quit]x[/]" in shown(app))
        await pilot.press("q")
        await until(pilot, lambda: "1 run, 0 running" in shown(app))
        await pilot.press("q")
    assert app.return_code == 0


async def test_a_growing_log_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made_runs.write(folder, made_runs.start(folder), made_runs.step(1, "one", "first result"))
    app = Interface(tmp_path, run=folder)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, lambda: "first result" in shown(app))
        made_runs.write(folder, made_runs.step(2, "two", "second result"))
        await until(pilot, lambda: "second result" in shown(app))
        await pilot.press("up")
        await until(pilot, lambda: "first result" in shown(app))
        made_runs.write(folder, made_runs.step(3, "three", "third result"))
        await until(pilot, lambda: "shell three" in shown(app))
        assert "first result" in shown(app)


async def test_search_walks_through_rows_and_lines(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    steps = [made_runs.step(number, f"c{number}", "x\n" * 200 + f"needle {number}") for number in range(1, 9)]
    made_runs.write(folder, made_runs.start(folder), *steps, made_runs.step(9, "last", ""))
    app = Interface(tmp_path, run=folder)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, lambda: "shell last" in shown(app))
        await pilot.press("slash", *"NEEDLE", "enter")
        await until(pilot, lambda: "needle 1" in shown(app))
        await pilot.press("n")
        await until(pilot, lambda: "needle 2" in shown(app))
        await pilot.press("N", "N")
        await until(pilot, lambda: "needle 8" in shown(app))
        await pilot.press("slash", *"nothing such", "enter")
        await until(pilot, lambda: "Nothing in this run has" in shown(app))


@pytest.mark.parametrize("size", [(80, 24), (20, 5), (1, 1)])
async def test_every_size_works(tmp_path: Path, size: tuple[int, int]) -> None:
    folder = made_runs.finished(tmp_path / "run")
    app = Interface(tmp_path)
    async with app.run_test(size=size) as pilot:
        await pilot.pause(0.3)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.steps.count > 5)
        await pilot.press("home", "down", "down", "enter", "2", "3", "1", "escape", "question_mark", "escape")
        for width in range(1, 130, 17):
            await pilot.resize_terminal(width, max(1, width // 3))
        assert isinstance(app.screen, RunScreen)
        assert folder == app.screen.folder


async def test_a_long_result_and_many_steps_are_windowed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lines = "\n".join(f"line {number} of many" for number in range(35_000))
    steps = [made_runs.step(number, f"c{number}", "") for number in range(1, 301)]
    made_runs.write(folder, made_runs.start(folder), *steps, made_runs.step(301, "big", lines))
    app = Interface(tmp_path, run=folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "shell big" in shown(app))
        view = app.screen.query_one("#details", TextView)
        await until(pilot, lambda: view.document.rows > 35_000)
        await pilot.press("enter", "end")
        await until(pilot, lambda: "line 34999 of many" in shown(app))


async def test_the_palette_offers_what_has_a_key_here(tmp_path: Path) -> None:
    made_runs.finished(tmp_path / "run")
    app = Interface(tmp_path)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "1 run, 0 running" in shown(app))
        await pilot.press("ctrl+p", *"Open")
        await until(pilot, lambda: "(Enter)" in shown(app))
        await pilot.press("enter", "enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        names = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Search", "Replay", "Plan", "Quit", "Rules"} <= names
        assert not {"Stop", "Pause", "Message"} & names  # nothing plays it


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("ctrl+s", "Ctrl+S"),
        ("ctrl+right_square_bracket", "Ctrl+]"),
        ("shift+up", "Shift+Up"),
        ("escape", "Esc"),
        ("enter", "Enter"),
        ("space", "Space"),
        ("pagedown", "Page Down"),
        ("f4", "F4"),
        ("question_mark", "?"),
        ("slash", "/"),
        ("J", "J"),
        ("j", "j"),
    ],
)
def test_keys_are_written_one_way(key: str, shown: str) -> None:
    assert written(key) == shown


async def test_the_keys_of_a_tab_work_where_it_is_opened(tmp_path: Path) -> None:
    made_runs.eventful(tmp_path / "run")
    app = Interface(tmp_path, run=tmp_path / "run", terminal=Terminal("words", why="NO_COLOR is set"))
    async with app.run_test(size=(40, 12)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.steps.count == 9)
        await pilot.press("2")
        await until(pilot, lambda: "No picture of it is drawn" in " ".join(shown(app).split()))
        assert isinstance(app.screen, RunScreen)
        steps = app.screen.steps
        await pilot.press("home")
        await until(pilot, lambda: steps.cursor == 0)
        await until(pilot, lambda: "was taken before this step" in " ".join(shown(app).split()))
        await pilot.press("down", "j")
        await until(pilot, lambda: steps.cursor == 2)
        await pilot.press("1", "down")
        assert steps.cursor == 2
        assert app.screen.query_one("#details").has_focus


async def test_who_has_the_keys_and_what_a_key_lacks_is_said(tmp_path: Path) -> None:
    made_runs.eventful(tmp_path / "run")
    app = Interface(tmp_path, run=tmp_path / "run")
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.steps.count == 9)
        assert "Esc: back to the steps" not in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: "Esc: back to the steps" in shown(app))
        await pilot.press("escape")
        await until(pilot, lambda: "Esc: back to the steps" not in shown(app))
        await pilot.press("b")
        await until(pilot, lambda: "b Step back: the run is" in shown(app))


async def test_a_page_is_written_once_however_often_its_key_is_pressed(tmp_path: Path) -> None:
    folder = made_runs.finished(tmp_path / "run")
    app = Interface(tmp_path, run=folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "answered" in shown(app))
        await pilot.press("w", "w", "w")
        await until(pilot, lambda: "The replay page of this run" in shown(app))
        await pilot.pause()
        assert len(app.screen_stack) == 3


async def test_what_a_row_has_no_room_for_ends_in_a_mark(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made_runs.write(folder, made_runs.start(folder, "long " * 40), made_runs.step(1, "word " * 40, ""))
    app = Interface(tmp_path)
    async with app.run_test(size=(40, 12)) as pilot:
        await until(pilot, lambda: "long" in shown(app))
        assert "…" in next(line for line in shown(app).splitlines() if "broken off" in line)
        await pilot.press("enter")
        await until(pilot, lambda: "shell word" in shown(app))
        assert "…" in next(line for line in shown(app).splitlines() if "shell word" in line)


def test_what_is_typed_is_told_at_once_when_it_cannot_start() -> None:
    settings = Settings()
    assert "there is no model 'nanno'; the nearest is 'nano'" in hint("Mend it", settings, "nanno")
    assert "sign-in" in hint("web/sing-in", settings, "nano")
    assert "did you mean the task web/sign-in?" in hint("sign-in", settings, "nano")
    assert hint("web/sign-in", settings, "solution").startswith("A task: Sign in")


async def test_a_task_brings_its_own_folder_and_an_instruction_may_name_one(tmp_path: Path) -> None:
    app = Interface(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "No runs yet" in shown(app))
        await pilot.press("n")
        await until(pilot, lambda: "an instruction" in shown(app))
        await pilot.press(*"web/sign-in")
        await until(
            pilot, lambda: "A task: Sign in" in shown(app) and "The folder to work in" not in shown(app)
        )
        await pilot.press("ctrl+u", *"Do it")
        await until(pilot, lambda: "An instruction." in shown(app) and "The folder to work in" in shown(app))


@pytest.mark.parametrize("size", [(40, 12), (40, 7), (80, 15), (120, 40)])
async def test_notices_leave_the_screen_to_be_seen(tmp_path: Path, size: tuple[int, int]) -> None:
    long = (
        "The run cannot be resumed: " + "its folder is on a disk that is full, " * 5 + "which you can mend."
    )
    app = Interface(tmp_path)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: "No runs yet" in shown(app))
        for words in ("Sent; the agent reads it before its next answer.", long):
            notify(app.screen, words)
            await until(pilot, lambda: words[:15] in shown(app))  # noqa: B023
        assert "agent reads it" not in shown(app) or size == (120, 40)
        rows = [toast.region.height for toast in app.screen.query("Toast") if toast.region]
        assert sum(rows) <= 2 or size == (120, 40)
        is_cut = "… (? has all)" in shown(app)
        assert is_cut == (size != (120, 40))
        await pilot.press("question_mark")
        await until(pilot, lambda: "What this is" in shown(app) or "The newest message" in shown(app))
        lines = app.screen.query_one(TextView).document.lines
        assert any("which you can mend." in line.text for line in lines) == is_cut


async def test_a_short_notice_is_whole_where_there_is_little_room(tmp_path: Path) -> None:
    app = Interface(tmp_path)
    async with app.run_test(size=(40, 12), notifications=True) as pilot:
        await until(pilot, lambda: "No runs yet" in shown(app))
        notify(app.screen, "p Pause: the run is not being played; r resumes it.")
        await until(pilot, lambda: "r resumes it." in shown(app))
        assert "has all" not in shown(app)
