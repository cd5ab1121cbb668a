"""M3's coordinate grid: integers 0..1000 on both axes, whatever the screen's size.

This is the only place that maps between the grid and pixels. (0, 0) is the top left corner and (1000, 1000)
the bottom right one; the map is the one the published M3 computer-use agent was evaluated with.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotfish.tools.words import short

GRID = 1000


@dataclass(frozen=True)
class Screen:
    """The region of an X display that the model sees.

    display: the display's name, for example ":107". x, y: the region's top left corner in the display's
    pixels; may be negative where a monitor lies left of or above the first one. width, height: its size in
    pixels. shared: whether a person uses the display too; then what is theirs is left alone.
    """

    display: str
    x: int
    y: int
    width: int
    height: int
    shared: bool = False

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1:
            raise ValueError(
                f"a screen of {self.width}x{self.height} pixels shows nothing; give at least 1x1 pixels"
            )


def grid_point(value: object) -> tuple[int, int]:
    """Check one grid point: two whole numbers from 0 to 1000.

    Whole floats (500.0) and decimal strings ("500") are taken as integers. Raises ValueError with one
    sentence that names the value and the range.
    """
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"is {short(value)}, but must be two integers [x, y] from 0 to {GRID}")
    return _coordinate(value[0], value), _coordinate(value[1], value)


def grid_to_pixel(point: tuple[float, float], screen: Screen) -> tuple[int, int]:
    """Map a grid point to the display pixel it means.

    x: int(gx * width / 1000), at most width - 1, plus the screen's x; y likewise with the height. Raises
    ValueError if the point is not on the grid.
    """
    gx, gy = grid_point(point)
    return (
        screen.x + min(gx * screen.width // GRID, screen.width - 1),
        screen.y + min(gy * screen.height // GRID, screen.height - 1),
    )


def grid_to_region(region: tuple[int, int, int, int], screen: Screen) -> tuple[int, int, int, int]:
    """Map a grid rectangle (x0, y0, x1, y1) to display pixels (left, top, width, height), at least 1x1.

    The corners are mapped by `grid_to_pixel`; an edge at 1000 is the screen's own edge.
    """
    left, top = grid_to_pixel(region[:2], screen)
    right, bottom = grid_to_pixel(region[2:], screen)
    right += region[2] == GRID
    bottom += region[3] == GRID
    return left, top, max(1, right - left), max(1, bottom - top)


def pixel_to_grid(pixel: tuple[int, int], screen: Screen) -> tuple[int, int]:
    """Map a display pixel to a grid point: the smallest one that `grid_to_pixel` maps to this pixel.

    On a screen wider or higher than 1000 pixels some pixels have no grid point of their own; then it is the
    smallest one that maps beyond, which is less than width / 1000 pixels away. Raises ValueError if the
    pixel is outside the screen.
    """
    px, py = pixel[0] - screen.x, pixel[1] - screen.y
    if not (0 <= px < screen.width and 0 <= py < screen.height):
        raise ValueError(
            f"pixel ({pixel[0]}, {pixel[1]}) is outside the screen, which spans x {screen.x}.."
            f"{screen.x + screen.width - 1} and y {screen.y}..{screen.y + screen.height - 1}"
        )
    return -(-px * GRID // screen.width), -(-py * GRID // screen.height)


def _coordinate(value: object, point: object) -> int:
    wrong = ValueError(f"is {short(point)}, but must be two integers [x, y] from 0 to {GRID}")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise wrong from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong
    # The comparison is false for nan, and true only where int() is exact and safe.
    if not 0 <= value <= GRID or value != int(value):
        raise wrong
    return int(value)
