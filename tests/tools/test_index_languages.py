"""What is found in a little text of every language, and what it looks like when it is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pilotfish.tools.index.languages import LANGUAGES, language_of
from pilotfish.tools.index.tags import Tags, enclosing, tags_by_query, tags_of

SAMPLES = Path(__file__).parent / "languages"


def _described(tags: Tags) -> list[str]:
    definitions = [
        f"{one.kind} {one.qualified} {one.line}-{one.end_line}" + (f" # {one.doc}" if one.doc else "")
        for one in tags.definitions
    ]
    calls = sorted(name for name, places in tags.uses.items() if any(place & 1 for place in places))
    return definitions + [f"call {name}" for name in calls] + [f"import {one}" for one in tags.imports]


def test_every_language_has_a_sample() -> None:
    assert {path.stem for path in SAMPLES.iterdir()} == set(LANGUAGES)


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_definitions_calls_and_imports(language: str) -> None:
    source, _, expected = (SAMPLES / f"{language}.txt").read_text().partition("%%%%%\n")
    assert "\n".join(_described(tags_of(source.encode(), language))) == expected.rstrip("\n")


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_no_text_is_too_strange(language: str) -> None:
    """Cut anywhere, turned around, or of another language: there is an answer."""
    source = (SAMPLES / f"{language}.txt").read_bytes()
    for text in (
        b"",
        b"\n",
        b"\0\xff\xfe",
        source[: len(source) // 2],
        source[::-1],
        b"(" * 2000,
        b"{\n" * 500,
    ):
        tags = tags_of(text, language)
        assert all(1 <= one.line <= one.end_line for one in tags.definitions)


REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON_TEXTS = (
    b"x = f'{a[1:2]!r:>{width}} {{no}} {d[\"key\"]} {f(b)}' + rb'no' + 'a' 'b' # no\n",
    b"class A:\n    b = c = 1\n    d: int = 2\n    if x:\n        e = 3\n        def f(self): g (1)\n",
    b"try:\n    import a.b as c, d\nexcept E as e:\n    from ..f import g\nfinally:\n    def h(): pass\n",
    b"@dec(1)\nasync def one(two=three()):\n    for four in five:\n        class Six: seven = 8\n",
    b"def whole(): return '''\nno(1) \"no\"\n''' + yes(1) # '''\nx = '''{'''\n",
    b"\xef\xbb\xbfs = '\\'' + \"#\" + u'\xc3\xa9'; \xc3\xa9t\xc3\xa9 = \xc3\xa9(0x1F, 1e5, 2)\nprint(s)\n",
)


def _known(tags: Tags) -> Tags:
    return replace(tags, uses={name: sorted(places) for name, places in tags.uses.items()})


def test_pythons_short_way_says_what_its_query_does() -> None:
    files = [path.read_bytes() for path in sorted((REPOSITORY / "tools").rglob("*.py"))]
    for source in (*PYTHON_TEXTS, *(source for source in files if b" case " not in source)):
        assert _known(tags_of(source, "python")) == _known(tags_by_query(source, "python"))


PYTHON = b'''
def outer(
    first: int,
    second: str = "x",
) -> dict[str, int]:
    """Says
    more."""
    hidden = 1

    def inner():
        return outer(hidden)

class Wide(Base):
    limit: int = 3
    def run(self): return self.limit + limit
'''


def test_signatures_and_documentation_are_one_line_each() -> None:
    by_name = {one.qualified: one for one in tags_of(PYTHON, "python").definitions}
    assert by_name["outer"].signature == 'def outer( first: int, second: str = "x", ) -> dict[str, int]:'
    assert by_name["outer"].doc == "Says"
    assert (by_name["outer"].line, by_name["outer"].end_line) == (2, 11)
    assert by_name["Wide.limit"].kind == "field"
    assert by_name["Wide.run"].kind == "method"
    assert "outer.hidden" not in by_name


def test_uses_have_lines_and_definitions_are_none() -> None:
    tags = tags_of(PYTHON, "python")
    assert tags.uses["outer"] == [2 * 11 + 1]
    assert tags.uses["limit"] == [2 * 15, 2 * 15]
    assert "run" not in tags.uses
    around = enclosing(tags.definitions, 11)
    assert around is not None
    assert around.qualified == "outer.inner"


@pytest.mark.parametrize(
    ("path", "head", "language"),
    [
        ("a/b.PY", b"", "python"),
        ("Makefile", b"", "make"),
        ("tool", b"#!/usr/bin/env python3\n", "python"),
        ("tool", b"#!/bin/sh -e\n", "bash"),
        ("tool", b"plain", None),
        ("x.unknown", b"#!/bin/sh", None),
        (".py", b"", "python"),
        ("no.end.", b"", None),
    ],
)
def test_languages_by_name_and_first_line(path: str, head: bytes, language: str | None) -> None:
    assert language_of(path, head) == language
