"""Every setting, in one class. A file, the environment and the command line's flags set the same fields.

Later ones win: defaults, `~/.config/pilotfish/config.toml`, `./pilotfish.toml`, `PILOTFISH_*` variables,
flags.
"""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticKnownError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as SourceError

from pilotfish.agent.policy import Rule, Verdict
from pilotfish.agent.safetext import shortened
from pilotfish.agent.spelling import as_given, wrong_value
from pilotfish.sandbox import Limits

FILES = (Path("~/.config/pilotfish/config.toml"), Path("pilotfish.toml"))


class _TomlFile(TomlConfigSettingsSource):
    """A file of settings; a byte order mark before it, as some editors write one, is passed over."""

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        return tomllib.loads(file_path.read_text(encoding="utf-8-sig"))


class SettingsError(Exception):
    """A setting is wrong; the message is one sentence with its name, its value and the mend."""


def _number(value: object) -> object:
    """The number that an environment variable spells."""
    if isinstance(value, bool):  # of which false would be 0
        raise PydanticKnownError("literal_error", {"expected": "3, 2 or 0"})
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _truth_is_no_number(cls: type[BaseModel], value: object, info: ValidationInfo) -> object:
    """Refuse true and false where a number belongs, and a number where one of them does: to Python, and so to
    pydantic, they are 1 and 0. What an environment variable spells is text here.
    """
    annotation = cls.model_fields[str(info.field_name)].annotation
    kinds = {annotation, *get_args(annotation)}
    if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
        raise PydanticKnownError("int_type" if int in kinds else "float_type")
    if isinstance(value, int | float) and not isinstance(value, bool) and bool in kinds:
        raise PydanticKnownError("bool_type")
    return value


class SandboxLimits(BaseModel):
    """What one sandbox may use. A command that runs into a limit is told so (docs/sandbox.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    _truth = field_validator("*", mode="before")(_truth_is_no_number)

    memory_mib: int = Field(default=8192, ge=64)
    """Memory of all programs together."""
    processes: int = Field(default=4096, ge=32)
    """Processes and threads."""
    disk_mib: int = Field(default=16384, ge=1)
    """How much bigger the workspace may become."""

    def put_on(self, limits: Limits) -> Limits:
        """The sandbox's limits with these."""
        memory = self.memory_mib << 20
        return replace(
            limits,
            memory_bytes=memory,
            data_bytes=memory,
            processes=self.processes,
            disk_growth=self.disk_mib << 20,
        )


class ServerSettings(BaseModel):
    """The server of models that are written `openai:...` (docs/model.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    _truth = field_validator("*", mode="before")(_truth_is_no_number)

    url: str | None = None
    """What `/chat/completions` is appended to; unset, what the variable OPENAI_BASE_URL says."""
    key_variable: str | None = None
    """The environment variable that holds the key. Unset, it is OPENAI_API_KEY, which is sent over https and
    to this machine only.
    """
    clips: Literal["frames", "video"] = "frames"
    """How clips are sent: as pictures, or as a video in vLLM's form."""
    connect_s: float = Field(default=10.0, gt=0)
    """Seconds to wait for a connection."""
    first_byte_s: float = Field(default=90.0, gt=0)
    """Seconds to wait for an answer to begin."""
    piece_s: float = Field(default=60.0, gt=0)
    """Seconds to wait for more of an answer."""
    retries: int = Field(default=4, ge=0)
    """How often a request is asked again of which no answer has begun."""
    extra: dict[str, Any] = {}
    """Fields to put into each request. They are in the log of a run: keep keys out."""


class SweBenchSettings(BaseModel):
    """What instances of SWE-bench need of this machine (docs/tasks.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    _truth = field_validator("*", mode="before")(_truth_is_no_number)

    repositories: Path | None = None
    """The folder of clones."""
    test_command: str | None = None
    """The bash command that runs the tests; `{files}` in it stands for the files of the tests. Unset, it is
    pytest on these.
    """
    test_environment: Path | None = None
    """The virtual environment to work and test with; unset, pilotfish's own Python with pytest alone."""


class Settings(BaseSettings):
    """The settings of a run."""

    model_config = SettingsConfigDict(
        env_prefix="PILOTFISH_", extra="forbid", frozen=True, env_parse_none_str="none"
    )
    _truth = field_validator("*", mode="before")(_truth_is_no_number)

    model: str = "nano"
    """`nano` (the model that ships), the folder of a checkpoint, `openai:NAME` or `openai:URL#NAME` (any
    OpenAI-compatible server), or `solution` (plays a task's reference solution).
    """
    server: ServerSettings = ServerSettings()
    """A table with any of `url`, `key_variable`, `clips`, `connect_s`, `first_byte_s`, `piece_s`, `retries`
    and `extra`.
    """
    attention: Literal["sparse", "dense"] = "sparse"
    """`sparse` is M3's own attention; `dense` attends to every key, for comparison."""
    record_dir: Path = Path("runs")
    """Where run folders are made."""
    max_steps: int | None = Field(default=None, ge=1)
    """Calls per episode; unset, the task's own limit."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Wall-clock seconds per episode; unset, the task's own limit."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens the model may write per episode; unset, the task's own limit."""
    answer_tokens: int | None = Field(default=None, ge=1)
    """Tokens of one answer; unset, 512 for `nano` and 8,192 for a model that can think and write files."""
    answer_seconds: float | None = Field(default=None, gt=0)
    """Seconds of one answer; unset, 120 for `nano` and 600 for others."""
    temperature: float = Field(default=0.0, ge=0)
    """0 takes the likeliest token each time."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Share of the probability that is sampled from."""
    thinking: Literal["enabled", "disabled", "adaptive"] = "disabled"
    """Whether the model thinks before it answers."""
    logprobs: bool = False
    """Keep the log-probability of every token that the model writes in the run's log."""
    log_typing: bool = False
    """Keep what you type yourself during a take-over in the run's log; unset, only how many characters."""
    max_clips: int = Field(default=12, ge=2)
    """Clips kept in the conversation."""
    clip_block: int = Field(default=8, ge=1)
    """How many old clips are dropped at once."""
    quiet_ms: int = Field(default=120, ge=1)
    """How long nothing must change before the screen counts as settled."""
    settle_cap_s: float = Field(default=3.0, gt=0)
    """Seconds after an action at which the screen is shown even if it still moves."""
    sandbox_level: Annotated[Literal[3, 2, 0], BeforeValidator(_number)] = 3
    """What stands around the sandbox (docs/sandbox.md): 3 is everything, 2 goes without namespaces, display
    and browser, 0 is nothing at all and has to be given as the flag `--sandbox-level 0`.
    """
    limits: SandboxLimits = SandboxLimits()
    """A table with any of `memory_mib`, `processes` and `disk_mib`."""
    network: tuple[str, ...] = ()
    """Hosts that programs in the sandbox may reach, each `NAME:PORT`, `*.NAME:PORT` for everything below a
    name, or `NAME:PORT=ADDRESS:PORT` for a machine of your own (docs/sandbox.md).
    """
    swe_bench: SweBenchSettings = SweBenchSettings()
    """A table with any of `repositories`, `test_command` and `test_environment`."""
    default_verdict: Verdict = "allow"
    """What happens with a call that no rule names. The sandbox confines it in any case."""
    rules: tuple[Rule, ...] = ()
    """Rules for calls, each a table with `verdict` and any of `tool`, `action`, `command`, `path`, `network`
    (docs/supervision.md).
    """
    yes: bool = False
    """Answer every question of the rules with yes."""

    _flags: frozenset[str] = PrivateAttr(default=frozenset())

    def as_given(self, name: str) -> str:
        """The words for a setting that tell where it was given: a flag, a variable, a line of a file."""
        return as_given(name, self._flags, FILES[::-1])

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags first, then the environment, then the files; the first that names a field wins."""
        files = [_TomlFile(settings_cls, path.expanduser()) for path in reversed(FILES)]
        return (init_settings, env_settings, *files)


def load_settings(flags: Mapping[str, Any]) -> Settings:
    """The settings with `flags` over them; a flag that is None was not given.

    Raises `SettingsError` for a value that does not fit, an unknown name or a file that is not TOML.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "a setting"
        if first["type"] == "extra_forbidden":
            tables: dict[str, type[BaseModel]] = {
                "rules": Rule,
                "limits": SandboxLimits,
                "server": ServerSettings,
                "swe_bench": SweBenchSettings,
            }
            known = ", ".join(sorted(tables.get(name.partition(".")[0], Settings).model_fields))
            where = as_given(name, given, FILES[::-1])
            raise SettingsError(f"There is no setting {where}; choose from {known}.") from None
        raise SettingsError(wrong_value(as_given(name, given, FILES[::-1]), first)) from None
    except SourceError as error:
        name = re.sub(r'.*field "(\w+)".*', r"\1", str(error))
        where = as_given(name, (), FILES[::-1])
        value = os.environ.get(where, "")
        raise SettingsError(
            f"The environment variable {where} is {shortened(repr(value), 200)}, which is not JSON; mend or "
            "unset it."
        ) from None
    except (ValueError, OSError) as error:
        raise SettingsError(f"{_broken_file()} cannot be read ({error}); mend or remove it.") from None
    settings._flags = frozenset(given)
    if settings.sandbox_level == 0 and flags.get("sandbox_level") != 0:
        where = settings.as_given("sandbox_level")
        raise SettingsError(f"{where} is 0, but only the flag --sandbox-level 0 can say so.")
    if settings.network:
        _check_network(settings)
    if settings.clip_block >= settings.max_clips:
        raise SettingsError(
            f"{settings.as_given('clip_block')} is {settings.clip_block}, but must be less than "
            f"{settings.as_given('max_clips')}, {settings.max_clips}."
        )
    return settings


def _broken_file() -> Path:
    """The settings file that cannot be read."""
    for path in FILES[1:]:
        with contextlib.suppress(FileNotFoundError):
            try:
                tomllib.loads(path.read_text(encoding="utf-8-sig"))
            except (ValueError, OSError):
                return path
    return FILES[0]


def _check_network(settings: Settings) -> None:
    from pilotfish.sandbox import SandboxError, SandboxSpec  # brings the whole sandbox along
    from pilotfish.sandbox.network import Network

    try:
        SandboxSpec(desktop=False, level=settings.sandbox_level, network=Network(settings.network))
    except SandboxError as error:
        raise SettingsError(f"{settings.as_given('network')} cannot be used: {error}") from None
