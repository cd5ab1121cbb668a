"""A page of procedural.py on a larger screen: somewhere on it as a window, among other things to read.

The pages are laid out for the 168 x 210 CSS pixels of MiniWoB++. On a larger screen such a page becomes one
window among others: what stands around it is text alone, holds no name that the page's own task or widgets
have, and takes no clicks. A page whose blocks flow may be wider than its own width.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from pilotfish.tasks.episodes import words
from pilotfish.tasks.episodes.cdp import View
from pilotfish.tasks.episodes.widgets import escape, palette

PAGE_WIDTH, PAGE_HEIGHT = 168, 210
MOST_WIDTH = 420  # CSS pixels of a page that flows
FONTS = ("DejaVu Sans", "DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono", "Arial", "Liberation Serif")
"""Of what looks like an application or its window."""


@dataclass(frozen=True)
class Box:
    """A place on the screen in CSS pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def style(self) -> str:
        """Its CSS."""
        return f"left:{self.left}px;top:{self.top}px;width:{self.width}px;height:{self.height}px"


class Stage:
    """What stands around one page, drawn from a generator of its own."""

    def __init__(self, rng: random.Random, view: View, page: str, *, flows: bool, framed: bool) -> None:
        """page: the document's HTML; flows: whether it may be wider than `PAGE_WIDTH`; framed: whether it is
        a window's content, and not windows of its own.
        """
        self._rng, self._page = rng, page.lower()
        self._letters = rng.choice((9, 10, 10, 11, 12, 13)) * 2 / view.scale * rng.choice((0.6, 0.7, 1.0))
        self._letters = max(6.0, self._letters)
        self._font = rng.choice(FONTS)
        bar = round(self._letters * 1.7)
        width = PAGE_WIDTH
        room = view.shown_width - PAGE_WIDTH
        if flows and room > 0 and rng.random() < 0.6:
            width += rng.randint(0, min(room, MOST_WIDTH - PAGE_WIDTH))
        self._bar = bar if framed and view.shown_height >= PAGE_HEIGHT + 2 * bar else 0
        self._framed_page = framed
        left = rng.randint(0, view.shown_width - width)
        top = rng.randint(self._bar, view.shown_height - PAGE_HEIGHT)
        self._own = Box(left, top, width, PAGE_HEIGHT)
        self._view = view

    def html(self) -> str:
        """What belongs in the head of the page's document."""
        rng, own = self._rng, self._own
        wall = rng.choice(
            ("#000", "#234", "#dde3ea", f"hsl({rng.randrange(360)},25%,{rng.randint(20, 80)}%)")
        )
        parts = [self._window() for _ in range(rng.randint(0, 3))]
        if rng.random() < 0.5:
            parts.append(self._icons())
        if rng.random() < 0.5:
            parts.append(self._panel())
        if self._bar:
            frame = Box(own.left - 1, own.top - self._bar, own.width, own.height + self._bar)
            parts.append(self._framed(frame, ""))
        own_wall = "" if self._framed_page else "background:none!important;"
        wide = f"width:{own.width}px!important" if own.width > PAGE_WIDTH else ""
        look = (
            f"html{{background:{wall}!important}}body{{position:relative!important;"
            f"margin:{own.top}px 0 0 {own.left}px!important;{own_wall}{wide}}}"
            f"#pf-around,#pf-around *{{box-sizing:border-box}}#pf-around{{position:fixed;"
            f'inset:0;z-index:-1;overflow:hidden;font:{self._letters:.1f}px/1.25 "{self._font}",sans-serif}}'
            "#pf-around>div{position:absolute;overflow:hidden}#pf-around p{margin:2px 4px}"
        )
        put = (
            "document.documentElement.append(Object.assign(document.createElement('div'),"
            f"{{id:'pf-around',innerHTML:{json.dumps(''.join(parts))}}}))"
        )
        return f"<style>{look}</style><script>{put}</script>"

    def _text(self, most: int) -> str:
        """Words of which the page has none."""
        found: list[str] = []
        for _ in range(40):
            word = words.word(self._rng)
            if word.lower() not in self._page:
                found.append(word.capitalize() if not found else word)
            if len(found) == most:
                break
        return escape(" ".join(found))

    def _framed(self, box: Box, inner: str) -> str:
        """A window with a title bar."""
        rng = self._rng
        bar, ink = palette(rng, dark=rng.random() < 0.5)
        title = f'<p style="margin:2px 6px;white-space:nowrap">{self._text(rng.randint(1, 3))}</p>'
        head = f'<div style="height:{self._letters * 1.7:.0f}px;background:{bar};color:{ink}">{title}</div>'
        look = (
            f"{box.style};border:1px solid {rng.choice(('#777', '#333', '#aaa'))};background:#fff;color:#111"
        )
        return f'<div style="{look}">{head}{inner}</div>'

    def _window(self) -> str:
        """Another window: lines of prose, of a list, or of a terminal."""
        rng, view = self._rng, self._view
        width = rng.randint(view.shown_width // 4, view.shown_width // 2)
        height = rng.randint(view.shown_height // 4, view.shown_height // 2)
        box = Box(
            rng.randint(0, view.shown_width - width),
            rng.randint(0, view.shown_height - height),
            width,
            height,
        )
        lines = range(rng.randint(2, max(2, int(height / self._letters / 1.6))))
        match rng.randrange(3):
            case 0:
                inner = "".join(f"<p>{self._text(rng.randint(3, 12))}.</p>" for _ in lines)
            case 1:
                inner = "".join(
                    f'<p style="white-space:nowrap">{self._text(1)}.{rng.choice(("txt", "md", "png", "py"))} '
                    f"{rng.randint(1, 999)} kB</p>"
                    for _ in lines
                )
            case _:
                shown = "".join(f"<p>$ {self._text(rng.randint(1, 5)).lower()}</p>" for _ in lines)
                inner = (
                    f'<div style="height:100%;background:#111;color:#ddd;font-family:monospace">{shown}</div>'
                )
        return self._framed(box, inner)

    def _icons(self) -> str:
        """Pictures with names, along the left or the right edge."""
        rng, size = self._rng, round(self._letters * 3)
        side = rng.choice(("left", "right"))
        shown = ""
        for _ in range(rng.randint(2, max(2, self._view.shown_height // (3 * size)))):
            back = palette(rng, dark=rng.random() < 0.5)[0]
            mark = f'<div style="width:{size}px;height:{size}px;margin:0 auto;background:{back}"></div>'
            shown += f'{mark}<p style="color:#fff;background:#0008">{self._text(1)}</p>'
        return f'<div style="{side}:4px;top:4px;width:{size * 2}px;text-align:center">{shown}</div>'

    def _panel(self) -> str:
        """A strip along the top or the bottom: names of programs, and the time."""
        rng, height = self._rng, round(self._letters * 2)
        back, ink = palette(rng, dark=rng.random() < 0.6)
        names = "".join(
            f'<p style="display:inline-block">{self._text(1)}</p>' for _ in range(rng.randint(1, 4))
        )
        clock = f'<p style="float:right">{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}</p>'
        side = rng.choice(("top", "bottom"))
        look = f"left:0;right:0;{side}:0;height:{height}px;background:{back};color:{ink}"
        return f'<div style="{look}">{clock}{names}</div>'
