"""Edit tasks: that they can be done, that nothing else passes, and what they are never made of."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from pilotfish.tasks.edits.expert import shortest
from pilotfish.tasks.edits.family import KINDS, Ground, make_ground, make_task
from pilotfish.tasks.edits.faults import possible
from pilotfish.tasks.edits.names import renamable
from pilotfish.tasks.edits.sources import (
    HELD_OUT,
    may_be_used,
    read_package,
    read_trainable,
    some_of,
    training_packages,
)
from pilotfish.tasks.edits.spans import spliced
from pilotfish.tasks.edits.trees import judge
from pilotfish.tasks.edits.values import changeable


@pytest.fixture(scope="module", params=["json", "html", "h11"])
def ground(request: pytest.FixtureRequest) -> Ground:
    return make_ground(request.param, read_package(request.param), 7)


def data(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}


def test_every_task_can_be_done_and_nothing_else_passes(ground: Ground) -> None:
    files = ground.files
    tasks = [make_task(ground, seed) for seed in range(40)]
    assert {task.kind for task in tasks} == set(ground.kinds())
    for seed, task in enumerate(tasks):
        assert make_task(ground, seed) == task
        wanted = ground.wanted(task)
        assert judge(files, wanted, data(wanted)) == ""
        assert judge(files, wanted, data(files))
        path = sorted(task.changes)[0]
        assert judge(files, wanted, data(wanted) | {path: wanted[path].encode() + b"\nx = 1\n"})
        assert judge(files, wanted, data(wanted) | {path: wanted[path].encode() + b"# more\n"})
        assert judge(files, wanted, data(wanted) | {path: b"def"})
        assert judge(files, wanted, data(wanted) | {"new.py": b""})
        assert judge(files, wanted, {at: text for at, text in data(wanted).items() if at != path})
        other = tasks[seed - 1]
        if other.changes != task.changes:
            assert judge(files, wanted, data(ground.wanted(other)))
        if task.kind == "rename":
            assert len(task.changes) == task.files
            for at in task.changes:
                assert judge(files, wanted, data(wanted) | {at: files[at].encode()})
        assert task.old in task.instruction or task.kind != "rename"
        assert task.new in task.instruction or task.kind == "mend"


def test_parts_of_lines_make_the_solution(ground: Ground) -> None:
    for seed in range(60):
        task = make_task(ground, seed)
        if task.kind == "rename":
            continue
        lines = ground.files[task.path].split("\n")
        after = task.changes[task.path].split("\n")
        for at, (one, two) in enumerate(zip(lines, after, strict=True)):
            if one != two:
                old, new = shortest(one, two)
                assert one.count(old) == 1
                assert one.replace(old, new) == two
                lines[at] = two
        assert lines == after


@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [
        ("    if a.at < len(b):", "    if a.at <= len(b):", "at < len", "at <= len"),
        ("for i in range(n + 1):", "for i in range(n):", "n + 1)", "n)"),
        ("x = y[1] + z[1]", "x = y[1] + z[2]", "z[1]", "z[2]"),
        ("x = z[1] + z[1]", "x = z[1] + z[2]", "1] + z[1]", "1] + z[2]"),
        ("def f(a=True, b=True):", "def f(a=True, b=False):", "b=True)", "b=False)"),
        ("SIZE = 5", "SIZE = 10", "SIZE = 5", "SIZE = 10"),
    ],
)
def test_what_is_replaced_is_short_and_stands_there_once(before: str, after: str, old: str, new: str) -> None:
    assert shortest(before, after) == (old, new)


def test_a_ground_has_its_faults_and_each_can_be_mended_alone(ground: Ground) -> None:
    assert ground.faults
    assert len({(fault.path, fault.name) for fault in ground.faults}) == len(ground.faults)
    for fault in ground.faults:
        assert ground.right[fault.path] != ground.files[fault.path]
        alone = spliced(ground.right[fault.path], [fault.wrong])
        assert judge(ground.right, ground.right, data({**ground.right, fault.path: alone}))
    assert make_ground(ground.package, ground.right, 7).files == ground.files


SMALL = {
    "small/a.py": '''"""Has limit_here in it."""
from small import b
from small.b import shared

LIMIT = 10
limit_here = 3
ORDER = ["x"]


class Box:
    size = 4

    def _grow(self, by=2):
        return self.size + by

    def twice(self):
        return self._grow(1) + self._grow()


def use(first, second=None, *, mode="fast"):
    for n in range(len(first)):
        if first[n] < LIMIT:
            return shared(first[n], LIMIT)
    return b.helper(second[1:], first)
''',
    "small/b.py": """__all__ = ["helper", "shared"]


def shared(value, most):
    return value if value <= most else most


def helper(parts, dead):
    return parts[0]  # the dead part


def dead():
    return 0
""",
}


def test_a_symbol_is_renamed_only_where_its_word_is_nothing_else() -> None:
    found = {symbol.qualified: symbol for symbol in renamable(SMALL)}
    # limit_here is in a docstring, dead a parameter and in a comment, use and twice and ORDER are not used.
    assert set(found) == {"LIMIT", "Box._grow", "shared", "helper"}
    assert found["shared"].places == (("small/a.py", 2), ("small/b.py", 2))
    assert found["helper"].kind == "function"


def test_values_are_those_of_constants_and_defaults() -> None:
    found = {(value.name, value.parameter): value.text for value in changeable(SMALL)}
    assert found == {
        ("LIMIT", ""): "10",
        ("limit_here", ""): "3",
        ("Box.size", ""): "4",
        ("Box._grow", "by"): "2",
        ("use", "mode"): '"fast"',
    }


def test_faults_are_where_words_can_say_which_place_is_meant() -> None:
    found = {(fault.name, fault.kind): fault for fault in possible(SMALL)}
    assert {("use", "compare"), ("use", "range"), ("use", "slice"), ("shared", "compare")} <= set(found)
    assert "when `value` equals `most`" in found["shared", "compare"].told
    assert found["shared", "compare"].wrong.text == " < "
    braces = {"a.py": "def f(a, b):\n    return len({a, b}) < 3\n"}
    told = make_task(make_ground("a", braces, 0), 0, "mend").instruction
    assert "`f` in `a.py` is off by one: when `len({a, b})` equals `3`" in told
    twice = {"two.py": "def f(a, b):\n    return a < b or b <= a\n\n\ndef g(x):\n    return x[0] + x[1]\n"}
    assert possible(twice) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("if a > b:\n    pass\n", "if b < a:\n    pass\n", True),
        ("for i in range(0, n):\n    pass\n", "for i in range(n):\n    pass\n", True),
        ("x = y[0:n + 1]\n", "x = y[:1 + n]\n", True),
        ("f(a,  b)\n", "f(\n    a,\n    b,\n)\n", True),
        ("if a >= b:\n    pass\n", "if b < a:\n    pass\n", False),
        ("x = 1\n", "x = 1.0\n", False),
        ("x = 1  # one\n", "x = 1\n", False),
        ("x = y[1:n]\n", "x = y[:n]\n", False),
    ],
)
def test_two_ways_to_write_the_same_are_the_same(one: str, other: str, same: bool) -> None:
    before = {"a.py": "nothing = 0\n", "b.txt": "as it is"}
    wanted = {**before, "a.py": one}
    assert (judge(before, wanted, data({**before, "a.py": other})) == "") is same
    assert judge(before, wanted, data({"a.py": one, "b.txt": "changed"})) == "b.txt was to stay as it is."


def test_what_is_measured_on_is_never_trained_on(tmp_path: Path) -> None:
    names = {one.name for one in training_packages()}
    assert not names & set(HELD_OUT)
    assert {"stdlib", "json", "h11"} <= names
    for name in HELD_OUT:
        assert len(read_package(name)) > 5
        with pytest.raises(ValueError, match="kept for measuring"):
            read_trainable(name)
    inside = tmp_path / "mine" / "vendored" / "Jinja2"
    inside.mkdir(parents=True)
    (inside / "x.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match="is or holds jinja2"):
        read_trainable(str(tmp_path / "mine"))
    with pytest.raises(ValueError, match="is or holds jinja2"):
        read_trainable(str(inside))


@pytest.mark.parametrize(
    ("licence", "may"),
    [
        ("MIT", True), ("MIT-CMU", True), ("The MIT License (MIT)", True), ("Apache 2.0", True),
        ("BSD3", True),
        ("Apache-2.0 OR BSD-2-Clause", True), ("ISC License (ISCL)", True), ("PSF-2.0", True),
        ("Proprietary, for limited use", False), ("Use is permitted to members", False),
        ("See the disclaimer", False), ("MIT AND GPL-2.0-only", False), ("LGPLv3+", False),
        ("unknown", False),
        ("MIT, Mozilla Public License 2.0", False), ("MIT OR MPL-2.0", False),
    ],
)  # fmt: skip
def test_a_licence_is_told_by_its_name_not_by_letters_in_other_words(licence: str, may: bool) -> None:
    assert may_be_used(licence) is may


def test_a_package_that_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("no_such_package", str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(ValueError, match=Path(name).name):
            read_package(name)
    empty = make_ground("tiny", {"tiny/a.py": "x = []\n"}, 0)
    with pytest.raises(ValueError, match="tiny has no place for an edit"):
        make_task(empty, 0)


def test_a_part_of_a_package_has_the_size_that_was_asked_for() -> None:
    files = read_package("json")
    for size in (2_000, 20_000, 10**9):
        part = some_of(files, size, random.Random(size))
        assert part
        assert sum(map(len, part.values())) <= max(size, min(map(len, files.values())))
        assert list(part) == sorted(part)
    assert part == dict(sorted(files.items()))


def test_all_kinds_are_on_a_package_that_is_measured_on() -> None:
    ground = make_ground("starlette", read_package("starlette"), 0)
    assert tuple(ground.kinds()) == KINDS
    assert len(ground.faults) == 12
