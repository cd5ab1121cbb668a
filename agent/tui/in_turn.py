"""Keys in the order in which they were pressed: Textual heeds a binding of priority ahead of earlier text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from textual.screen import Screen

S = TypeVar("S", bound="Screen[Any]")
P = ParamSpec("P")


def in_turn(action: Callable[Concatenate[S, P], Any]) -> Callable[Concatenate[S, P], None]:
    """An action of a screen that waits until the keys pressed before it have reached the field they go to."""

    def later(screen: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        (screen.focused or screen).call_later(functools.partial(action, screen, *args, **kwargs))

    later.__doc__ = action.__doc__
    return later
