"""The folder of a run: where a new one lies, what is in it beside the log, and which one a person means."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilotfish.agent.settings import Settings

PATCH = "changes.patch"
"""What `pilotfish code` hands back."""
SNAPSHOTS, WORKSPACE = "snapshots", "workspace"
"""What the run's workspace was before each call, and the workspace if it has no other."""


def find_run(named: Path) -> Path:
    """The folder of a run that is named by its path, or by its bare id where new runs are made.

    Raises `LogError`, which says what was looked for and how to list the runs, or whose the folder is that
    may not be read.
    """
    from pilotfish.agent.events import EVENTS, LogError

    barred: list[str] = []
    if _holds_a_log(named, barred):
        return named
    from pilotfish.agent.settings import load_settings

    settings = load_settings({})
    runs = settings.record_dir
    looked = f"in {named}"
    if str(named) == named.name:
        for folder in places_of_runs(settings):
            if _holds_a_log(folder / named, barred):
                return folder / named
        looked += f" and none in {runs / named}"
    if barred:
        raise LogError(barred[0])
    there = os.path.isdir(runs)  # noqa: PTH112 (`is_dir` raises where one may not look)
    mend = "`pilotfish runs` lists those there are" if there else f"no runs are in {runs} yet"
    raise LogError(f"There is no run '{named}' (no {EVENTS} {looked}); {mend}.")


def _holds_a_log(folder: Path, barred: list[str]) -> bool:
    """Whether a folder is that of a run; where that may not be looked at, `barred` gets a sentence on it."""
    from pilotfish.agent.events import EVENTS
    from pilotfish.agent.events.errors import cannot

    try:
        os.lstat(folder / EVENTS)
    except PermissionError as error:
        barred.append(cannot("read", folder / EVENTS, error))
        return False
    except (OSError, ValueError):
        return False
    return True


def places_of_runs(settings: Settings) -> list[Path]:
    """Where runs are looked for: where new ones are made, and where they are kept that would lie in the
    folder that they are about, unless a place was chosen.
    """
    runs = settings.record_dir
    return [runs, _at_home()] if runs == type(settings).model_fields["record_dir"].default else [runs]


def _at_home() -> Path:
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "pilotfish" / "runs"


def new_run_folder(record_dir: Path) -> Path:
    """A folder for a new run below `record_dir`, named by the time and a random tail; it is not created
    yet.
    """
    return record_dir / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def check_writable(folder: Path) -> None:
    """Raise `LogError` unless files can be written in a folder, or in the nearest above it that there is."""
    from pilotfish.agent.events.errors import LogError, cannot

    home = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise LogError(cannot("write", folder, error)) from error


def kept_apart(settings: Settings, folder: Path, what: str) -> Settings:
    """The settings with a place for the run that is not in a folder, where programs inside could rewrite its
    log. what: the folder, in words. Raises `TaskError` where that place was chosen.
    """
    from pilotfish.tasks.reader import TaskError

    runs = settings.record_dir
    if not runs.resolve().is_relative_to(folder.resolve()):
        return settings
    if runs == type(settings).model_fields["record_dir"].default:
        runs = _at_home()
    if runs.resolve().is_relative_to(folder.resolve()):
        raise TaskError(
            f"The run's folder would lie in {what}, in {runs.absolute()}; choose another place with "
            "--record-dir."
        )
    return settings.model_copy(update={"record_dir": runs})
