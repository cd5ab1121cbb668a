"""Whatever the bytes: reading and writing gives them back, and a change touches nothing around it."""

import codecs

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilotfish.tools.nearest import explain_miss, visible
from pilotfish.tools.textfile import NotText, TextFile

lines = st.lists(st.tuples(st.text("ab ß文\t", max_size=6), st.sampled_from(["\n", "\r\n"])), max_size=8)
mixed = st.builds(
    lambda parts, last: "".join(text + end for text, end in parts) + last, lines, st.text("abß", max_size=4)
)


@given(st.binary(max_size=200))
@example(codecs.BOM_UTF16_LE + b"a")
@example(codecs.BOM_UTF8 + b"\xff")
@example(b"coding: utf-7 +AGE-\xff")
@example(b"coding: base64 \xff")
@example(b"charset=undefined \xff")
def test_bytes_come_back_or_are_refused(data: bytes) -> None:
    try:
        file = TextFile.decode(data)
    except NotText:
        return
    assert file.encode() == data


@given(mixed, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_marked_text_is_read_as_it_is(text: str, encoding: str) -> None:
    file = TextFile.decode(text.encode(encoding))
    assert file.text == text
    assert file.encode() == text.encode(encoding)


@given(mixed, st.text("xy文\n", max_size=6), st.data())
def test_a_change_is_a_change_of_the_text_and_of_nothing_around_it(
    text: str, new: str, data: st.DataObject
) -> None:
    file = TextFile(text)
    lf = text.replace("\r\n", "\n")
    start = data.draw(st.integers(0, len(lf)))
    end = data.draw(st.integers(start, len(lf)))
    changed = file.spliced([(start, end, new)])
    assert changed.lf == lf[:start] + new + lf[end:]
    before = lf.count("\n", 0, start)
    after = lf.count("\n", end)
    old_lines, new_lines = text.splitlines(keepends=True), changed.text.splitlines(keepends=True)
    assert new_lines[:before] == old_lines[:before]
    if after:
        assert changed.text.endswith("\n" + "\n".join(text.split("\n")[-after:]))


@given(st.text("ab\n", max_size=20), st.text("ab\n", max_size=5))
def test_without_crlf_it_is_plain_slicing(text: str, new: str) -> None:
    middle = len(text) // 2
    assert TextFile(text).spliced([(middle, len(text), new)]).text == text[:middle] + new


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("a", 1), ("a\n", 1), ("a\r\nb", 2), ("\n\n", 2), ("a\n\n", 2)]
)
def test_lines_are_counted_as_an_editor_does(text: str, count: int) -> None:
    assert TextFile(text).line_count == count


@given(mixed, st.text("ab ß文\t\n", min_size=1, max_size=12))
def test_a_miss_is_always_explained(text: str, old: str) -> None:
    lf = text.replace("\r\n", "\n")
    if old not in lf:
        assert explain_miss(lf, old)


def test_white_space_is_visible() -> None:
    assert visible("\t  a b\u00a0c\u200b  ") == "→  a b<U+00A0>c<U+200B>··"
    assert visible("  a") == "··a"
    assert visible("   ") == "···"
