"""The `computer` tool: mouse, keyboard and a closer look, on M3's grid."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import mss
import numpy as np
import numpy.typing as npt
from mss.exception import ScreenShotError

from pilotfish.sandbox import Sandbox, SandboxError
from pilotfish.tools.actions import ComputerArgs
from pilotfish.tools.base import Screen, ToolContext, ToolResult
from pilotfish.tools.grid import GRID, grid_to_pixel, grid_to_region, pixel_to_grid
from pilotfish.tools.input_driver import InputDriver, InputError
from pilotfish.tools.keys import Chord, normalize_text, parse_keys
from pilotfish.tools.words import short

HOLD_S = (0.1, 10.0)
"""Shortest and longest time `hold_key` keeps keys down, in seconds."""
WAIT_S = (0.0, 60.0)
"""Shortest and longest `wait`, in seconds."""
TEXT_LIMIT = 20_000
"""Most characters that one `type` takes."""
_SCROLL_CLICKS = 5
_TYPE_S_PER_CHARACTER = 0.05

_CLICKS = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}


class ComputerTool:
    """Acts on the display of the context's screen; one input process per display, kept until `close`.

    A result's text is `ok`, with what the model could not see where there is such a thing.
    """

    name = "computer"
    description = "Use the mouse and the keyboard."
    Args = ComputerArgs

    def __init__(self) -> None:
        self._drivers: dict[str, InputDriver] = {}

    async def run(self, args: ComputerArgs, context: ToolContext) -> ToolResult:
        """Do one action; errors of input and display are results."""
        if args.action == "done":
            return ToolResult(True, "ok", end="done")
        if args.action == "infeasible":
            return ToolResult(True, "ok", end="infeasible")
        if context.screen is None:
            return ToolResult(False, "computer: there is no screen here; use the other tools.")
        try:
            if args.action == "zoom":
                return await _zoom(args, context.screen, context.box)
            return await self._act(args, context.screen)
        except (InputError, ValueError) as error:
            return ToolResult(False, f"computer: {error}.")

    async def close(self) -> None:
        """Release all keys and buttons and end the input processes."""
        drivers, self._drivers = self._drivers, {}
        for driver in drivers.values():
            await driver.close()

    async def _act(self, args: ComputerArgs, screen: Screen) -> ToolResult:
        if screen.display not in self._drivers:
            self._drivers[screen.display] = InputDriver(screen.display, shared=screen.shared)
        driver = self._drivers[screen.display]
        driver.notes = []
        result = await self._do(args, screen, driver)
        return replace(result, text="; ".join([result.text, *driver.notes])) if driver.notes else result

    async def _do(self, args: ComputerArgs, screen: Screen, driver: InputDriver) -> ToolResult:
        match args.action:
            case "screenshot":
                return ToolResult(True, "ok")
            case "wait":
                return await _wait(args)
            case "cursor_position":
                return await _cursor_position(driver, screen)
            case "key":
                await driver.call("key", chords=parse_keys(args.text or ""))
                return ToolResult(True, "ok")
            case "hold_key":
                return await _hold_key(args, driver)
            case "type":
                return await _type(args.text or "", driver)
            case _:
                return await _point(args, driver, screen)


async def _point(args: ComputerArgs, driver: InputDriver, screen: Screen) -> ToolResult:
    """The actions with a place: pixels for the grid points, keys that are held for `text`."""
    at = None if args.coordinate is None else grid_to_pixel(args.coordinate, screen)
    keys = _held_keys(args)
    if args.action in _CLICKS:
        button, count = _CLICKS[args.action]
        hold_s = min(max(args.duration or 0.0, 0.0), HOLD_S[1])
        await driver.call(
            "click", at=at, button=button, count=count, keys=keys, hold_s=hold_s, takes_s=hold_s * count
        )
    elif args.action == "mouse_move":
        assert at is not None
        await driver.call("move", x=at[0], y=at[1])
    elif args.action == "left_click_drag":
        start = None if args.start_coordinate is None else grid_to_pixel(args.start_coordinate, screen)
        await driver.call("drag", start=start, end=at, keys=keys)
    elif args.action == "scroll":
        amount = _SCROLL_CLICKS if args.scroll_amount is None else args.scroll_amount
        await driver.call("scroll", at=at, direction=args.scroll_direction, amount=amount, keys=keys)
    else:
        press = args.action == "left_mouse_down"
        changed = await driver.call("button", at=at, press=press, keys=keys)
        if not changed:
            return ToolResult(True, f"ok; the left button was {'down' if press else 'up'} already")
    return ToolResult(True, "ok")


def _held_keys(args: ComputerArgs) -> Chord:
    """The keys that `text` names, which are held together."""
    chords = parse_keys(args.text) if args.text else [()]
    if len(chords) > 1:
        raise ValueError(
            f"`text` of {args.action} is {short(args.text)}; name keys to hold, such as ctrl+shift"
        )
    return chords[0]


async def _wait(args: ComputerArgs) -> ToolResult:
    wanted_s = 1.0 if args.duration is None else args.duration
    waits_s = min(max(wanted_s, WAIT_S[0]), WAIT_S[1])
    await asyncio.sleep(waits_s)
    return _clamped("waited", wanted_s, waits_s)


async def _hold_key(args: ComputerArgs, driver: InputDriver) -> ToolResult:
    keys = _held_keys(args)
    if not keys:
        raise ValueError("`text` is empty; name the keys to hold, such as shift")
    wanted_s = 1.0 if args.duration is None else args.duration
    holds_s = min(max(wanted_s, HOLD_S[0]), HOLD_S[1])
    await driver.call("hold", chord=keys, seconds=holds_s, takes_s=holds_s)
    return _clamped("held", wanted_s, holds_s)


def _clamped(verb: str, wanted_s: float, done_s: float) -> ToolResult:
    return ToolResult(True, "ok" if wanted_s == done_s else f"ok; {verb} {done_s:g} s, the limit")


async def _type(text: str, driver: InputDriver) -> ToolResult:
    if len(text) > TEXT_LIMIT:
        raise ValueError(
            f"`text` has {len(text)} characters, more than {TEXT_LIMIT}; type it in parts or write a file"
        )
    text = normalize_text(text)
    await driver.call("type", text=text, takes_s=_TYPE_S_PER_CHARACTER * len(text))
    return ToolResult(True, "ok")


async def _cursor_position(driver: InputDriver, screen: Screen) -> ToolResult:
    x, y = await driver.call("position")
    gx, gy = pixel_to_grid((x, y), screen)
    return ToolResult(True, f"ok; the cursor is at [{gx}, {gy}]")


async def _zoom(args: ComputerArgs, screen: Screen, box: Sandbox | None) -> ToolResult:
    """Crop the display at full resolution, enlarged by the largest whole factor that fits the screen."""
    left, top, width, height = grid_to_region(args.region or (0, 0, GRID, GRID), screen)
    try:
        camera = box.camera(screen.display) if box is not None else None
        grab = _grab_by_client(screen.display) if camera is None else camera.grab
        bgrx_HW4 = await asyncio.to_thread(grab, left, top, width, height)
    except SandboxError as error:
        return ToolResult(False, f"computer: {error}")
    except ScreenShotError as error:
        raise ValueError(f"the display {screen.display} gave no picture ({error}); try again") from None
    pixels = np.ascontiguousarray(bgrx_HW4[:, :, 2::-1])
    factor = max(1, min(screen.width // width, screen.height // height))
    return ToolResult(True, "ok", image=pixels.repeat(factor, axis=0).repeat(factor, axis=1))


def _grab_by_client(display: str) -> Callable[[int, int, int, int], npt.NDArray[np.uint8]]:
    """Takes the pixels of a region, [height, width, 4] of B, G, R, unused, from a display that is no
    sandbox's.
    """

    def grab(left: int, top: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        with mss.MSS(display=display) as camera:
            shot = camera.grab({"left": left, "top": top, "width": width, "height": height})
            return np.frombuffer(shot.raw, np.uint8).reshape(height, width, 4)

    return grab
