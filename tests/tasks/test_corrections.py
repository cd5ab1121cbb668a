"""Episodes that someone else plays while the expert says what is right."""

from __future__ import annotations

import importlib.util
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.tasks.episodes import cdp, pages
from pilotfish.tasks.episodes.alone import play_alone
from pilotfish.tasks.episodes.corrections import Mixture, correct_miniwob, correct_scene
from pilotfish.tasks.episodes.play import Options
from pilotfish.tasks.episodes.steps import Step
from pilotfish.tasks.episodes.teacher import agrees

SHELL = shutil.which("chromium-headless-shell")
_spec = importlib.util.find_spec("miniwob")
MINIWOB = Path(_spec.submodule_search_locations[0]) if _spec and _spec.submodule_search_locations else None
PLAIN = Options(augment=False)
ALONE = Mixture(alone=1.0, wrong=9)
needs_browser = pytest.mark.skipif(
    SHELL is None or MINIWOB is None, reason="needs chromium-headless-shell and the miniwob package"
)
BLANK = {"action": "left_click", "coordinate": [500, 950]}


class Scripted:
    """Does what it is told, then what the expert would."""

    def __init__(self, *actions: dict[str, Any]) -> None:
        self.left = list(actions)
        self.done: list[dict[str, Any]] = []
        self.seen = 0

    def sees(self, instruction: str, before: bytes, now: bytes) -> None:
        self.seen += 1

    async def answers(self) -> dict[str, Any] | None:
        return self.left.pop(0) if self.left else None

    def does(self, action: dict[str, Any]) -> None:
        self.done.append(action)


@pytest.fixture
async def screen() -> AsyncIterator[pages.Screen]:
    assert SHELL is not None
    browser = await cdp.Browser.launch(SHELL, (*cdp.FLAGS, *pages.VIEW.flags))
    try:
        yield pages.Screen(await browser.page(pages.VIEW, pages.SCRIPT), random.Random(0))
    finally:
        browser.close()


def click(x: int, y: int) -> dict[str, Any]:
    return {"action": "left_click", "coordinate": [x, y]}


def typed(text: str) -> dict[str, Any]:
    return {"action": "type", "text": text}


def test_the_same_deed_is_told_from_another() -> None:
    step = Step({"action": "left_click", "coordinate": [500, 500]}, [150, 200, 190, 220])
    assert agrees(click(480, 490), step)
    assert not agrees(click(300, 500), step)
    assert not agrees({"action": "double_click", "coordinate": [500, 500]}, step)
    assert not agrees({**click(480, 490), "text": "ctrl"}, step)
    assert agrees(typed("a"), Step(typed("a")))
    assert not agrees(typed("b"), Step(typed("a")))
    ends = {"start_coordinate": [100, 100], "coordinate": [500, 500]}
    drag = Step({"action": "left_click_drag", **ends}, [0, 0, 60, 60])
    assert agrees({"action": "left_click_drag", **ends, "coordinate": [510, 505]}, drag)
    assert not agrees({"action": "left_click_drag", **ends, "coordinate": [700, 500]}, drag)
    assert not agrees({"action": "left_click_drag", "coordinate": [500, 500]}, drag)


@needs_browser
async def test_who_changes_nothing_is_not_waited_for(screen: pages.Screen) -> None:
    assert MINIWOB is not None
    web = pages.MiniWob(MINIWOB, measures=True)
    nothing, other = click(990, 990), click(985, 990)
    student = Scripted(nothing, nothing, other, *[nothing] * 9)
    result = await play_alone(screen, web, "click-test", 1_000_000, student, steps=30, stuck=4)
    assert (result.end, result.steps, result.passed) == ("stuck", 6, False)
    assert student.done == [nothing, nothing, other, *[nothing] * 3]
    scrolled = Scripted(*[{"action": "scroll", "coordinate": [500, 500], "scroll_direction": "down"}] * 9)
    result = await play_alone(screen, web, "click-test", 1_000_000, scrolled, steps=3, stuck=4)
    assert (result.end, result.steps) == ("steps", 3)


@needs_browser
async def test_labels_are_the_experts_wherever_the_other_goes(screen: pages.Screen) -> None:
    assert MINIWOB is not None
    web = pages.MiniWob(MINIWOB)
    first = (await correct_miniwob(screen, web, "enter-text", 3, Scripted(), ALONE, PLAIN))[0]
    field = first.steps[0]["action"]
    student = Scripted(BLANK, field, typed("wrong"))
    mixture = Mixture(alone=1.0, wrong=2)
    episode, tally = await correct_miniwob(screen, web, "enter-text", 3, student, mixture, PLAIN)
    said = [step["action"] for step in episode.steps]
    word = said[3 + 1]["text"]
    assert f'"{word}"' in episode.instruction
    kinds = [action["action"] for action in said]
    assert kinds == ["left_click", "left_click", "type", "key", "type", "left_click"]
    assert said[3] == {"action": "key", "text": "ctrl+a"}
    assert said[2]["text"] == word
    assert [step.get("taken") for step in episode.steps] == [BLANK, None, typed("wrong"), None, None, None]
    assert episode.success
    assert all(step["train"] for step in episode.steps)
    assert (tally.alone, tally.passed, tally.steps, tally.right) == (True, False, 3, 1)
    assert student.done == [BLANK, field, typed("wrong"), *said[3:]]
    assert student.seen == 6


@needs_browser
async def test_what_ends_an_episode_wrongly_has_a_label_and_what_follows_a_wrong_way_has_none(
    screen: pages.Screen,
) -> None:
    assert MINIWOB is not None
    web = pages.MiniWob(MINIWOB)
    episode, tally = await correct_miniwob(
        screen, web, "enter-text", 3, Scripted(typed("x"), None), ALONE, PLAIN
    )
    press = episode.steps[0]["action"]
    assert (len(episode.steps), tally.right, episode.success) == (2, 0, False)
    assert [step["train"] for step in episode.steps] == [True, True]  # nothing had the focus: no other way
    student = Scripted(press, typed("wrong"), None)
    episode, _ = await correct_miniwob(screen, web, "enter-text", 3, student, ALONE, PLAIN)
    assert [step["train"] for step in episode.steps] == [True, True, False]
    boxes, _ = await correct_miniwob(screen, web, "click-checkboxes", 12, Scripted(), ALONE, PLAIN)
    assert "taken" not in boxes.steps[0]
    assert boxes.steps[0]["train"]


@needs_browser
async def test_a_wrong_box_is_unticked_again(screen: pages.Screen) -> None:
    assert MINIWOB is not None
    web = pages.MiniWob(MINIWOB)
    for seed in range(12, 30):
        first, _ = await correct_miniwob(screen, web, "click-checkboxes", seed, Scripted(), ALONE, PLAIN)
        wanted = first.instruction.removeprefix("Select ").split(" and click")[0].split(", ")
        others = [w for w in first.widgets[0] if w[1] == "checkbox" and w[0] not in wanted]
        if others:
            break
    _, _, x0, y0, x1, y1 = others[0]
    stray = click(pages.to_grid((x0 + x1) // 2, 336), pages.to_grid((y0 + y1) // 2, 420))
    mixture = Mixture(alone=1.0, wrong=1)
    episode, _ = await correct_miniwob(screen, web, "click-checkboxes", seed, Scripted(stray), mixture, PLAIN)
    assert episode.success
    assert episode.steps[0]["taken"] == stray
    undone = [step for step in episode.steps[1:-1] if agrees(stray, Step(step["action"], step["box"]))]
    assert len(undone) == 1


@needs_browser
async def test_giving_up_ends_an_episode_and_is_right_where_nothing_can_be_done(screen: pages.Screen) -> None:
    give_up = {"action": "infeasible"}
    episode, tally = await correct_scene(screen, 3, Scripted(give_up), ALONE, "site-missing")
    assert (episode.success, tally.passed, tally.right) == (True, True, 1)
    episode, tally = await correct_scene(screen, 3, Scripted(give_up), ALONE, "site-verb")
    assert (episode.success, tally.passed, len(episode.steps)) == (False, False, 1)
    assert episode.steps[0]["taken"] == give_up
    assert episode.steps[0]["train"]


@needs_browser
@pytest.mark.parametrize("task", ["desk-editor", "desk-calculator", "site-table", "site-chores"])
async def test_experts_of_applications_mend_what_a_student_has_done(screen: pages.Screen, task: str) -> None:
    stray = typed("7")
    for seed in range(3):
        episode, _ = await correct_scene(screen, seed, Scripted(stray), Mixture(alone=1.0, wrong=1), task)
        assert episode.success, episode.steps
        assert episode.steps[0]["taken"] == stray
        assert sum("taken" in step for step in episode.steps) == 1


@needs_browser
async def test_a_page_of_our_own_is_played_to_its_end(screen: pages.Screen) -> None:
    mixture = Mixture(alone=0.0, expert=1.0)
    played = [await correct_scene(screen, seed, Scripted(), mixture, "page-fill") for seed in range(4)]
    for episode, tally in played:
        if episode.steps:
            assert episode.success
            assert episode.steps[-1]["action"] == {"action": "done"}
            assert (tally.steps, tally.passed) == (0, False)
            assert not any("taken" in step for step in episode.steps)
    assert any(episode.steps for episode, _ in played)
