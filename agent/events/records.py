"""What a log's lines say, one class for each type of record."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pilotfish.agent.safetext import all_encodable
from pilotfish.model.protocol import Usage

VERSION = 1


class Record(BaseModel):
    """What every record carries. Added fields need defaults, so that older logs stay readable."""

    model_config = ConfigDict(frozen=True)

    v: int = VERSION
    n: int = 0
    """Ordinal in the log, from 1, unique over all resumes."""
    t: float = Field(default=0.0, ge=0, le=253e9)
    """Unix time in seconds, until the year 9999."""
    parent: int = 0
    """The ordinal of the call that handed a sub-task over, in whose conversation this happened; 0 is the
    run's own.
    """
    lane: int = 0
    """Which of the episodes that are played at once this belongs to; 0 where they are played in turn."""

    @model_validator(mode="before")
    @classmethod
    def _hold_text_only(cls, data: Any) -> Any:
        return all_encodable(data)


class CallData(BaseModel):
    """A tool call as the model made it."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _hold_text_only(cls, data: Any) -> Any:
        return all_encodable(data)

    id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    confidence: float | None = None
    """The probability that the model gave to the call's tokens, all together; None where it is not known."""


class ClipData(BaseModel):
    """A clip: names of four frames in the frame store, their times in seconds, and how the screen was."""

    model_config = ConfigDict(frozen=True)

    frames: tuple[str, str, str, str]
    times_s: tuple[float, float, float, float]
    settled: bool
    word: Literal["settled", "unchanged", "unsettled"]


class AttemptData(BaseModel):
    """A connection that a program in the sandbox asked for, as `pilotfish.sandbox.Attempt` describes it."""

    model_config = ConfigDict(frozen=True)

    number: int
    began: float = 0.0
    method: str = ""
    host: str = ""
    port: int = 0
    verdict: Literal["allowed", "refused", "failed"]
    why: str = ""
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    over: bool = True


class RunStarted(Record):
    type: Literal["run_started"] = "run_started"
    run: str
    pilotfish: str
    command: Literal["run", "bench", "demo", "code"]
    model: str
    attention: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    """What `resume` needs to go on: the command's own arguments."""
    sandbox_level: int = 3
    """What stood around the sandbox, as in docs/sandbox.md."""
    on_host: bool = False
    """Whether the run was allowed to act outside of a sandbox."""
    network: list[str] = Field(default_factory=list)
    """The hosts that programs in the sandbox might reach."""
    host_desktop: str = ""
    """The warning of a run whose computer tool acts on the user's own desktop, with the monitor."""
    host_stop: str = ""
    """How such a run is stopped in an emergency."""


class Resumed(Record):
    """A new process took the run over. `unknown_call` had been started and its outcome was never written."""

    type: Literal["resumed"] = "resumed"
    unknown_call: CallData | None = None
    note: str = ""


class EpisodeStarted(Record):
    type: Literal["episode_started"] = "episode_started"
    episode: int
    task: str
    seed: int | None = None
    model: str = ""
    """Who plays; a bench run has a baseline beside the model."""
    instruction: str
    tools: list[dict[str, Any]] = Field(default_factory=list)
    screen: tuple[int, int] | None = None
    clip: ClipData | None = None


class LaidOut(Record):
    """The repository that stands before the task, in `layout.json` of the run's folder, or, of a
    benchmark, in `layouts/DIGEST.json`. digest: its SHA-256; '' where nothing is laid out, and `note` says
    why.

    tokens: of the text, at most `budget`. counted: by the model's "tokenizer", or as an "estimate" with a
    margin. files, left_out: how many are in it whole, and how many are not.
    """

    type: Literal["laid_out"] = "laid_out"
    digest: str = ""
    tokens: int = 0
    budget: int = 0
    counted: Literal["tokenizer", "estimate"] = "tokenizer"
    files: int = 0
    left_out: int = 0
    seconds: float = 0.0
    note: str = ""


class Prefilled(Record):
    """The model holds what was laid out: so many tokens, of which `loaded` came from the disk, where `saved`
    were kept for later tasks. note: what stood against it.
    """

    type: Literal["prefilled"] = "prefilled"
    tokens: int = 0
    loaded: int = 0
    saved: int = 0
    seconds: float = 0.0
    note: str = ""


class Answered(Record):
    """What the model said. `kept` is False for a reply that was sampled again and never joined the
    conversation.
    """

    type: Literal["answered"] = "answered"
    step: int
    text: str = ""
    reasoning: str | None = None
    calls: list[CallData] = Field(default_factory=list)
    end: str = "end"
    usage: Usage = Field(default_factory=Usage)
    logprobs: list[float] | None = None
    """Natural logarithm of the probability of each token written, if the run was to keep them."""
    seconds: float = 0.0
    kept: bool = True


class Intended(Record):
    """A call that is about to run."""

    type: Literal["intended"] = "intended"
    step: int
    call: CallData


class Resulted(Record):
    """What became of a call and what the model was told: `text`, the observation word and the clip."""

    type: Literal["resulted"] = "resulted"
    step: int
    call_id: str
    ok: bool
    text: str
    end: str | None = None
    executed: bool = True
    clip: ClipData | None = None
    image: str | None = None
    seconds: float = 0.0


class SnapshotTaken(Record):
    """The workspace was kept before a call that may write, or before `tests`, whose traces are taken away
    again. `snapshot` is '' when that failed: `note` says why.
    """

    type: Literal["snapshot_taken"] = "snapshot_taken"
    step: int
    snapshot: str = ""
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    note: str = ""
    tests: bool = False


class Tested(Record):
    """A run of the project's own tests. attempt: 0 before any change, then which look at the work it was.

    status: of the command, None when it did not end in time. failed: names of tests, as far as the output
    has them. tree: git's name of what was tested. ran_none: whether the output says that there was no test.
    """

    type: Literal["tested"] = "tested"
    attempt: int = 0
    command: str
    status: int | None = None
    failed: list[str] = Field(default_factory=list)
    output: str = ""
    seconds: float = 0.0
    tree: str = ""
    note: str = ""
    ran_none: bool = False


class SentBack(Record):
    """The model had said that it has finished and was told why it has not; it goes on."""

    type: Literal["sent_back"] = "sent_back"
    step: int
    text: str


class HandedBack(Record):
    """What came of work on a repository. patch: a file; branch: a new one in the user's repository, '' for
    none; base, commit: git's names of where the work began and of its result, '' where nothing changed.
    undone: sentences on what was asked for and could not be made.
    """

    type: Literal["handed_back"] = "handed_back"
    base: str
    commit: str = ""
    patch: str = ""
    branch: str = ""
    changed: list[tuple[str, str, str]] = Field(default_factory=list)
    """How (A, D, M, R, T), path, and the path before."""
    notes: list[str] = Field(default_factory=list)
    undone: list[str] = Field(default_factory=list)


class PlanItem(BaseModel):
    """One thing to do, as the model keeps it."""

    model_config = ConfigDict(frozen=True)

    title: str
    status: Literal["open", "doing", "done", "dropped"] = "open"


class Planned(Record):
    """The model's plan, whole, as it is from here on."""

    type: Literal["planned"] = "planned"
    step: int
    items: list[PlanItem] = Field(default_factory=list)


class Told(Record):
    """A sentence from the loop to the model, such as a nudge to make a call."""

    type: Literal["told"] = "told"
    step: int
    text: str


class Asked(Record):
    """A call waits for a person's word. why: the rule that asks, or the default."""

    type: Literal["asked"] = "asked"
    step: int
    call: CallData
    why: str = ""


class Decided(Record):
    """What a person said of a call: run it this once, for this run (`task`) all that is like it too, or
    deny it.

    arguments: what runs instead of the model's own, where the person has edited them.
    """

    type: Literal["decided"] = "decided"
    step: int
    call_id: str
    verdict: Literal["once", "task", "deny"]
    reason: str = ""
    arguments: dict[str, Any] | None = None


class RuleAdded(Record):
    """A person's rule, as in the settings, for this run; `saved` for later ones too."""

    type: Literal["rule_added"] = "rule_added"
    rule: dict[str, Any]
    saved: bool = False


class MessageLeft(Record):
    """A message to the agent that was accepted from a person; `Spoken` is recorded when it is told."""

    type: Literal["message_left"] = "message_left"
    text: str


class Spoken(Record):
    """A person's message to the agent. It joins the conversation as a turn before the next answer."""

    type: Literal["spoken"] = "spoken"
    step: int
    text: str


class Paused(Record):
    """A person has the run hold before its next step, or go on."""

    type: Literal["paused"] = "paused"
    step: int
    on: bool


class TookOver(Record):
    """A person has taken mouse and keyboard of the sandbox."""

    type: Literal["took_over"] = "took_over"
    step: int


class GaveBack(Record):
    """The person has given them back. text: what the model is told, with the clip, as a turn of the user.
    did: what the person did, in words; of text only its length, unless the setting `log_typing` keeps it.
    """

    type: Literal["gave_back"] = "gave_back"
    step: int
    text: str
    clip: ClipData | None = None
    inputs: int = 0
    did: tuple[str, ...] = ()
    seconds: float = 0.0


class SteppedBack(Record):
    """The run is before step `to` again; what was recorded of that step and of later ones is undone. note:
    what could not be brought back as it was.

    It is recorded when it begins, with `over` False, and again when the files, and the screen if there is
    one, are as they were.
    """

    type: Literal["stepped_back"] = "stepped_back"
    step: int
    to: int
    over: bool = True
    note: str = ""
    told: str = ""
    """What the model is told, with the clip, as a turn of the user; '' where it need not know."""
    clip: ClipData | None = None


class Networked(Record):
    """What programs in the sandbox tried of the network. An allowed attempt is told at its beginning and
    again when it is `over`; note: a sentence about the proxy itself.
    """

    type: Literal["networked"] = "networked"
    attempts: list[AttemptData] = Field(default_factory=list)
    note: str = ""


class EpisodeEnded(Record):
    type: Literal["episode_ended"] = "episode_ended"
    episode: int
    end: str
    """done, infeasible, answered, finished (the task ended by itself), or the name of a limit or an error."""
    answer: str = ""
    score: float = 0.0
    passed: bool | None = False
    """None when nothing was graded; `score` means nothing then."""
    reason: str = ""
    steps: int = 0
    seconds: float = 0.0
    product: dict[str, str] = {}
    """What the model made, for tasks that are handed in: a prediction without the model's name."""


class RunEnded(Record):
    type: Literal["run_ended"] = "run_ended"
    status: Literal["finished", "interrupted", "failed"]
    reason: str = ""


Event = (
    RunStarted
    | Resumed
    | EpisodeStarted
    | LaidOut
    | Prefilled
    | Answered
    | SnapshotTaken
    | Intended
    | Resulted
    | Tested
    | SentBack
    | HandedBack
    | Planned
    | Told
    | Asked
    | Decided
    | RuleAdded
    | MessageLeft
    | Spoken
    | Paused
    | TookOver
    | GaveBack
    | SteppedBack
    | Networked
    | EpisodeEnded
    | RunEnded
)
