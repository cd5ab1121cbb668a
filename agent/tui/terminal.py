"""What the terminal can show: pictures of its own (Kitty, Sixel), coloured half-blocks, or words only.

It is asked before Textual takes the terminal, in one question with one time-out. textual-image would ask on
import, several times, and once Textual reads the keys it would take them for answers; so it is imported here
only, with nothing to ask.
"""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from textual.app import ComposeResult
from textual.filter import LineFilter
from textual.widget import Widget

Pictures = Literal["kitty", "sixel", "blocks", "words"]
_SILENT = ("", "dumb", "unknown")
_WITHOUT_PICTURES = ("linux", "screen", "tmux", "vt", "ansi", "cons")
_KITTY = "\x1b_Gi=1,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\"
_CELL = "\x1b[16t"
_ATTRIBUTES = "\x1b[c"
_TIMEOUT = 0.5
"""Seconds; only a terminal that answers nothing is waited for that long."""


@dataclass(frozen=True)
class Terminal:
    """What a terminal can show, and the size of its cells in pixels. why: why it shows words only, and the
    mend, as the end of a sentence.
    """

    pictures: Pictures
    cell: tuple[int, int] = (10, 20)
    why: str = "it is not known whether this terminal can"


def find_out(environ: Mapping[str, str] = os.environ) -> Terminal:
    """What the terminal of this process can show. Call it before Textual starts.

    Asks nothing of one that could print the question (no terminal, `TERM=dumb`), and nothing inside tmux or
    screen, which answer for themselves and pass no pictures on.
    """
    term = environ.get("TERM", "")
    if term in _SILENT:
        return Terminal("words", why=f"TERM is {term!r}; set it to the kind of your terminal")
    if not (sys.__stdin__ and sys.__stdout__):
        return Terminal("words")
    if not (sys.__stdin__.isatty() and sys.__stdout__.isatty()):
        return Terminal("words")
    without = Terminal("blocks")
    if environ.get("NO_COLOR"):
        without = Terminal("words", why="NO_COLOR is set; unset it to see the screen")
    if "TMUX" in environ or "STY" in environ or term.startswith(_WITHOUT_PICTURES):
        return without
    return read_answer(_asked(sys.__stdin__.fileno(), sys.__stdout__.fileno()), without)


def read_answer(answer: str, otherwise: Terminal) -> Terminal:
    """What a terminal has answered to the question. Of one that knows both, Sixel is taken: what
    textual-image sends to a Kitty only those show right that have no Sixel.
    """
    size = re.search(r"\x1b\[6;(\d{1,4});(\d{1,4})t", answer)
    height, width = (int(size[1]), int(size[2])) if size else (0, 0)
    cell = (width, height) if width and height else Terminal("words").cell
    attributes = re.search(r"\x1b\[\?([\d;]*)c", answer)
    if attributes and "4" in attributes[1].split(";"):
        return Terminal("sixel", cell)
    if re.search(r"\x1b_Gi=1;OK\x1b\\", answer):
        return Terminal("kitty", cell)
    return replace(otherwise, cell=cell)


def _asked(stdin: int, stdout: int) -> str:
    """The terminal's answer to one question, as far as it came in time."""
    try:
        before = termios.tcgetattr(stdin)
    except termios.error:
        return ""
    answer = b""
    try:
        tty.setcbreak(stdin, termios.TCSANOW)
        os.write(stdout, (_KITTY + _CELL + _ATTRIBUTES).encode())
        end = time.monotonic() + _TIMEOUT
        # Every terminal that answers at all answers the last part, so what it knows has come by then.
        while not re.search(rb"\x1b\[\?[\d;]*c", answer):
            ready, _, _ = select.select([stdin], [], [], max(0.0, end - time.monotonic()))
            if not ready or not (got := os.read(stdin, 1024)):
                break
            answer += got
    except OSError:
        return ""
    finally:
        termios.tcsetattr(stdin, termios.TCSANOW, before)
    return answer.decode("latin-1")


def picture_widget(terminal: Terminal) -> Widget:
    """A widget of textual-image for a terminal with pictures of its own; set its `image` to one of Pillow."""
    modules = textual_image(terminal)
    if terminal.pictures == "kitty":
        return modules.TGPImage()

    class Sixels(modules.sixel._ImageSixelImpl):  # type: ignore[misc, name-defined]
        """Places its picture by control codes in text, which no filter may touch."""

        def get_line_filters(self) -> Sequence[LineFilter]:
            return ()

    drawing = modules.SixelImage._Renderable

    class Picture(modules.SixelImage, Renderable=drawing):  # type: ignore[call-arg, misc, name-defined]
        def compose(self) -> ComposeResult:
            yield Sixels(self.image, None)

    return Picture()


@cache
def textual_image(terminal: Terminal) -> Any:
    """The widgets of textual-image, told what the terminal is instead of asking it."""
    with _nothing_to_ask():
        from textual_image import _terminal, widget
        from textual_image.widget import sixel
    widget.sixel = sixel
    size = _terminal.CellSize(*terminal.cell)
    if hasattr(_terminal, "probe_terminal"):  # from 0.13 on
        _terminal.probe_terminal._result = _terminal.probe_terminal()._replace(cell_size=size)
    else:
        _terminal.get_cell_size._result = size  # type: ignore[attr-defined]
    return widget


@contextmanager
def _nothing_to_ask() -> Iterator[None]:
    kept = sys.__stdout__
    with Path(os.devnull).open("w") as nowhere:
        sys.__stdout__ = nowhere  # type: ignore[misc]
        try:
            yield
        finally:
            sys.__stdout__ = kept  # type: ignore[misc]
