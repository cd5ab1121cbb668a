"""Whose a use of `method` is, when a person asks for `Class.method`: by what stands before it in its line.

Nothing is run and no type is inferred. A line tells by its receiver: the class itself, `self` in it or in a
class that names it as a base, a variable that the file binds to it, or one that is called like it; and it
tells that it is another's by the same signs. What says nothing comes last.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from enum import IntEnum

from pilotfish.tools.index.tags import Definition, enclosing

_ITSELF = ("self", "cls", "this", "super()", "Self", "@")
_BETWEEN = r"(?:\?\.|!\.|\.|->|::|#)"
_RECEIVER = re.compile(
    rf"((?:[\w$@]+(?:\(\))?{_BETWEEN})*[\w$@]+(?:\([^()]*\)|\[[^\[\]]*\])?)\s*{_BETWEEN}\s*$"
)
_SEEN = 120
"""Characters before a use that are looked at."""
_USES = 20
"""Uses in one line that are looked at."""
_BOUND = r"\b([\w$]+)\s*(?::\s*[\"'&*]*|:?=\s*(?:await\s+|new\s+|&|\*)*)(?:[\w$]+(?:\.|::))*"
_DECLARED = r"(?:<[^<>\n]*>)?[ *&]+([\w$]+)\s*[;=,)]"
_MOST_OTHERS = 200
_IMPORTS = re.compile(r"^[ \t]*(?:from[ \t]+\S+[ \t]+)?import[ \t]+(.+)$", re.MULTILINE)
_LAST = re.compile(r"[\w$@]+(?:\(\))?$")


class Whose(IntEnum):
    """How sure it is that a use is the class's. OTHER: another class's."""

    OTHER = 0
    UNKNOWN = 1
    NAMED_IN_FILE = 2
    ALIKE = 3
    KNOWN = 4


class Receivers:
    """Judges the uses of `owner.name` in one file. owners: all classes that define `name`. always_has_one:
    whether a method is never called without a receiver in this language.
    """

    def __init__(
        self,
        owner: str,
        name: str,
        text: str,
        definitions: Sequence[Definition],
        owners: set[str],
        *,
        always_has_one: bool = False,
    ) -> None:
        self._owner, self._name = owner, name
        self._lines = text.split("\n")
        self._definitions = definitions
        self._owners = owners - {owner}
        self._is_class, self._always_has_one = owner in owners, always_has_one
        self._imported = set(re.findall(r"[\w$]+", " ".join(_IMPORTS.findall(text))))
        self._use = re.compile(rf"(?<![\w$]){re.escape(name)}(?![\w$])")
        self._names_it = re.search(rf"\b{re.escape(owner)}\b", text) is not None
        self._bound = _bound_to(re.escape(owner), text) if self._names_it else set()
        others = "|".join(map(re.escape, sorted(self._owners)[:_MOST_OTHERS]))
        self._bound_elsewhere = _bound_to(others, text) if others else set()

    def whose(self, line: int) -> Whose:
        """Whose the use in a line is: the surest of those that stand in it."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        found = [
            self._of(receiver[1], line)
            for use in itertools.islice(self._use.finditer(text), _USES)
            if (receiver := _RECEIVER.search(text[max(0, use.start() - _SEEN) : use.start()]))
        ]
        if found:
            return max(found)
        if self._is_class and not self._always_has_one:  # `save()` may be `this.save()`
            return self._in_class(line, above=False)
        if self._is_class:
            return Whose.OTHER
        return Whose.NAMED_IN_FILE if self._names_it else Whose.UNKNOWN

    def _of(self, receiver: str, line: int) -> Whose:
        bare = re.sub(r"\([^()]+\)$", "()", receiver)
        end = _LAST.search(bare)
        last = end[0] if end else bare
        word = last.removesuffix("()")
        if word == self._owner:
            return Whose.KNOWN
        if bare in _ITSELF:
            return self._in_class(line, above=bare == "super()")
        if word in self._owners:
            return Whose.OTHER
        if word in self._bound:
            return Whose.KNOWN if word not in self._bound_elsewhere else Whose.ALIKE
        if _plain(word) == _plain(self._owner):
            return Whose.ALIKE
        if word in self._bound_elsewhere or _plain(word) in {_plain(one) for one in self._owners}:
            return Whose.OTHER
        if word in self._imported:
            return Whose.UNKNOWN
        return Whose.NAMED_IN_FILE if self._names_it else Whose.UNKNOWN

    def _in_class(self, line: int, *, above: bool) -> Whose:
        """Whose `self.name` is in the class around a line; above: of its base."""
        inside = enclosing(self._definitions, line)
        names = inside.qualified.split(".") if inside else []
        if self._owner in names and not above:
            return Whose.KNOWN
        for one in self._definitions:
            if one.name in names and re.search(rf"\b{re.escape(self._owner)}\b", one.signature):
                own = any(part.qualified.endswith(f"{one.name}.{self._name}") for part in self._definitions)
                return Whose.OTHER if own and not above else Whose.KNOWN
        return Whose.OTHER if self._owners & set(names) else Whose.UNKNOWN


def _bound_to(classes: str, text: str) -> set[str]:
    """The variables that a text gives one of these classes, as `x = C(`, `x: C`, `C x;` or `x := &C{`."""
    named = re.findall(rf"{_BOUND}(?:{classes})\b", text)
    return {*named, *re.findall(rf"\b(?:{classes}){_DECLARED}", text)}


def _plain(name: str) -> str:
    """A name as `TextFile`, `text_file` and `_textFile` have it in common."""
    return name.replace("_", "").lower()
