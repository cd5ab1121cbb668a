import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.tools.grid import Screen, grid_point, grid_to_pixel, pixel_to_grid

sizes = st.integers(1, 5000)
offsets = st.integers(-4000, 4000)
screens = st.builds(Screen, st.just(":1"), offsets, offsets, sizes, sizes)
grid = st.integers(0, 1000)


@pytest.mark.parametrize(
    ("point", "size", "pixel"),
    [
        ((500, 500), (1600, 900), (800, 450)),
        ((1000, 1000), (1600, 900), (1599, 899)),
        ((0, 0), (1600, 900), (0, 0)),
        ((1000, 0), (1920, 1080), (1919, 0)),
        ((333, 667), (160, 210), (53, 140)),
        ((1000, 1000), (1, 1), (0, 0)),
    ],
)
def test_the_published_map(point: tuple[int, int], size: tuple[int, int], pixel: tuple[int, int]) -> None:
    assert grid_to_pixel(point, Screen(":1", 0, 0, *size)) == pixel


def test_a_screen_left_of_the_first_has_negative_pixels() -> None:
    left = Screen(":1", -1920, -40, 1920, 1080)
    assert grid_to_pixel((0, 0), left) == (-1920, -40)
    assert grid_to_pixel((500, 500), left) == (-960, 500)
    assert pixel_to_grid((-960, 500), left) == (500, 500)


def test_a_region_is_scaled_by_its_own_size() -> None:
    assert grid_to_pixel((500, 500), Screen(":1", 100, 50, 160, 210)) == (180, 155)


@given(screens, grid, grid)
def test_every_grid_point_lies_on_the_screen(screen: Screen, gx: int, gy: int) -> None:
    px, py = grid_to_pixel((gx, gy), screen)
    assert screen.x <= px < screen.x + screen.width
    assert screen.y <= py < screen.y + screen.height
    assert px - screen.x == min(math.floor(gx * screen.width / 1000 + 1e-9), screen.width - 1)


@given(screens, st.data())
def test_the_round_trip_stays_within_one_grid_step(screen: Screen, data: st.DataObject) -> None:
    px = screen.x + data.draw(st.integers(0, screen.width - 1))
    py = screen.y + data.draw(st.integers(0, screen.height - 1))
    back = grid_to_pixel(pixel_to_grid((px, py), screen), screen)
    assert 0 <= back[0] - px < max(1, screen.width / 1000)
    assert 0 <= back[1] - py < max(1, screen.height / 1000)


@given(screens, st.data())
def test_the_inverse_is_the_smallest_grid_value(screen: Screen, data: st.DataObject) -> None:
    px = data.draw(st.integers(0, screen.width - 1))
    gx, _ = pixel_to_grid((screen.x + px, screen.y), screen)
    assert gx == min(g for g in range(1001) if grid_to_pixel((g, 0), screen)[0] - screen.x >= px)


@pytest.mark.parametrize("value", [(500.0, 500), ("500", "500.0"), [500, 500]])
def test_whole_numbers_are_taken_in_any_spelling(value: object) -> None:
    assert grid_point(value) == (500, 500)


@pytest.mark.parametrize(
    "value",
    [
        (math.nan, 1),
        (math.inf, 1),
        (1001, 0),
        (0, -1),
        (0.5, 1),
        ("a", 1),
        ("nan", 1),
        (True, 1),
        (None, 1),
        (10**400, 1),
        ("1" * 500, 1),
        [1, 2, 3],
        "500,500",
        list("[500, 300]"),
        None,
    ],
)
def test_anything_else_is_one_sentence_with_the_range(value: object) -> None:
    with pytest.raises(ValueError, match="0 to 1000") as caught:
        grid_point(value)
    assert len(str(caught.value)) < 200


def test_a_pixel_off_the_screen_is_refused_not_clamped() -> None:
    with pytest.raises(ValueError, match=r"pixel \(1656, 1000\) is outside.*y 0..827"):
        pixel_to_grid((1656, 1000), Screen(":1", 0, 0, 1656, 828))


def test_a_screen_has_pixels() -> None:
    with pytest.raises(ValueError, match="0x5"):
        Screen(":1", 0, 0, 0, 5)
