"""What the log says of a person's mouse and keyboard."""

from __future__ import annotations

import pytest

from pilotfish.agent.control.doings import MOST, Doings
from pilotfish.agent.control.wire import Input


def lines(*inputs: Input, keeps_text: bool = False) -> list[str]:
    doings = Doings(keeps_text=keeps_text)
    for one in inputs:
        doings.add(one)
    return list(doings.lines)


def keys(*names: str) -> list[Input]:
    return [Input(action="key", key=name) for name in names]


def test_the_pointer_is_told_by_where_it_did_something() -> None:
    moves = [Input(action="move", x=x, y=7) for x in range(40)]
    drag = [Input(action="press", x=1, y=2), *moves, Input(action="release", x=30, y=40)]
    click = [Input(action=action, x=5, y=6, button="right") for action in ("press", "release")]
    wheel = [Input(action="scroll", x=5, y=6, dy=1)] * 3
    assert lines(*moves, Input(action="click", x=3, y=4), *drag, *click, *wheel, *moves) == [
        "clicked at (3, 4)",
        "dragged with the left button from (1, 2) to (30, 40)",
        "right-clicked at (5, 6)",
        "scrolled down at (5, 6) 3 times",
        "moved the pointer to (39, 7)",
    ]
    assert lines(*moves, *keys("Tab"), Input(action="double_click"), Input(action="press", x=1, y=1)) == [
        "moved the pointer to (39, 7)",
        "pressed Tab",
        "double-clicked",
        "held the left button down at (1, 1)",
    ]
    assert lines(Input(action="release", x=1, y=1)) == ["let go of the left button at (1, 1)"]


@pytest.mark.parametrize("as_keys", [False, True])
def test_what_is_typed_is_told_by_its_length_however_it_was_sent(as_keys: bool) -> None:
    secret = "Pa55 wörd!"
    typed = keys(*secret.replace(" ", "\0")) if as_keys else [Input(action="text", text=c) for c in secret]
    if as_keys:
        typed[4] = Input(action="key", key="space")
    inputs = [*typed, *keys("Return", "ctrl+a", "BackSpace", "BackSpace", "shift+x", "KP_7", "altgr+q")]
    told = lines(*inputs)
    assert told == [
        "typed 10 characters",
        "pressed Return",
        "pressed Control+a",
        "pressed BackSpace 2 times",
        "typed 3 characters",
    ]
    assert lines(*inputs, keeps_text=True)[0] == f'typed "{secret}"'
    assert lines(*inputs, keeps_text=True)[-1] == 'typed "x7q"'


def test_no_more_is_kept_than_a_log_should_hold() -> None:
    many = [Input(action="click", x=n, y=n) for n in range(MOST + 9)]
    assert lines(*many)[-2:] == [f"clicked at ({MOST - 1}, {MOST - 1})", "did 9 more things"]
    assert lines(*[Input(action="text", text="x" * 1000)] * 1000) == ["typed 1,000,000 characters"]
