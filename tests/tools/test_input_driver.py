"""The input process: kept between calls, replaced when it dies, and never leaving anything pressed."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest
from Xlib import XK

from pilotfish.tools.input_driver import InputDriver, InputError

from ..waiting import until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def driver(display):
    one = InputDriver(display)
    yield one
    await one.close()


async def process_id(driver):
    """The process that answers."""
    await driver.call("position")
    return driver.process_id


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_one_process_serves_all_calls_and_ends_with_close(driver):
    assert driver.process_id is None
    first = await process_id(driver)
    assert await process_id(driver) == first
    await driver.close()
    assert is_gone(first)
    assert await process_id(driver) != first


async def test_a_killed_process_is_told_and_replaced(driver):
    pid = await process_id(driver)
    os.kill(pid, signal.SIGSTOP)
    call = asyncio.ensure_future(driver.call("position"))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(InputError, match="ended while it was used"):
        await call
    assert len(await driver.call("position")) == 2
    assert driver.process_id != pid


async def test_after_a_crash_in_a_drag_everything_is_released(driver, recorder):
    await driver.call("button", at=[100, 100], press=True, keys=[])
    hold = asyncio.ensure_future(driver.call("hold", chord=["Control_L", "Shift_L"], seconds=30, takes_s=30))
    await until(lambda: any(recorder.display.query_keymap()))
    os.kill(driver.process_id, signal.SIGKILL)
    with pytest.raises(InputError):
        await hold
    assert recorder.is_anything_down()
    await driver.call("position")
    assert not recorder.is_anything_down()


async def test_a_cancelled_call_releases_what_it_holds(driver, recorder):
    hold = asyncio.ensure_future(driver.call("hold", chord=["Shift_L"], seconds=30, takes_s=30))
    await until(recorder.is_anything_down)
    hold.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hold
    assert not recorder.is_anything_down()
    assert len(await driver.call("position")) == 2


async def test_closing_releases_a_button_that_is_held(driver, recorder):
    await driver.call("button", at=None, press=True, keys=[])
    assert recorder.is_anything_down()
    await driver.close()
    assert not recorder.is_anything_down()


async def test_a_process_that_does_not_answer_is_told_and_replaced(display):
    driver = InputDriver(display, answer_s=0.5)
    pid = await process_id(driver)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(InputError, match="did not take the input"):
        await driver.call("position")
    assert is_gone(pid)
    assert len(await driver.call("position")) == 2
    await driver.close()


async def test_the_process_ends_when_its_parent_dies(display, recorder):
    script = (
        "import asyncio, os\n"
        "from pilotfish.tools.input_driver import InputDriver\n"
        "async def main():\n"
        f"    driver = InputDriver({display!r})\n"
        "    await driver.call('button', at=None, press=True, keys=[])\n"
        "    print(driver.process_id, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE)
    output, _ = await parent.communicate()
    await until(lambda: is_gone(int(output)))
    assert not recorder.is_anything_down()


async def test_a_display_that_goes_away_is_one_sentence(tmp_path):
    read, write = os.pipe()
    argv = ["Xvfb", "-displayfd", str(write), "-screen", "0", "100x100x24", "-nolisten", "tcp", "-noreset"]
    server = await asyncio.create_subprocess_exec(*argv, pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as number:
        name = f":{(await asyncio.to_thread(number.readline)).strip()}"
    driver = InputDriver(name)
    await driver.call("position")
    server.terminate()
    await server.wait()
    for _ in range(2):
        with pytest.raises(InputError, match=f"display {name}") as caught:
            await driver.call("position")
        assert "\n" not in str(caught.value)
    await driver.close()


async def test_it_starts_where_tkinter_is_missing(display):
    without = "import runpy, sys; sys.modules['tkinter'] = None; "
    script = without + "runpy.run_module('pilotfish.tools.input_process', run_name='__main__')"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "DISPLAY": display},
    )
    output, _ = await process.communicate()
    assert json.loads(output) == {"ok": True, "value": None}


async def test_a_mark_that_another_program_left_does_no_harm(driver, recorder):
    root = recorder.display.screen().root
    for name in ("_PILOTFISH_INPUT_PROCESS", "_PILOTFISH_BORROWED_KEYS"):
        root.change_property(
            recorder.display.intern_atom(name), recorder.display.intern_atom("STRING"), 8, b"x"
        )
    recorder.display.sync()
    await driver.call("type", text="aß", takes_s=1)
    assert len(recorder.key_events()) == 4


async def test_two_calls_at_once_follow_each_other(driver, recorder):
    await asyncio.gather(*(driver.call("key", chords=[["a"], ["b"]]) for _ in range(5)))
    pressed = [symbol for kind, symbol in recorder.key_events() if kind == "key"]
    assert pressed == [XK.XK_a, XK.XK_b] * 5


async def test_borrowed_media_keys_come_back(driver, recorder):
    info = recorder.display.display.info

    def rows():
        count = info.max_keycode - info.min_keycode + 1
        return [tuple(row) for row in recorder.display.get_keyboard_mapping(info.min_keycode, count)]

    media = {index: row for index, row in enumerate(rows()) if row[0] >= 0x1008FE00}
    assert len(media) > 20
    await driver.call("type", text="".join(map(chr, range(0x4E00, 0x4E00 + 200))), takes_s=10)
    assert {index: rows()[index] for index in media} != media
    await driver.close()
    assert {index: rows()[index] for index in media} == media
