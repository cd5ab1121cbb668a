"""Grounds and the tasks on them: `make_ground(package, files, seed)`, then `make_task(ground, seed)`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from pilotfish.tasks.edits.faults import Fault, chosen, possible
from pilotfish.tasks.edits.names import Symbol, new_name, renamable, renamed
from pilotfish.tasks.edits.spans import spliced
from pilotfish.tasks.edits.values import Value, another, changeable

Kind = Literal["rename", "value", "mend"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FAULTS = 12
"""How many faults a ground has, where there are places for so many."""

_RENAME = (
    "Rename the {kind} `{old}`{where} to `{new}`, and everything that refers to it.",
    "The {kind} `{old}`{where} should be called `{new}` from now on; change all its uses too.",
    "Please give `{old}`{where} the new name `{new}`, here and wherever it is used.",
)
_CONSTANT = (
    "Set `{name}`{where} to `{new}`.",
    "Change the value of `{name}`{where} from `{old}` to `{new}`.",
    "`{name}`{where} should be `{new}`.",
)
_DEFAULT = (
    "Make `{new}` the default of the parameter `{parameter}` of `{name}`{where}.",
    "Change the default of `{parameter}` in `{name}`{where} from `{old}` to `{new}`.",
    "In `{name}`{where}, `{parameter}` should be `{new}` by default.",
)
_MEND = ("{} Please mend it.", "{} Mend that and nothing else.", "Please repair this: {}")


@dataclass(frozen=True)
class EditTask:
    """One task. changes: the files that the reference solution changes, {path: text after}.

    symbol: what it is about, as `index find` takes it; paths and lines: where it is changed. places: how
    many places change, in how many `files`; lines_before: how many lines of the ground, its files in order,
    stand before the first of them, which says how far a reader has to look.
    """

    kind: Kind
    instruction: str
    symbol: str
    path: str
    line: int
    old: str
    new: str
    places: int
    lines_before: int
    changes: Mapping[str, str]

    @property
    def path_told(self) -> bool:
        """Whether the task says in which file it is."""
        return f"`{self.path}`" in self.instruction

    @property
    def files(self) -> int:
        return len(self.changes)


@dataclass(frozen=True)
class Ground:
    """A package as tasks find it. right: its files without the faults; files: with them."""

    package: str
    right: Mapping[str, str]
    faults: tuple[Fault, ...]
    files: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def symbols(self) -> list[Symbol]:
        return renamable(self.files)

    @cached_property
    def values(self) -> list[Value]:
        return changeable(self.files)

    def kinds(self) -> list[Kind]:
        """The kinds of which there are tasks here."""
        held = {"rename": self.symbols, "value": self.values, "mend": self.faults}
        return [kind for kind in KINDS if held[kind]]

    def wanted(self, task: EditTask) -> dict[str, str]:
        """All files as the reference solution leaves them."""
        return {**self.files, **task.changes}


def make_ground(package: str, files: Mapping[str, str], seed: int | str, faults: int = FAULTS) -> Ground:
    """Put faults into a package; the same seed and files give the same ground."""
    draw = random.Random(f"ground:{package}:{seed}")
    taken = tuple(chosen(possible(files), faults, draw))
    ground = Ground(package, dict(files), taken)
    broken = {path: _with(ground, path, taken) for path in files}
    return Ground(package, dict(files), taken, broken)


def make_task(ground: Ground, seed: int | str, kind: Kind | None = None) -> EditTask:
    """A task on a ground; the same seed gives the same one. kind: of those the ground has; None draws one.

    Raises `ValueError` where the package has nothing for it.
    """
    draw = random.Random(f"task:{ground.package}:{seed}:{kind}")
    kinds = ground.kinds()
    if not kinds or (kind is not None and kind not in kinds):
        raise ValueError(f"{ground.package} has no place for an edit ({kind}); name a larger package.")
    kind = kind or draw.choice(kinds)
    if kind == "rename":
        return _rename(ground, draw)
    return _value(ground, draw) if kind == "value" else _mend(ground, draw)


def _rename(ground: Ground, draw: random.Random) -> EditTask:
    wide = [one for one in ground.symbols if len(one.places) > 1]
    symbol = draw.choice(wide if wide and draw.random() < 0.5 else ground.symbols)
    new = new_name(symbol, ground.files, draw)
    where = f" in `{symbol.path}`" if draw.random() < 0.5 else ""
    words = draw.choice(_RENAME).format(kind=symbol.kind, old=symbol.qualified, new=new, where=where)
    return EditTask(
        "rename",
        words,
        symbol.qualified,
        symbol.path,
        symbol.line,
        symbol.name,
        new,
        sum(count for _, count in symbol.places),
        _lines_before(ground, symbol.path, symbol.line),
        renamed(ground.files, symbol, new),
    )


def _value(ground: Ground, draw: random.Random) -> EditTask:
    value = draw.choice(ground.values)
    new = another(value, draw)
    where = f" in `{value.path}`" if not value.alone or draw.random() < 0.5 else ""
    forms = _DEFAULT if value.parameter else _CONSTANT
    words = draw.choice(forms).format(
        name=value.name, parameter=value.parameter, old=value.text, new=new, where=where
    )
    return EditTask(
        "value",
        words,
        value.name,
        value.path,
        value.line,
        value.text,
        new,
        1,
        _lines_before(ground, value.path, value.line),
        {value.path: spliced(ground.files[value.path], [value.changed(new)])},
    )


def _mend(ground: Ground, draw: random.Random) -> EditTask:
    fault = draw.choice(ground.faults)
    others = [one for one in ground.faults if one is not fault]
    right = ground.right[fault.path][fault.wrong.start : fault.wrong.end]
    return EditTask(
        "mend",
        draw.choice(_MEND).format(f"`{fault.name}` in `{fault.path}` {fault.told}."),
        fault.name,
        fault.path,
        fault.line,
        fault.wrong.text.strip(),
        right.strip(),
        1,
        _lines_before(ground, fault.path, fault.line),
        {fault.path: _with(ground, fault.path, others)},
    )


def _with(ground: Ground, path: str, faults: tuple[Fault, ...] | list[Fault]) -> str:
    return spliced(ground.right[path], [one.wrong for one in faults if one.path == path])


def _lines_before(ground: Ground, path: str, line: int) -> int:
    before = (text for at, text in ground.files.items() if at < path)
    return sum(text.count("\n") for text in before) + line - 1
