"""The task file: what a task is, field by field. `docs/tasks.md` explains it to people who write one.

A task's `visible_to_model` is all that a model is ever told; graders, set-up and solution stay on this side.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    PrivateAttr,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from pilotfish.sandbox import Network, SandboxError
from pilotfish.tasks.reader import TaskError
from pilotfish.tools.registry import TOOLS
from pilotfish.tools.words import one_of, short

SEEDS = 1 << 31
"""Seeds of a miniwob task are below this."""

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


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ScreenSize(_Strict):
    """The display in device pixels; `scale` is the number of device pixels per CSS pixel of a web page."""

    width: int = Field(ge=64, le=4096)
    height: int = Field(ge=64, le=4096)
    scale: float = Field(default=1, ge=0.5, le=4)


class WebEnvironment(_Strict):
    """One HTML page, headed in the sandbox, filling the display."""

    kind: Literal["web"]
    page: WorkspacePath
    """The page, relative to the task file; what lies in its folder comes along read-only."""


class _WithHosts(_Strict):
    network: list[Host] = Field(default_factory=list)
    """Hosts that the task needs, each `NAME:PORT`; the person who runs it has to allow them."""


class DesktopEnvironment(_WithHosts):
    """A display with the programs of `setup.launch` on it."""

    kind: Literal["desktop"]


class ShellEnvironment(_WithHosts):
    """A workspace and no display."""

    kind: Literal["shell"]


class CodeEnvironment(_WithHosts):
    """A shell whose workspace may start as a copy of a folder of files."""

    kind: Literal["code"]
    folder: WorkspacePath | None = None
    """The folder, relative to the task file; null starts with the files of `setup` alone."""


class MiniwobEnvironment(_Strict):
    """One MiniWoB++ task; it brings its own instruction, geometry and reward."""

    kind: Literal["miniwob"]
    task: Text
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    time_limit: Literal["classic", "untimed"] = "untimed"


EnvironmentFields = Annotated[
    WebEnvironment | DesktopEnvironment | ShellEnvironment | CodeEnvironment | MiniwobEnvironment,
    Field(discriminator="kind"),
]


class Server(_Strict):
    """A program that serves on a port of the sandbox's own loopback, as long as the task goes on."""

    run: Annotated[list[Text], Field(min_length=1)]
    port: int = Field(ge=1, le=65535)


class Setup(_Strict):
    """What is done before the model's first look, in this order."""

    files: dict[WorkspacePath, str] = Field(default_factory=dict)
    """Path in the workspace: text."""
    commands: list[Text] = Field(default_factory=list)
    """Bash lines, run in the workspace; a line that fails stops the task."""
    serve: list[Server] = Field(default_factory=list)
    """Programs that go on in the background; each must listen on its port before the next is started."""
    launch: list[Annotated[list[Text], Field(min_length=1)]] = Field(default_factory=list)
    """Programs with their arguments; each must show a window (desktop only)."""


class Limits(_Strict):
    """When an episode ends unsolved."""

    steps: int = Field(default=30, ge=1)
    """Tool calls."""
    seconds: float = Field(default=600, gt=0)
    """Wall-clock time of the episode."""
    tokens: int = Field(default=200_000, ge=1)
    """Tokens the model may write."""


class FileEquals(_Strict):
    """The file holds exactly this text."""

    kind: Literal["file_equals"]
    path: WorkspacePath
    text: str


class FileMatches(_Strict):
    """The regular expression is found somewhere in the file (`^` and `$` match at lines)."""

    kind: Literal["file_matches"]
    path: WorkspacePath
    pattern: Regex


class FileAbsent(_Strict):
    """Nothing lies at this path."""

    kind: Literal["file_absent"]
    path: WorkspacePath


class Command(_Strict):
    """A bash command ends as expected, run in the workspace by a clean shell after the model has stopped."""

    kind: Literal["command"]
    run: Text
    exit_code: int = Field(default=0, ge=0, le=255)
    stdout: str | None = None
    """Expected standard output, compared without surrounding blank space; null means any."""
    files: dict[WorkspacePath, str] = Field(default_factory=dict)
    """Hidden files, written for this command only into a fresh folder named by $GRADER."""
    timeout_s: float = Field(default=60, gt=0, le=600)


class PageState(_Strict):
    """A JavaScript expression on the page has this JSON value."""

    kind: Literal["page_state"]
    expression: Text
    equals: JsonValue


class Answer(_Strict):
    """The model's final message, blank space around it aside, equals or matches this."""

    kind: Literal["answer"]
    equals: str | None = None
    matches: Regex | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.equals is None) == (self.matches is None):
            raise ValueError("an answer grader needs exactly one of 'equals' and 'matches'")
        return self


class Infeasible(_Strict):
    """The task cannot be done, and the model said so."""

    kind: Literal["infeasible"]


class All(_Strict):
    """Every one of these passes; the score is the lowest."""

    kind: Literal["all"]
    of: list[Grader] = Field(min_length=1)


class Any_(_Strict):
    """At least one of these passes; the score is the highest."""

    kind: Literal["any"]
    of: list[Grader] = Field(min_length=1)


Grader = Annotated[
    FileEquals | FileMatches | FileAbsent | Command | PageState | Answer | Infeasible | All | Any_,
    Field(discriminator="kind"),
]


class CallStep(_Strict):
    """One tool call of the reference solution."""

    tool: ToolName
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class AnswerStep(_Strict):
    """The final message of the reference solution."""

    answer: str


def _kind_of_step(value: object) -> str:
    if isinstance(value, dict | CallStep | AnswerStep):
        return (
            "AnswerStep"
            if isinstance(value, AnswerStep) or (isinstance(value, dict) and "answer" in value)
            else "CallStep"
        )
    return "line"


Step = Annotated[
    Annotated[Text, Tag("line")]
    | Annotated[CallStep, Tag("CallStep")]
    | Annotated[AnswerStep, Tag("AnswerStep")],
    Discriminator(_kind_of_step),
]
"""A plain line of text is a shell command."""


class Task(_Strict):
    """One task."""

    id: Name
    suite: Name
    instruction: str = ""
    tools: list[ToolName] = Field(default=["computer"], min_length=1)
    environment: EnvironmentFields
    screen: ScreenSize | None = None
    setup: Setup = Field(default_factory=Setup)
    limits: Limits = Field(default_factory=Limits)
    graders: list[Grader] = Field(default_factory=list)
    solution: list[Step] = Field(default_factory=list)

    _path: Path | None = PrivateAttr(default=None)

    @field_validator("tools")
    @classmethod
    def _no_repeats(cls, tools: list[ToolName]) -> list[ToolName]:
        if len(set(tools)) < len(tools):
            raise ValueError("names a tool twice; name each tool once")
        return tools

    @model_validator(mode="after")
    def _fits_its_environment(self) -> Self:
        kind = self.environment.kind
        if kind == "miniwob":
            if self.graders or self.instruction or self.screen:
                raise ValueError(
                    "a miniwob task brings its own instruction, screen and graders; leave them out"
                )
            return self
        if not self.instruction.strip():
            raise ValueError("the instruction is missing; say what the model is to do")
        if not self.graders:
            raise ValueError("there is no grader; add at least one under graders")
        if self.setup.launch and kind != "desktop":
            raise ValueError(f"setup.launch needs a desktop environment, not '{kind}'")
        if kind in ("shell", "code") and {"computer", "browser"} & set(self.tools):
            raise ValueError(f"a '{kind}' task has no display; name tools such as [shell, edit]")
        if kind != "web" and any(grader.kind == "page_state" for grader in self.every_grader()):
            raise ValueError(f"a page_state grader needs a web environment, not '{kind}'")
        for step in self.solution:
            tool = "shell" if isinstance(step, str) else step.tool if isinstance(step, CallStep) else None
            if tool is not None and tool not in self.tools:
                raise ValueError(f"a step of the solution uses the tool '{tool}'; add it under tools")
        if not self.feasible and len(self.graders) > 1:
            raise ValueError("an infeasible grader stands alone; remove the others")
        return self

    def every_grader(self) -> list[LeafGrader]:
        """The graders with `all` and `any` flattened away."""

        def leaves(graders: list[Grader]) -> list[LeafGrader]:
            return [
                leaf
                for grader in graders
                for leaf in (leaves(grader.of) if isinstance(grader, All | Any_) else [grader])
            ]

        return leaves(self.graders)

    @property
    def feasible(self) -> bool:
        """Whether the task can be done at all; if not, saying so is the one right end."""
        return not any(isinstance(grader, Infeasible) for grader in self.every_grader())

    @property
    def hosts(self) -> list[str]:
        """The hosts that it needs of the network; whether it gets them is for the person to say."""
        environment = self.environment
        return environment.network if isinstance(environment, _WithHosts) else []

    @property
    def name(self) -> str:
        """`suite/id`, unique over everything that ships."""
        return f"{self.suite}/{self.id}"

    @property
    def folder(self) -> Path:
        """Where the task's own files lie; the task must have come from a file."""
        assert self._path is not None, f"{self.name} was not loaded from a file"
        return self._path.parent

    def is_own_file(self, path: Path) -> bool:
        """Whether this path is the task file itself, which a model never sees."""
        return path.resolve() == self._path

    def visible_to_model(self) -> dict[str, Any]:
        """All that a model may be told of the task file: the instruction and the names of its tools."""
        return {"instruction": self.instruction, "tools": list(self.tools)}

    def with_seed(self, seed: int) -> Task:
        """The same task with another seed; a task without seeds (all but miniwob) as it is.

        Raises `TaskError` for a seed outside 0..SEEDS - 1.
        """
        if not isinstance(self.environment, MiniwobEnvironment):
            return self
        if not 0 <= seed < SEEDS:
            raise TaskError(
                f"The seed {seed} of {self.name} is out of range; choose one of 0 to {SEEDS - 1}."
            )
        return self._with_environment(seed=seed)

    def with_time_limit(self, time_limit: Literal["classic", "untimed"]) -> Task:
        """The same task under another clock; a task without one (all but miniwob) as it is."""
        if not isinstance(self.environment, MiniwobEnvironment):
            return self
        return self._with_environment(time_limit=time_limit)

    def _with_environment(self, **changes: Any) -> Task:
        environment = MiniwobEnvironment.model_validate(self.environment.model_dump() | changes)
        return self.model_copy(update={"environment": environment})


LeafGrader = FileEquals | FileMatches | FileAbsent | Command | PageState | Answer | Infeasible
All.model_rebuild()
Any_.model_rebuild()
Task.model_rebuild()
