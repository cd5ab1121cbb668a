"""A tool call's arguments, from M3's tags to values typed by the tool's JSON schema.

In M3's grammar a parameter's name is its tag, a list is repeated `<item>`, an object is nested tags, and the
namespace marker precedes every tag. Nothing is escaped and types are not in the text, so `2` is a number and
an empty element is a list only because the schema says so. Where the schema is silent, text stays text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

from pilotfish.model.tokenizer import NAMESPACE

MAX_DEPTH = 128
"""Nesting beyond this is refused: no tool needs it, and a loop of tags must not exhaust the stack."""

Schema = Mapping[str, Any]

_OPEN = re.compile(re.escape(NAMESPACE) + r"\s*<([^\s<>/][^\s<>]*)>")
_CLOSE = re.compile(re.escape(NAMESPACE) + r"\s*</([^\s<>/][^\s<>]*)>")
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_WHOLE = re.compile(r"([+-]?[0-9]{1,4000})\.0+")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class MalformedCall(Exception):
    """The tags of a call do not nest; the message says which, in one sentence."""


def parse_arguments(body: str, parameters: Schema) -> dict[str, Any]:
    """The arguments between `<invoke ...>` and `</invoke>`; `parameters` is the tool's schema, {} if unknown.

    Raises `MalformedCall`. Text between parameters is dropped; values are verbatim.
    """
    reader = _Reader(body, parameters)
    children, _ = reader.children(parameters, closing=None, depth=1)
    return _object(children)


def element_value(body: str, schema: Schema, root: Schema) -> Any:
    """The value of one element whose schema is known, from what stands between its tags.

    Raises `MalformedCall`.
    """
    closed = f"{body}{NAMESPACE}</value>"
    reader = _Reader(closed, root)
    value = reader.element("value", schema, 1)
    if reader.position != len(closed):
        raise MalformedCall("the element ends before its closing tag")
    return value


def coerce(value: Any, schema: Schema, root: Schema | None = None) -> Any:
    """Retype the strings inside a JSON value where the schema wants another type (`"500"` for an integer)."""
    root = schema if root is None else root
    if isinstance(value, str):
        return typed(value, schema, root)
    if isinstance(value, dict):
        return {key: coerce(item, _property(schema, key, root), root) for key, item in value.items()}
    if isinstance(value, list):
        return [coerce(item, _item(schema, n, root), root) for n, item in enumerate(value)]
    return value


def typed(text: str, schema: Schema, root: Schema) -> Any:
    """The value a leaf's text stands for. What does not fit the schema stays text, for the tool to refuse."""
    return typed_as(text, types_of(schema, root), choices_of(schema, root))


def typed_as(text: str, types: set[str], choices: Collection[str]) -> Any:
    """The value of a leaf whose schema allows these types and lists these words."""
    bare = text.strip()
    if "null" in types and bare == "null":
        return None
    if "string" in types or not types:
        specific = _scalar(bare, types)
        # Beside strings, only a spelling that the template would give back is taken for another type.
        if specific is not None and _spelled(specific) == text:
            return specific
        return repair_choice(text, choices)
    if not bare:
        return [] if "array" in types else {} if "object" in types else text
    scalar = _scalar(bare, types)
    if scalar is not None:
        return scalar
    if types & {"array", "object"}:
        parsed = _json(bare)
        if isinstance(parsed, list if "array" in types else dict) or (
            isinstance(parsed, dict) and "object" in types
        ):
            return parsed
    return text


def repair_choice(text: str, choices: Collection[str]) -> str:
    """Mend the slips M3 makes in a word from a fixed list: `left_ click`, `left_lick`, `Left Click`.

    A word that lacks one letter, but not its last, is mended if exactly one choice fits; others stay.
    """
    if not choices or text in choices:
        return text
    plain = re.sub(r"_+", "_", re.sub(r"[\s-]+", "_", text.strip().lower()))
    if plain in choices:
        return plain
    longer = (c for c in choices if len(c) == len(plain) + 1)
    close = [c for c in longer if any(c[:n] + c[n + 1 :] == plain for n in range(len(plain)))]
    return close[0] if len(close) == 1 else text


class _Reader:
    """Walks over the tags of one call. `text[position:]` is what is left."""

    def __init__(self, text: str, root: Schema) -> None:
        self.text, self.root, self.position = text, root, 0

    def children(self, schema: Schema, closing: str | None, depth: int) -> tuple[list[tuple[str, Any]], bool]:
        """Read elements up to the tag that closes `closing` (None: up to the end).

        Returns the (name, value) pairs and whether other text stood between them.
        """
        if depth > MAX_DEPTH:
            raise MalformedCall(f"the call is nested deeper than {MAX_DEPTH} levels")
        found: list[tuple[str, Any]] = []
        stray = False
        while True:
            marker = self.text.find(NAMESPACE, self.position)
            between = self.text[self.position : marker if marker >= 0 else len(self.text)]
            stray = stray or bool(between.strip())
            if marker < 0:
                if closing is not None:
                    raise MalformedCall(f"the parameter {closing!r} is not closed")
                return found, stray
            if (tag := _CLOSE.match(self.text, marker)) is not None:
                if tag.group(1) != closing:
                    raise MalformedCall(f"the tag </{tag.group(1)}> closes nothing")
                self.position = tag.end()
                return found, stray
            if (tag := _OPEN.match(self.text, marker)) is not None:
                name = tag.group(1)
                self.position = tag.end()
                inner = _item(schema, len(found), self.root) if name == "item" else None
                own = _property(schema, name, self.root)
                found.append((name, self.element(name, own or inner or {}, depth)))
            else:
                found.append(self.elided(schema, marker))

    def element(self, name: str, schema: Schema, depth: int) -> Any:
        """Read the value of an element whose opening tag is behind, and its closing tag."""
        start = self.position
        types = types_of(schema, self.root)
        closing = next((t for t in _CLOSE.finditer(self.text, start) if t.group(1) == name), None)
        if closing is None:
            raise MalformedCall(f"the parameter {name!r} is not closed")
        opening = _OPEN.search(self.text, start, closing.start())
        if opening is None or (types and not types & {"array", "object"}):
            # A leaf. Where only text can stand, even tags are text.
            self.position = closing.end()
            return typed(self.text[start : closing.start()], schema, self.root)
        children, stray = self.children(schema, name, depth + 1)
        if stray:
            # Neither a list nor an object; hand on what was written.
            end = self.text.rfind(NAMESPACE, start, self.position)
            return self.text[start:end]
        if all(child == "item" for child, _ in children) and ("array" in types or "object" not in types):
            return [value for _, value in children]
        return _object(children)

    def elided(self, schema: Schema, marker: int) -> tuple[str, Any]:
        """Read an element whose opening tag is missing: its value, then the closing tag that names it.

        Some servers drop opening tags that are special tokens of the vocabulary, such as `<filename>`.
        """
        start = marker + len(NAMESPACE)
        tag = _CLOSE.search(self.text, start)
        if tag is None or NAMESPACE in self.text[start : tag.start()]:
            raise MalformedCall("a marker is not followed by a tag")
        self.position = tag.end()
        name = tag.group(1)
        return name, typed(self.text[start : tag.start()], _property(schema, name, self.root), self.root)


def _object(children: list[tuple[str, Any]]) -> dict[str, Any]:
    """Elements as an object; a name that comes again turns its values into a list."""
    values: dict[str, list[Any]] = {}
    for name, value in children:
        values.setdefault(name, []).append(value)
    return {name: found[0] if len(found) == 1 else found for name, found in values.items()}


def _scalar(text: str, types: set[str]) -> bool | int | float | None:
    """The boolean or number a text spells, if the types allow it."""
    if "boolean" in types and text in ("true", "false"):
        return text == "true"
    if types & {"integer", "number"}:
        if _INTEGER.fullmatch(text):
            return int(text)
        if (whole := _WHOLE.fullmatch(text)) is not None:
            return int(whole.group(1))
    if "number" in types and _NUMBER.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else None
    return None


def _spelled(value: bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _json(text: str) -> Any:
    """Strict JSON, or None."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    def finite(number: str) -> float:
        return float(number) if math.isfinite(float(number)) else refuse(number)

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError):
        return None


def _alternatives(schema: Any, root: Schema) -> list[Schema]:
    """The plain schemas a schema stands for, with `$ref`, `anyOf`, `oneOf` and `allOf` followed.

    Each reference is followed once, so that those which branch do not double what they lead to.
    """
    found: list[Schema] = []
    followed: set[str] = set()
    waiting = [schema]
    while waiting:  # from the back, and so the result is turned round
        option = waiting.pop()
        if not isinstance(option, Mapping):
            continue
        found.append(option)
        reference = option.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            waiting.append(resolve(reference, root))
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(option.get(word), list):
                waiting += option[word]
    return found[::-1]


def resolve(reference: str, root: Schema) -> Any:
    """What a JSON pointer inside the root schema points to, or None."""
    if not reference.startswith("#"):
        return None
    target: Any = root
    for step in filter(None, unquote(reference[1:]).split("/")):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list):
            target = dict(enumerate(target)).get(int(key)) if re.fullmatch("[0-9]{1,9}", key) else None
        else:
            target = target.get(key) if isinstance(target, Mapping) else None
    return target


_TYPE_OF = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    type(None): "null",
}


def types_of(schema: Schema, root: Schema) -> set[str]:
    """The JSON types a schema allows; empty if it does not say."""
    types: set[str] = set()
    for option in _alternatives(schema, root):
        named = option.get("type")
        values = option.get("enum", [option["const"]] if "const" in option else [])
        if isinstance(named, str):
            types.add(named)
        elif isinstance(named, list):
            types.update(name for name in named if isinstance(name, str))
        elif isinstance(values, list) and values:
            types.update(_TYPE_OF.get(type(value), "object") for value in values)
        elif "properties" in option:
            types.add("object")
        elif "items" in option or "prefixItems" in option:
            types.add("array")
    return types


def choices_of(schema: Schema, root: Schema) -> list[str]:
    """The words a schema lists, if it lists any."""
    choices: list[str] = []
    for option in _alternatives(schema, root):
        listed = option.get("enum", [option["const"]] if "const" in option else [])
        if isinstance(listed, list):
            choices += [value for value in listed if isinstance(value, str)]
    return choices


def _property(schema: Schema, name: str, root: Schema) -> Schema:
    """The schema of an object's property, or {}."""
    extra: Schema = {}
    for option in _alternatives(schema, root):
        properties = option.get("properties")
        if isinstance(properties, Mapping) and isinstance(properties.get(name), Mapping):
            found: Schema = properties[name]
            return found
        if isinstance(option.get("additionalProperties"), Mapping):
            extra = option["additionalProperties"]
    return extra


def _item(schema: Schema, index: int, root: Schema) -> Schema:
    """The schema of a list's item, or {}."""
    for option in _alternatives(schema, root):
        fixed, rest = option.get("prefixItems"), option.get("items")
        if isinstance(fixed, list) and index < len(fixed) and isinstance(fixed[index], Mapping):
            found: Schema = fixed[index]
            return found
        if isinstance(rest, Mapping):
            return rest
    return {}
