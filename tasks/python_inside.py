"""Pilotfish's own Python inside a sandbox, with the packages that a task names and no others."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from pilotfish.sandbox import INNER_PATH, SandboxError

SITE = "/opt/site"
_NOTHING = Path(__file__).with_name("nothing").resolve()
_NAME = re.compile(r"[A-Za-z0-9._-]+")
Mounts = dict[Path, str]


def installed(name: str, why: str) -> Distribution:
    """An installed distribution. Raises `SandboxError` with the mend where it is missing."""
    try:
        return distribution(name)
    except (PackageNotFoundError, ValueError):
        raise SandboxError(f"{name} is missing, it is needed {why}: pip install {name}") from None


def python_inside(names: Iterable[str], why: str) -> tuple[Mounts, dict[str, str]]:
    """What to show of the host, and the environment, for a `python3` that imports these distributions and
    what they require, and nothing else that is installed outside /usr.

    why: the end of the sentence that says what a missing one is needed for (`SandboxError`).
    """
    mounts: Mounts = {}
    base = Path(sys.base_prefix).resolve()
    if not base.is_relative_to("/usr"):
        mounts[base] = str(base)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(base)}))
        if own.is_dir():
            mounts[_NOTHING] = str(own)
    for name in names:
        mounts |= {place: f"{SITE}/{place.name}" for found in _closure(name, why) for place in _tops(found)}
    return mounts, {"PATH": f"{base / 'bin'}:{INNER_PATH}", "PYTHONPATH": SITE}


@lru_cache
def _closure(name: str, why: str) -> tuple[str, ...]:
    """A distribution and those that it requires here, as far as they are installed."""
    installed(name, why)
    found: dict[str, None] = {}
    waiting = [name]
    while waiting:
        now = waiting.pop()
        key = re.sub(r"[-_.]+", "-", now).lower()
        if key in found:
            continue
        try:
            requires = distribution(now).requires or []
        except PackageNotFoundError:
            continue  # required on another system or by an older Python
        found[key] = None
        waiting += [_NAME.match(line)[0] for line in requires if "extra ==" not in line]  # type: ignore[index]
    return tuple(found)


@lru_cache
def _tops(name: str) -> tuple[Path, ...]:
    """The files and folders in site-packages that a distribution consists of."""
    found = distribution(name)
    tops = {PurePosixPath(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}
    return tuple(path for top in sorted(tops) if (path := Path(str(found.locate_file(top)))).exists())
