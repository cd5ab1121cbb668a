"""Random JSON schemas of tools' arguments, and random values that fit them."""

from __future__ import annotations

import random
import string
from typing import Any

Schema = dict[str, Any]

WORDS = [
    "go",
    "left click",
    "a<b & c",
    "",
    "null",
    "true",
    "12",
    "1.50",
    "Ünïcödé 😀",
    "two\nlines\n",
    " padded ",
]
PATTERNS = [
    (r"^[a-z]{2,5}$", "abc"),
    (r"^\d{4}-\d{2}$", "2024-05"),
    (r"ab+c", "xabbcx"),
    (r"^https?://", "http://x"),
]
FREE_KEYS = ["k 1", "<k>", "k"]


class RandomSchemas:
    """Draws schemas and values from one generator. Definitions are shared and may be recursive."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def tool(self) -> Schema:
        """The parameters of a tool."""
        schema = self._object(3)
        schema["$defs"] = {
            "leaf": self._scalar(),
            "tree": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                },
                "required": ["name"],
            },
        }
        return schema

    def _any(self, depth: int) -> Schema:
        kinds = ["scalar"] * 4 + ["ref"]
        if depth > 0:
            kinds += ["array", "object", "tuple", "map", "union", "both"]
        match self.random.choice(kinds):
            case "array":
                least = self.random.choice([0, 0, 1, 2])
                array: Schema = {"type": "array", "items": self._any(depth - 1), "minItems": least}
                if self.random.random() < 0.5:
                    array["maxItems"] = least + self.random.randrange(3)
                return array
            case "tuple":
                parts = [self._any(depth - 1) for _ in range(self.random.randrange(1, 4))]
                return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
            case "object":
                return self._object(depth - 1)
            case "map":
                return {"type": "object", "additionalProperties": self._scalar()}
            case "union":
                if self.random.random() < 0.5:
                    return {"oneOf": [self._object(depth - 1), {"type": "null"}]}
                return {"anyOf": [self._any(depth - 1), {"type": "null"}]}
            case "both":
                return {"allOf": [{"type": ["integer", "string"]}, self._scalar_of("integer")]}
            case "ref":
                return {"$ref": self.random.choice(["#/$defs/leaf", "#/$defs/tree"])}
        return self._scalar()

    def _object(self, depth: int) -> Schema:
        names = self.random.sample(["path", "text", "x", "y", "item", "größe", "a-b", "filename"], 4)
        names = names[: self.random.randrange(5)]
        properties = {name: self._any(depth) for name in names}
        required = [name for name in names if self.random.random() < 0.5]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def _scalar(self) -> Schema:
        if self.random.random() < 0.15:
            return {"type": self.random.sample(["string", "integer", "number", "boolean", "null"], 2)}
        return self._scalar_of(
            self.random.choice(["string", "integer", "number", "boolean", "enum", "pattern"])
        )

    def _scalar_of(self, kind: str) -> Schema:
        pick = self.random
        if kind == "enum":
            return {"enum": pick.sample([*WORDS, 1, 2.5, True, None], 4)}
        if kind == "pattern":
            return {"type": "string", "pattern": pick.choice(PATTERNS)[0]}
        schema: Schema = {"type": kind}
        if kind == "string" and pick.random() < 0.4:
            schema["minLength"] = pick.randrange(4)
            schema["maxLength"] = schema["minLength"] + pick.randrange(1, 5)
        if kind in ("integer", "number") and pick.random() < 0.6:
            low = round(pick.uniform(-1200, 1200), 0 if kind == "integer" else 3)
            low = int(low) if kind == "integer" else low
            schema[pick.choice(["minimum", "exclusiveMinimum"])] = low
            schema[pick.choice(["maximum", "exclusiveMaximum"])] = low + pick.choice([3, 10, 998])
        return schema

    def value(self, schema: Schema, root: Schema, depth: int = 5) -> Any:
        """A value that fits one of our schemas."""
        pick = self.random
        if "$ref" in schema:
            return self.value(root["$defs"][schema["$ref"].rpartition("/")[2]], root, depth)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self.value(pick.choice(schema[word]), root, depth)
        if "allOf" in schema:
            return self.value(schema["allOf"][1], root, depth)
        if "enum" in schema:
            return pick.choice(schema["enum"])
        if isinstance(schema["type"], list):
            kind = pick.choice(schema["type"])
            return "neither number nor word" if kind == "string" else self._scalar_value(kind, schema)
        kind = schema["type"]
        if kind == "object":
            if "properties" not in schema:
                names = pick.sample(FREE_KEYS, pick.randrange(3))
                return {name: self.value(schema["additionalProperties"], root, depth) for name in names}
            names = [
                name
                for name in schema["properties"]
                if name in schema["required"] or (depth > 0 and pick.random() < 0.5)
            ]
            pick.shuffle(names)
            return {name: self.value(schema["properties"][name], root, depth - 1) for name in names}
        if kind == "array":
            if "prefixItems" in schema:
                return [self.value(part, root, depth - 1) for part in schema["prefixItems"]]
            least = schema.get("minItems", 0)
            most = schema.get("maxItems", least + 3) if depth > 0 else least
            return [self.value(schema["items"], root, depth - 1) for _ in range(pick.randint(least, most))]
        return self._scalar_value(kind, schema)

    def _scalar_value(self, kind: str, schema: Schema) -> Any:
        pick = self.random
        if kind == "null":
            return None
        if kind == "boolean":
            return pick.random() < 0.5
        if kind == "string":
            if "pattern" in schema:
                return next(example for pattern, example in PATTERNS if pattern == schema["pattern"])
            if "maxLength" in schema:
                length = pick.randint(schema["minLength"], schema["maxLength"])
                return "".join(pick.choice(string.ascii_letters + "é\n<") for _ in range(length))
            return pick.choice(WORDS)
        low = schema.get("minimum", schema.get("exclusiveMinimum", -50) + 1)
        return low + 1 if kind == "integer" else round(low + 0.25, 6)
