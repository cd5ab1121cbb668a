"""Screens and calls that the tests of the terminal interface show."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from textual._context import visible_screen_stack
from textual.app import App

from pilotfish.agent.control.wire import Question
from pilotfish.agent.events import CallData


def desktop(width: int = 640, height: int = 400) -> npt.NDArray[np.uint8]:
    """A drawing of a window with a button, the same every time."""
    picture = Image.new("RGB", (width, height), (32, 64, 96))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((60, 40, width - 60, height - 60), fill=(240, 240, 240))
    draw.rectangle((60, 40, width - 60, 64), fill=(80, 80, 200))
    draw.rectangle((280, 180, 360, 220), fill=(40, 160, 80))
    return np.asarray(picture)


def call(name: str = "computer", /, **arguments: Any) -> CallData:
    """A call as the model makes it."""
    return CallData(id="c1", name=name, arguments=arguments)


def question(call: CallData, **more: Any) -> Question:
    """A question about a call."""
    given: dict[str, Any] = {"question": 7, "step": 3, "why": "default_verdict is ask", **more}
    return Question(call=call, **given)


def shown_text(app: App[Any]) -> str:
    """What stands on the screen, row by row."""
    # Else what lies below a dialog is drawn as nothing, and kept so for whoever draws next.
    visible_screen_stack.set(app._background_screens)
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())
