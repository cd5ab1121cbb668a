"""Every text of the kept pictures can be read, in both themes: at least 4.5 to 1 of contrast (WCAG 2.2)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .pictures import FOLDER

LEAST = 4.5
_CLASS = re.compile(r"\.(terminal-r\d+) \{ fill: (#[0-9a-f]{6})")
_BACK = re.compile(
    r'<rect fill="(#[0-9a-f]{6})" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"'
)
_TEXT = re.compile(r'<text class="(terminal-r\d+)" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>')
_DRAWN = re.compile("[\u2500-\u259f\u25cf\\s\u00a0]*")
"""Lines, blocks and bars, which are no text."""


def _luminance(colour: str) -> float:
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    darker, lighter = sorted([_luminance(one), _luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


def _hard_to_read(svg: str, dialog: str = "") -> Iterator[str]:
    """dialog: the colour of one that lies over the rest, which is dim on purpose then."""
    inks = dict(_CLASS.findall(svg))
    backs = [(colour, *map(float, place)) for colour, *place in _BACK.findall(svg)]
    inside = [back for back in backs if back[0] == dialog]
    left, right = (
        min((back[1] for back in inside), default=0.0),
        max((back[1] + back[3] for back in inside), default=1e9),
    )
    for name, start, base, words in _TEXT.findall(svg):
        words = html.unescape(words)
        x, y = float(start) + 1, float(base) - 5
        if _DRAWN.fullmatch(words) or not left < x < right:
            continue
        if inside and not any(back[2] <= y < back[2] + back[4] for back in inside):
            continue
        back = [c for c, x0, y0, wide, high in backs if x0 <= x < x0 + wide and y0 <= y < y0 + high][-1]
        if (ratio := _contrast(inks[name], back)) < LEAST:
            yield f"{words.strip()!r} {inks[name]} on {back}: {ratio:.2f}"


def test_the_instrument() -> None:
    assert _contrast("#000000", "#ffffff") == pytest.approx(21)
    assert _contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.svg")), ids=lambda path: path.stem)
def test_texts_can_be_read(path: Path) -> None:
    dialog = ""
    if path.stem.startswith(("tui-start", "tui-stop", "tui-help")):
        dialog = "#d8d8d8" if "light" in path.stem else "#1e1e1e"
    assert not list(_hard_to_read(path.read_text("utf-8"), dialog))
