"""The reader of answers: M3's grammar as published, the slips it makes, and every way to cut the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.model.arguments import MAX_DEPTH, repair_choice
from pilotfish.model.parser import FALSE_START_LIMIT, AnswerParser, Event
from pilotfish.model.protocol import CallChunk, TextChunk, ThinkingChunk, ToolSpec

NS = "]<]minimax[>["
OPEN, CLOSE = f"{NS}<tool_call>\n", f"{NS}</tool_call>"


def spec(name: str, root: dict[str, Any] | None = None, /, **properties: Any) -> ToolSpec:
    return ToolSpec(name, "", {"type": "object", "properties": properties, **(root or {})})


def tag(name: str, value: str) -> str:
    return f"{NS}<{name}>{value}{NS}</{name}>"


def invoke(name: str, *parameters: str) -> str:
    return f'{NS}<invoke name="{name}">{"".join(parameters)}{NS}</invoke>\n'


def block(*invokes: str) -> str:
    return OPEN + "".join(invokes) + CLOSE


ACTIONS = ["left_click", "right_click", "left_click_drag", "type", "scroll", "screenshot"]
COMPUTER = spec(
    "computer",
    action={"enum": ACTIONS, "type": "string"},
    coordinate={"type": "array", "items": {"type": "integer"}},
    text={"type": "string"},
    amount={"type": "integer"},
)
WEATHER = spec("get_weather", location={"type": "string"})


def read(text: str, tools: list[ToolSpec] | None = None, *, thinking: bool = False, cut: Any = None) -> Any:
    """Everything the parser says about a text, given to it in pieces: [(kind, text or call), ...]."""
    parser = AnswerParser([COMPUTER, WEATHER] if tools is None else tools, thinking)
    events: list[Event] = []
    for piece in [text] if cut is None else cut(text):
        events += parser.feed(piece)
    return merged(events + parser.close())


def merged(events: list[Event]) -> list[tuple[str, Any]]:
    """Neighbouring pieces of the same kind joined."""
    said: list[tuple[str, Any]] = []
    for event in events:
        if isinstance(event, CallChunk):
            said.append(("call", (event.call.name, event.call.arguments)))
            continue
        kind = "thinking" if isinstance(event, ThinkingChunk) else "text"
        if said and said[-1][0] == kind:
            said[-1] = (kind, said[-1][1] + event.text)
        else:
            said.append((kind, event.text))
    return said


def calls(text: str, tools: list[ToolSpec] | None = None) -> Any:
    """The calls in a text, however it is cut."""
    whole = read(text, tools)
    assert read(text, tools, cut=list) == whole
    return [said for kind, said in whole if kind == "call"]


def arguments_of(value: str, schema: Any, root: dict[str, Any] | None = None) -> Any:
    """What one parameter `p` with this schema and this text between its tags becomes."""
    tool = spec("f", root) if schema is None else spec("f", root, p=schema)
    found = calls(block(invoke("f", tag("p", value))), [tool])
    assert len(found) == 1
    return found[0][1]["p"]


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
NULLABLE = {"type": ["string", "null"]}
LIST, OBJECT = {"type": "array"}, {"type": "object"}
STRINGS, INTEGERS = {"type": "array", "items": STRING}, {"type": "array", "items": INTEGER}


@pytest.mark.parametrize(
    ("schema", "value", "right"),
    [
        (STRING, " a<b & c ", " a<b & c "),
        (STRING, "line1\n  line2\n", "line1\n  line2\n"),
        (STRING, "<div>x</div>", "<div>x</div>"),
        (STRING, "a </invoke> b </p> <item>", "a </invoke> b </p> <item>"),
        (STRING, "&quot;x&quot; &amp;", "&quot;x&quot; &amp;"),
        (STRING, "C:\\Users\\unicorn", "C:\\Users\\unicorn"),
        (STRING, f"{NS}<item>tags are text here{NS}</item>", f"{NS}<item>tags are text here{NS}</item>"),
        (STRING, "null", "null"),
        (STRING, "2", "2"),
        (STRING, "", ""),
        (NUMBER, "9007199254740993", 9007199254740993),
        (INTEGER, "9007199254740993", 9007199254740993),
        (NUMBER, "1.0", 1),
        (NUMBER, "-0.5e2", -50.0),
        (NUMBER, "1e999", "1e999"),
        (NUMBER, "NaN", "NaN"),
        (INTEGER, "053", 53),
        (INTEGER, "-05", -5),
        (INTEGER, " 7\n", 7),
        (INTEGER, "9" * 5000, "9" * 5000),
        (INTEGER, "twenty", "twenty"),
        (INTEGER, "", ""),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, "yes", "yes"),
        (LIST, "", []),
        (OBJECT, "", {}),
        (NULLABLE, "", ""),
        (NULLABLE, "null", None),
        (NULLABLE, "nullify", "nullify"),
        (STRINGS, tag("item", "a"), ["a"]),
        (STRINGS, tag("item", "a") + "\n" + tag("item", " b "), ["a", " b "]),
        (STRINGS, "[1,2", "[1,2"),
        (INTEGERS, tag("item", "053") + tag("item", "512"), [53, 512]),
        (INTEGERS, "[1,2]", [1, 2]),
        (None, tag("item", "a"), ["a"]),
        (None, tag("item", "a") + tag("item", "b"), ["a", "b"]),
        (None, "2", "2"),
        (None, "true", "true"),
        (None, tag("x", "1"), {"x": "1"}),
        (None, f"words {tag('x', '1')}", f"words {tag('x', '1')}"),
        (OBJECT, '{"a": 1}', {"a": 1}),
        (OBJECT, '{"mode": "fast"', '{"mode": "fast"'),
        (OBJECT, "[" * 100000, "[" * 100000),
        ({"enum": ["a", "b"]}, "b", "b"),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": 3}, "3", 3),
        ({"type": ["string", "integer"]}, "2", 2),
        ({"type": ["string", "integer"]}, "007", "007"),
        ({"anyOf": [INTEGERS, {"type": "null"}]}, tag("item", "1"), [1]),
        ({"anyOf": [INTEGERS, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "boolean"}, INTEGER]}, "true", True),
        ({"type": "array", "prefixItems": [INTEGER, STRING]}, tag("item", "1") + tag("item", "1"), [1, "1"]),
        ({"type": "array", "items": INTEGERS}, tag("item", tag("item", "1")), [[1]]),
        ({"type": "object", "additionalProperties": INTEGER}, tag("k", "1"), {"k": 1}),
        ({"type": "object", "properties": {"item": INTEGER}}, tag("item", "1"), {"item": 1}),
    ],
)
def test_a_value_is_verbatim_and_typed_by_its_schema(schema: Any, value: str, right: Any) -> None:
    found = arguments_of(value, schema)
    assert found == right
    assert type(found) is type(right)


def test_references_are_followed_even_in_circles() -> None:
    node = {"type": "object", "properties": {"value": INTEGER, "next": {"$ref": "#/$defs/node"}}}
    root = {"$defs": {"node": node, "loop": {"$ref": "#/$defs/loop"}}}
    value = tag("value", "1") + tag("next", tag("value", "2"))
    assert arguments_of(value, {"$ref": "#/$defs/node"}, root) == {"value": 1, "next": {"value": 2}}
    assert arguments_of("5", {"$ref": "#/$defs/loop"}, root) == "5"
    assert arguments_of("5", {"$ref": "#/$defs/missing"}, root) == "5"


def test_deep_nesting_is_typed_at_every_level() -> None:
    steps = {
        "type": "array",
        "items": {"type": "object", "properties": {"retry": {"type": ["null", "string"]}, "options": OBJECT}},
    }
    value = tag("item", tag("retry", "null") + tag("options", "")) + tag("item", tag("retry", "once"))
    assert arguments_of(value, steps) == [{"retry": None, "options": {}}, {"retry": "once"}]


HAPPY = ("call", ("get_weather", {"location": "NYC"}))
LA = ("call", ("get_weather", {"location": "LA"}))
NYC_CALL, LA_CALL = (invoke("get_weather", tag("location", city)) for city in ("NYC", "LA"))


@pytest.mark.parametrize(
    ("text", "right"),
    [
        pytest.param(block(NYC_CALL), [HAPPY], id="1 happy path"),
        pytest.param(block(NYC_CALL.strip(), LA_CALL), [HAPPY, LA], id="2.a adjacent"),
        pytest.param(block(NYC_CALL, "\n", LA_CALL), [HAPPY, LA], id="2.b newlines"),
        pytest.param(
            f"Both: {block(NYC_CALL, LA_CALL)} Done.", [("text", "Both: "), HAPPY, LA], id="2.c prefix kept"
        ),
        pytest.param("Hello, how can I help?", [("text", "Hello, how can I help?")], id="3 plain text"),
        pytest.param(block("nonsense"), [], id="4.a garbage body"),
        pytest.param(block(f"{NS}<invoke>{tag('location', 'NYC')}{NS}</invoke>"), [], id="4.c no name"),
        pytest.param(
            block(f'{NS}<invoke name="get_weather">{tag("location", "NYC")}'), [], id="4.d no invoke end"
        ),
        pytest.param(OPEN + NYC_CALL, [HAPPY], id="5.a no outer close"),
        pytest.param(NYC_CALL + CLOSE, [("text", NYC_CALL + CLOSE)], id="5.b no opening wrapper"),
        pytest.param(block(NYC_CALL)[:70], [], id="5.c cut in a value"),
        pytest.param(OPEN + NYC_CALL + LA_CALL[:50], [HAPPY], id="5.d cut in the second call"),
        pytest.param(block(invoke("f")), [("call", ("f", {}))], id="6.a no parameters"),
        pytest.param(block(invoke("f", " \n")), [("call", ("f", {}))], id="6.b blank body"),
        pytest.param(
            "I will check the weather. " + block(NYC_CALL),
            [("text", "I will check the weather. "), HAPPY],
            id="8.a trailing blank kept",
        ),
        pytest.param(block(NYC_CALL, "and now LA", LA_CALL), [HAPPY, LA], id="8.d text between dropped"),
        pytest.param("   ", [("text", "   ")], id="9.b blanks stay"),
        pytest.param("", [], id="9.a nothing"),
        pytest.param(block(NYC_CALL, NYC_CALL), [HAPPY, HAPPY], id="10 same tool twice"),
        pytest.param(block(NYC_CALL) + block(LA_CALL), [HAPPY, LA], id="two blocks"),
        pytest.param(
            block(NYC_CALL).replace('"get_weather"', "'get_weather'"), [HAPPY], id="single quotes accepted"
        ),
        pytest.param(
            block(NYC_CALL).replace('"get_weather"', "get_weather"), [HAPPY], id="bare name accepted"
        ),
        pytest.param(block(NYC_CALL).replace(f"{NS}<", f"{NS} <"), [HAPPY], id="blanks after the marker"),
        pytest.param(
            block(invoke("unknown", tag("x", "1"))), [("call", ("unknown", {"x": "1"}))], id="13 unknown tool"
        ),
        pytest.param(
            block(invoke("f", tag("-A", "3"), tag("a.b", "4"))),
            [("call", ("f", {"-A": "3", "a.b": "4"}))],
            id="hyphens and dots in names",
        ),
        pytest.param(
            block(invoke("f", tag("tags", "a"), tag("tags", "b"))),
            [("call", ("f", {"tags": ["a", "b"]}))],
            id="a repeated name is a list",
        ),
        pytest.param(
            block(invoke("f", f"{NS}offer.docx{NS}</filename>", tag("content", "Hello"))),
            [("call", ("f", {"filename": "offer.docx", "content": "Hello"}))],
            id="opening tag elided by the server",
        ),
        pytest.param(
            block(f'{NS}<invoke name="broken">{tag("x", "1")}', NYC_CALL),
            [HAPPY],
            id="an unclosed call does not swallow the next",
        ),
        pytest.param(
            block(invoke("get_weather", tag("location", "NYC"), f"{NS}<unit>C")), [], id="unclosed parameter"
        ),
        pytest.param(block(invoke("f", f"{NS}</x>")), [], id="stray closing tag"),
    ],
)
def test_conformance(text: str, right: list[Any]) -> None:
    assert read(text) == right
    assert read(text, cut=list) == right
    assert read(text, cut=lambda text: text.split("\x00")) == right


def test_typed_conformance_vectors() -> None:
    tool = spec(
        "f",
        count=INTEGER,
        flag={"type": "boolean"},
        items=INTEGERS,
        config={"type": "object", "properties": {"nested": {"type": "boolean"}}},
    )
    text = block(
        invoke(
            "f",
            tag("count", "2"),
            tag("flag", "true"),
            tag("items", "".join(tag("item", n) for n in "123")),
            tag("config", tag("nested", "true")),
        )
    )
    right = {"count": 2, "flag": True, "items": [1, 2, 3], "config": {"nested": True}}
    assert calls(text, [tool]) == [("f", right)]


def test_splitting_at_every_tag_changes_nothing() -> None:
    text = f"Both: {block(NYC_CALL, LA_CALL)} Done."
    pieces = [piece + ">" for piece in text.split(">")[:-1]] + [text.split(">")[-1]]
    assert read(text, cut=lambda _: pieces) == [("text", "Both: "), HAPPY, LA]


def test_nesting_has_a_limit() -> None:
    def nested(levels: int) -> str:
        return f"{NS}<a>" * levels + "x" + f"{NS}</a>" * levels

    assert len(calls(block(invoke("f", nested(MAX_DEPTH))))) == 1
    parser = AnswerParser([])
    assert parser.feed(block(invoke("f", nested(MAX_DEPTH + 1)))) == []
    assert "128" in parser.faults[0]
    parser.feed(block(invoke("f", nested(3000))))
    assert len(parser.faults) == 2


def test_faults_say_what_was_not_executed() -> None:
    for text, word in [
        (block(f'{NS}<invoke name="f">'), "</invoke>"),
        (OPEN + f'{NS}<invoke name="f">{NS}<x>1', "ended"),
        (block(f"{NS}<invoke>{NS}</invoke>"), "names no tool"),
        (block(invoke("f", f"{NS}<x>1")), "'x' is not closed"),
        ('<tool_call>{"name": 3}</tool_call>', "JSON"),
    ]:
        parser = AnswerParser([])
        parser.feed(text)
        parser.close()
        assert len(parser.faults) == 1
        assert word in parser.faults[0]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (f"{OPEN}words", f"{OPEN}words"),
        (f"{OPEN}{'word ' * 100}", f"{OPEN}{'word ' * 100}"),
        (f"{NS}<tool_box>", f"{NS}<tool_box>"),
        (f"{NS} and so on", f"{NS} and so on"),
        (f"{NS}<tool_call", f"{NS}<tool_call"),
        (OPEN, OPEN),
    ],
)
def test_a_false_start_is_text(text: str, right: str) -> None:
    assert read(text) == read(text, cut=list) == [("text", right)]


def test_a_false_start_does_not_wait_for_the_end() -> None:
    parser = AnswerParser([])
    events = parser.feed(OPEN + "w" * (FALSE_START_LIMIT + 1))
    assert merged(events) == [("text", OPEN + "w" * (FALSE_START_LIMIT + 1))]
    assert merged(parser.feed(block(NYC_CALL))) == [HAPPY]


THINK, ENDTHINK = "<mm:think>", "</mm:think>"


@pytest.mark.parametrize(
    ("thinking", "text", "right"),
    [
        (True, f"hm{ENDTHINK}Hello", [("thinking", "hm"), ("text", "Hello")]),
        (True, f"{THINK}hm{ENDTHINK}Hello", [("thinking", "hm"), ("text", "Hello")]),
        (True, f"hm{ENDTHINK}{ENDTHINK}Hello", [("thinking", "hm"), ("text", "Hello")]),
        (True, "never ends </mm:thi", [("thinking", "never ends </mm:thi")]),
        (True, f"{ENDTHINK}Hello", [("text", "Hello")]),
        (False, f"{THINK}hm{ENDTHINK}Hello", [("thinking", "hm"), ("text", "Hello")]),
        (False, f"{ENDTHINK}{ENDTHINK}Hello", [("text", "Hello")]),
        (False, f"a {ENDTHINK} b", [("text", f"a {ENDTHINK} b")]),
        (False, f"a {THINK} b", [("text", f"a {THINK} b")]),
        (False, f"{THINK}hm{ENDTHINK}{THINK} b", [("thinking", "hm"), ("text", f"{THINK} b")]),
        (False, "<mm:thi", [("text", "<mm:thi")]),
        (True, f"{block(NYC_CALL)}{ENDTHINK}ok", [("thinking", block(NYC_CALL)), ("text", "ok")]),
        (
            True,
            f'<tool_call>{{"name":"computer","arguments":{{}}}}</tool_call>{ENDTHINK}{block(NYC_CALL)}',
            [("thinking", '<tool_call>{"name":"computer","arguments":{}}</tool_call>'), HAPPY],
        ),
    ],
)
def test_thinking(thinking: bool, text: str, right: list[Any]) -> None:
    assert read(text, thinking=thinking) == right
    assert read(text, thinking=thinking, cut=list) == right


@pytest.mark.parametrize(
    "text",
    [
        f"Write this:\n```\n{block(NYC_CALL)}\n```\nand see.",
        f"Write `{block(NYC_CALL)}` and see.",
        'Like\n```json\n{"name": "computer", "arguments": {}}\n```\n',
        'Like\n```\n<tool_call>{"name": "computer", "arguments": {}}</tool_call>\n```\n',
    ],
)
def test_quoted_calls_are_text(text: str) -> None:
    assert read(text) == read(text, cut=list) == [("text", text)]


def test_a_call_after_a_code_block_is_a_call() -> None:
    text = "So:\n```\nls\n```"
    assert read(f"{text}{block(NYC_CALL)}") == [("text", text), HAPPY]
    assert read(f"{text}\n{block(NYC_CALL)}", cut=list) == [("text", f"{text}\n"), HAPPY]


CLICK = ("call", ("computer", {"action": "left_click", "coordinate": [500, 300]}))
CLICK_JSON = '{"name": "computer", "arguments": {"action": "left_click", "coordinate": [500, 300]}}'


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (f"<tool_call>\n{CLICK_JSON}\n</tool_call>", [CLICK]),
        (f"Action: click it.\n<tool_call>\n{CLICK_JSON}\n", [("text", "Action: click it.\n"), CLICK]),
        (f"<tool_call>{CLICK_JSON}</tool_call>\n<tool_call>{CLICK_JSON}", [CLICK, CLICK]),
        (CLICK_JSON, [CLICK]),
        (f"Action: click it.\n  {CLICK_JSON}", [("text", "Action: click it.\n  "), CLICK]),
        (f"It is {CLICK_JSON}", [("text", f"It is {CLICK_JSON}")]),
        ('{"name": "Ada", "arguments": {}}', [("text", '{"name": "Ada", "arguments": {}}')]),
        ('{"name": "computer"', [("text", '{"name": "computer"')]),
        ('{"nape": 1}', [("text", '{"nape": 1}')]),
        ("<tool_call>soon", [("text", "<tool_call>soon")]),
        ('<tool_call>{"name": "computer", "argu', [("text", '<tool_call>{"name": "computer", "argu')]),
        ('<tool_call>{"name": }</tool_call>', [("text", '<tool_call>{"name": }</tool_call>')]),
        (
            '<tool_call>{"name":"f","arguments":{"p":"}</tool_call>\\""}}</tool_call>',
            [("call", ("f", {"p": '}</tool_call>"'}))],
        ),
        (
            '<tool_call>{"name":"computer","arguments":"{\\"amount\\": \\"500\\"}"}',
            [("call", ("computer", {"amount": 500}))],
        ),
        (
            '<tool_call>{"name":"computer","arguments":{"text":["ls"],"amount":null}}',
            [("call", ("computer", {"text": ["ls"], "amount": None}))],
        ),
    ],
)
def test_calls_written_as_json(text: str, right: list[Any]) -> None:
    assert read(text) == read(text, cut=list) == right


@pytest.mark.parametrize(
    ("slip", "right"),
    [
        ("left_ click", "left_click"),
        ("left_lick", "left_click"),
        ("Left Click", "left_click"),
        ("left_clic", "left_clic"),
        ("scoll", "scroll"),
        ("left_", "left_"),
        ("fly", "fly"),
        ("type", "type"),
    ],
)
def test_slips_of_an_action(slip: str, right: str) -> None:
    assert repair_choice(slip, ACTIONS) == right
    assert calls(block(invoke("computer", tag("action", slip)))) == [("computer", {"action": right})]
    as_json = json.dumps({"name": "computer", "arguments": {"action": slip}})
    assert calls(f"<tool_call>{as_json}") == [("computer", {"action": right})]


def test_ambiguous_slips_are_left_alone() -> None:
    assert repair_choice("cap", ["clap", "chap"]) == "cap"
    assert repair_choice("anything", []) == "anything"


def test_call_ids_are_unique_within_and_across_answers() -> None:
    ids = set()
    for _ in range(2):
        parser = AnswerParser([])
        ids |= {
            event.call.id for event in parser.feed(block(NYC_CALL, NYC_CALL)) if isinstance(event, CallChunk)
        }
    assert len(ids) == 4


def test_text_is_handed_out_as_it_comes() -> None:
    parser = AnswerParser([])
    assert parser.feed("Hello ]") == [TextChunk("Hello ")]
    assert parser.feed("<") == []
    assert parser.feed("x") == [TextChunk("]<x")]
    assert parser.feed(OPEN + NYC_CALL)[0].call.arguments == {"location": "NYC"}  # type: ignore[union-attr]


PIECES = [
    *(NS, "<tool_call>", "</tool_call>", "\n", " ", '<invoke name="computer">', "<invoke>", "</invoke>"),
    *("<action>", "</action>", "left_ click", "<coordinate>", "</coordinate>", "<item>", "</item>", "05"),
    *(THINK, ENDTHINK, "```", "`", "words", '{"name": "computer",', '"arguments": {"text": "}"}}', "{", "}"),
    *(
        '"',
        "\\",
        "]",
        "<",
        "[",
        "é",
        "\U0001f41f",
        "<text>",
        "</text>",
        OPEN,
        CLOSE,
        NYC_CALL,
        block(NYC_CALL),
    ),
    *("x" * 100, "]<]mini", "<mm:", "</mm:think"),
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=20).map("".join),
)


@settings(max_examples=600, deadline=None)
@given(TEXTS, st.booleans(), st.data())
def test_any_split_gives_the_same_answer(text: str, thinking: bool, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    whole = read(text, thinking=thinking)
    assert read(text, thinking=thinking, cut=lambda _: pieces) == whole
    assert read(text, thinking=thinking, cut=list) == whole


@settings(max_examples=300, deadline=None)
@given(st.text().filter(lambda text: not any(m in text for m in (NS, THINK, ENDTHINK))), st.booleans())
def test_arbitrary_text_never_raises_and_plain_text_is_kept(text: str, thinking: bool) -> None:
    said = read(text, thinking=thinking)
    assert said == ([("thinking" if thinking else "text", text)] if text else [])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), JSON_VALUES)
def test_no_schema_and_no_body_makes_it_raise(body: str, schema: Any) -> None:
    tool = ToolSpec("computer", "", {"properties": {"action": schema, "coordinate": schema, "text": schema}})
    read(OPEN + f'{NS}<invoke name="computer">' + body + f"{NS}</invoke>{CLOSE}", [tool])
