"""What a call would do on the screen, as shapes to draw and as words."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from pydantic import ValidationError

from pilotfish.agent.events import CallData
from pilotfish.agent.safetext import shortened
from pilotfish.tools.actions import ComputerArgs
from pilotfish.tools.grid import Screen, grid_to_pixel, grid_to_region

Frame = npt.NDArray[np.uint8]
"""RGB, shape [height, width, 3]."""
Point = tuple[int, int]

_INK, _EDGE = (255, 40, 200), (0, 0, 0)
_CURSOR = (255, 220, 0)
_LABEL = 60
_SCROLLS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


@dataclass(frozen=True)
class Proposal:
    """An action in pixels of the screen. `point` is where it acts, `start` where a drag begins."""

    words: str
    point: Point | None = None
    start: Point | None = None
    region: tuple[int, int, int, int] | None = None
    """Left, top, width, height."""
    scroll: tuple[int, int] | None = None
    """The direction, as steps of 1."""
    label: str = ""
    """What is typed or pressed, on one line."""


def proposal(
    call: CallData, width: int, height: int, cursor: Point | None = None, pixel: Point | None = None
) -> Proposal:
    """What a call would do on a screen of this size.

    cursor: where an action without a place of its own acts. pixel: where a click of another tool than
    `computer` would go. Arguments that the tool would refuse are not drawn.
    """
    name = shortened(call.name, 40)
    if call.name != "computer":
        where = f" at pixel ({pixel[0]}, {pixel[1]})" if pixel else ""
        action = call.arguments.get("action")
        what = f" {shortened(action, 40)}" if isinstance(action, str) else ""
        return Proposal(f"{name}{what}{where}", point=pixel)
    try:
        args = ComputerArgs.model_validate(call.arguments)
    except (ValidationError, RecursionError):
        return Proposal("computer, with arguments that the tool will refuse")
    screen = Screen(":0", 0, 0, width, height)
    point = grid_to_pixel(args.coordinate, screen) if args.coordinate else cursor
    start = grid_to_pixel(args.start_coordinate, screen) if args.start_coordinate else None
    label = shortened(args.text, _LABEL) if args.text is not None else ""
    said = args.action.replace("_", " ")
    at = f" at pixel ({point[0]}, {point[1]})" if point else ""
    match args.action:
        case "type":
            return Proposal(f"type {label}{at}", point=point, label=label)
        case "key" | "hold_key":
            return Proposal(f"press {label}{at}", point=point, label=f"[{label}]")
        case "left_click_drag":
            begin = start or cursor
            away = f" from pixel ({begin[0]}, {begin[1]})" if begin else ""
            to = f" to pixel ({point[0]}, {point[1]})" if point else ""
            return Proposal(f"drag{away}{to}", point=point, start=begin)
        case "scroll":
            direction = args.scroll_direction or "down"
            amount = "" if args.scroll_amount is None else f" by {args.scroll_amount}"
            words = f"scroll {direction}{amount}{at}"
            return Proposal(words, point=point, scroll=_SCROLLS[direction])
        case "zoom":
            region = grid_to_region(args.region, screen) if args.region else None
            span = " of {2} x {3} pixels at pixel ({0}, {1})".format(*region) if region else ""
            return Proposal(f"look closely{span}", region=region)
        case "wait" | "screenshot" | "done" | "infeasible" | "cursor_position":
            return Proposal(said)
        case _:
            held = f" with {label}" if label else ""
            return Proposal(f"{said}{at}{held}", point=point, label=f"[{label}]" if label else "")


def colour_at(frame: Frame, point: Point) -> str:
    """The colour of a pixel as #rrggbb; empty outside the frame."""
    x, y = point
    if not (0 <= y < frame.shape[0] and 0 <= x < frame.shape[1]):
        return ""
    return "#{:02x}{:02x}{:02x}".format(*frame[y, x].tolist())


def crop_at(frame: Frame, point: Point, width: int, height: int) -> Frame:
    """The pixels around a point, `width` x `height` of them, the point in the middle; black outside."""
    out = np.zeros((height, width, 3), np.uint8)
    left, top = point[0] - width // 2, point[1] - height // 2
    x0, y0 = max(0, left), max(0, top)
    x1, y1 = min(frame.shape[1], left + width), min(frame.shape[0], top + height)
    if x1 > x0 and y1 > y0:
        out[y0 - top : y1 - top, x0 - left : x1 - left] = frame[y0:y1, x0:x1]
    return out


def drawn(
    frame: Frame, size: tuple[int, int], cursor: Point | None, what: Proposal | None, *, labels: bool
) -> Frame:
    """The frame scaled to `size` (width, height), with the cursor and the proposal on it.

    labels: whether to write what is typed beside the place; False where a caption of real letters does.
    """
    picture = Image.fromarray(frame).resize(size, Image.Resampling.BOX)
    draw = ImageDraw.Draw(picture)
    across, down = size[0] / frame.shape[1], size[1] / frame.shape[0]

    def at(point: Point) -> tuple[float, float]:
        return (point[0] + 0.5) * across, (point[1] + 0.5) * down

    unit = max(1.0, min(size) / 90)
    if cursor is not None:
        _pointer(draw, at(cursor), unit)
    if what is None:
        return np.asarray(picture)
    if what.region is not None:
        left, top, width, height = what.region
        edges = (left * across, top * down, (left + width) * across - 1, (top + height) * down - 1)
        _frame(draw, edges, unit)
    if what.start is not None and what.point is not None:
        _arrow(draw, at(what.start), at(what.point), unit)
    elif what.scroll is not None:
        x, y = at(what.point) if what.point else (size[0] / 2, size[1] / 2)
        length = max(6 * unit, min(size) / 6)
        _arrow(draw, (x, y), (x + what.scroll[0] * length, y + what.scroll[1] * length), unit)
    elif what.point is not None:
        _crosshair(draw, at(what.point), unit)
    if labels and what.label:
        _label(draw, at(what.point) if what.point else (0, 0), what.label, size, unit)
    return np.asarray(picture)


def _line(draw: ImageDraw.ImageDraw, points: list[tuple[float, float]], unit: float) -> None:
    if unit >= 2:
        draw.line(points, _EDGE, width=round(unit * 1.5) + 2)
    draw.line(points, _INK, width=max(1, round(unit)))


def _crosshair(draw: ImageDraw.ImageDraw, at: tuple[float, float], unit: float) -> None:
    """Four strokes that leave the pixel itself to be seen."""
    x, y = at
    near, far = max(1.5, 2.5 * unit), 8 * unit
    for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        _line(draw, [(x + dx * near, y + dy * near), (x + dx * far, y + dy * far)], unit)
    if unit >= 2:
        draw.ellipse((x - far * 0.7, y - far * 0.7, x + far * 0.7, y + far * 0.7), outline=_INK, width=2)


def _arrow(
    draw: ImageDraw.ImageDraw, start: tuple[float, float], end: tuple[float, float], unit: float
) -> None:
    _line(draw, [start, end], unit)
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    head = 5 * unit
    for turn in (2.6, -2.6):
        tip = (end[0] + head * math.cos(angle + turn), end[1] + head * math.sin(angle + turn))
        _line(draw, [end, tip], unit)


def _frame(draw: ImageDraw.ImageDraw, edges: tuple[float, float, float, float], unit: float) -> None:
    left, top, right, bottom = edges
    right, bottom = max(left, right), max(top, bottom)
    draw.rectangle((left, top, right, bottom), outline=_INK, width=max(1, round(unit)))


def _pointer(draw: ImageDraw.ImageDraw, at: tuple[float, float], unit: float) -> None:
    x, y = at
    shape = [(x, y), (x, y + 5 * unit), (x + 3.5 * unit, y + 3.5 * unit)]
    draw.polygon(shape, fill=_CURSOR, outline=_EDGE if unit >= 2 else None)


def _label(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, size: tuple[int, int], unit: float
) -> None:
    # The font that Pillow brings has few scripts; the caption below has every letter.
    written = text.encode("latin-1", "replace").decode("latin-1")
    font = ImageFont.load_default(max(10, round(4 * unit)))
    left, top, right, bottom = draw.textbbox((0, 0), written, font=font)
    width, height = right - left + 6, bottom - top + 6
    x = max(0.0, min(at[0] + 8 * unit, size[0] - width))
    y = max(0.0, min(at[1] + 4 * unit, size[1] - height))
    draw.rectangle((x, y, x + width, y + height), fill=_EDGE, outline=_INK)
    draw.text((x + 3 - left, y + 3 - top), written, fill=(255, 255, 255), font=font)
