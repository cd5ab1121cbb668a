"""Bytes of a terminal as text: nothing in it can act, nothing that shows is lost."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.sandbox.terminal import plain_text

pieces = st.sampled_from(
    [b"\x1b", b"[", b"]", b"31", b"m", b"\r", b"\n", b"\b", b"\x00", b"\xff", b"K", "ß\u009b".encode()]
)


@given(st.one_of(st.binary(max_size=200), st.lists(pieces, max_size=30).map(b"".join)))
def test_no_control_character_is_left(data: bytes) -> None:
    assert not [
        char for char in plain_text(data) if unicodedata.category(char) == "Cc" and char not in "\n\t"
    ]


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from("\n\t")))
def test_plain_text_is_itself(text: str) -> None:
    assert plain_text(text.encode()) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"10%\r50%\r100%\n", "100%\n"),
        (b"downloading\r\x1b[Kdone\n", "done\n"),
        (b"downloading\rdone\n", "doneloading\n"),
        (b"pass\b\b\b\bword", "word"),
        (b"\x1b[1;31mred\x1b[0m \x1b[38;5;9mx", "red x"),
        (b"\x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1b]52;c;aGk=\x07copied", "copied"),
        (b"\x1bP1$r0m\x1b\\\x1b_app\x1b\\\x1b^pm\x1b\\x", "x"),
        (b"\x1b]never ended\nnext", "\nnext"),
        (b"\x1bc\x1b(B\x1b=\x1b7x", "x"),
        ("\u009b31mred".encode(), "red"),
        (b"bell\a nul\0 del\x7f", "bell\\x07 nul\\x00 del\\x7f"),
        (b"\xff\xfe\xe2\x82", "\\xff\\xfe\\xe2\\x82"),
        (b"end\x1b", "end"),
        (b"\t\xc2\xa0|", "\t\u00a0|"),
    ],
)
def test_what_a_terminal_would_show(data: bytes, text: str) -> None:
    assert plain_text(data) == text
