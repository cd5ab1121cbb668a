"""The `plan` tool: what it takes, what it says, and what it refuses."""

from __future__ import annotations

import pytest

from pilotfish.tools.base import ToolContext, ToolResult, tool_schema, validate
from pilotfish.tools.plan import PlanArgs, PlanTool

ITEMS = [{"title": "Look", "status": "done"}, {"title": "Mend\n it", "status": "doing"}, {"title": "Test"}]


async def test_a_list_is_taken_and_shown_and_a_sub_task_handed_over() -> None:
    tool = PlanTool()
    args = validate(tool, {"items": ITEMS})
    assert isinstance(args, PlanArgs)
    result = await tool.run(args, ToolContext())
    assert (result.ok, result.text) == (True, "[x] Look\n[>] Mend it\n[ ] Test")
    assert [item.status for item in result.plan] == ["done", "doing", "open"]

    async def hand_over(text: str) -> ToolResult:
        return ToolResult(True, f"did: {text}")

    part = validate(tool, {"subtask": " Look at a.py. "})
    assert isinstance(part, PlanArgs)
    assert (await tool.run(part, ToolContext(hand_over=hand_over))).text == "did: Look at a.py."
    refused = await tool.run(part, ToolContext())
    assert (refused.ok, refused.plan) == (False, ())
    assert refused.text.startswith("plan: a sub-task hands nothing over here")
    both = validate(tool, {"items": ITEMS[:1], "subtask": "x"})
    assert isinstance(both, PlanArgs)
    assert (await tool.run(both, ToolContext(hand_over=hand_over))).text == "[x] Look\ndid: x"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "`items` is missing"),
        ({"items": []}, "has 0 entries"),
        ({"items": [{"title": "x"}] * 51}, "has 51 entries"),
        ({"items": [{"title": " "}]}, "has 0 characters, but must have 1 to 300"),
        ({"items": [{"title": "x", "status": "later"}]}, "later"),
        ({"items": ["x"]}, "must be an object"),
        ({"subtask": "  "}, "`subtask` has 0 characters"),
        ({"item": 1}, "there is no argument `item`"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(arguments: dict[str, object], said: str) -> None:
    result = validate(PlanTool(), arguments)
    assert isinstance(result, ToolResult)
    assert said in result.text
    assert "\n" not in result.text


def test_the_schema_is_small() -> None:
    schema = tool_schema(PlanTool())
    assert set(schema["properties"]) == {"items", "subtask"}
    assert "$defs" not in str(schema)
