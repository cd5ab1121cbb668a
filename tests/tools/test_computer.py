import re

import numpy as np
import pytest
from Xlib import XK, X

from pilotfish.tools.actions import ComputerArgs
from pilotfish.tools.base import Screen, ToolContext
from pilotfish.tools.computer import ComputerTool

CLICK = [("press", 1), ("release", 1)]


@pytest.mark.parametrize(
    ("action", "buttons"),
    [
        ("left_click", CLICK),
        ("middle_click", [("press", 2), ("release", 2)]),
        ("right_click", [("press", 3), ("release", 3)]),
        ("double_click", CLICK * 2),
        ("triple_click", CLICK * 3),
        ("left_press", CLICK),
    ],
)
async def test_clicks(act, recorder, action, buttons):
    result = await act(action, coordinate=[500, 250])
    assert (result.ok, result.text, result.end) == (True, "ok", None)
    events = [event for event in recorder.events() if event.kind != "motion"]
    assert [(event.kind, event.code) for event in events] == buttons
    assert {(event.x, event.y) for event in events} == {(400, 150)}


async def test_a_click_without_a_place_is_where_the_pointer_is(act, recorder):
    await act("mouse_move", coordinate=[125, 500])
    await act("left_click")
    press = next(event for event in recorder.events() if event.kind == "press")
    assert (press.x, press.y) == (100, 300)


async def test_the_corners_are_on_the_screen_and_do_not_stop_the_mouse(act, recorder):
    for corner, pixel in [([0, 0], (0, 0)), ([1000, 0], (799, 0)), ([1000, 1000], (799, 599))]:
        assert (await act("left_click", coordinate=corner)).ok
        press = next(event for event in recorder.events() if event.kind == "press")
        assert (press.x, press.y) == pixel


async def test_a_region_of_the_display_has_its_own_grid(act, recorder, display):
    region = Screen(display, 100, 50, 160, 210)
    await act("left_click", on=region, coordinate=[500, 1000])
    press = next(event for event in recorder.events() if event.kind == "press")
    assert (press.x, press.y) == (180, 259)
    assert (await act("cursor_position", on=region)).text == "ok; the cursor is at [500, 996]"


async def test_a_cursor_outside_the_region_is_told(act, display):
    await act("mouse_move", coordinate=[0, 0])
    result = await act("cursor_position", on=Screen(display, 100, 50, 160, 210))
    assert not result.ok
    assert "outside the screen" in result.text


async def test_modifiers_are_held_in_a_click_and_released(act, recorder):
    await act("left_click", coordinate=[500, 500], text="ctrl+shift")
    events = [event for event in recorder.events() if event.kind != "motion"]
    assert [(event.kind, event.code) for event in events] == [
        ("key", XK.XK_Control_L),
        ("key", XK.XK_Shift_L),
        *CLICK,
        ("keyup", XK.XK_Shift_L),
        ("keyup", XK.XK_Control_L),
    ]
    assert events[2].state & (X.ControlMask | X.ShiftMask) == X.ControlMask | X.ShiftMask
    assert not recorder.is_anything_down()


async def test_a_drag_moves_with_the_button_down(act, recorder):
    await act("left_click_drag", start_coordinate=[250, 500], coordinate=[750, 250])
    events = recorder.events()
    kinds = [event.kind for event in events]
    press, release = kinds.index("press"), kinds.index("release")
    assert (events[press].x, events[press].y) == (200, 300)
    assert (events[release].x, events[release].y) == (600, 150)
    path = events[press + 1 : release]
    assert len(path) >= 3
    assert all(event.kind == "motion" and event.state & X.Button1Mask for event in path)
    assert [event.x for event in path] == sorted(event.x for event in path)


async def test_a_drag_without_a_start_begins_at_the_pointer(act, recorder):
    await act("mouse_move", coordinate=[500, 500])
    await act("left_click_drag", coordinate=[1000, 0])
    events = recorder.events()
    press = next(event for event in events if event.kind == "press")
    release = next(event for event in events if event.kind == "release")
    assert (press.x, press.y, release.x, release.y) == (400, 300, 799, 0)


@pytest.mark.parametrize(("direction", "button"), [("up", 4), ("down", 5), ("left", 6), ("right", 7)])
async def test_scroll_turns_the_wheel(act, recorder, direction, button):
    await act("scroll", coordinate=[500, 500], scroll_direction=direction, scroll_amount=3)
    assert recorder.button_events() == [("press", button), ("release", button)] * 3
    await act("scroll", scroll_direction=direction)
    assert len(recorder.button_events()) == 10
    await act("scroll", scroll_direction=direction, scroll_amount=0)
    assert recorder.button_events() == []


async def test_the_button_is_held_between_two_calls(act, recorder):
    assert (await act("left_mouse_down", coordinate=[250, 500])).text == "ok"
    await act("mouse_move", coordinate=[500, 500])
    assert recorder.is_anything_down()
    again = await act("left_mouse_down")
    assert (again.ok, again.text) == (True, "ok; the left button was down already")
    assert (await act("left_mouse_up", coordinate=[750, 500])).text == "ok"
    again = await act("left_mouse_up")
    assert (again.ok, again.text) == (True, "ok; the left button was up already")
    events = [event for event in recorder.events() if event.kind in ("press", "release")]
    assert [(event.kind, event.x) for event in events] == [("press", 200), ("release", 600)]


async def test_a_click_while_the_button_is_held_is_a_whole_click(act, recorder):
    await act("left_mouse_down", coordinate=[250, 500])
    recorder.events()
    await act("left_click", coordinate=[500, 500])
    assert recorder.button_events() == [("release", 1), *CLICK]
    assert not recorder.is_anything_down()


async def test_hold_key_is_clamped_and_told(act, recorder):
    result = await act("hold_key", text="shift", duration=0)
    assert result.text == "ok; held 0.1 s, the limit"
    assert recorder.key_events() == [("key", XK.XK_Shift_L), ("keyup", XK.XK_Shift_L)]
    assert (await act("hold_key", text="ctrl+shift", duration=0.2)).text == "ok"
    assert [kind for kind, _ in recorder.key_events()] == ["key", "key", "keyup", "keyup"]


async def test_wait_is_clamped_and_told(act):
    assert (await act("wait", duration=0.01)).text == "ok"
    assert (await act("wait", duration=-3)).text == "ok; waited 0 s, the limit"


async def test_zoom_shows_the_region_enlarged(act, recorder, screen):
    gc = recorder.window.create_gc(foreground=0xFF0000)
    recorder.window.fill_rectangle(gc, 400, 300, 80, 60)
    recorder.display.sync()
    result = await act("zoom", region=[450, 450, 550, 550])
    assert result.text == "ok"
    assert result.image is not None
    assert result.image.shape == (600, 800, 3)
    assert result.image[0, 0].tolist() == [0x20, 0x40, 0x80]
    assert result.image[-1, -1].tolist() == [0xFF, 0, 0]
    assert np.array_equal(result.image[299, 399], [0x20, 0x40, 0x80])
    assert np.array_equal(result.image[300, 400], [0xFF, 0, 0])
    whole = await act("zoom")
    assert whole.image is not None
    assert whole.image.shape == (600, 800, 3)


@pytest.mark.parametrize(
    ("action", "end"), [("done", "done"), ("infeasible", "infeasible"), ("fail", "infeasible")]
)
async def test_the_ends(act, action, end):
    result = await act(action)
    assert (result.ok, result.text, result.end) == (True, "ok", end)


async def test_screenshot_does_nothing(act, recorder):
    assert (await act("screenshot")).text == "ok"
    assert recorder.events() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "key", "text": "a; touch /tmp/x"}, "no key 'a;'"),
        ({"action": "left_click", "text": "hello"}, "no key 'hello'"),
        ({"action": "left_click", "text": "a b"}, "keys to hold"),
        ({"action": "hold_key", "text": ""}, "empty"),
        ({"action": "key", "text": ""}, "empty"),
        ({"action": "type", "text": "a\x00b"}, r"U\+0000"),
        ({"action": "type", "text": "a\ud800"}, r"U\+D800"),
        ({"action": "type", "text": "x" * 20_001}, "20001 characters"),
    ],
)
async def test_what_cannot_be_pressed_is_one_sentence_and_presses_nothing(act, recorder, arguments, words):
    result = await act(**arguments)
    assert not result.ok
    assert result.text.startswith("computer: ")
    assert result.text.endswith(".")
    assert "\n" not in result.text
    assert re.search(words, result.text), result.text
    assert recorder.events() == []


async def test_without_a_screen_only_the_ends_work():
    tool = ComputerTool()
    result = await tool.run(ComputerArgs(action="left_click"), ToolContext())
    assert not result.ok
    assert "no screen" in result.text
    assert (await tool.run(ComputerArgs(action="done"), ToolContext())).end == "done"


async def test_a_display_that_is_not_there_is_told():
    tool = ComputerTool()
    nowhere = ToolContext(screen=Screen(":9876", 0, 0, 10, 10))
    for args in (ComputerArgs(action="left_click"), ComputerArgs(action="zoom")):
        result = await tool.run(args, nowhere)
        assert not result.ok
        assert ":9876" in result.text
        assert "\n" not in result.text
    await tool.close()
