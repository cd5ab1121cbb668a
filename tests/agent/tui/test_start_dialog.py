"""The dialog that starts a task, as keys alone meet it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.agent.settings import Settings
from pilotfish.agent.tui.app import Interface
from pilotfish.agent.tui.fields import PlainInput
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
