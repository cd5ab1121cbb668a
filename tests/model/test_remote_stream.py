"""The reader of streams gives the same answer however a server cuts, orders and spells it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.model.protocol import ModelError, TextChunk, ThinkingChunk, ToolSpec
from pilotfish.model.remote_stream import AnswerReader, EventLines, Trouble, WholeBody

TOOLS = [ToolSpec("act", "", {"type": "object", "properties": {"n": {"type": "integer"}}})]
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="]<{`~"), max_size=20)
ARGUMENTS = st.dictionaries(
    st.sampled_from("nabc"), st.integers() | WORDS | st.lists(WORDS, max_size=2), max_size=3
)
CALLS = st.lists(st.tuples(st.sampled_from(["act", "look"]), ARGUMENTS), max_size=3)


def _cut(draw: st.DrawFn, text: Any) -> list[Any]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, str, str, list[tuple[str, dict[str, Any]]]]:
    """A stream's bytes, and the thinking, text and calls that are in it."""
    thinking, text, calls = draw(WORDS), draw(WORDS), draw(CALLS)
    field = draw(st.sampled_from(["reasoning", "reasoning_content"]))
    deltas: list[dict[str, Any]] = [{field: part} for part in _cut(draw, thinking)]
    deltas += [{"content": part} for part in _cut(draw, text)]
    queues = []
    for index, (name, arguments) in enumerate(calls):
        parts = _cut(draw, json.dumps(arguments, ensure_ascii=draw(st.booleans())))
        queue = [{"index": index, "function": {"arguments": part}} for part in parts]
        queue[draw(st.integers(0, len(queue) - 1))]["function"]["name"] = name
        if draw(st.booleans()):
            queue[0]["id"] = f"id{index}"
        queues.append(queue)
    while queues := [queue for queue in queues if queue]:
        deltas.append({"tool_calls": [draw(st.sampled_from(queues)).pop(0)]})
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    events = [{"choices": [{"delta": delta}]} for delta in deltas]
    events.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    lines = [f"data:{draw(st.sampled_from(['', ' ']))}{json.dumps(event)}{end * 2}" for event in events]
    return "".join([*lines, f"data: [DONE]{end * 2}"]).encode(), thinking, text, calls


@given(streams(), st.data())
@settings(deadline=None, max_examples=60)
def test_any_stream_is_read(stream: Any, data: st.DataObject) -> None:
    raw, thinking, text, calls = stream
    lines, reader = EventLines(), AnswerReader(TOOLS)
    said = []
    for part in _cut(data.draw, raw):
        for event in lines.feed(part):
            said += reader.feed(event)
    for event in lines.close():
        said += reader.feed(event)
    said += reader.close()
    assert reader.done
    assert "".join(chunk.text for chunk in said if isinstance(chunk, ThinkingChunk)) == thinking
    assert "".join(chunk.text for chunk in said if isinstance(chunk, TextChunk)) == text
    found = [(chunk.call.name, chunk.call.arguments) for chunk in reader.calls()]
    assert [name for name, _ in found] == [name for name, _ in calls]
    for (_, got), (_, wanted) in zip(found, calls, strict=True):
        assert {k: str(v) for k, v in got.items()} == {k: str(v) for k, v in wanted.items()}
    assert reader.faults == []


FIELDS = (
    *(
        "choices",
        "delta",
        "message",
        "content",
        "text",
        "reasoning",
        "tool_calls",
        "function",
        "name",
        "arguments",
    ),
    *("index", "id", "error", "usage", "prompt_tokens", "prompt_tokens_details", "logprobs", "finish_reason"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=25,
)
PIECES = st.builds(lambda delta: {"choices": [{"delta": delta}]}, JSON)
CALL_PIECES = st.builds(lambda call: {"choices": [{"delta": {"tool_calls": [call]}}]}, JSON)


@given(st.lists(JSON | PIECES | CALL_PIECES, max_size=5), st.binary(max_size=30), st.booleans())
@settings(deadline=None, max_examples=100)
def test_nonsense_is_trouble_and_nothing_worse(pieces: list[Any], rubbish: bytes, whole: bool) -> None:
    raw = b"".join(b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in pieces) + rubbish
    lines, reader = WholeBody() if whole else EventLines(), AnswerReader(TOOLS)
    with suppress(Trouble, ModelError):
        for events in (lines.feed(raw), lines.close()):
            for event in events:
                reader.feed(event)
    reader.close()
    for chunk in reader.calls():
        assert isinstance(chunk.call.arguments, dict)
        assert chunk.call.name
    usage = reader.usage()
    assert min(usage.input_tokens or 0, usage.cached_tokens or 0, usage.output_tokens) >= 0


@pytest.mark.parametrize(
    "given",
    [7, True, "abc", {"content": 7}, {"content": [7, {}, {"logprob": 10**400}, {"logprob": float("nan")}]}],
)
def test_log_probabilities_that_are_none(given: Any) -> None:
    reader = AnswerReader(TOOLS)
    reader.feed(json.dumps({"choices": [{"delta": {}, "logprobs": given}]}))
    assert reader.logprobs == []


@pytest.mark.parametrize("call", [{"id": "n"}, {"index": 0}, {"function": {"name": "act"}}])
def test_calls_without_end_are_not_collected(call: dict[str, Any]) -> None:
    calls = [{key: value if key == "function" else n for key, value in call.items()} for n in range(100_000)]
    reader = AnswerReader(TOOLS)
    began_s = time.monotonic()
    with pytest.raises(ModelError, match="more than 1000 calls"):
        reader.feed(json.dumps({"choices": [{"delta": {"tool_calls": calls}}]}))
    assert time.monotonic() - began_s < 20


def test_text_that_never_is_a_call_is_read_in_one_pass() -> None:
    text = "]<]minimax[>[" * 100_000
    reader = AnswerReader(TOOLS)
    began_s = time.monotonic()
    said = reader.feed(json.dumps({"choices": [{"delta": {"content": text}}]}))
    assert "".join(chunk.text for chunk in [*said, *reader.close()]) == text
    assert time.monotonic() - began_s < 30
