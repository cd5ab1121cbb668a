"""A person at a real terminal starts a run, answers it, steps it back, takes over, leaves and stops it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tmux import Terminal, terminal

from pilotfish.agent import events as log

PAGE = """<!doctype html><title>Three buttons</title>
<style>button { position: absolute; width: 168px; height: 60px; left: 0 }</style>
<button style="top: 0" onclick="press('A')">A</button>
<button style="top: 70px" onclick="press('B')">B</button>
<button style="top: 140px" onclick="press('C')">C</button>
<script>
var state = { pressed: '' };
function press(letter) {
    state.pressed += letter;
    document.body.style.background = `hsl(${90 * state.pressed.length}, 80%, 80%)`;
}
</script>
"""
TASK = """
instruction: Press A, then B, then C.
environment: {kind: web, page: page.html}
limits: {steps: 12, seconds: 600}
graders: [{kind: page_state, expression: state.pressed, equals: "ABC"}]
solution:
  - {tool: computer, arguments: {action: left_click, coordinate: [500, 140]}}
  - {tool: computer, arguments: {action: left_click, coordinate: [500, 460]}}
  - {tool: computer, arguments: {action: left_click, coordinate: [500, 800]}}
"""
PILOTFISH = [sys.executable, "-m", "pilotfish.agent.entry"]
SEEN = "That is all of it"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path, for tmux's socket, that has a task."""
    with tempfile.TemporaryDirectory(prefix="t") as name:
        folder = Path(name) / "suite" / "three"
        folder.mkdir(parents=True)
        (folder / "page.html").write_text(PAGE)
        (folder / "task.yaml").write_text(TASK)
        yield Path(name)


def run_in(place: Path) -> log.RunLog:
    (folder,) = (place / "runs").iterdir()
    return log.read_run(folder)


def answer(there: Terminal, step: int, key: str) -> None:
    """Press a key at the question of a step, once all of it is shown."""
    there.wait(f"Step {step}: may computer run this?", SEEN)
    there.settle()
    there.type(key)


@pytest.mark.timeout(300)
def test_a_person_starts_steers_leaves_and_stops_a_run(place: Path) -> None:
    with terminal(place, PILOTFISH_MODEL="solution", PILOTFISH_DEFAULT_VERDICT="ask") as there:
        there.start([*PILOTFISH, "tui"], place, 100, 30)
        there.wait("New task")
        there.type("n")
        there.wait("What is to be done")
        there.write("suite/three")
        there.wait("A task: Press A")
        there.type("C-s")
        answer(there, 1, "y")
        answer(there, 2, "d")
        there.wait("Reason; Enter denies")
        there.write("not that one")
        there.type("Enter")
        answer(there, 3, "e")
        there.wait("Arguments of computer", "[500, 800]")
        there.type("Tab")
        there.settle()
        there.type("F7")
        there.settle()
        there.write("[500, 460]")
        there.wait("[500, 460]", without="[500, 800]")
        there.type("C-s")
        there.wait("you have edited the arguments")
        answer(there, 3, "y")
        answer(there, 4, "Escape")
        there.wait("Press a to answer")
        there.type("p")
        there.wait("you paused it")
        there.type("Up", "Up")
        there.wait("step 4, ")
        there.type("b")
        there.wait("Step back to before step 4?")
        there.type("y")
        there.wait("you stepped back to before step 4")
        there.type("o")
        there.wait("Mouse and keyboard are yours")
        there.type("Tab", "Enter")
        there.type("C-]")
        there.wait("Note for the agent")
        there.write("I pressed one myself")
        there.type("Enter")
        there.wait("you handed mouse and keyboard back", " paused ")
        there.type("q")
        there.wait("New task", " paused ")
        there.type("q")
        assert there.wait_for_end() == 0
        run = run_in(place)
        assert run.ended is None
        there.again([*PILOTFISH, "attach", str(run.folder)])
        there.wait("you handed mouse and keyboard back", " paused ")
        there.type("p")
        answer(there, 4, "Escape")
        there.wait("Press a to answer")
        there.type("x")
        there.wait("Stop ", "It can be resumed later")
        there.type("y")
        there.wait(" stopped ")
        there.type("q")
        assert there.wait_for_end() == 0
    told(run_in(place))


def told(run: log.RunLog) -> None:
    """Look whether the log has what the person did."""
    decided = [event for event in run.events if isinstance(event, log.Decided)]
    assert [(event.verdict, event.reason) for event in decided] == [
        ("once", ""),
        ("deny", "not that one"),
        ("once", ""),
    ]
    intended = [event.call.arguments for event in run.events if isinstance(event, log.Intended)]
    assert [arguments["coordinate"] for arguments in intended] == [[500, 140], [500, 460]]
    denied = next(event for event in run.events if isinstance(event, log.Resulted) and not event.executed)
    assert "not that one" in denied.text
    back = [event for event in run.events if isinstance(event, log.SteppedBack)]
    assert {event.to for event in back} == {4}
    assert "is equal to what it was" in back[-1].note
    (gave,) = (event for event in run.events if isinstance(event, log.GaveBack))
    assert "I pressed one myself" in gave.text
    assert gave.inputs == 2
    assert run.ended is not None
    assert run.ended.status == "interrupted"
    assert not os.path.lexists(run.folder / "control.sock")
