"""Logs of machines whose clock was wrong, or was set while a run went on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.cli import main
from pilotfish.agent.replay import write_replay

from .conftest import Looking
from .recorded import recorded, steered

CLOCKS: dict[str, Callable[[int], float]] = {
    "backwards": lambda n: 1.7e9 - 100 * n,
    "standing": lambda n: 1.7e9,
    "year 9987": lambda n: 253e9,
    "never set": lambda n: 0.0,
    "set often": lambda n: (0.0, 253e9, 1.7e9, 5.0)[n % 4],
}


@pytest.fixture(params=CLOCKS)
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A run with such a clock."""
    path = recorded(tmp_path / "runs" / "run", steered).folder
    records = [json.loads(line) for line in (path / log.EVENTS).read_text().splitlines()]
    lines = [json.dumps(record | {"t": CLOCKS[request.param](n)}) for n, record in enumerate(records)]
    (path / log.EVENTS).write_text("".join(f"{line}\n" for line in lines))
    return path


def test_every_command_reads_them(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = (
        ["show", str(run)],
        ["show", str(run), "--json"],
        ["replay", str(run)],
        ["replay", str(run), "--with", str(run)],
        ["replay", str(run), "--atif", str(run / "atif.json")],
        ["runs", "--record-dir", str(run.parent)],
    )
    for words in commands:
        monkeypatch.setattr(sys, "argv", ["pilotfish", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert (ended.value.code, said.err) == (0, ""), words
        assert said.out


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("beside", [False, True])
async def test_the_timeline_by_time_goes_one_way(run: Path, looking: Looking, beside: bool) -> None:
    found = log.read_run(run)
    path = write_replay(found, other=found if beside else None)
    page = await looking.open(path)
    await page.keyboard.press("t")
    places, walked = [], []
    for _ in range(await page.locator(".row .what").count()):
        places.append(float(await page.input_value("#scrubber")))
        walked.append(await looking.chosen())
        await page.keyboard.press("ArrowRight")
    assert places == sorted(places)
    assert (places[0], walked[0], walked[-1]) == (0, "start", "done: passed, score 1")
    assert 0 <= places[-1] <= 1
    looking.check(path)
