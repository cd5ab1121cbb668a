"""The MiniWoB++ adapter: fixed geometry, seeded episodes, the page's own verdict, nothing leaks."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator

import mss
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
from Xlib import X, display
from Xlib.ext import xtest

from pilotfish.sandbox import Sandbox
from pilotfish.tasks.environment import End
from pilotfish.tasks.environments import environment_for
from pilotfish.tasks.load import load_suite
from pilotfish.tasks.miniwob import Miniwob, pages_folder, random_click_policy
from pilotfish.tasks.miniwob_names import HELD_OUT, MINIWOB_TASKS, may_train_on, measured_seed
from pilotfish.tasks.miniwob_tasks import miniwob_task
from pilotfish.tasks.reader import TaskError
from pilotfish.tasks.windows import let_go, settle
from pilotfish.tools.base import ToolContext
from pilotfish.tools.computer import ComputerArgs, ComputerTool
from pilotfish.tools.grid import pixel_to_grid

in_module = pytest.mark.asyncio(loop_scope="module")
GREY = (0x55, 0x55, 0x55)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box() -> AsyncIterator[Sandbox]:
    async with Sandbox.open(environment_for(miniwob_task("click-test")).sandbox_spec()) as box:
        yield box


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def computer() -> AsyncIterator[ComputerTool]:
    tool = ComputerTool()
    yield tool
    await tool.close()


def episode(name: str, seed: int = 0, time_limit: str = "untimed") -> Miniwob:
    environment = environment_for(
        miniwob_task(name, seed, "classic" if time_limit == "classic" else "untimed")
    )
    assert isinstance(environment, Miniwob)
    return environment


def seen(box: Sandbox, width: int = 672, height: int = 448) -> npt.NDArray[np.uint8]:
    """The display's pixels, RGB, [height, width, 3]."""
    with mss.MSS(display=box.display.name) as eye:
        shot = eye.grab({"left": 0, "top": 0, "width": width, "height": height})
        return np.frombuffer(shot.raw, np.uint8).reshape(height, width, 4)[:, :, 2::-1].copy()


async def click(
    computer: ComputerTool, box: Sandbox, play: Miniwob, selector: str, action: str = "left_click"
) -> None:
    """Click the middle of an element with the real tool; the page only says where it is."""
    assert play.page is not None
    middle = await play.page.eval_on_selector(
        selector,
        "(e) => { const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }",
    )
    screen = play.screen(box)
    point = pixel_to_grid((round(middle[0] * 2), round(middle[1] * 2)), screen)
    args = ComputerArgs.model_validate({"action": action, "coordinate": list(point)})
    assert (await computer.run(args, ToolContext(box, screen))).text == "ok"
    await settle(screen)  # keys typed before the browser has handled a click overtake it


async def ends(play: Miniwob, box: Sandbox) -> bool:
    """Whether the page ends within five seconds of an action, which reaches it through the display."""
    for _ in range(100):
        if await play.finished(box):
            return True
        await asyncio.sleep(0.05)
    return False


def test_the_tasks_are_those_of_the_installed_package() -> None:
    source = (pages_folder().parent / "registration.py").read_text()
    registered = {
        name for name in re.findall(r'id="miniwob/([^"]+)-v1"', source) if not name.startswith("flight.")
    }
    assert set(MINIWOB_TASKS) == registered
    assert len(MINIWOB_TASKS) == 125
    assert all((pages_folder() / "miniwob" / f"{name}.html").is_file() for name in MINIWOB_TASKS)
    assert [task.id for task in load_suite("miniwob")] == sorted(MINIWOB_TASKS)
    assert all(count >= 2 for count in Counter(MINIWOB_TASKS.values()).values())


def test_what_is_held_out() -> None:
    assert len(HELD_OUT) == 10
    assert set(MINIWOB_TASKS) > HELD_OUT
    assert may_train_on("click-test", 999_999)
    assert not may_train_on("click-test", 1_000_000)
    assert not may_train_on("click-color", 3)
    assert [measured_seed(episode) for episode in (0, 5)] == [1_000_000, 1_000_005]
    with pytest.raises(TaskError, match="count episodes from 0"):
        measured_seed(-1)
    assert all(not may_train_on(task.id, task.environment.seed) for task in load_suite("miniwob"))


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(TaskError, match=r"no task 'clik-test'; the nearest are click-test"):
        miniwob_task("clik-test")


def test_the_baseline_clicks_everywhere_in_the_task() -> None:
    first, again, other = (list(itertools.islice(random_click_policy(seed), 4000)) for seed in (1, 1, 2))
    assert first == again != other
    points = np.array([step["coordinate"] for step in first])
    assert points.min() >= 0
    assert (points.max(axis=0) < (953, 1000)).all()
    cells = Counter((x // 240, y // 250) for x, y in points.tolist())
    assert len(cells) == 16
    assert min(cells.values()) > 150
    for step in first[:50]:
        ComputerArgs.model_validate(step)


@in_module
@pytest.mark.parametrize("name", [*list(MINIWOB_TASKS)[::16], "click-dialog", "terminal"])
async def test_every_page_stands_still_at_the_top_left(box: Sandbox, name: str) -> None:
    """Nothing scrolls sideways, the reward display is gone, and the model sees exactly the task."""
    play = episode(name, 7)
    assert await play.start(box)
    assert play.page is not None
    assert await play.page.evaluate("[scrollX, scrollY, innerWidth, innerHeight, devicePixelRatio]") == [
        0,
        0,
        336,
        224,
        2,
    ]
    screen = play.screen(box)
    assert (screen.x, screen.y, screen.width, screen.height) == (0, 0, 336, 420)
    picture = seen(box)
    for _ in range(50):  # until a busy machine has painted it
        if (picture[:420, 324:] == GREY).all():
            break
        await asyncio.sleep(0.1)
        picture = seen(box)
    assert (picture[:420, 324:] == GREY).all()
    assert (picture[:90, :300].reshape(-1, 3) == (255, 255, 0)).all(axis=1).mean() > 0.5
    assert not await play.finished(box)
    assert not (await play.grade(box, End())).passed


@in_module
async def test_a_seed_is_an_episode(box: Sandbox) -> None:
    pictures, utterances = [], []
    for seed in (11, 12, 11):
        play = episode("click-checkboxes", seed)
        utterances.append(await play.start(box))
        pictures.append(seen(box))
    assert utterances[0] == utterances[2] != utterances[1]
    assert np.array_equal(pictures[0], pictures[2])
    assert not np.array_equal(pictures[0], pictures[1])


@in_module
async def test_the_utterance_of_a_task_with_fields_is_its_text(box: Sandbox) -> None:
    utterance = await episode("email-inbox-forward-nl", 3).start(box)
    assert len(utterance) > 10
    assert not utterance.startswith("{")


@in_module
async def test_right_and_wrong_clicks(box: Sandbox, computer: ComputerTool) -> None:
    play = episode("click-test-2", 5)
    assert await play.start(box) == "Click button ONE."
    await click(computer, box, play, "#subbtn")
    assert await ends(play, box)
    assert await play.grade(box, End("finished")) == (await play.grade(box, End()))
    right = await play.grade(box, End())
    assert (right.score, right.passed) == (1.0, True)
    await play.start(box)
    await click(computer, box, play, "#subbtn2")
    assert await ends(play, box)
    wrong = await play.grade(box, End())
    assert (wrong.score, wrong.passed, wrong.reason) == (0.0, False, "The page's reward was -1.")


@in_module
async def test_a_click_too_many_does_not_wipe_the_reward(box: Sandbox, computer: ComputerTool) -> None:
    play = episode("click-test", 5)
    await play.start(box)
    await click(computer, box, play, "#subbtn", "triple_click")
    await click(computer, box, play, "#subbtn")
    assert await ends(play, box)
    assert (await play.grade(box, End())).passed


@in_module
async def test_clocks(box: Sandbox) -> None:
    clocks = []
    for name, time_limit in (("click-test", "classic"), ("enter-time", "classic"), ("click-test", "untimed")):
        play = episode(name, 0, time_limit)
        await play.start(box)
        assert play.page is not None
        clocks.append(await play.page.evaluate("core.EPISODE_MAX_TIME"))
    assert clocks == [10_000, 20_000, 2**31 - 1]
    await play.page.evaluate("core.endEpisode(-1, false, 'timed out')")
    assert await play.finished(box)
    assert (await play.grade(box, End())).reason == "The page's reward was -1 (timed out)."


@in_module
async def test_any_reward_above_0_passes_and_the_score_keeps_the_part(box: Sandbox) -> None:
    for reward, score, passed in ((0.4, 0.4, True), (1, 1.0, True), (0, 0.0, False), (-0.5, 0.0, False)):
        play = episode("click-test", 0)
        await play.start(box)
        assert play.page is not None
        await play.page.evaluate(f"core.endEpisode({reward})")
        grade = await play.grade(box, End())
        assert (grade.score, grade.passed) == (score, passed)


@in_module
async def test_typing_reaches_the_page(box: Sandbox, computer: ComputerTool) -> None:
    play = episode("enter-text", 9)
    utterance = await play.start(box)
    word = re.findall(r'"(.+?)"', utterance)[0]
    await click(computer, box, play, "#tt")
    await computer.run(ComputerArgs(action="type", text=word), ToolContext(box, play.screen(box)))
    await settle(play.screen(box))
    await click(computer, box, play, "#subbtn")
    assert await ends(play, box)
    assert (await play.grade(box, End())).passed


@in_module
async def test_nothing_held_reaches_the_next_episode(box: Sandbox) -> None:
    connection = display.Display(box.display.name)
    root = connection.screen().root
    shift = connection.keysym_to_keycode(0xFFE1)
    root.warp_pointer(100, 100)
    xtest.fake_input(connection, X.KeyPress, shift)
    xtest.fake_input(connection, X.ButtonPress, 1)
    connection.sync()
    assert root.query_pointer().mask & (X.Button1Mask | X.ShiftMask) == X.Button1Mask | X.ShiftMask
    let_go(box.display.name)
    after = root.query_pointer()
    assert after.mask & (X.Button1Mask | X.ShiftMask) == 0
    assert (after.root_x, after.root_y) == (671, 447)
    connection.close()


@in_module
async def test_one_browser_serves_many_episodes(box: Sandbox) -> None:
    names = ["click-test", "enter-text", "login-user", "click-tab"]
    processes = []
    for seed in range(40):
        play = episode(names[seed % len(names)], seed)
        await play.start(box)
        if seed in (7, 39):
            listing = await box.shell.run("ls -d /proc/[0-9]* | wc -l")
            processes.append(int(listing.output))
    assert play.page is not None
    assert len(play.page.context.pages) == 1
    assert abs(processes[1] - processes[0]) <= 1


@in_module
async def test_a_browser_that_died_is_replaced(box: Sandbox) -> None:
    play = episode("click-test", 1)
    await play.start(box)
    await box.shell.run("pkill -9 -f -- --user-data-dir")
    assert await play.finished(box)
    assert (await play.grade(box, End())).reason == "The page is gone."
    assert await play.start(box) == "Click the button."
    assert not await play.finished(box)
