"""The task file: what a task is, field by field. `docs/tasks.md` explains it to people who write one.

A task's `visible_to_model` is all that a model is ever told; graders, set-up and solution stay on this side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, JsonValue, PrivateAttr, Tag, field_validator, model_validator

from pilotfish.tasks.environment_fields import (
    SEEDS,
    SELF_GRADED,
    EditsEnvironment,
    EnvironmentFields,
    MiniwobEnvironment,
    RepositoryEnvironment,
    ScreenSize,
    SwebenchEnvironment,
    WithHosts,
)
from pilotfish.tasks.fields import Name, Strict, Text, ToolName, WorkspacePath
from pilotfish.tasks.grader_fields import All, Any_, Grader, Infeasible, LeafGrader
from pilotfish.tasks.reader import TaskError


class Server(Strict):
    """A program that serves on a port of the sandbox's own loopback, as long as the task goes on."""

    run: Annotated[list[Text], Field(min_length=1)]
    port: int = Field(ge=1, le=65535)


class Setup(Strict):
    """What is done before the model's first look, in this order."""

    files: dict[WorkspacePath, str] = Field(default_factory=dict)
    """Path in the workspace: text."""
    commands: list[Text] = Field(default_factory=list)
    """Bash lines, run in the workspace; a line that fails stops the task."""
    serve: list[Server] = Field(default_factory=list)
    """Programs that go on in the background; each must listen on its port before the next is started."""
    launch: list[Annotated[list[Text], Field(min_length=1)]] = Field(default_factory=list)
    """Programs with their arguments; each must show a window (desktop only)."""


class Limits(Strict):
    """When an episode ends unsolved."""

    steps: int = Field(default=30, ge=1)
    """Tool calls."""
    seconds: float = Field(default=600, gt=0)
    """Wall-clock time of the episode."""
    tokens: int = Field(default=200_000, ge=1)
    """Tokens the model may write."""


class CallStep(Strict):
    """One tool call of the reference solution."""

    tool: ToolName
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class UndoStep(Strict):
    """What undoes the changes of a repository task, one replacement each."""

    undo: Literal["changes"]


class AnswerStep(Strict):
    """The final message of the reference solution."""

    answer: str


def _kind_of_step(value: object) -> str:
    if isinstance(value, dict):
        return {"answer": "AnswerStep", "undo": "UndoStep"}.get(next(iter(value), ""), "CallStep")
    return type(value).__name__ if isinstance(value, Strict) else "line"


Step = Annotated[
    Annotated[Text, Tag("line")]
    | Annotated[CallStep, Tag("CallStep")]
    | Annotated[UndoStep, Tag("UndoStep")]
    | Annotated[AnswerStep, Tag("AnswerStep")],
    Discriminator(_kind_of_step),
]
"""A plain line of text is a shell command."""


class Task(Strict):
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
        if kind in ("miniwob", "edits"):
            if self.graders or self.instruction or self.screen:
                word = "a miniwob" if kind == "miniwob" else "an edits"
                raise ValueError(
                    f"{word} task brings its own instruction, screen and graders; leave them out"
                )
            return self
        if not self.instruction.strip():
            raise ValueError("the instruction is missing; say what the model is to do")
        if kind in SELF_GRADED and self.graders:
            raise ValueError(f"a '{kind}' task brings its own graders; leave them out")
        if kind not in SELF_GRADED and not self.graders:
            raise ValueError("there is no grader; add at least one under graders")
        if self.setup.launch and kind != "desktop":
            raise ValueError(f"setup.launch needs a desktop environment, not '{kind}'")
        if kind not in ("web", "desktop") and {"computer", "browser"} & set(self.tools):
            raise ValueError(f"a '{kind}' task has no display; name tools such as [shell, edit]")
        if kind != "web" and any(grader.kind == "page_state" for grader in self.every_grader()):
            raise ValueError(f"a page_state grader needs a web environment, not '{kind}'")
        if kind != "repository" and any(
            grader.kind in ("tests", "mutants") for grader in self.every_grader()
        ):
            raise ValueError(f"a tests or mutants grader needs a repository environment, not '{kind}'")
        for step in self.solution:
            tool = "shell" if isinstance(step, str) else step.tool if isinstance(step, CallStep) else None
            if isinstance(step, UndoStep):
                tool = "edit"
                if not (isinstance(self.environment, RepositoryEnvironment) and self.environment.changes):
                    raise ValueError("a step of the solution undoes changes, and the environment makes none")
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
        return environment.network if isinstance(environment, WithHosts) else []

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
        """The same task with another seed; a task without seeds (all but miniwob and edits) as it is.

        Raises `TaskError` for a seed outside 0..SEEDS - 1.
        """
        if not isinstance(self.environment, MiniwobEnvironment | EditsEnvironment):
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

    def with_clones(
        self, repositories: Path | None, test_command: str | None, test_environment: Path | None
    ) -> Task:
        """The same task with what a person says of the machine; one that is not of SWE-bench as it is.

        repositories: the folder of clones. test_command: bash; `{files}` in it stands for the files of the
        tests. test_environment: a virtual environment to test with.
        """
        if not isinstance(self.environment, SwebenchEnvironment):
            return self
        changes = {
            "repositories": None if repositories is None else str(repositories),
            "test_command": test_command,
            "test_environment": None if test_environment is None else str(test_environment),
        }
        environment = self.environment.model_copy(update=changes)
        return self.model_copy(update={"environment": environment})

    def _with_environment(self, **changes: Any) -> Task:
        environment = type(self.environment).model_validate(self.environment.model_dump() | changes)
        return self.model_copy(update={"environment": environment})
