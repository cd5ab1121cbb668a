"""What a tool is: typed arguments, a typed result, and the JSON schema the model sees.

Errors are values: a `ToolResult` with `ok=False` and one sentence that says what is wrong and how to mend it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError, WithJsonSchema, model_validator
from pydantic_core import ErrorDetails

from pilotfish.sandbox.terminal import encodable
from pilotfish.tools.grid import Screen
from pilotfish.tools.words import one_of, short

if TYPE_CHECKING:
    from pilotfish.sandbox import Sandbox

__all__ = [
    "PlanItem",
    "Screen",
    "Tool",
    "ToolArgs",
    "ToolContext",
    "ToolResult",
    "exact_schema",
    "exactly",
    "find_tool",
    "misfit",
    "narrowed",
    "tool_schema",
    "validate",
]


class ToolArgs(BaseModel):
    """Base of every tool's arguments. Unknown names are errors, so that a misspelt one is never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, data: Any) -> Any:
        """An argument given as null is one left out."""
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data


A = TypeVar("A", bound=ToolArgs)


@dataclass(frozen=True)
class PlanItem:
    """One thing to do, as the model keeps it."""

    title: str
    status: Literal["open", "doing", "done", "dropped"] = "open"


@dataclass(frozen=True)
class ToolContext:
    """What a tool may act on: the sandbox, and the region of its display that the model sees.

    A tool that needs a part that is None says so in its result.
    """

    box: Sandbox | None = None
    screen: Screen | None = None
    hand_over: Callable[[str], Awaitable[ToolResult]] | None = None
    """Has a part of the work done in a conversation of its own; its summary is the result."""


@dataclass(frozen=True, eq=False)
class ToolResult:
    """What one call did.

    text: what the model is told; what UTF-8 cannot take is spelt out. end: set when the model ended the task.
    image: a picture that belongs to the result, uint8 RGB of shape [height, width, 3]. plan: the list of what
    is to be done, if the call set it.
    """

    ok: bool
    text: str
    end: Literal["done", "infeasible"] | None = None
    image: npt.NDArray[np.uint8] | None = None
    plan: tuple[PlanItem, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", encodable(self.text))


class Tool(Protocol[A]):
    """Something the model can call. `Args` gives the JSON schema; `description` is the sentence beside it."""

    name: str
    description: str
    Args: type[A]

    async def run(self, args: A, context: ToolContext) -> ToolResult:
        """Do it. Never raises for what the model asked or what the machine answered."""
        ...

    async def close(self) -> None:
        """Release whatever the tool holds; it may be used again afterwards."""
        ...


def find_tool(tools: Sequence[Tool[Any]], name: str) -> Tool[Any] | ToolResult:
    """The tool called `name`, or a result that lists the names there are."""
    for tool in tools:
        if tool.name == name:
            return tool
    names = [tool.name for tool in tools]
    return ToolResult(False, f"there is no tool {short(name)}; {one_of(name, names)}.")


def validate(tool: Tool[A], arguments: object) -> A | ToolResult:
    """Check `arguments` (parsed JSON) against the tool's model.

    Numbers and booleans given as strings are taken by the schema's type. Returns the typed arguments, or a
    result whose text is one sentence naming each wrong field, its value and what is valid.
    """
    if not isinstance(arguments, Mapping):
        return ToolResult(
            False,
            f"{tool.name}: the arguments are {short(arguments)}, but must be an object of named values.",
        )
    try:
        return tool.Args.model_validate(dict(arguments))
    except ValidationError as error:
        details = error.errors(include_url=False)
        sentences = [_explain(detail, tool.Args) for detail in details[:3]]
        return ToolResult(False, f"{tool.name}: {'; '.join(sentences)}.")


def misfit(tool: Tool[Any], arguments: object, before: Mapping[str, Any]) -> str | None:
    """Why `arguments` that a person has written do not fit, as `validate` says it; None if they do.

    No spelling passes here that the tool would only take for another: words have to be the schema's own, but
    for those that stood in the arguments `before` they were changed.
    """
    checked = validate(tool, arguments)
    if isinstance(checked, ToolResult):
        return checked.text
    assert isinstance(arguments, Mapping)
    known = tool_schema(tool)["properties"]
    for name, value in arguments.items():
        words = known.get(name, {}).get("enum")
        if words and value is not None and value not in words and value != before.get(name):
            return f"{tool.name}: `{name}` is {short(value)}; {one_of(value, words)}."
    return None


def tool_schema(tool: Tool[Any]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments as the model sees it.

    Compact, because it is part of every prompt: no titles, no `$defs`, no null alternatives and no defaults.
    """
    return _schema(tool, exact=False)


def exact_schema(tool: Tool[Any]) -> dict[str, Any]:
    """The narrower schema that the calls of a tool are held to."""
    return _schema(tool, exact=True)


def exactly(shown: dict[str, Any], **exact: Any) -> WithJsonSchema:
    """A JSON schema the model is shown, and what holds besides."""
    return WithJsonSchema({**shown, _EXACT: exact})


def narrowed(**exact: Any) -> ConfigDict:
    """The `model_config` of arguments that are held to more than the model is shown."""
    return ConfigDict(json_schema_extra={_EXACT: exact})


def _schema(tool: Tool[Any], *, exact: bool) -> dict[str, Any]:
    schema = tool.Args.model_json_schema()
    compact = _compact(schema, schema.get("$defs", {}), exact)
    assert isinstance(compact, dict)
    compact.pop("description", None)
    return compact


_EXACT = "x-exact"
_SCHEMA_KEYS = (
    "type",
    "description",
    "enum",
    "items",
    "anyOf",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "properties",
    "required",
)


def _compact(node: Any, definitions: Mapping[str, Any], exact: bool) -> Any:
    if isinstance(node, list):
        return [_compact(item, definitions, exact) for item in node]
    if not isinstance(node, dict):
        return node
    node = dict(node)
    if "$ref" in node:
        node = {**definitions[node.pop("$ref").rsplit("/", 1)[1]], **node}
    if "anyOf" in node:
        real = [option for option in node["anyOf"] if option.get("type") != "null"]
        if len(real) == 1:
            node.pop("anyOf")
            node = {**real[0], **node}
    if exact:
        node |= node.get(_EXACT, {})
    compact = {key: _compact(node[key], definitions, exact) for key in _SCHEMA_KEYS if key in node}
    if "properties" in node:
        compact["properties"] = {
            name: _compact(value, definitions, exact) for name, value in node["properties"].items()
        }
    return compact


_EXPECTED = {
    "string_type": "a string",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "model_type": "an object of named values",
}


def _explain(detail: ErrorDetails, args: type[ToolArgs]) -> str:
    """One clause for one pydantic error."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    *outer, last = detail["loc"] or ("",)
    name = _path(detail["loc"])
    known = _schema_at(args, outer).get("properties", {})
    if kind == "extra_forbidden":
        return f"there is no argument `{name}`; {one_of(last, known)}"
    if kind == "missing":
        return f"`{name}` is missing; {_describe(known.get(last, {}))}"
    if kind == "value_error":
        inner = f"`{name}`: " if outer or isinstance(last, int) else f"`{name}` "
        return f"{inner}{context['error']}" if name else str(context["error"])
    if kind == "literal_error":
        return f"`{name}` is {short(value)}; {one_of(value, map(str, known[last].get('enum', ())))}"
    if kind in _EXPECTED:
        return f"`{name}` is {short(value)}, but must be {_EXPECTED[kind]}"
    if "ge" in context or "le" in context or "gt" in context or "lt" in context:
        return f"`{name}` is {short(value)}, but {detail['msg'].removeprefix('Input ')}"
    return f"`{name}` is {short(value)}: {detail['msg']}"


def _path(location: Sequence[int | str]) -> str:
    """Where a value is, as `edits[0].old_text`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _schema_at(args: type[ToolArgs], location: Sequence[int | str]) -> dict[str, Any]:
    """The compact schema of a value inside the arguments."""
    schema = args.model_json_schema()
    node = _compact(schema, schema.get("$defs", {}), exact=False)
    for part in location:
        node = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
    assert isinstance(node, dict)
    return node


def _describe(schema: Mapping[str, Any]) -> str:
    if options := schema.get("enum"):
        return f"use one of {', '.join(map(str, options))}"
    return schema.get("description") or "give it"
