"""Plain data from a YAML or JSON file, without YAML's surprises.

Only maps, lists, text, numbers, true/false and null come out. Anchors and aliases (the stuff of YAML bombs),
tags, repeated keys, deep nesting and large files are refused, and words such as `no` or `2024-01-31` stay
text, as in YAML 1.2's core schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MAX_BYTES = 1 << 20
MAX_DEPTH = 24
_MAX_NUMBER = 18
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_SCALARS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("null", re.compile(r"~|null|Null|NULL|")),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE")),
    ("int", re.compile(r"[-+]?[0-9]+")),
    ("float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")),
)
_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


class TaskError(ValueError):
    """A task or suite cannot be used; the message is one sentence with the place and the mend."""


class _Loader(yaml.SafeLoader):
    """PyYAML's scanner and parser with no implicit types: `_plain` decides what a bare word is."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (the name and shape PyYAML reads)


def read_data(path: Path) -> Any:
    """The plain data in a `.yaml`, `.yml` or `.json` file.

    Raises `TaskError` for a file that is missing, empty, too large, not UTF-8, or not plain data.
    """
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise TaskError(f"{path}: a task file ends in .yaml, .yml or .json, not '{path.suffix}'.")
    try:
        if not path.is_file():
            raise TaskError(f"{path}: no such file; give the path of a task file.")
        if path.stat().st_size > MAX_BYTES:
            raise TaskError(
                f"{path}: the file is larger than {MAX_BYTES} bytes; keep large files beside the task."
            )
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8.") from None
    except OSError as error:
        raise TaskError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions."
        ) from None
    if not text.strip():
        raise TaskError(
            f"{path}: the file is empty; write at least id, instruction, environment and graders."
        )
    data = _read_json(path, text) if path.suffix == ".json" else _read_yaml(path, text)
    for word in _texts(data):
        if _NO_TEXT.search(word):
            raise TaskError(
                f"{path}: {word[:40]!r} holds a null or half a character; write whole characters."
            )
    return data


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from _texts(value)
    elif isinstance(data, list):
        for value in data:
            yield from _texts(value)


def _read_json(path: Path, text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise TaskError(f"{path}: the key '{key}' appears twice in one map; keep one of them.")
            seen[key] = value
        return seen

    def refuse(name: str) -> Any:
        raise TaskError(f"{path}: {name} is not a JSON number; write a finite one.")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}: line {error.lineno} is not JSON ({error.msg}).") from None
    except RecursionError:
        raise TaskError(f"{path}: nested deeper than {MAX_DEPTH} levels; flatten it.") from None


def _read_yaml(path: Path, text: str) -> Any:
    try:
        _refuse_surprises(path, text)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise TaskError(f"{path}: line {line} is not YAML ({error.problem or error.context}).") from None
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise TaskError(f"{path}: not YAML ({reason}).") from None
    if root is None:
        raise TaskError(
            f"{path}: the file is empty; write at least id, instruction, environment and graders."
        )
    return _plain(path, root)


def _refuse_surprises(path: Path, text: str) -> None:
    """Walk the event stream, which expands nothing, before any tree is built."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise TaskError(f"{path}: line {line} uses a YAML anchor or alias; write the value out.")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise TaskError(f"{path}: line {line} starts a second document; keep one task per file.")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise TaskError(f"{path}: line {line} is nested deeper than {MAX_DEPTH} levels; flatten it.")
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _plain(path: Path, node: Node) -> Any:
    line = node.start_mark.line + 1
    if node.tag not in _TAGS:
        raise TaskError(
            f"{path}: line {line} uses the YAML tag '{node.tag}'; write plain text, numbers, lists or maps."
        )
    if isinstance(node, SequenceNode):
        return [_plain(path, item) for item in node.value]
    if isinstance(node, MappingNode):
        return _plain_map(path, node)
    assert isinstance(node, ScalarNode)
    return node.value if node.style else _scalar(path, line, node.value)


def _plain_map(path: Path, node: MappingNode) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode):
            raise TaskError(f"{path}: line {line} has a key that is not text; use a word.")
        key = key_node.value
        if key in result:
            raise TaskError(f"{path}: line {line} repeats the key '{key}'; keep one of them.")
        result[key] = _plain(path, value_node)
    return result


def _scalar(path: Path, line: int, word: str) -> str | int | float | bool | None:
    kind = next((name for name, pattern in _SCALARS if pattern.fullmatch(word)), "text")
    if kind == "null":
        return None
    if kind == "bool":
        return word.lower() == "true"
    if kind == "text":
        return word
    if len(word) > _MAX_NUMBER or not math.isfinite(float(word)):
        raise TaskError(
            f"{path}: line {line} has the number {word[:20]}..., which is too large; quote it as text."
        )
    return int(word) if kind == "int" else float(word)
