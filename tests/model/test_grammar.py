"""Calls held to their schemas: what the grammar lets through fits, and what fits it lets through."""

from __future__ import annotations

import json
import random
import time
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
    assert finished > 0.8 * SCHEMAS
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


def _branching(word: str) -> dict[str, Any]:
    """References of which each leads to the next one twice: 2**40 ways through 40 of them."""
    links = {str(n): {word: [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)}
    return {"properties": {"x": {"$ref": "#/$defs/0"}}, "$defs": {**links, "40": {"type": "string"}}}


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"x": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (_branching("allOf"), "branches or nests too much"),
        (_branching("anyOf"), "branches or nests too much"),
        (
            {
                "properties": {"x": {"$ref": "#/$defs/a"}},
                "$defs": {
                    "a": {"properties": {"y": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}, "type": "object"}
                },
            },
            "branches or nests too much",
        ),
        (_nested(10_000), "nests too deeply"),
        ({"properties": {"x": {"enum": ["w" * 10] * 400_000}}}, "more than a model reads"),
        ({"properties": {"x": {"enum": [NS]}}, "required": ["x"]}, "its schema allows none"),
        ({"properties": {"x": {"enum": ["\ud800"]}}, "required": ["x"]}, "its schema allows none"),
        ({"properties": {"invoke": {}}, "required": ["invoke"]}, "its schema allows none"),
        ({"properties": {"x": {"const": {"a b": 1}}}, "required": ["x"]}, "its schema allows none"),
        (
            {"properties": {"x": {"type": "string", "pattern": "^abc$", "maxLength": 2}}, "required": ["x"]},
            "its schema allows none",
        ),
        (
            {"properties": {"x": {"type": "number", "minimum": 1e-9, "maximum": 2e-9}}, "required": ["x"]},
            "its schema allows none",
        ),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_refused_soon(
    constraints: CallConstraints, schema: dict[str, Any], message: str
) -> None:
    began_s = time.monotonic()
    with pytest.raises(ModelError, match=message) as caught:
        constraints.matcher(text_tool(**schema))
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began_s < 30


def test_a_list_of_many_words_is_compiled_soon_and_read_soon(constraints: CallConstraints) -> None:
    words = [f"word number {n}" for n in range(20_000)]
    tools = text_tool(properties={"x": {"enum": words}})
    text = block(("act", f"{NS}<x>{words[-1]}{NS}</x>"))
    began_s = time.monotonic()
    assert accepts(constraints, tools, text)
    assert calls_in(tools, text) == [("act", {"x": words[-1]})]
    assert time.monotonic() - began_s < 30


def held(constraints: CallConstraints, schema: dict[str, Any], body: str, **root: Any) -> bool:
    """Whether a parameter `x` of this schema may be written so."""
    tools = text_tool(properties={"x": schema}, **root)
    return accepts(constraints, tools, block(("act", f"{NS}<x>{body}{NS}</x>")))


def test_what_two_schemas_say_of_elements_holds_together(constraints: CallConstraints) -> None:
    both = {"allOf": [{"prefixItems": [{"type": "integer"}]}, {"items": {"enum": [1, 2]}}], "type": "array"}
    items = {n: f"{NS}<item>{n}{NS}</item>" for n in (1, 3)}
    assert held(constraints, both, items[1] + items[1])
    assert not held(constraints, both, items[3])
    assert not held(constraints, both, items[1] + items[3])


def test_references_lead_into_lists_and_through_escapes(constraints: CallConstraints) -> None:
    listed = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    for reference in ("#/$defs/a%20b", "#/$defs/list/anyOf/1"):
        schema = {"$ref": reference}
        definitions = {"a b": {"type": "integer"}, "list": listed}
        assert held(constraints, schema, "4", **{"$defs": definitions})
        assert not held(constraints, schema, "word", **{"$defs": definitions})


@pytest.mark.parametrize(
    "values",
    [
        {"type": "array", "uniqueItems": True},
        {"oneOf": [{"type": "array"}, {"type": "null"}]},
        {"format": "colour"},
        {"$ref": "#/properties/x/additionalProperties"},
    ],
)
def test_a_map_of_what_the_library_does_not_know_is_a_map_still(
    constraints: CallConstraints, values: dict[str, Any]
) -> None:
    assert held(constraints, {"type": "object", "additionalProperties": values}, '{"a": []}')


def test_patterns_and_bounds_at_their_edges(constraints: CallConstraints) -> None:
    empty = {"type": "string", "pattern": "^$"}
    assert held(constraints, empty, "")
    assert not held(constraints, empty, "a")
    huge = {"type": "integer", "minimum": -(10**400), "maximum": 10**400}
    assert held(constraints, huge, "7")
    for schema, listed in (
        ({"minimum": 1, "exclusiveMaximum": 3}, [0, 1, 3]),
        ({"exclusiveMinimum": 0, "maximum": 2}, [0, 1, 3]),
        ({"minLength": 2, "maxLength": 3}, ["a", "ab", "abcd"]),
    ):
        schema["enum"] = listed
        assert [held(constraints, schema, str(value)) for value in listed] == [False, True, False]
    two = {"type": "array", "items": {"type": "integer"}, "minItems": 2.0}
    assert not held(constraints, two, f"{NS}<item>1{NS}</item>")
    for pattern in ("[a&&b]", "a++", "[[a]]"):  # read in two ways, and so left to the tool
        assert held(constraints, {"type": "string", "pattern": pattern}, "zz")


def test_what_says_more_than_the_grammar_holds_is_named(constraints: CallConstraints) -> None:
    patterns = {"properties": {"a": {}}, "patternProperties": {"^a": {"type": "integer"}}}
    closed = {"allOf": [{"properties": {"a": {}}, "additionalProperties": False}, {"properties": {"b": {}}}]}
    for schema, word in (
        (patterns, "patternProperties"),
        (closed, "additionalProperties beside allOf"),
        ({"enum": [{}]}, "enum at the top"),
    ):
        assert constraints.loose(text_tool(**schema)) == (
            f"{word} in the schema of 'act' is left to the tool",
        )


def test_few_properties_leave_room_for_those_required(constraints: CallConstraints) -> None:
    names = {name: {"type": "integer"} for name in "abc"}
    tools = text_tool(properties=names, required=["c"], maxProperties=2)

    def given(order: str) -> bool:
        body = "".join(f"{NS}<{name}>1{NS}</{name}>" for name in order)
        return accepts(constraints, tools, block(("act", body)))

    assert [given(order) for order in ("c", "ac", "ca", "ab", "abc", "acb")] == [True] * 3 + [False] * 3
    begun = block(("act", f"{NS}<a>1{NS}</a>{NS}<b>")).partition("<b>")[0]
    matcher, tag = constraints.matcher(tools), constraints.tokenizer.encode("<b>")
    assert matcher.consume_tokens(constraints.tokenizer.encode_markers(begun))
    assert matcher.validate_tokens(tag) < len(tag), "nor is it begun"
    with pytest.raises(ModelError, match="its schema allows none"):
        constraints.matcher(text_tool(properties={"a": False}, minProperties=1))


def test_a_model_may_cut_a_call_into_the_tokens_it_was_trained_on(constraints: CallConstraints) -> None:
    """Also where the grammar leaves one text only: no other way to cut it is forced on a model."""
    call = ("act", f"{NS}<word>left_click{NS}</word>")
    ids = constraints.tokenizer.encode_markers(block(call, call))
    assert constraints.tokenizer.id("<tool_call>") in ids
    constraint = constraints.start(WORD, in_thinking=False)
    for token in (*ids, constraints.tokenizer.eos_id):
        mask = constraint.allowed()
        assert mask is not None
        assert mask[token], constraints.tokenizer.decode([token])
        constraint.take(token)


def test_a_narrower_schema_holds_calls_and_is_not_shown(constraints: CallConstraints) -> None:
    shown = {"type": "object", "properties": {"at": {"type": "array", "items": {"type": "integer"}}}}
    pair = {"type": "array", "items": {"type": "integer", "maximum": 1000}, "minItems": 2, "maxItems": 2}
    tools = [ToolSpec("act", "", shown, {"type": "object", "properties": {"at": pair}})]

    def given(*numbers: str) -> bool:
        items = "".join(f"{NS}<item>{number}{NS}</item>" for number in numbers)
        return accepts(constraints, tools, block(("act", f"{NS}<at>{items}{NS}</at>")))

    assert given("344", "007")
    assert not given("344", "832", "832")
    assert not given("344", "1001")
