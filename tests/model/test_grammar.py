"""Calls held to their schemas: what the grammar lets through fits, and what fits it lets through."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from pilotfish.model.constraint import CallConstraints
from pilotfish.model.parser import AnswerParser
from pilotfish.model.protocol import CallChunk, ModelError, ToolSpec
from pilotfish.model.tokenizer import NAMESPACE as NS
from pilotfish.model.tokenizer import THINK_END, THINK_START, Tokenizer

from .conftest import NANO
from .random_schemas import FREE_KEYS, RandomSchemas

SCHEMAS = 500


@pytest.fixture(scope="module")
def constraints() -> CallConstraints:
    tokenizer = Tokenizer.from_folder(NANO)
    return CallConstraints(tokenizer, frozenset({tokenizer.eos_id}))


def spelled(value: Any) -> str:
    """A value as M3's template writes it."""
    if isinstance(value, dict) and set(value) & set(FREE_KEYS):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        tags = ((name, item) for name, item in value.items() if item is not None)
        return "".join(f"{NS}<{name}>{spelled(item)}{NS}</{name}>" for name, item in tags)
    if isinstance(value, list):
        return "".join(f"{NS}<item>{spelled(item)}{NS}</item>" for item in value)
    return value if isinstance(value, str) else json.dumps(value)


def block(*calls: tuple[str, str]) -> str:
    invokes = "".join(f'{NS}<invoke name="{name}">{body}{NS}</invoke>\n' for name, body in calls)
    return f"{NS}<tool_call>\n{invokes}{NS}</tool_call>"


def accepts(constraints: CallConstraints, tools: list[ToolSpec], text: str) -> bool:
    """Whether the grammar lets a whole block through, and nothing but the answer's end after it."""
    ids = constraints.tokenizer.encode_markers(text)
    matcher = constraints.matcher(tools)
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()


def calls_in(tools: list[ToolSpec], text: str) -> list[tuple[str, dict[str, Any]]]:
    parser = AnswerParser(tools)
    events = [*parser.feed(text), *parser.close()]
    assert parser.faults == []
    return [(event.call.name, event.call.arguments) for event in events if isinstance(event, CallChunk)]


def walk(constraints: CallConstraints, tools: list[ToolSpec], seed: int, most: int = 600) -> Iterator[int]:
    """A random block of calls, token by token, with a leaning towards tags so that it ends."""
    pick = random.Random(seed)
    constraint = constraints.start(tools, in_thinking=False, choice="required")
    token = constraints.marker_id
    while token not in constraints.stop_ids and most:
        constraint.take(token)
        yield token
        mask = constraint.allowed()
        assert mask is not None
        options = np.flatnonzero(mask)
        assert len(options), "the grammar leaves nothing to write"
        ends = [int(i) for i in (*constraints.stop_ids, constraints.marker_id) if mask[i]]
        token = pick.choice(ends) if ends and pick.random() < 0.4 else int(pick.choice(options))
        most -= 1
    if most:
        yield token


def without_nulls(value: Any) -> Any:
    """A value as M3 can write it: an argument that is null is left out."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def test_what_the_grammar_lets_through_fits_the_schema(
    constraints: CallConstraints, caplog: pytest.LogCaptureFixture
) -> None:
    finished = 0
    for seed in range(SCHEMAS):
        schema = RandomSchemas(seed).tool()
        tools = [ToolSpec("act", "", schema)]
        ids = list(walk(constraints, tools, seed))
        if ids[-1] not in constraints.stop_ids:
            continue
        finished += 1
        text = constraints.tokenizer.decode(ids[:-1])
        calls = calls_in(tools, text)
        assert calls, text
        for name, arguments in calls:
            assert name == "act"
            jsonschema.Draft202012Validator(schema).validate(arguments)
    assert finished > 0.9 * SCHEMAS
    assert caplog.records == []


def test_what_fits_the_schema_is_let_through(constraints: CallConstraints) -> None:
    for seed in range(SCHEMAS):
        draw = RandomSchemas(seed)
        schema = draw.tool()
        tools = [ToolSpec("act", "", schema)]
        value = draw.value(schema, schema)
        text = block(("act", spelled(value)))
        read = calls_in(tools, text)
        if read == [("act", value)]:  # else M3's spelling of this value cannot be told from another's
            assert accepts(constraints, tools, text), (schema, value)


def text_tool(**parameters: Any) -> list[ToolSpec]:
    return [ToolSpec("act", "", {"type": "object", **parameters})]


WORD = text_tool(properties={"word": {"type": "string"}}, required=["word"])


def test_properties_come_in_any_order_each_once_and_all_that_are_required(
    constraints: CallConstraints,
) -> None:
    names = {name: {"type": "integer"} for name in "abc"}
    tools = text_tool(properties=names, required=["a", "b"])

    def given(*order: str) -> bool:
        body = "".join(f"{NS}<{name}>1{NS}</{name}>" for name in order)
        return accepts(constraints, tools, block(("act", body)))

    assert given("a", "b")
    assert given("b", "a")
    assert given("c", "b", "a")
    assert not given("a")
    assert not given("a", "c")
    assert not given("a", "b", "a")
    assert not given("a", "b", "d")


def test_several_calls_in_one_block_and_no_other_tool(constraints: CallConstraints) -> None:
    call = ("act", f"{NS}<word>hi{NS}</word>")
    assert accepts(constraints, WORD, block(call, call))
    assert not accepts(constraints, WORD, block())
    assert not accepts(constraints, WORD, block(("other", call[1])))


def test_the_marker_is_never_spelled_in_letters(constraints: CallConstraints) -> None:
    encode = constraints.tokenizer.encode
    for prefix in ("", "]", "x]<]", "]<]]<]", "]<]mini"):
        letters = encode(prefix + NS)
        constraint = constraints.start(WORD, in_thinking=False)
        refused = False
        for token in letters:
            mask = constraint.allowed()
            assert mask is not None
            refused = not mask[token]
            if refused:
                break
            constraint.take(token)
        assert refused
        assert constraints.tokenizer.token_bytes(token).endswith(b"[")
    harmless = constraints.start(WORD, in_thinking=False)
    for token in encode("]<]minimax[> [ and ]<]minimax[>]"):
        mask = harmless.allowed()
        assert mask is not None
        assert mask[token]
        harmless.take(token)


def test_thinking_is_free_and_code_opens_no_call(constraints: CallConstraints) -> None:
    think_start, think_end = (constraints.tokenizer.id(marker) for marker in (THINK_START, THINK_END))
    constraint = constraints.start(WORD, in_thinking=True)
    assert constraint.allowed() is None
    constraint.take(constraints.marker_id)
    assert constraint.allowed() is None
    assert not constraint.in_call
    constraint.take(think_end)
    in_code, in_text = constraint.allowed(in_code=True), constraint.allowed()
    assert in_code is not None
    assert in_text is not None
    assert in_text[constraints.marker_id]
    assert not in_code[constraints.marker_id]
    adaptive = constraints.start(WORD, in_thinking=False)
    adaptive.take(think_start)
    assert adaptive.allowed() is None


def test_a_call_may_be_required_or_ruled_out(constraints: CallConstraints) -> None:
    (end,) = constraints.stop_ids
    required = constraints.start(WORD, in_thinking=False, choice="required").allowed()
    none = constraints.start(WORD, in_thinking=False, choice="none").allowed()
    without_tools = constraints.start([], in_thinking=False).allowed()
    assert required is not None
    assert np.flatnonzero(required).tolist() == [constraints.marker_id]
    for mask in (none, without_tools):
        assert mask is not None
        assert mask[end]
        assert not mask[constraints.marker_id]
    with pytest.raises(ModelError, match="there is no tool"):
        constraints.start([], in_thinking=False, choice="required")


LOOP = {"$ref": "#/$defs/loop"}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"x": False}, "required": ["x"]}, "its schema allows none"),
        ({"properties": {"x": {"enum": []}}, "required": ["x"]}, "its schema allows none"),
        ({"properties": {"a b": {"type": "string"}}, "required": ["a b"]}, "its schema allows none"),
        (
            {"properties": {"x": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["x"]},
            "allows none",
        ),
        (
            {
                "properties": {"x": LOOP},
                "required": ["x"],
                "$defs": {"loop": {"type": "object", "properties": {"x": LOOP}, "required": ["x"]}},
            },
            "its schema allows none",
        ),
        ({"allOf": [{"anyOf": [{"minProperties": n} for n in range(20)]}] * 3}, "branches or nests too much"),
    ],
)
def test_a_tool_that_can_never_be_called_is_named(
    constraints: CallConstraints, schema: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        constraints.matcher(text_tool(**schema))
    assert "'act'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"$ref": "#/$defs/loop"}}, "$defs": {"loop": {"$ref": "#/$defs/loop"}}},
        {"properties": {"x": {"$ref": "https://example.org/no.json"}}},
        {"properties": {"x": {"type": "string", "pattern": "(?<=a)b"}, "y": {"minimum": "low", "enum": 3}}},
        {
            "properties": {
                "x": {"type": ["nothing", 7]},
                "y": {"properties": [], "required": 3, "type": "object"},
            }
        },
        {"properties": {f"field_{n}": {"type": "string", "description": "d" * 50} for n in range(3000)}},
    ],
)
def test_odd_schemas_make_a_grammar(constraints: CallConstraints, schema: dict[str, Any]) -> None:
    tools = text_tool(**schema)
    assert accepts(constraints, tools, block(("act", "")))
    name = next(iter(schema["properties"]))
    assert accepts(constraints, tools, block(("act", f"{NS}<{name}>b{NS}</{name}>"))) == (
        schema["properties"][name] != {"type": ["nothing", 7]}
    )


def test_what_is_left_to_the_tool_is_said(constraints: CallConstraints) -> None:
    tools = text_tool(properties={"x": {"type": "string", "pattern": "(?=a)", "not": {"const": "b"}}})
    assert constraints.loose(tools) == (
        "not in the schema of 'act' is left to the tool",
        "the pattern '(?=a)' of 'act' is left to the tool",
    )
    assert constraints.loose(WORD) == ()
