"""Where a task is played: the `environment` of a task file, by its kind."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pilotfish.tasks.fields import Host, Strict, Text, WorkspacePath

SEEDS = 1 << 31
"""Seeds of a miniwob task and of an edit are below this."""


class ScreenSize(Strict):
    """The display in device pixels; `scale` is the number of device pixels per CSS pixel of a web page."""

    width: int = Field(ge=64, le=4096)
    height: int = Field(ge=64, le=4096)
    scale: float = Field(default=1, ge=0.5, le=4)


class WebEnvironment(Strict):
    """One HTML page, headed in the sandbox, filling the display."""

    kind: Literal["web"]
    page: WorkspacePath
    """The page, relative to the task file; what lies in its folder comes along read-only."""


class WithHosts(Strict):
    network: list[Host] = Field(default_factory=list)
    """Hosts that the task needs, each `NAME:PORT`; the person who runs it has to allow them."""


class DesktopEnvironment(WithHosts):
    """A display with the programs of `setup.launch` on it."""

    kind: Literal["desktop"]


class ShellEnvironment(WithHosts):
    """A workspace and no display."""

    kind: Literal["shell"]


class CodeEnvironment(WithHosts):
    """A shell whose workspace may start as a copy of a folder of files."""

    kind: Literal["code"]
    folder: WorkspacePath | None = None
    """The folder, relative to the task file; null starts with the files of `setup` alone."""


class MiniwobEnvironment(Strict):
    """One MiniWoB++ task; it brings its own instruction, geometry and reward."""

    kind: Literal["miniwob"]
    task: Text
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    time_limit: Literal["classic", "untimed"] = "untimed"


class HumanevalEnvironment(Strict):
    """One problem of HumanEval; it brings its own test."""

    kind: Literal["humaneval"]
    problem: Text
    """Its `task_id`."""
    prompt: Text
    entry_point: Text
    test: Text


class HarborEnvironment(WithHosts):
    """One task folder of Harbor's form; it brings its own tests."""

    kind: Literal["harbor"]
    folder: Text
    refused: str = ""
    """Why it cannot be played here, as a sentence; empty if it can."""
    verifier_s: float = Field(default=600, gt=0)


class SwebenchEnvironment(Strict):
    """One instance of a data set in SWE-bench's form; it brings its own tests.

    The last three are the person's, not the data set's: see `Task.with_clones`.
    """

    kind: Literal["swebench"]
    instance: Text
    repo: Text
    base_commit: Text
    test_patch: str
    fail_to_pass: list[Text] = Field(min_length=1)
    pass_to_pass: list[Text]
    repositories: str | None = None
    test_command: str | None = None
    test_environment: str | None = None


class Change(Strict):
    """One place in a file, and what is put there instead."""

    path: WorkspacePath
    find: Text
    """Found once in the file."""
    replace: str


class RepositoryEnvironment(Strict):
    """The source of an installed package as a git repository, below `src`, and changes that make the task."""

    kind: Literal["repository"]
    package: Text
    """The name of the distribution."""
    version: Text
    only: list[Text] = Field(default_factory=list)
    """Patterns of the files that come along, such as `tqdm/*.sh`; none means all."""
    changes: list[Change] = Field(default_factory=list)
    programs: list[Text] = Field(default_factory=list)
    """Programs besides Python that it needs; `node` is the one that comes with Playwright."""


class EditsEnvironment(Strict):
    """A small edit of a package; it brings its own files, instruction and verdict."""

    kind: Literal["edits"]
    package: Text
    """Its import name, or its folder."""
    edit: Literal["rename", "value", "mend"]
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    tokens: int = Field(default=0, ge=0)
    """What the package laid out before the task may take of the context."""


EnvironmentFields = Annotated[
    WebEnvironment
    | DesktopEnvironment
    | ShellEnvironment
    | CodeEnvironment
    | MiniwobEnvironment
    | RepositoryEnvironment
    | HumanevalEnvironment
    | HarborEnvironment
    | EditsEnvironment
    | SwebenchEnvironment,
    Field(discriminator="kind"),
]

KEEPS_FILES = ("shell", "code", "repository", "humaneval", "swebench")
"""Kinds of environments that are all in the files of the workspace, so that a run can go on from these."""

SELF_GRADED = ("miniwob", "humaneval", "swebench", "harbor", "edits")
"""Kinds of environments that bring their own verdict."""
