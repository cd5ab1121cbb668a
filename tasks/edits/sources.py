"""The sources of one package: which there are, under which licence, and which may only be measured on."""

from __future__ import annotations

import ast
import importlib.util
import random
import re
import sysconfig
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

HELD_OUT = ("click", "jinja2", "starlette")
"""Packages that figures are reported on; nothing is recorded from them."""
_MOST_BYTES = 400_000
"""A larger file is left out."""
_FREE = re.compile(r"\b(MIT|0?BSD|Apache|PSF|Python Software Foundation|ISCL?|HPND)(\b|[\d_])", re.IGNORECASE)
_NOT_FREE = re.compile(r"GPL|\bMPL|General Public|Mozilla", re.IGNORECASE)
_SKIPPED = ("pip", "setuptools", "pilotfish")  # with copies of other packages in them, or our own
_NO_PACKAGE = (
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "encodings",
    "pydoc_data",
    "site-packages",
    "dist-packages",
    "__pycache__",
)
_LEAST_BYTES, _MOST_FILES = 8_000, 500
"""Packages with less source, or with more files, are not recorded from unless they are named."""
STANDARD = "stdlib"
"""The modules of the standard library that are one file each, as one package."""


@dataclass(frozen=True)
class Package:
    """A package that may be trained on, and what a table says of it."""

    name: str
    version: str
    licence: str
    place: Path
    files: int


def read_trainable(name: str) -> dict[str, str]:
    """`read_package` for what is recorded. Raises `ValueError` for a package that is held out, as an import
    name, a folder, or a folder inside.
    """
    parts = {part.lower() for part in Path(name).resolve().parts} if "/" in name else {name.lower()}
    files = {} if parts & set(HELD_OUT) else read_package(name)
    parts |= {part.lower() for path in files for part in path.split("/")[:-1]}
    if held := sorted({part.strip("_") for part in parts} & set(HELD_OUT)):
        raise ValueError(f"{name} is or holds {held[0]}, which is kept for measuring; name another package.")
    return files


def read_package(name: str) -> dict[str, str]:
    """The Python sources of an installed package, by its import name, or of a folder: {path: text}.

    Paths begin with the package's name. Files that are no plain UTF-8 Python, or very large, are left out.
    Raises `ValueError` with one sentence where there is nothing.
    """
    place = _place(name)
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    if name == STANDARD:
        files = sorted(place.glob("*.py"))
    found: dict[str, str] = {}
    for file in files:
        path = file.relative_to(place.parent)
        if set(path.parts[1:]) & set(_NO_PACKAGE):
            continue
        if (text := _source(file)) is not None:
            found[f"{name}/{file.name}" if name == STANDARD else path.as_posix()] = text
    if not found:
        raise ValueError(f"{name} holds no Python source that can be read; name another package.")
    return found


def name_of(package: str) -> str:
    """What a package is called: its import name, or the last part of its folder's path."""
    return Path(package).resolve().name


def training_packages() -> list[Package]:
    """What is on this machine and may be trained on: the standard library, and installed packages whose
    licence allows it, by name.
    """
    library = Path(sysconfig.get_path("stdlib"))
    version = sysconfig.get_python_version()
    found = [Package(STANDARD, version, "PSF-2.0", library, len(list(library.glob("*.py"))))]
    for folder in sorted(library.iterdir()):
        if (folder / "__init__.py").is_file() and folder.name not in _NO_PACKAGE:
            found += _package(folder.name, version, "PSF-2.0", folder)
    for name, owners in sorted(metadata.packages_distributions().items()):
        owner = metadata.distribution(owners[0])
        licence = _licence(owner)
        if name in HELD_OUT or owner.name.lower() in _SKIPPED or not may_be_used(licence):
            continue
        if (folder := Path(str(owner.locate_file(name)))).is_dir() and (folder / "__init__.py").is_file():
            found += _package(name, owner.version, licence, folder)
    return sorted(found, key=lambda one: one.name.lower())


def may_be_used(licence: str) -> bool:
    """Whether a licence, as a package states it, is one of those that are recorded from."""
    return bool(_FREE.search(licence)) and not _NOT_FREE.search(licence)


def some_of(files: Mapping[str, str], size: int, draw: random.Random) -> dict[str, str]:
    """Files drawn that hold at most so many characters, or the shortest, in the order of their paths."""
    order = sorted(files)
    draw.shuffle(order)
    chosen: list[str] = []
    for path in order:
        if len(files[path]) <= size:
            chosen.append(path)
            size -= len(files[path])
    chosen = chosen or [min(order, key=lambda path: len(files[path]))]
    return {path: files[path] for path in sorted(chosen)}


def _package(name: str, version: str, licence: str, folder: Path) -> list[Package]:
    files = [
        file for file in folder.rglob("*.py") if not set(file.relative_to(folder).parts) & set(_NO_PACKAGE)
    ]
    inside = {part.lower().strip("_") for file in files for part in file.relative_to(folder).parts[:-1]}
    if len(files) > _MOST_FILES or inside & set(HELD_OUT):
        return []
    held = 0
    for file in files:
        held += len(_source(file) or "")
        if held >= _LEAST_BYTES:
            return [Package(name, version, licence, folder, len(files))]
    return []


def _place(name: str) -> Path:
    if name == STANDARD:
        return Path(sysconfig.get_path("stdlib"))
    if "/" in name or Path(name).is_dir():
        if not (folder := Path(name).resolve()).is_dir():
            raise ValueError(f"{name} is no folder; give a package's folder or its import name.")
        return folder
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    if spec is not None and spec.origin and spec.origin.endswith(".py"):
        return Path(spec.origin)
    raise ValueError(f"There is no package '{name}' here; install it, or give its folder.")


def _source(file: Path) -> str | None:
    """The text of a file that can be worked on."""
    data = file.read_bytes()
    if not data.strip() or len(data) > _MOST_BYTES or b"\r" in data or b"\f" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


@lru_cache(maxsize=512)
def parsed(text: str) -> ast.Module:
    """The syntax tree of a text, which is not to be changed; an empty one of what is no Python of today."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return ast.Module([], [])


def _licence(owner: metadata.Distribution) -> str:
    about = owner.metadata
    if said := about.get_all("License-Expression"):
        return said[0]
    classified = [
        line.rsplit(" :: ", 1)[-1] for line in about.get_all("Classifier") or () if "License" in line
    ]
    classified = [line for line in classified if line != "OSI Approved"]
    if classified:
        return ", ".join(classified)
    lines = "".join(about.get_all("License") or ()).strip().splitlines()
    return lines[0][:40] if lines else "unknown"
