"""The event log of a run: `events.jsonl`, one record a line, and `frames/`, one PNG per distinct frame.

A record is on disk before anything depends on it: every line is flushed with fsync, and a call is written
as an intent before it runs and as a result after. One process writes, under a lock; anyone may read at any
time. A line that a crash has torn is ignored, and so is a record of a type or version that this reader does
not know.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from pilotfish.agent.safetext import all_encodable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

VERSION = 1
EVENTS, FRAMES = "events.jsonl", "frames"


class LogError(Exception):
    """A run folder cannot be written or read; the message is one sentence with the mend."""


class Record(BaseModel):
    """What every record carries. Added fields need defaults, so that older logs stay readable."""

    model_config = ConfigDict(frozen=True)

    v: int = VERSION
    n: int = 0
    """Ordinal in the log, from 1, unique over all resumes."""
    t: float = 0.0
    """Unix time in seconds."""

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


class ClipData(BaseModel):
    """A clip: names of four frames in the frame store, their times in seconds, and how the screen was."""

    model_config = ConfigDict(frozen=True)

    frames: tuple[str, str, str, str]
    times_s: tuple[float, float, float, float]
    settled: bool
    word: Literal["settled", "unchanged", "unsettled"]


class UsageData(BaseModel):
    """What one answer cost, as `pilotfish.model.protocol.Usage` describes it; None is unknown."""

    model_config = ConfigDict(frozen=True)

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    queue_s: float | None = None
    vision_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    cache_bytes: int | None = None
    device: str | None = None
    sequences: int | None = None
    retries: int = 0


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
    command: Literal["run", "bench", "demo"]
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
    usage: UsageData = Field(default_factory=UsageData)
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
    """The workspace was kept before a call that may write. `snapshot` is '' when that failed: `note` says
    why.
    """

    type: Literal["snapshot_taken"] = "snapshot_taken"
    step: int
    snapshot: str = ""
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    note: str = ""


class Told(Record):
    """A sentence from the loop to the model, such as a nudge to make a call."""

    type: Literal["told"] = "told"
    step: int
    text: str


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


class RunEnded(Record):
    type: Literal["run_ended"] = "run_ended"
    status: Literal["finished", "interrupted", "failed"]
    reason: str = ""


Event = (
    RunStarted
    | Resumed
    | EpisodeStarted
    | Answered
    | SnapshotTaken
    | Intended
    | Resulted
    | Told
    | Networked
    | EpisodeEnded
    | RunEnded
)
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="type")])
_TYPES = tuple(kind.model_fields["type"].default for kind in Event.__args__)


class FrameStore:
    """Frames as PNG files named by their content, so that equal frames are stored once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: set[str] = set()

    def put(self, frame: npt.NDArray[np.uint8]) -> str:
        """Store an RGB frame [height, width, 3] unless it is there, and return its name.

        Raises `LogError` when it cannot be written. A frame is whole or absent: it is renamed into place.
        """
        import numpy as np

        frame = np.ascontiguousarray(frame)
        digest = hashlib.blake2b(frame.data, digest_size=16, person=b"%dx%d" % frame.shape[:2])
        name = digest.hexdigest()
        path = self.path(name)
        if name in self._known or path.exists():
            self._known.add(name)
            return name
        from PIL import Image

        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self.folder.mkdir(exist_ok=True)
            with part.open("wb") as file:
                Image.fromarray(frame).save(file, format="PNG", compress_level=1)
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise LogError(_cannot("write", path, error)) from error
        self._known.add(name)
        return name

    def path(self, name: str) -> Path:
        """Where a frame lies. Raises `LogError` for a name that this store cannot have given."""
        if not name.isalnum():
            raise LogError(f"'{name}' is not the name of a frame; the event log was changed by hand.")
        return self.folder / f"{name}.png"

    def get(self, name: str) -> npt.NDArray[np.uint8]:
        """A frame as uint8 RGB [height, width, 3]. Raises `LogError` when it is missing or damaged."""
        import numpy as np
        from PIL import Image

        path = self.path(name)
        try:
            with Image.open(path) as image:
                return np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError) as error:
            raise LogError(
                f"The frame {path} is missing or damaged; the run can be read without it."
            ) from error


class EventLog:
    """The one writer of a run's log. Use as a context manager, which holds the lock."""

    def __init__(self, folder: Path, on_event: Callable[[Event], None] | None = None) -> None:
        """Open the log of a run folder, which is created if need be; records are added after those there are.

        on_event: told each record after it was written.
        Raises `LogError` when the folder cannot be written or another process holds the lock.
        """
        self.folder = folder
        self.frames = FrameStore(folder / FRAMES)
        self.path = folder / EVENTS
        self._on_event = on_event
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LogError(_cannot("write", folder, error)) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            message = f"The run {folder} is being written by another process; wait for it or stop it."
            raise LogError(message) from error
        run = read_run(folder)
        # Lines that this reader skips have ordinals too.
        self._last = max([event.n for event in run.events], default=0) + len(run.warnings)
        self._end_torn_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def append(self, event: Event) -> None:
        """Write one record. When this returns, the record is on disk.

        Raises `LogError` when it cannot be written; the records before it are intact then.
        """
        event = event.model_copy(update={"n": self._last + 1, "t": round(time.time(), 3)})
        line = json.dumps(event.model_dump(mode="python"), default=str) + "\n"
        self._write(line.encode())
        self._last += 1
        if self._on_event is not None:
            self._on_event(event)

    def _write(self, data: bytes) -> None:
        size = os.fstat(self._fd).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, size)
            raise LogError(_cannot("write", self.path, error)) from error

    def _end_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._write(b"\n")


@dataclass(frozen=True)
class RunLog:
    """A run as its folder tells it."""

    folder: Path
    events: Sequence[Event]
    warnings: Sequence[str] = field(default_factory=tuple)

    @property
    def frames(self) -> FrameStore:
        return FrameStore(self.folder / FRAMES)

    @property
    def started(self) -> RunStarted:
        """The run's first record. Raises `LogError` when it has none."""
        for event in self.events:
            if isinstance(event, RunStarted):
                return event
        raise LogError(f"The log {self.folder / EVENTS} holds no run; give the folder of a run.")

    @property
    def ended(self) -> RunEnded | None:
        """How the run ended, or None while it runs or after it was killed."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, RunEnded) else None

    def episodes(self) -> list[list[Event]]:
        """The records of each episode, from its start to its end or to where it broke off.

        An episode that was stopped goes on where the run was resumed.
        """
        groups: list[list[Event]] = []
        is_open = False
        for event in self.events:
            match event:
                case EpisodeStarted():
                    groups.append([])
                    is_open = True
                case RunEnded():
                    is_open = False
                case Resumed():
                    is_open = bool(groups) and not has_ended(groups[-1])
                case Networked() if groups and not is_open:
                    groups[-1].append(event)  # told a moment after the end
            if is_open:
                groups[-1].append(event)
                is_open = not has_ended(groups[-1][-1:])
        return groups


def has_ended(group: Sequence[Event]) -> bool:
    """Whether an episode's records hold an end that a resume would not undo."""
    return any(isinstance(event, EpisodeEnded) and event.end != "stopped" for event in group)


def read_run(folder: Path) -> RunLog:
    """Read a run's log. What cannot be understood is skipped and named in `warnings`.

    Raises `LogError` when there is no log.
    """
    path = folder / EVENTS
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LogError(_cannot("read", path, error)) from error
    events: list[Event] = []
    warnings: list[str] = []
    for number, line, whole in _lines(data):
        try:
            events.append(_parse(line))
        except ValueError as error:
            what = str(error) if whole else "it was torn by a crash"
            warnings.append(f"Line {number} of {path} was skipped: {what}.")
    return RunLog(folder, events, warnings)


def _lines(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Number, content and whether it ends in a line feed, of each line that is not blank."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line, number < len(lines)


def _parse(line: bytes) -> Event:
    """One record. Raises ValueError with the end of a sentence that says why it was skipped."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it is not a JSON object") from None
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    if not isinstance(fields.get("v"), int) or fields["v"] > VERSION:
        raise ValueError(f"its version is {fields.get('v')!r} and this program reads up to {VERSION}")
    if fields.get("type") not in _TYPES:
        raise ValueError(f"its type {fields.get('type')!r} is not known")
    try:
        return _EVENT.validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"its field {'.'.join(map(str, first['loc'][1:]))} is wrong") from None


def option_of(started: RunStarted, name: str) -> dict[str, Any]:
    """One of the options a run was started with. Raises `LogError` when its log was changed by hand."""
    option = started.options.get(name)
    if not isinstance(option, dict):
        raise LogError(cannot_go_on(started))
    return dict(option)


def cannot_go_on(started: RunStarted) -> str:
    """The sentence about a run whose log does not say what it was to do."""
    return f"The log of {started.run} does not say what the run was to do; start a new one."


def new_run_folder(record_dir: Path) -> Path:
    """A folder for a new run below `record_dir`, named by the time and a random tail; it is not created
    yet.
    """
    return record_dir / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def check_writable(folder: Path) -> None:
    """Raise `LogError` unless files can be written in a folder, or in the nearest above it that there is."""
    home = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise LogError(_cannot("write", folder, error)) from error


def _cannot(verb: str, path: Path, error: OSError) -> str:
    mends = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some space",
        errno.EFBIG: "raise the file size limit",
        errno.EACCES: "check its permissions",
        errno.EPERM: "check its permissions",
        errno.EROFS: "choose a folder that can be written",
        errno.ENOENT: "check the path",
        errno.ENOTDIR: "choose a folder",
    }
    mend = mends.get(error.errno or 0, "choose another folder")
    return f"Cannot {verb} {path} ({error.strerror or error}); {mend}."
