"""JSON schemas as a grammar sees them: references followed, conditions merged, alternatives apart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pilotfish.model.arguments import resolve

Schema = dict[str, Any]

MAX_ALTERNATIVES = 64
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
    """A schema branches into more than `MAX_ALTERNATIVES` plain ones."""


def plain_schemas(schema: Any, root: Mapping[str, Any]) -> list[Schema]:
    """The schemas without `$ref`, `anyOf`, `oneOf`, `allOf`, `const` of which a value has to fit one.

    A schema that nothing fits gives none. Branches of `oneOf` are taken as those of `anyOf`. A reference that
    leads back to itself, or nowhere, says nothing. Raises TooManyAlternatives.
    """
    return _plain(schema, root, ())


def ignored_words(schema: Schema) -> list[str]:
    """The words of a plain schema that no grammar here enforces."""
    words = sorted(set(schema) - _KNOWN - _NOTES)
    return words + ["additionalProperties"] * (
        isinstance(schema.get("additionalProperties"), Mapping) and bool(schema.get("properties"))
    )


def _plain(schema: Any, root: Mapping[str, Any], followed: tuple[str, ...]) -> list[Schema]:
    if schema is False:
        return []
    if not isinstance(schema, Mapping):
        return [{}]
    found: list[Schema] = [_without_branches(schema)]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        found = _both(found, _plain(resolve(reference, root), root, (*followed, reference)))
    for part in _listed(schema, "allOf"):
        found = _both(found, _plain(part, root, followed))
    for word in ("anyOf", "oneOf"):
        branches = _listed(schema, word)
        if branches:
            options = [plain for branch in branches for plain in _plain(branch, root, followed)]
            found = _both(found, options)
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
    return plain


def _makes_sense(word: str, value: Any) -> bool:
    """Whether a word belongs into a plain schema; one whose value has the wrong type says nothing."""
    if word in ("$ref", "anyOf", "oneOf", "allOf", "const"):
        return False
    if word in _COUNTS:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if word in _BOUNDS:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if word in ("enum", "prefixItems"):
        return isinstance(value, list)
    if word == "required":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    if word == "type":
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(t, str) for t in value))
    if word in ("properties", "patternProperties"):
        return isinstance(value, Mapping)
    return word != "pattern" or isinstance(value, str)


def _both(left: list[Schema], right: list[Schema]) -> list[Schema]:
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
    for word in ("type", "enum"):
        if merged.get(word) == []:
            return None
    return merged


def _merged_word(word: str, left: Any, right: Any) -> Any:
    if word == "type":
        return list(_common_types(left, right))
    if word == "enum":
        return [value for value in left if any(same(value, other) for other in right)]
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


def _common_types(left: list[str], right: list[str]) -> Iterator[str]:
    for name in left:
        if name in right or (name == "integer" and "number" in right):
            yield name
        elif name == "number" and "integer" in right:
            yield "integer"


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal; true is not 1."""
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def json_type(value: Any) -> str:
    """The JSON type of a parsed value; whole numbers are integers, floats numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names: dict[type, str] = {int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")
