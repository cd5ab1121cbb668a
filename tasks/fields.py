"""The kinds of values that task files are made of."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from pilotfish.sandbox import Network, SandboxError
from pilotfish.tools.registry import TOOLS
from pilotfish.tools.words import one_of, short

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
Text = Annotated[str, StringConstraints(min_length=1)]


def _workspace_path(value: str) -> str:
    path = PurePosixPath(value)
    if not value or "\0" in value or path.is_absolute() or ".." in path.parts or path == PurePosixPath("."):
        raise ValueError(f"{short(value)} must be a path inside the workspace, such as notes/todo.txt")
    return value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{short(value)} is not a regular expression ({error})") from None
    return value


def _tool(value: str) -> str:
    if value not in TOOLS:
        raise ValueError(f"there is no tool {short(value)}; {one_of(value, TOOLS)}")
    return value


def _host(value: str) -> str:
    try:
        Network((value,))
    except SandboxError as error:
        raise ValueError(str(error).removesuffix(".")) from None
    if "=" in value:
        raise ValueError(f"'{value}' says where a name leads, which is for the person who runs the task")
    return value


Host = Annotated[str, AfterValidator(_host)]
ToolName = Annotated[str, AfterValidator(_tool)]
WorkspacePath = Annotated[str, AfterValidator(_workspace_path)]
Regex = Annotated[str, AfterValidator(_regex)]


class Strict(BaseModel):
    """Every key is known, every value of its type, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
