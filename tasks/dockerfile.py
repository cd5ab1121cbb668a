"""The part of Dockerfiles that needs no building: FROM a known base, COPY, WORKDIR, ENV.

Everything else is refused, with one sentence that names the line.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

BASES = ("debian", "ubuntu", "python")
"""Images that this machine stands in for: its own /usr, and the Python that Pilotfish runs on."""
_MAX_BYTES = 1 << 20
_MAX_PATH = 1000
_NOTHING = ("LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "MAINTAINER")
_ALSO_TAKEN = {"workspace", "tests", "logs", "solution"}
_SYSTEM = {
    "usr",
    "etc",
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "proc",
    "dev",
    "sys",
    "run",
    "tmp",
} | {
    "home",
    "root",
    "var",
    "boot",
}


class Refused(Exception):
    """A Dockerfile needs what is not done here; one sentence with the line."""


@dataclass
class Image:
    """What a Dockerfile asks for. files: {path inside: source}; folders: that exist even where empty."""

    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    @property
    def tops(self) -> list[str]:
        """The folders of the root that these paths lie in, such as `/app`."""
        paths = [*self.files, *self.folders, *([self.workdir] if self.workdir != "/" else [])]
        return sorted({f"/{PurePosixPath(path).parts[1]}" for path in paths})


def check_base(image: str) -> None:
    """Raise `ValueError` with half a sentence unless an image's name is of a base that we have."""
    name, _, tag = image.partition("@")[0].partition(":")
    name = name.removeprefix("docker.io/").removeprefix("library/")
    if name not in BASES:
        raise ValueError(f"is built on {image!r}; only {', '.join(BASES)} are known here")
    wanted = re.match(r"3\.(\d+)", tag)
    if name == "python" and wanted and int(wanted[1]) != sys.version_info.minor:
        here = f"3.{sys.version_info.minor}"
        raise ValueError(f"is built on {image!r}, and the Python here is {here}")


def read_dockerfile(path: Path) -> Image:
    """What a Dockerfile asks for. Raises `Refused`, and `OSError` where it cannot be read."""
    image, bases = Image(), 0
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES or b"\0" in data:
        wrong = "holds a null byte" if len(data) <= _MAX_BYTES else f"is larger than {_MAX_BYTES} bytes"
        raise Refused(f"{path} {wrong}; give a plain Dockerfile.")
    for number, line in _lines(data.decode("utf-8-sig", "replace")):
        word, _, rest = line.partition(" ")
        word, rest = word.upper(), rest.strip()
        try:
            if bases == 0 and word != "FROM":
                raise ValueError("comes before FROM; only plain Dockerfiles are read")
            if word == "FROM":
                bases += 1
                if bases > 1:
                    raise ValueError("starts a second stage; only one is taken")
                check_base(re.split(r"\s+as\s+", rest, flags=re.IGNORECASE)[0])
            elif word == "WORKDIR":
                image.workdir = _inside(image, _words(rest)[0])
                image.folders.add(image.workdir)
            elif word == "ENV":
                image.env |= _env(rest)
            elif word == "COPY":
                _copy(image, rest, path.parent)
            elif word not in _NOTHING:
                raise ValueError(f"needs {word}, which is not done here; only COPY, WORKDIR and ENV are")
        except (ValueError, IndexError, RecursionError) as error:
            raise Refused(f"{path}: line {number} {error or 'cannot be read'}.") from None
    if bases == 0:
        raise Refused(f"{path}: there is no FROM; name a base, such as debian.")
    return image


def _lines(text: str) -> list[tuple[int, str]]:
    """The instructions with their line numbers, those over several lines joined, comments left out."""
    found: list[tuple[int, str]] = []
    open_ = False
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        goes_on = bare.endswith("\\")
        bare = bare.removesuffix("\\").strip()
        if open_:
            found[-1] = (found[-1][0], f"{found[-1][1]} {bare}")
        else:
            found.append((number, bare))
        open_ = goes_on
    return found


def _words(rest: str) -> list[str]:
    if rest.startswith("["):
        words = json.loads(rest)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError("has a list that is not one of texts")
    else:
        words = shlex.split(rest)
    if any("$" in word for word in words):
        raise ValueError("uses a variable, which is not filled in here; write the value out")
    return words


def _env(rest: str) -> dict[str, str]:
    words = _words(rest)
    if "=" not in words[0]:
        words = [f"{words[0]}={' '.join(words[1:])}"]
    pairs = [word.partition("=") for word in words]
    if not all(name.isidentifier() and sep for name, sep, _ in pairs):
        raise ValueError("sets a variable without a value, or one of no plain name; write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _inside(image: Image, path: str) -> str:
    """A path as it is in the image, absolute and plain."""
    whole = PurePosixPath(image.workdir, path)
    if ".." in whole.parts or len(whole.parts) < 2 or len(str(whole)) > _MAX_PATH:
        raise ValueError(f"names the path {path[:60]!r}; give one below a folder such as /app")
    if whole.parts[1] in _SYSTEM | _ALSO_TAKEN:
        raise ValueError(
            f"writes to /{whole.parts[1]}, which cannot be written here; use a folder such as /app"
        )
    return str(whole)


def _copy(image: Image, rest: str, folder: Path) -> None:
    words = _words(rest)
    flags = [word for word in words if word.startswith("--")]
    if any(not flag.startswith(("--chown", "--link")) for flag in flags) or "<<" in rest:
        raise ValueError("copies in a way that is not done here; only files of the folder are copied")
    *sources, to = [word for word in words if not word.startswith("--")]
    if not sources:
        raise ValueError("names no target; write COPY SOURCE TARGET")
    found = [path for source in sources for path in _matches(folder, source)]
    into = to.endswith("/") or to in (".", "./") or len(found) > 1
    target = image.workdir if to in (".", "./") else _inside(image, to)
    if target == "/":
        raise ValueError("copies into /; give a folder such as /app")
    for path in found:
        if path.is_dir():
            image.folders.add(target)
            for file in sorted(path.rglob("*")):
                if file.is_file():
                    image.files[f"{target}/{file.relative_to(path)}"] = _own(folder, file)
        else:
            image.files[f"{target}/{path.name}" if into else target] = _own(folder, path)


def _matches(folder: Path, source: str) -> list[Path]:
    plain = PurePosixPath(source.lstrip("/") or ".")
    if ".." in plain.parts:
        raise ValueError(f"copies {source!r} from outside of the folder")
    found = sorted(folder.glob(str(plain))) if re.search(r"[*?\[]", source) else [folder / plain]
    if not found or not all(path.exists() for path in found):
        raise ValueError(f"copies {source!r}, which is not there")
    return found


def _own(folder: Path, path: Path) -> Path:
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"copies {path.name!r}, a link that leads out of the folder")
    return path
