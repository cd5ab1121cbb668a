"""git, run outside the sandbox without obeying anything that a repository says.

A repository's own settings can name programs (`core.fsmonitor`, `filter.*`, `diff.*.textconv`, hooks,
`core.sshCommand`), and so can those of whatever its `.git` leads to. So git here never works with a
repository of somebody else's: it works with a `GitDir`, a folder with settings of ours, no hooks, and the
objects of the other repository borrowed. Of somebody else's settings a short list
is read as text and copied, none of which names a program or a file.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.pieces import need

TIMEOUT_S = 600.0
_CONVERSIONS = ("core.autocrlf", "core.eol", "core.filemode", "core.symlinks", "core.ignorecase")
"""The settings that say how files of a work tree stand for those of a commit."""
_NO_PROGRAMS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.pager": "cat",
    "core.untrackedCache": "false",
    "core.quotePath": "false",
    "core.safecrlf": "false",
    "core.logAllRefUpdates": "false",
    "diff.external": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "fetch.fsckObjects": "false",
    "fetch.recurseSubmodules": "false",
    "submodule.recurse": "false",
    "protocol.allow": "never",
    "protocol.file.allow": "always",
    "commit.gpgSign": "false",
    "user.name": "Pilotfish",
    "user.email": "pilotfish@localhost",
}


class GitError(SandboxError):
    """git could not do it; one sentence with what git said."""


def git(
    *words: str | bytes,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    cwd: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """What git prints, run with nothing of this process's environment and no settings of the user or the
    machine. `cwd` is `/` by default, so that no repository is found by chance.

    Raises `GitError`, and `SandboxUnavailable` where git is missing.
    """
    program = need("git", "to work with repositories", "git")
    try:
        done = subprocess.run(
            [program, *words],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=timeout_s,
            cwd=cwd or "/",
            env=_ENV | dict(env or {}),
        )
    except subprocess.TimeoutExpired:
        raise GitError(f"git took longer than {timeout_s:g} s for `{_named(words)}`; try again.") from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        told = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines[-1:]
        said = told[0] if told else f"exit status {done.returncode}"
        raise GitError(f"git could not do `{_named(words)}` ({said}).")
    return done.stdout


_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_PAGER": "cat",
}


def _named(words: Iterable[str | bytes]) -> str:
    """The subcommand, for a sentence."""
    texts = [word if isinstance(word, str) else os.fsdecode(word) for word in words]
    return next((text for text in texts if not text.startswith("-") and "=" not in text), "git")


def settings_in(config: Path) -> dict[str, str]:
    """The settings in one file by their lower-case names, read as text: no file that it includes, nothing
    obeyed. Empty where there is none that can be read.
    """
    if not config.is_file():  # git would wait for ever for what somebody writes into a pipe
        return {}
    with contextlib.suppress(GitError):
        told = git("config", "--file", str(config), "--no-includes", "--null", "--list")
        pairs = (pair.partition("\n") for pair in os.fsdecode(told).split("\0") if pair)
        # A name alone means true.
        return {name: value if sep else "true" for name, sep, value in pairs}
    return {}


class GitDir:
    """A repository folder of ours. What git does with it obeys our settings only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        sha256: bool = False,
        borrow: Iterable[Path] = (),
        settings: Mapping[str, str] | None = None,
    ) -> GitDir:
        """Make one. borrow: folders of objects to read from; settings: of the repository they belong to, of
        which those are taken that say how a work tree stands for a commit.
        """
        kind = "sha256" if sha256 else "sha1"
        # Safe where `path` is there already, from a start that was killed.
        git("init", "--quiet", "--bare", "--template=", f"--object-format={kind}", str(path))
        made = cls(path)
        taken = {name: value for name, value in (settings or {}).items() if name in _CONVERSIONS}
        lines = ["", *(_line(name, value) for name, value in (_NO_PROGRAMS | taken).items())]
        (path / "config").write_text((path / "config").read_text() + "\n".join(lines) + "\n")
        (path / "info").mkdir(exist_ok=True)
        if folders := [os.fsencode(folder) for folder in borrow]:
            (path / "borrowed").write_bytes(b"\0".join(folders))
        return made

    def run(
        self,
        *words: str | bytes,
        tree: Path | None = None,
        stdin: bytes = b"",
        writes: bool = False,
    ) -> bytes:
        """Run git here. tree: the work tree, where there is one. writes: whether it writes objects that may
        be among the borrowed ones: git would set the time of those, so it is kept from seeing them.
        """
        env = {"GIT_DIR": str(self.path)} | ({"GIT_WORK_TREE": str(tree)} if tree else {})
        borrowed = self.path / "borrowed"
        if not writes and borrowed.is_file():
            folders = os.fsdecode(borrowed.read_bytes()).split("\0")
            env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = ":".join(map(_quoted, folders))
        bare = () if tree is None else ("-c", "core.bare=false")
        return git(*bare, *words, env=env, stdin=stdin, cwd=tree or self.path)

    def words(self, *words: str | bytes, tree: Path | None = None, stdin: bytes = b"") -> list[bytes]:
        """What git prints between zero bytes."""
        return [word for word in self.run(*words, tree=tree, stdin=stdin).split(b"\0") if word]

    def line(self, *words: str | bytes, stdin: bytes = b"", writes: bool = False) -> str:
        """The one line that git prints."""
        return self.run(*words, stdin=stdin, writes=writes).decode("utf-8", "replace").strip()


def _line(name: str, value: str) -> str:
    section, _, key = name.partition(".")
    *sub, key = key.split(".")
    head = f'[{section} "{sub[0]}"]' if sub else f"[{section}]"
    return f"{head}\n\t{key} = {_quoted(value)}"


def _quoted(text: str) -> str:
    """A value between quotes, as git reads it in its settings and variables."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
