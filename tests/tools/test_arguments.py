import json
import math

import pytest
from jsonschema import Draft202012Validator
from pydantic import Field

from pilotfish.tools.actions import ACTIONS, ComputerArgs
from pilotfish.tools.base import (
    ToolArgs,
    ToolContext,
    ToolResult,
    exact_schema,
    find_tool,
    misfit,
    tool_schema,
    validate,
)
from pilotfish.tools.computer import ComputerTool
from pilotfish.tools.shell import ShellTool


class Computer:
    name = "computer"
    description = "Use the mouse and the keyboard."
    Args = ComputerArgs

    async def run(self, args: ComputerArgs, context: ToolContext) -> ToolResult:
        return ToolResult(True, "ok")

    async def close(self) -> None:
        pass


class OtherArgs(ToolArgs):
    path: str = Field(description="the file")
    count: int = 1
    deep: bool = False
    paths: list[str] | None = None


class Other(Computer):
    name = "other"
    Args = OtherArgs  # type: ignore[assignment]


def accepted(**arguments: object) -> ComputerArgs:
    args = validate(Computer(), arguments)
    assert isinstance(args, ComputerArgs), args
    return args


def refused(tool: object, arguments: object) -> str:
    result = validate(tool, arguments)  # type: ignore[type-var,arg-type]
    assert isinstance(result, ToolResult)
    assert not result.ok
    assert "\n" not in result.text
    assert result.text.endswith(".")
    return result.text


def test_the_schema_is_small_and_plain() -> None:
    schema = tool_schema(Computer())
    text = json.dumps(schema)
    assert len(text) < 900
    assert schema["properties"]["action"]["enum"] == list(ACTIONS)
    assert schema["properties"]["coordinate"]["items"] == {"type": "integer"}
    assert schema["required"] == ["action"]
    for word in ("title", "$defs", "$ref", "null", "default", "anyOf"):
        assert word not in text


def test_a_schema_comes_from_the_model() -> None:
    assert tool_schema(Other()) == {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "the file"},
            "count": {"type": "integer"},
            "deep": {"type": "boolean"},
            "paths": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["path"],
    }


def test_numbers_and_booleans_in_strings_are_taken_by_the_schema() -> None:
    args = validate(Other(), {"path": "a", "count": "3", "deep": "true"})
    assert args == OtherArgs(path="a", count=3, deep=True)
    click = accepted(action="left_click", coordinate=["500", 300.0])
    assert click.coordinate == (500, 300)
    assert accepted(action="scroll", scroll_direction="up", scroll_amount="3").scroll_amount == 3
    assert accepted(action="wait", duration="1.5").duration == 1.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": 5}, ["`path`", "5", "a string"]),
        ({"path": ["ls"]}, ["`path`", "['ls']", "a string"]),
        ({"path": None}, ["`path` is missing"]),
        ({"path": "a", "count": "twenty"}, ["`count`", "'twenty'", "an integer"]),
        ({"path": "a", "deep": "maybe"}, ["`deep`", "'maybe'", "true or false"]),
        ({"path": "a", "paths": "abc"}, ["`paths`", "'abc'", "a list"]),
        ({"path": "a", "pahts": []}, ["`pahts`", "did you mean", "paths"]),
        ({}, ["`path` is missing", "the file"]),
        (["a"], ["an object"]),
        ("a", ["an object"]),
        (None, ["an object"]),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(arguments: object, words: list[str]) -> None:
    text = refused(Other(), arguments)
    assert all(word in text for word in ["other:", *words]), text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "left_"}, ["'left_'", "left_click", "infeasible"]),
        ({"action": "shake"}, ["'shake'", "use one of key, type"]),
        ({"action": 5}, ["`action`", "5"]),
        ({"coordinate": [1, 2]}, ["`action` is missing", "left_click"]),
        ({"action": "left_click", "coordinate": [1001, 5]}, ["[1001, 5]", "0 to 1000"]),
        ({"action": "left_click", "coordinate": "[500, 300]"}, ["`coordinate`", "two integers"]),
        ({"action": "left_click", "coordinate": list("[5, 3]")}, ["`coordinate`", "two integers"]),
        ({"action": "left_click", "coordinate": [math.nan, 3]}, ["`coordinate`", "nan"]),
        ({"action": "scroll", "scroll_direction": "sideways"}, ["'sideways'", "up, down, left, right"]),
        ({"action": "scroll", "scroll_direction": "up", "scroll_amount": -1}, ["-1", "0 to 100"]),
        ({"action": "scroll", "scroll_direction": "up", "scroll_amount": 1.5}, ["1.5", "integer"]),
        ({"action": "scroll", "scroll_direction": "up", "scroll_amount": True}, ["True", "integer"]),
        ({"action": "scroll", "scroll_amount": 3}, ["needs `scroll_direction`"]),
        ({"action": "wait", "duration": "x"}, ["`duration`", "'x'", "seconds"]),
        ({"action": "wait", "duration": math.inf}, ["`duration`", "inf"]),
        ({"action": "wait", "duration": 10**400}, ["`duration`", "seconds"]),
        ({"action": "key"}, ["`key` needs `text`"]),
        ({"action": "mouse_move"}, ["`mouse_move` needs `coordinate`"]),
        ({"action": "zoom", "region": [5, 5, 5, 9]}, ["`region`", "x0 < x1"]),
        ({"action": "type", "text": "a", "delay": 3}, ["`delay`"]),
        ({"action": "call_user"}, ["done"]),
    ],
)
def test_a_wrong_action_is_one_sentence(arguments: object, words: list[str]) -> None:
    text = refused(Computer(), arguments)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("spelling", "action"),
    [
        ("left_ click", "left_click"),
        ("left_lick", "left_click"),
        ("Left Click", "left_click"),
        ("left click", "left_click"),
        ("left-click", "left_click"),
        ("click", "left_click"),
        ("double click", "double_click"),
        ("DONE", "done"),
        ("fail", "infeasible"),
        ("zoom_in", "zoom"),
        ("terminate", "done"),
    ],
)
def test_known_slips_are_taken(spelling: str, action: str) -> None:
    assert accepted(action=spelling).action == action


def test_other_spellings_with_arguments() -> None:
    assert accepted(action="terminate", status="failure").action == "infeasible"
    assert accepted(action="terminate", status="success").action == "done"
    press = accepted(action="left_press", coordinate=[1, 2])
    assert (press.action, press.duration) == ("left_click", 1.0)
    assert accepted(action="screenshot", text=None, coordinate=None) == ComputerArgs(action="screenshot")


def test_the_given_arguments_are_left_as_they_were() -> None:
    arguments = {"action": "terminate", "status": "failure", "text": None}
    validate(Computer(), arguments)
    assert arguments == {"action": "terminate", "status": "failure", "text": None}


def test_text_is_kept_as_it_is() -> None:
    text = " C:\\Users\\unicorn </invoke> ß\n"
    assert accepted(action="type", text=text).text == text


def test_an_unknown_tool_lists_the_tools() -> None:
    tools = [Computer(), Other()]
    assert find_tool(tools, "other") is tools[1]
    result = find_tool(tools, "compute")
    assert isinstance(result, ToolResult)
    assert "did you mean computer" in result.text
    assert "computer, other" in result.text


def test_points_are_held_to_the_grid_without_the_model_being_told() -> None:
    assert tool_schema(ComputerTool())["properties"]["coordinate"] == {
        "type": "array",
        "description": "[x,y], 0..1000",
        "items": {"type": "integer"},
    }
    narrow = exact_schema(ComputerTool())["properties"]["coordinate"]
    assert (narrow["minItems"], narrow["maxItems"], narrow["items"]["maximum"]) == (2, 2, 1000)


def test_a_shell_call_without_anything_to_do_is_not_let_through() -> None:
    assert "anyOf" not in tool_schema(ShellTool())
    narrow = exact_schema(ShellTool())
    for nothing in ({}, {"session": "main"}, {"timeout": 3}):
        assert not Draft202012Validator(narrow).is_valid(nothing)
    for something in ({"command": "ls"}, {"key": "ctrl-c"}, {"input": "y", "session": "x"}):
        Draft202012Validator(narrow).validate(something)


def test_what_a_person_writes_is_held_to_the_schema_s_own_words() -> None:
    tool = ComputerTool()
    made = {"action": "Left Click", "coordinate": [1, 2]}
    assert misfit(tool, made | {"coordinate": ["3", 4]}, made) is None, "the model's own word may stay"
    wrong = misfit(tool, made | {"action": "left_clickx"}, made)
    assert wrong is not None
    assert wrong.startswith("computer: `action` is 'left_clickx'; did you mean left_click")
    assert misfit(tool, {"action": "right_click"}, made) is None
    assert "must be two integers" in (misfit(tool, {"action": "left_click", "coordinate": 3}, made) or "")
