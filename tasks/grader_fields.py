"""What must hold at the end of a task: the `graders` of a task file, by their kind."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from pilotfish.tasks.environment_fields import Change
from pilotfish.tasks.fields import Regex, Strict, Text, WorkspacePath


class FileEquals(Strict):
    """The file holds exactly this text."""

    kind: Literal["file_equals"]
    path: WorkspacePath
    text: str


class FileMatches(Strict):
    """The regular expression is found somewhere in the file (`^` and `$` match at lines)."""

    kind: Literal["file_matches"]
    path: WorkspacePath
    pattern: Regex


class FileAbsent(Strict):
    """Nothing lies at this path."""

    kind: Literal["file_absent"]
    path: WorkspacePath


class Command(Strict):
    """A bash command ends as expected, run in the workspace by a clean shell after the model has stopped."""

    kind: Literal["command"]
    run: Text
    exit_code: int = Field(default=0, ge=0, le=255)
    stdout: str | None = None
    """Expected standard output, compared without surrounding blank space; null means any."""
    files: dict[WorkspacePath, str] = Field(default_factory=dict)
    """Hidden files, written for this command only into a fresh folder named by $GRADER."""
    timeout_s: float = Field(default=60, gt=0, le=600)


class Tests(Strict):
    """Every test in these hidden files passes, with pytest, on a fresh copy with the model's patch
    (repository only).
    """

    kind: Literal["tests"]
    files: Annotated[dict[WorkspacePath, str], Field(min_length=1)]
    timeout_s: float = Field(default=120, gt=0, le=1800)


class Mutants(Strict):
    """The tests that the model wrote below `tests` pass on the package as it is, and fail on each of these
    changes of it (repository only).
    """

    kind: Literal["mutants"]
    tests: WorkspacePath = "tests"
    changes: list[Change] = Field(min_length=1)
    timeout_s: float = Field(default=300, gt=0, le=1800)


class PageState(Strict):
    """A JavaScript expression on the page has this JSON value."""

    kind: Literal["page_state"]
    expression: Text
    equals: JsonValue


class Answer(Strict):
    """The model's final message, blank space around it aside, equals or matches this."""

    kind: Literal["answer"]
    equals: str | None = None
    matches: Regex | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.equals is None) == (self.matches is None):
            raise ValueError("an answer grader needs exactly one of 'equals' and 'matches'")
        return self


class Infeasible(Strict):
    """The task cannot be done, and the model said so."""

    kind: Literal["infeasible"]


class All(Strict):
    """Every one of these passes; the score is the lowest."""

    kind: Literal["all"]
    of: list[Grader] = Field(min_length=1)


class Any_(Strict):
    """At least one of these passes; the score is the highest."""

    kind: Literal["any"]
    of: list[Grader] = Field(min_length=1)


Grader = Annotated[
    FileEquals
    | FileMatches
    | FileAbsent
    | Command
    | Tests
    | Mutants
    | PageState
    | Answer
    | Infeasible
    | All
    | Any_,
    Field(discriminator="kind"),
]

LeafGrader = (
    FileEquals | FileMatches | FileAbsent | Command | Tests | Mutants | PageState | Answer | Infeasible
)
All.model_rebuild()
Any_.model_rebuild()
