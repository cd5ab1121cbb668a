"""The Python that a project's own environment stands on, to be shown in the sandbox.

The links of a `.venv`, its `pyvenv.cfg` and the packages installed in it by their path name places of the
host. What they name comes with the repository, from whoever wrote it, so it is only taken for a hint: shown,
read-only, are the folders of what is a Python installation, and of these no more than programs need.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pilotfish.sandbox import INNER_PATH

ENVIRONMENTS = (".venv", "venv")
_PIECES = ("bin", "lib", "lib64", "include", "ssl", "share/terminfo", "share/zoneinfo")
"""What of an installation is shown; a prefix such as ~/.local has other things beside them."""
_INSIDE = tuple(map(Path, ("/workspace", "/proc", "/dev", "/sys", "/run", "/tmp", "/etc", "/opt/pilotfish")))
"""Where the sandbox has files of its own."""
_HOPS = 40
_WORKSPACE = "/workspace"


@dataclass(frozen=True)
class OwnPython:
    """name: of the environment's folder, '' where there is none. mounts, links, env: for `SandboxSpec`.
    notes: sentences for the person.
    """

    name: str = ""
    mounts: dict[Path, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def own_python(repository: Path, level: int = 3) -> OwnPython:
    """What to show of the host so that the environment in a project's folder works on a copy of it.

    level: of the sandbox; below 3 nothing can be shown, and what follows from that is said.
    """
    name = next((name for name in ENVIRONMENTS if os.path.lexists(repository / name / "bin/python")), "")
    if not name:
        return OwnPython()
    environment = repository / name
    if environment.is_symlink():
        leads = f"{name} is a link to {environment.readlink()}, which is not followed, so the project's own"
        return OwnPython(name, notes=(f"{leads} environment is not in the sandbox.",))
    if level != 3:
        return OwnPython(name, notes=tuple(_without(repository, environment, level)))
    mounts: dict[Path, str] = {}
    shown, notes = [], []
    for prefix in _prefixes(repository, environment):
        pieces, why = _installation(prefix)
        mounts |= {piece: str(piece) for piece in pieces}
        shown += [str(prefix)] if pieces else []
        notes += [f"{name} leads to {prefix}, which {why}, so it is not shown in the sandbox."] if why else []
    if shown:
        notes.insert(0, f"{name} stands on {' and '.join(shown)}, shown in the sandbox read-only.")
    env = {"PATH": f"{_WORKSPACE}/{name}/bin:{INNER_PATH}", "VIRTUAL_ENV": f"{_WORKSPACE}/{name}"}
    links = {str(repository): _WORKSPACE} if _may_be_a_link(repository, mounts) else {}
    return OwnPython(name, mounts, links, env, tuple(notes))


def _prefixes(repository: Path, environment: Path) -> list[Path]:
    """The folders outside of repository and /usr that hold the `bin` which an environment's Python is in, by
    each of the paths that lead there.
    """
    found = [path.parent.parent for path in _ways(environment / "bin/python") if path.parent.name == "bin"]
    for line in _text(environment / "pyvenv.cfg").splitlines():
        key, _, value = line.partition("=")
        home = Path(os.path.normpath(value.strip() or "/"))
        if key.strip() == "home" and home.is_absolute() and home.name == "bin":
            found.append(home.parent)
    real = repository.resolve()
    return [
        prefix
        for prefix in dict.fromkeys(found)
        if not any(prefix.is_relative_to(place) for place in (repository, real, Path("/usr")))
        and prefix != Path("/")
    ]


def _ways(path: Path) -> Iterator[Path]:
    """The paths by which a chain of links goes, and where it ends."""
    for _ in range(_HOPS):
        yield path
        if not path.is_symlink():
            break
        path = Path(os.path.normpath(path.parent / path.readlink()))
    yield Path(os.path.realpath(path))


def _installation(prefix: Path) -> tuple[list[Path], str]:
    """What to show of a Python's prefix; or nothing, and how the sentence goes on that says why."""
    real = Path(os.path.realpath(prefix))
    if any(place.is_relative_to(prefix) or prefix.is_relative_to(place) for place in _INSIDE):
        return [], "is where the sandbox has files of its own"
    if any(home.is_relative_to(real) for home in _homes()):
        return [], "is or holds somebody's home folder"
    try:
        library = any((folder / "os.py").is_file() for folder in (real / "lib").glob("python3*"))
        if not (library and any((real / "bin").glob("python3*"))):
            return [], "is not the folder of a Python installation"
    except OSError as error:
        return [], f"cannot be read ({error.strerror})"
    inside = (prefix / piece for piece in _PIECES)
    return [
        piece
        for piece in inside
        if piece.is_dir() and Path(os.path.realpath(piece)).is_relative_to(real) and os.access(piece, os.R_OK)
    ], ""


def _homes() -> set[Path]:
    """The home folders of root and of people on this machine."""
    listed = (Path(one.pw_dir) for one in pwd.getpwall() if one.pw_uid == 0 or one.pw_uid >= 1000)
    homes = {home.resolve() for home in (*listed, Path.home(), Path("/home/any"))}
    return homes - {Path("/")}


def _may_be_a_link(repository: Path, mounts: dict[Path, str]) -> bool:
    """Whether the folder, which installed packages and scripts name, may lead to its copy inside."""
    taken = [*map(Path, mounts.values()), *(place for place in _INSIDE if place != Path("/tmp"))]
    return not any(repository.is_relative_to(place) or place.is_relative_to(repository) for place in taken)


def _without(repository: Path, environment: Path, level: int) -> Iterator[str]:
    """What a person has to know of an environment where the sandbox cannot show its Python."""
    named = sorted(
        path.name
        for path in environment.glob("lib/python3*/site-packages/*.pth")
        if str(repository) in _text(path)
    )
    if level == 2 and (outside := _prefixes(repository, environment)):
        yield f"{environment.name} stands on {outside[0]}, which programs at sandbox level 2 cannot read."
    elif named:
        yield (
            f"{environment.name} imports the project from your folder and not from the copy ({named[0]}), so "
            f"at sandbox level {level} its tests may look at the wrong files; level 3 leads it to the copy."
        )


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
