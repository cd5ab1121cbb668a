"""Bounded output against its slow twin: keep everything, cut at the end."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pilotfish.sandbox.output import BoundedOutput


def collect(chunks: list[bytes], kept: int) -> BoundedOutput:
    output = BoundedOutput(kept)
    for chunk in chunks:
        output.feed(chunk)
    return output


@example([b"\xc3\xbf\xbf\xbf" * 3], 8)  # more continuation bytes than the character has room for
@given(st.lists(st.binary(max_size=30)), st.integers(1, 10).map(lambda half: 2 * half))
def test_bytes_are_kept_from_both_ends(chunks: list[bytes], kept: int) -> None:
    output, whole = collect(chunks, kept), b"".join(chunks)
    head, tail = output._parts()
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert output.dropped_bytes == len(whole) - len(head) - len(tail)
    if len(whole) <= kept:
        assert head + tail == whole
    else:
        # At most the three bytes of a cut character are missing on either side.
        assert kept // 2 - 3 <= len(head) <= kept // 2
        assert kept // 2 - 3 <= len(tail) <= kept // 2


@given(st.lists(st.text(max_size=20)), st.integers(4, 12).map(lambda half: 2 * half))
def test_characters_are_never_cut(words: list[str], kept: int) -> None:
    output = collect([word.encode() for word in words], kept)
    assert "\ufffd" not in output.text.replace("\ufffd", "", "".join(words).count("\ufffd"))
    if output.dropped_bytes:
        head, tail = output.text.split(f"\n[... {output.dropped_bytes} bytes left out ...]\n")
        assert "".join(words).startswith(head)
        assert "".join(words).endswith(tail)
    else:
        assert output.text == "".join(words)


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert collect([b"a\xff", b"\xfeb\xe2\x82"], 100).text == "a\ufffd\ufffdb\ufffd"
