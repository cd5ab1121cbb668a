"""JSON schemas as a grammar sees them: references followed, conditions merged, alternatives apart."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from pilotfish.model.arguments import resolve

Schema = dict[str, Any]

MAX_ALTERNATIVES = 64
MAX_STEPS = 100_000
"""What following and merging one tool's schemas may take: references that branch double it at each step."""
_KNOWN = {
    *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions"),
    *("properties", "required", "additionalProperties", "patternProperties", "minProperties"),
    *("maxProperties", "items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "pattern"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
_NOTES = {
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
    *("format", "$schema", "$id", "$comment", "$anchor", "$vocabulary", "contentMediaType"),
    "contentEncoding",
}
"""Words that say nothing about which values are valid."""
_BOUNDS = frozenset(("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"))
_COUNTS = frozenset(("minLength", "minItems", "minProperties", "maxLength", "maxItems", "maxProperties"))


class TooManyAlternatives(Exception):
    """A schema branches into more than `MAX_ALTERNATIVES` plain ones, or takes more than `MAX_STEPS`."""


class Work:
    """The steps that are left for the schemas of one tool."""

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Count some steps; raises TooManyAlternatives when none are left."""
        self.left -= steps
        if self.left < 0:
            raise TooManyAlternatives


def plain_schemas(schema: Any, root: Mapping[str, Any], work: Work) -> list[Schema]:
    """The schemas without `$ref`, `anyOf`, `oneOf`, `allOf`, `const` of which a value has to fit one.

    A schema that nothing fits gives none. Branches of `oneOf` are taken as those of `anyOf`. A reference that
    leads back to itself, or nowhere, says nothing. Raises TooManyAlternatives.
    """
    return _plain(schema, root, (), work)


def ignored_words(schema: Schema) -> list[str]:
    """The words of a plain schema that no grammar here enforces."""
    words = sorted(set(schema) - _KNOWN - _NOTES)
    if "enum" in schema and "pattern" in schema:
        words.append("pattern beside enum")
    if schema.get("properties"):
        words += ["additionalProperties"] * isinstance(schema.get("additionalProperties"), Mapping)
        words += ["patternProperties"] * bool(schema.get("patternProperties"))
    return words


def _plain(schema: Any, root: Mapping[str, Any], followed: tuple[str, ...], work: Work) -> list[Schema]:
    work.spend(1)
    if schema is False:
        return []
    if not isinstance(schema, Mapping):
        return [{}]
    found: list[Schema] = [_without_branches(schema)]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        found = _both(found, _plain(resolve(reference, root), root, (*followed, reference), work), work)
    for part in _listed(schema, "allOf"):
        found = _both(found, _plain(part, root, followed, work), work)
    for word in ("anyOf", "oneOf"):
        branches = _listed(schema, word)
        if branches:
            options = [plain for branch in branches for plain in _plain(branch, root, followed, work)]
            found = _both(found, options, work)
    return found


def _listed(schema: Mapping[str, Any], word: str) -> list[Any]:
    value = schema.get(word)
    return value if isinstance(value, list) else []


def _without_branches(schema: Mapping[str, Any]) -> Schema:
    plain = {word: value for word, value in schema.items() if _makes_sense(word, value)}
    if "const" in schema:
        constant = schema["const"]
        listed = plain.get("enum", [constant])
        plain["enum"] = [constant] if any(same(constant, value) for value in listed) else []
    for word in ("type", "pattern"):
        if isinstance(plain.get(word), str):
            plain[word] = [plain[word]]
    for word in _COUNTS & plain.keys():
        plain[word] = int(plain[word])
    return plain


def _makes_sense(word: str, value: Any) -> bool:
    """Whether a word belongs into a plain schema; one whose value has the wrong type says nothing."""
    if word in ("$ref", "anyOf", "oneOf", "allOf", "const"):
        return False
    if word in _COUNTS:
        return _is_number(value) and value == value // 1 and value >= 0
    if word in _BOUNDS:
        return _is_number(value)
    if word in ("enum", "prefixItems"):
        return isinstance(value, list)
    if word == "required":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    if word == "type":
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(t, str) for t in value))
    if word in ("properties", "patternProperties"):
        return isinstance(value, Mapping)
    return word != "pattern" or isinstance(value, str)


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _both(left: list[Schema], right: list[Schema], work: Work) -> list[Schema]:
    work.spend(len(left) * len(right))
    if len(left) * len(right) > MAX_ALTERNATIVES:
        raise TooManyAlternatives
    return [merged for one in left for other in right if (merged := _merged(one, other)) is not None]


def _merged(left: Schema, right: Schema) -> Schema | None:
    """One schema that says what both say; None if no value can fit."""
    merged = dict(left)
    for word, value in right.items():
        if word not in merged or word in _NOTES:
            merged.setdefault(word, value)
        else:
            merged[word] = _merged_word(word, merged[word], value)
    if "prefixItems" in merged:
        merged["prefixItems"] = _merged_items(left, right)
    if _shuts_out(left, right) or _shuts_out(right, left):
        merged["additionalProperties beside allOf"] = True  # unknown, and so named as left to the tool
    for word in ("type", "enum"):
        if merged.get(word) == []:
            return None
    return merged


def _merged_word(word: str, left: Any, right: Any) -> Any:
    if word == "type":
        return list(_common_types(left, right))
    if word == "enum":
        others = {identity(value) for value in right}
        return [value for value in left if identity(value) in others]
    if word in ("required", "pattern"):
        return [*left, *(name for name in right if name not in left)]
    if word in _BOUNDS | _COUNTS:
        return (max if "min" in word.lower() else min)(left, right)
    if word == "properties":
        shared = {name: {"allOf": [left[name], right[name]]} for name in left.keys() & right.keys()}
        return {**left, **right, **shared}
    if word in ("items", "additionalProperties") and left != right:
        return {"allOf": [left, right]}
    return left


def _merged_items(left: Schema, right: Schema) -> list[Any]:
    """The first elements that two schemas describe: where one has no more, its `items` are meant."""
    lists = [schema.get("prefixItems", []) for schema in (left, right)]
    rests = [schema.get("items", {}) for schema in (left, right)]
    pairs = itertools.zip_longest(*lists)
    return [
        {"allOf": [rests[side] if n >= len(lists[side]) else pair[side] for side in (0, 1)]}
        for n, pair in enumerate(pairs)
    ]


def _shuts_out(schema: Schema, other: Schema) -> bool:
    """Whether a schema says something of properties that only the other one names."""
    return schema.get("additionalProperties", True) not in (True, {}) and bool(
        other.get("properties", {}).keys() - schema.get("properties", {}).keys()
    )


def _common_types(left: list[str], right: list[str]) -> Iterator[str]:
    for name in left:
        if name in right or (name == "integer" and "number" in right):
            yield name
        elif name == "number" and "integer" in right:
            yield "integer"


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal; true is not 1."""
    return identity(left) == identity(right)


def identity(value: Any) -> Hashable:
    """What is equal for equal JSON values only."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return json.dumps(value, sort_keys=True)


def fits(value: Any, plain: Schema) -> bool:
    """Whether a listed value is of a type, and within the bounds, that its schema names."""
    name, named = json_type(value), plain.get("type")
    if named is not None and name not in named and not (name == "integer" and "number" in named):
        return False
    if name in ("integer", "number"):
        return (
            plain.get("minimum", value) <= value <= plain.get("maximum", value)
            and not value <= plain.get("exclusiveMinimum", -math.inf)
            and not value >= plain.get("exclusiveMaximum", math.inf)
        )
    sized = {"string": "Length", "array": "Items", "object": "Properties"}.get(name)
    if sized is None:
        return True
    return plain.get(f"min{sized}", 0) <= len(value) <= plain.get(f"max{sized}", math.inf)


def json_type(value: Any) -> str:
    """The JSON type of a parsed value; whole numbers are integers, floats numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names: dict[type, str] = {int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")
