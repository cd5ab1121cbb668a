from __future__ import annotations

import pytest

from pilotfish.agent.safetext import shortened, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ünïcode 測試 😀", "plain text, ünïcode 測試 😀"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("a\x00b\x7f\x9b", "a\\x00b\\x7f\\x9b"),
        ("rm \u202e txt.exe", "rm \\u202e txt.exe"),
        ("a\u2066b\u2069\u200f", "a\\u2066b\\u2069\\u200f"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("lone \ud800", "lone \\ud800"),
        ("carriage\rreturn", "carriage\\rreturn"),
        ("two\n\tlines", "two\n\tlines"),
        ("no-break\u00a0space", "no-break\u00a0space"),
        ("[bold]markup[/bold]", "[bold]markup[/bold]"),
    ],
)
def test_what_does_not_show_is_spelt_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_one_line() -> None:
    assert visible("a\nb\tc", one_line=True) == "a\\nb\\tc"
    assert shortened("a\nbcdef", 5) == "a\\nb…"
