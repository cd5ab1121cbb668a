"""Episodes recorded from real pages: grid, refusals, shards, experts, labels, the recorder and the bundle."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pilotfish.tasks.episodes import bundle, cdp, pages, record, words
from pilotfish.tasks.episodes.catalog import SCENES, make_scene
from pilotfish.tasks.episodes.experts import EXPERTS
from pilotfish.tasks.episodes.keys import key_events
from pilotfish.tasks.episodes.mixes import read_mix, read_sizes
from pilotfish.tasks.episodes.play import Options, play_miniwob, play_scene, reached
from pilotfish.tasks.episodes.shards import Episode, read_shard, write_shard
from pilotfish.tasks.episodes.widgets import element
from pilotfish.tasks.miniwob_names import HELD_OUT

SHELL = shutil.which("chromium-headless-shell")
_spec = importlib.util.find_spec("miniwob")
MINIWOB = Path(_spec.submodule_search_locations[0]) if _spec and _spec.submodule_search_locations else None
PLAIN = Options(augment=False)
needs_browser = pytest.mark.skipif(
    SHELL is None or MINIWOB is None, reason="needs chromium-headless-shell and the miniwob package"
)


@given(st.sampled_from([336, 420]), st.data())
def test_grid_names_every_pixel_by_its_smallest_value(size: int, data: st.DataObject) -> None:
    pixel = data.draw(st.integers(0, size - 1))
    grid = pages.to_grid(pixel, size)
    assert 0 <= grid <= 999
    assert pages.from_grid(grid, size) == pixel
    assert grid == 0 or pages.from_grid(grid - 1, size) == pixel - 1


def test_points_outside_the_frame_are_clamped() -> None:
    assert pages.to_grid(-3, 336) == 0
    assert pages.from_grid(pages.to_grid(5000, 336), 336) == 335
    assert pages.from_grid(1000, 420) == 419


def test_training_and_evaluation_hold_out_the_same_tasks() -> None:
    assert set(HELD_OUT) == pages.HELD_OUT_TASKS


@pytest.mark.parametrize("task", sorted(pages.HELD_OUT_TASKS))
def test_held_out_tasks_are_refused(task: str) -> None:
    assert task not in EXPERTS
    with pytest.raises(ValueError, match="held out"):
        pages.check_task(task, 0)


@pytest.mark.parametrize("seed", [-1, 1_000_000, 2_500_000])
def test_held_out_seeds_are_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="held out"):
        pages.check_task("click-test", seed)


def test_a_mix_names_only_what_can_be_played(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    for text, words_of_error in [
        ('{"click-color": 1}', "held out"),
        ('{"no-such-task": 1}', "no expert"),
        ('{"click-test": -1}', "at least 0"),
        ('{"click-test": 0}', "Every weight"),
        ("[1]", "no JSON object"),
        ("{", "cannot be read"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=words_of_error):
            read_mix(path)
    path.write_text('{"click-test": 2, "procedural": 1, "page-fill": 0.5}')
    assert read_mix(path) == {"click-test": 2.0, "procedural": 1.0, "page-fill": 0.5}
    assert sum(read_mix(None).values()) == 2 * len(EXPERTS)


def test_keys_type_what_they_say() -> None:
    assert [e["type"] for e in key_events("a")] == ["keyDown", "keyUp"]
    assert key_events("Return")[0]["text"] == "\r"
    select_all = key_events("ctrl+a")
    assert [e["key"] for e in select_all] == ["Control", "a", "a", "Control"]
    assert select_all[1]["commands"] == ["selectAll"]
    assert key_events("+")[0]["text"] == "+"
    assert key_events("F2")[0]["windowsVirtualKeyCode"] == 113
    with pytest.raises(ValueError, match="no key 'Hyper'"):
        key_events("Hyper")
    with pytest.raises(ValueError, match="'super'"):
        key_events("super+a")


def test_words_are_many_and_labels_differ() -> None:
    assert len(words.dictionary()) > 2000
    labels = words.distinct_labels(60, random.Random(1))
    assert len({label.lower() for label in labels}) == 60


def test_a_shard_gives_back_what_was_written(tmp_path: Path) -> None:
    episode = Episode(
        task="click-test",
        seed=7,
        instruction="Drücke „♥“",
        success=True,
        frames=[b"\x89PNG one", b"two"],
        widgets=[[("Größe", "button", 1, 2, 3, 4)], []],
        letters=[[("ß", 5, 6), ("♥", 7, 8)], []],
        steps=[{"frame": 0, "action": {"action": "done"}, "train": True, "box": None}],
    )
    path = tmp_path / "shard-000-000000.bin"
    write_shard(path, [episode, episode])
    assert read_shard(path) == [episode, episode]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("keep", [4, 30, -3])
def test_a_damaged_shard_is_one_sentence(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "shard.bin"
    write_shard(path, [Episode("t", 1, "i", True, [b"picture"], [[]], [[]], [])])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"shard\.bin is "):
        read_shard(path)


def test_scenes_are_the_same_every_time() -> None:
    assert make_scene(5).html == make_scene(5).html
    assert len({make_scene(seed).html for seed in range(20)}) == 20
    with pytest.raises(ValueError, match="no procedural task 'x'"):
        make_scene(1, "x")


def test_the_browser_path_may_be_wrong() -> None:
    async def launch() -> None:
        await cdp.Browser.launch("/nonexistent/shell")

    with pytest.raises(cdp.BrowserError, match="cannot be started"):
        asyncio.run(launch())


def test_a_bundle_comes_out_as_it_went_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser, web = tmp_path / "browser", tmp_path / "web"
    browser.mkdir()
    web.mkdir()
    for name in bundle.BROWSER_FILES:
        (browser / name).write_bytes(random.Random(name).randbytes(3000))
    with pytest.raises(ValueError, match=r"chromium-headless-shell is missing"):
        bundle.pack(tmp_path / "parts", tmp_path, web, [], 0)
    shutil.copy2("/bin/ls", browser / "chromium-headless-shell")
    (web / "page.html").write_text("<p>page")
    monkeypatch.setattr(bundle, "PART_BYTES", 20_000)
    parts = bundle.pack(tmp_path / "parts", browser, web, [], 0)
    assert len(parts) > 2
    bundle.unpack(tmp_path / "parts", tmp_path / "out")
    for name in bundle.BROWSER_FILES:
        assert (tmp_path / "out/browser" / name).read_bytes() == (browser / name).read_bytes()
    assert os.access(tmp_path / "out/browser/chromium-headless-shell", os.X_OK)
    assert (tmp_path / "out/miniwob/html/page.html").read_text() == "<p>page"
    assert not [p for p in (tmp_path / "out/lib").iterdir() if p.name.startswith(("libc.", "ld-linux"))]
    parts[1].unlink()
    with pytest.raises(ValueError, match="lacks a part"):
        bundle.unpack(tmp_path / "parts", tmp_path / "out")


@pytest.fixture
async def screen() -> AsyncIterator[pages.Screen]:
    assert SHELL is not None
    browser = await cdp.Browser.launch(SHELL, (*cdp.FLAGS, *pages.VIEW.flags))
    try:
        page = await browser.page(pages.VIEW, pages.SCRIPT)
        yield pages.Screen(page, random.Random(0))
    finally:
        browser.close()


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


@needs_browser
async def test_every_expert_is_rewarded(screen: pages.Screen) -> None:
    assert MINIWOB is not None
    web = pages.MiniWob(MINIWOB)
    for task in sorted(set(EXPERTS) - {"unicode-test"}):
        for seed in range(
            900_011, 900_015
        ):  # some pages draw at random besides, and not every game can be won
            episode = await play_miniwob(screen, web, task, seed, PLAIN)
            if episode.success:
                break
        assert episode.success, (task, episode.instruction, episode.steps)
        for step in episode.steps:
            if step["action"]["action"] == "left_click":
                (gx, gy), (x0, y0, x1, y1) = step["action"]["coordinate"], step["box"]
                assert x0 - 1 <= pages.from_grid(gx, 336) <= x1, (task, step)
                assert y0 - 1 <= pages.from_grid(gy, 420) <= y1, (task, step)


@needs_browser
async def test_labels_say_what_the_frame_shows(screen: pages.Screen) -> None:
    assert MINIWOB is not None
    web = pages.MiniWob(MINIWOB)
    episode = await play_miniwob(screen, web, "click-test-2", 5, PLAIN)
    picture = pixels(episode.frames[0])
    assert picture.shape == (420, 336, 3)
    boxes = {text: box for text, kind, *box in episode.widgets[0] if kind == "button"}
    assert set(boxes) == {"ONE", "TWO"}
    for text, (x0, y0, x1, y1) in boxes.items():
        inside = [(c, x, y) for c, x, y in episode.letters[0] if x0 < x < x1 and y0 < y < y1]
        assert "".join(c for c, _, _ in sorted(inside, key=lambda letter: letter[1])) == text
        for _, x, y in inside:  # ink near every letter's centre
            assert picture[y - 7 : y + 7, x - 6 : x + 6].min() < 100
    said = "".join(c for c, _, y in episode.letters[0] if y < 40)
    assert said == "ClickbuttonONE."


@needs_browser
async def test_a_covered_target_is_its_open_part(screen: pages.Screen) -> None:
    look = "position:absolute;width:40px;height:40px;top:60px;left:"
    page = (
        f'<button id="a" style="{look}30px">ONE</button><button style="{look}45px">TWO</button>'
        '<button id="b">OK</button>'
    )
    await screen.page.evaluate(f"document.open();document.write({json.dumps(page)});document.close()")
    covered = await screen.target("document.getElementById('a')")
    x0, y0, x1, y1 = covered.box
    assert 30 <= x0 < x1 <= 45
    assert 60 <= y0 < y1 <= 100
    assert (x0 <= covered.x <= x1, y0 <= covered.y <= y1) == (True, True)
    free = await screen.target("document.getElementById('b')")
    assert free.box[2] - free.box[0] > 10


@needs_browser
async def test_labels_name_single_words(screen: pages.Screen) -> None:
    page = "<p style='margin:20px 4px'>Quick red <a href='#'>fox</a> jumps.</p>"
    await screen.page.evaluate(f"document.open();document.write({json.dumps(page)});document.close()")
    widgets = (await screen.capture()).widgets
    named = {text: (kind, box) for text, kind, *box in widgets}
    assert {text: kind for text, (kind, _) in named.items()} == {
        "fox": "link",
        "Quick red": "text",
        "Quick": "word",
        "red": "word",
        "jumps.": "text",
    }
    assert named["Quick"][1][2] < named["red"][1][0]


@needs_browser
async def test_a_page_may_start_again_without_loading(
    screen: pages.Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MINIWOB is not None

    async def outside() -> None:
        screen.move(300, 220)

    monkeypatch.setattr(screen, "reset_mouse", outside)
    web = pages.MiniWob(MINIWOB)
    for task in ("click-dialog", "login-user", "navigate-tree"):
        alone = await play_miniwob(screen, web, task, 21, PLAIN)
        await play_miniwob(screen, web, task, 22, PLAIN)
        again = await play_miniwob(screen, web, task, 21, PLAIN, fresh=False)
        assert again == alone


@needs_browser
async def test_every_kind_of_scene_reaches_its_goal(screen: pages.Screen) -> None:
    for task, (_, weight) in SCENES.items():
        played = [await play_scene(screen, seed, PLAIN, task) for seed in range(5 if weight else 3)]
        begun = [episode for episode in played if episode.steps]
        assert begun, task
        for episode in begun:
            assert episode.success, (task, episode.seed, episode.instruction, episode.steps)
            end = "infeasible" if task == "site-missing" else "done"
            assert episode.steps[-1]["action"] == {"action": end}
            last = episode.frames[episode.steps[-1]["frame"]]
            assert (last != episode.frames[episode.steps[0]["frame"]]) is (end == "done")


@needs_browser
@pytest.mark.parametrize("size", ["1280x800@1.6", "640x480@2"])
async def test_a_page_on_a_larger_screen_is_one_thing_among_others(size: str) -> None:
    view = cdp.View.of(size)
    width, height = (int(side) for side in size.partition("@")[0].split("x"))
    assert SHELL is not None
    browser = await cdp.Browser.launch(SHELL, (*cdp.FLAGS, *view.flags))
    try:
        page = await browser.page(view, pages.script_for(view))
        screen = pages.Screen(page, random.Random(0), view)
        read = 0
        for task in ("page-click", "page-crowd", "page-menu", "site-form", "desk-editor", "desk-files"):
            for seed in range(3):
                episode = await play_scene(screen, seed, PLAIN, task)
                assert episode.success, (task, seed, episode.instruction, episode.steps)
                assert (episode.width, episode.height) == (width, height)
                shown = pixels(episode.frames[0])
                assert shown.shape == (height, width, 3)
                for step in episode.steps:
                    if step["action"]["action"] == "left_click" and step["train"]:
                        (gx, gy), (x0, y0, x1, y1) = step["action"]["coordinate"], step["box"]
                        assert x0 - 1 <= pages.from_grid(gx, width) <= x1
                        assert y0 - 1 <= pages.from_grid(gy, height) <= y1
                plain = make_scene(seed, task)
                around = [
                    w for w in episode.widgets[0] if w[1] == "word" and w[0].lower() not in plain.html.lower()
                ]
                read += len(around)
                for _, _, x0, y0, x1, y1 in around:  # there is ink where a word is said to be
                    assert np.ptp(shown[y0:y1, x0:x1].astype(int).sum(2)) > 100
                again = await play_scene(screen, seed, PLAIN, task)
                assert again == episode
        assert read > 50
    finally:
        browser.close()


def test_sizes_of_screens_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    row = {"size": "1280x800@1.6", "share": 0.1, "tasks": "desk-*"}

    def written(*sizes: object, **weights: float) -> Path:
        path.write_text(json.dumps({"click-test": 1, "desk-editor": 1, **weights, "sizes": list(sizes)}))
        return path

    (size,) = read_sizes(written(row))
    assert (size.view.pixel_width, size.view.pixel_height, size.share) == (1280, 800, 0.1)
    assert [size.takes(task) for task in ("desk-editor", "procedural", "click-test")] == [True, False, False]
    assert read_mix(path) == {"click-test": 1, "desk-editor": 1}
    assert read_sizes(None) == ()
    for wrong, sentence in (
        ({**row, "size": "1280x800"}, "'1280x800' is no size; write it like '1280x800@1.6'"),
        ({**row, "size": "1000x800@1.6@2"}, "is no size"),
        ({**row, "size": "1281x800@1.6"}, "is 800.625x500 CSS pixels; choose a scale"),
        ({**row, "share": True}, "share of '1280x800@1.6' in .* is True; use a number"),
        ({**row, "share": 1.5}, "is 1.5; use a number of 0 to 1"),
        ({**row, "tasks": "click-*"}, "'click-\\*' in .* are none of ours with a weight"),
        ({"size": "1280x800@1.6"}, "is no size; give it size, share and tasks"),
        ("1280x800", "is no size; give it size, share and tasks"),
    ):
        with pytest.raises(ValueError, match=sentence):
            read_sizes(written(wrong))
    with pytest.raises(ValueError, match="more than 1 together"):
        read_sizes(written({**row, "share": 0.6}, {**row, "share": 0.5}))


@needs_browser
async def test_no_goal_is_reached_by_what_was_not_asked_for(screen: pages.Screen) -> None:
    async def press(name: str) -> None:
        await screen.capture()  # before a frame is drawn a page takes no clicks
        await screen.act({"action": "left_click", "coordinate": (await screen.target(element(name))).grid})

    for task in (name for name in SCENES if name.startswith(("site-", "desk-"))):
        scene = make_scene(7, task)
        await scene.show(screen)
        await screen.act({"action": "type", "text": "x"})
        await screen.act({"action": "done"})
        assert not await reached(screen), task
        if task in ("site-form", "site-sign-in", "site-shop", "site-settings", "site-calendar"):
            await press(scene.needed[0])  # the button at the end, with nothing filled in
            assert not await reached(screen), task
        if task == "site-missing":
            await press(scene.needed[0])
        await screen.act({"action": "infeasible"})
        assert not await reached(screen), task


def test_the_mix_with_applications_leaves_no_task_out() -> None:
    data = Path(__file__).parents[2] / "model/training/data"
    before, after = read_mix(data / "mix_v2.json"), read_mix(data / "mix_v4.json")
    new = {task: after.pop(task) for task in set(after) - set(before)}
    assert set(after) == set(before)
    assert all(0 < after[task] <= before[task] for task in before)
    assert set(new) == {task for task, (_, weight) in SCENES.items() if weight == 0}
    assert 0.1 < sum(new.values()) / (sum(after.values()) + sum(new.values())) < 0.2
    assert not {make_scene(seed).task for seed in range(40)} & set(new)
    sizes = read_sizes(data / "mix_v4.json")
    assert {(size.view.pixel_width, size.view.pixel_height) for size in sizes} >= {(640, 480), (1280, 800)}
    assert 0.02 < sum(size.share for size in sizes) < 0.1


@needs_browser
async def test_slips_are_kept_but_not_taught(screen: pages.Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MINIWOB is not None
    monkeypatch.setattr("pilotfish.tasks.episodes.play.SLIP_SHARE", 1.0)
    web = pages.MiniWob(MINIWOB)
    painted = []
    while not any(painted) and len(painted) < 4:  # a busy machine may paint the pressed button after we look
        episode = await play_miniwob(screen, web, "enter-text", 3, Options(watched=1.0))
        assert episode.success
        assert [step["train"] for step in episode.steps] == [False, True, True, True]
        clicks = [step for step in episode.steps if step["action"]["action"] == "left_click"]
        pressed = [step for step in clicks if step["train"]]
        painted.append(all(episode.frames[step["mid"]] != episode.frames[step["frame"]] for step in pressed))
    assert any(painted)


@needs_browser
async def test_a_dead_browser_is_an_error_and_not_a_hang(screen: pages.Screen) -> None:
    waiting = asyncio.ensure_future(screen.page.evaluate("new Promise(() => {})"))
    await asyncio.sleep(0.1)
    os.killpg(screen.page.browser.pid, signal.SIGKILL)
    with pytest.raises(cdp.BrowserError):
        await asyncio.wait_for(waiting, 10)
    assert not screen.page.browser.alive
    with pytest.raises(cdp.BrowserError):
        await screen.page.evaluate("1")


def browsers_of(profile_parent: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(profile_parent).encode() in line and b"headless-shell" in line:
                found.append(int(entry.name))
    return found


@needs_browser
@pytest.mark.parametrize("end", ["episodes", "SIGTERM", "SIGKILL"])
def test_the_recorder_writes_shards_and_leaves_nothing_behind(tmp_path: Path, end: str) -> None:
    out, mix, scratch = tmp_path / "out", tmp_path / "mix.json", tmp_path / "scratch"
    scratch.mkdir()
    mix.write_text(json.dumps({"click-test": 1, "enter-text": 1, "procedural": 2}))
    command = [sys.executable, "-m", "pilotfish.tasks.episodes.record", "--out", str(out), "--workers", "1"]
    command += ["--miniwob", str(MINIWOB), "--mix", str(mix), "--shard-episodes", "6"]
    if end == "episodes":
        command += ["--episodes", "8"]
    source = str(Path(__file__).parents[2] / "src")
    env = {**os.environ, "PYTHONPATH": source, "TMPDIR": str(scratch)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        if end != "episodes":
            until = time.monotonic() + 60
            while not list(out.glob("shard-*.bin")) and time.monotonic() < until:
                time.sleep(0.1)
            process.send_signal(getattr(signal, end))
        printed = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    if end != "SIGKILL":
        assert process.returncode == 0
        assert "kept" in printed
    until = time.monotonic() + 10
    while browsers_of(scratch) and time.monotonic() < until:
        time.sleep(0.1)
    assert not browsers_of(scratch)
    episodes = [episode for path in sorted(out.glob("shard-*.bin")) for episode in read_shard(path)]
    assert len(episodes) >= 6
    for episode in episodes:
        assert episode.success
        assert episode.instruction
        assert all(pixels(frame).shape == (420, 336, 3) for frame in episode.frames)
        assert {step["frame"] for step in episode.steps} <= set(range(len(episode.frames)))


@needs_browser
def test_the_recorder_has_a_browser_for_each_size(tmp_path: Path) -> None:
    out, mix = tmp_path / "out", tmp_path / "mix.json"
    sizes = [{"size": "640x480@2", "share": 1.0, "tasks": "site-*"}]
    mix.write_text(json.dumps({"click-test": 1, "site-verb": 1, "desk-editor": 1, "sizes": sizes}))
    arguments = ["--out", str(out), "--workers", "1", "--miniwob", str(MINIWOB), "--mix", str(mix), "--plain"]
    assert record.main([*arguments, "--episodes", "4", "--shard-episodes", "4"]) == 0
    episodes = [episode for path in sorted(out.glob("shard-*.bin")) for episode in read_shard(path)]
    assert {(episode.task, episode.width, episode.height) for episode in episodes} == {
        ("site-verb", 640, 480)
    }
    assert all(pixels(png).shape == (480, 640, 3) for episode in episodes for png in episode.frames)


@needs_browser
def test_the_recorder_says_what_is_missing(tmp_path: Path) -> None:
    source = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-m", "pilotfish.tasks.episodes.record", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--miniwob", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "holds no MiniWoB++ pages" in done.stderr
    assert "Traceback" not in done.stderr


def test_profiles_of_killed_recorders_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = subprocess.Popen(["true"])
    process.wait()
    dead, mine = (
        tmp_path / f"pilotfish-browser-{process.pid}-x",
        tmp_path / f"pilotfish-browser-{os.getpid()}-x",
    )
    dead.mkdir()
    mine.mkdir()
    cdp.sweep_profiles()
    assert not dead.exists()
    assert mine.exists()
