# ruff: noqa: ASYNC221 - nothing else runs in this event loop
"""Attacks that aim at what the host does later with what a program has left in the workspace.

Whatever runs outside leaves a mark in a folder that nothing inside can reach.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pilotfish.sandbox.box import Sandbox
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.levels import Level
from pilotfish.sandbox.pieces import find_python
from pilotfish.sandbox.scenes import Scene
from pilotfish.sandbox.spec import SandboxSpec

_GIT = "/usr/bin/git"
_ENV = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}

# All by which a repository has git run a program: $1 is its work tree, $2 its own folder, $3 the mark.
_EVIL_REPOSITORY = """
cd "$1" && echo change >> file && printf '* filter=evil diff=evil\\n' > .gitattributes
for key in core.fsmonitor core.sshCommand core.pager core.editor filter.evil.clean filter.evil.smudge \\
    filter.evil.process diff.external diff.evil.textconv diff.evil.command alias.status; do
    git config -f "$2/config" "$key" "touch $3 #"
done
git config -f "$2/config" core.hooksPath "$PWD/hooks"
mkdir -p hooks "$2/hooks"
for hook in post-checkout post-index-change pre-commit; do
    printf '#!/bin/sh\\ntouch %s\\n' "$3" | tee "hooks/$hook" > "$2/hooks/$hook"
    chmod 755 "hooks/$hook" "$2/hooks/$hook"
done
"""


@dataclass(frozen=True)
class _Stage:
    """A workspace, and a mark beside it that is made by what runs outside."""

    workspace: Path
    mark: Path

    @property
    def is_marked(self) -> bool:
        """Whether something ran outside since the last look."""
        found = self.mark.exists()
        self.mark.unlink(missing_ok=True)
        return found


def _bare(level: Level, workspace: Path) -> SandboxSpec:
    """A sandbox without a desktop."""
    return SandboxSpec(desktop=False, level=level, workspace=workspace)


@contextlib.contextmanager
def _stage() -> Iterator[_Stage]:
    with tempfile.TemporaryDirectory(prefix="pilotfish-attacked-", dir="/var/tmp") as folder:
        Path(folder, "workspace").mkdir()
        yield _Stage(Path(folder, "workspace"), Path(folder, "mark"))


def _git(folder: Path, *arguments: str) -> None:
    """Git as people run it, in a folder that they trust."""
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*"]
    subprocess.run([_GIT, *own, *arguments], cwd=folder, env=_ENV, capture_output=True, check=False)


def _repository(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    _git(folder, "init", "-q")
    (folder / "file").write_text("first\n")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-qm", "first")


async def _inside(box: Sandbox, script: str, *arguments: str) -> None:
    done = await box.run(["bash", "-c", script, "bash", *arguments])
    if await done.wait(60) != 0:
        raise SandboxError(f"the attack itself failed: {done.output}")


async def _evil_repository(level: Level, name: str, own: str) -> tuple[str, str]:
    """Take snapshots, compare and go back around a repository that is all traps; then use it as people do."""
    with _stage() as stage:
        repository = stage.workspace / name
        _repository(stage.workspace)
        if own == ".git":
            _repository(repository)
        else:  # a work tree whose repository lies elsewhere
            _git(stage.workspace, "worktree", "add", "-q", str(repository))
        async with Sandbox.open(_bare(level, stage.workspace)) as box:
            inner = box.places.workspace / name
            first = await box.snapshot()
            await _inside(box, _EVIL_REPOSITORY, str(inner), str(inner / own), str(stage.mark))
            second = await box.snapshot()
            await box.diff(first, text=True)
            await box.restore(first)
            await box.restore(second)
        result = "ran" if stage.is_marked else "not run"
        for command in ("status", "diff"):
            _git(repository, command)
        return result, "yes" if stage.is_marked else "no"


async def _repository_of_traps(level: Level) -> tuple[str, str]:
    return await _evil_repository(level, ".", ".git")


async def _nested_traps(level: Level) -> tuple[str, str]:
    return await _evil_repository(level, "sub", ".git")


async def _work_tree_of_traps(level: Level) -> tuple[str, str]:
    return await _evil_repository(level, "tree", "../.git")


async def _new_hooks(level: Level) -> tuple[str, str]:
    """Replace .git by one with hooks: told by the diff, and gone when the snapshot is brought back."""
    replace_it = (
        "mv .git .git2 && cp -r .git2 .git && hook=.git/hooks/post-checkout &&"
        " printf '#!/bin/sh\\ntouch %s\\n' \"$1\" > $hook && chmod 755 $hook"
    )
    with _stage() as stage:
        _repository(stage.workspace)
        async with Sandbox.open(_bare(level, stage.workspace)) as box:
            first = await box.snapshot()
            await _inside(box, replace_it, str(stage.mark))
            told = [change.path for change in (await box.diff(first)).changes if change.runs]
            _git(stage.workspace, "checkout", "-q", "-b", "one")
            twin = "yes" if stage.is_marked else "no"
            await box.restore(first)
        _git(stage.workspace, "checkout", "-q", "-b", "two")
        undone = not stage.is_marked
        said = "told" if ".git/hooks/post-checkout" in told else "not told"
        return f"{said} {'undone' if undone else 'kept'}", twin


async def _environment(level: Level) -> tuple[str, str]:
    """Ask for variables by which programs load code: they hold inside and reach no helper outside."""
    with _stage() as stage:
        note = stage.workspace / "note"
        evil = stage.workspace / "evil.sh"
        evil.write_text('grep ^Seccomp: /proc/self/status >> "$NOTE"\n')
        env = {"LD_PRELOAD": "/workspace/none.so", "PYTHONSTARTUP": "/workspace/none.py"}
        own = env | {"BASH_ENV": str(evil), "NOTE": str(note), "PATH": "/usr/bin:/bin"}
        spec = _bare(level, stage.workspace)
        asked = env | {"BASH_ENV": "./evil.sh", "NOTE": "./note"}
        async with Sandbox.open(replace(spec, env=asked)) as box:
            await (await box.run(["bash", "-c", "true"])).wait(10)
            await box.restore(await box.snapshot())
        seen = set(note.read_text().split()) - {"Seccomp:"} if note.exists() else set()
        note.unlink(missing_ok=True)
        subprocess.run(["/bin/bash", "-c", "true"], env=own, check=False, stderr=subprocess.DEVNULL)
        twin = "yes" if note.exists() and "2" not in note.read_text().split() else "no"
        return "inside only" if seen == {"2"} else f"seen {sorted(seen)}", twin


_RUN_LATER = (
    ".vscode/tasks.json",
    ".envrc",
    "Makefile",
    ".npmrc",
    "package.json",
    "AGENTS.md",
    "conftest.py",
    "evil.pth",
    "sitecustomize.py",
    ".git/hooks/pre-commit",
    ".git/config",
)


_HARMLESS = ("notes.txt", "src/main.c")


async def _flagged(level: Level, paths: tuple[str, ...]) -> str:
    """Write such files inside, and harmless ones; whether the diff warns of the right ones."""
    with _stage() as stage:
        write = 'for path; do mkdir -p "$(dirname "$path")" && echo > "$path"; done'
        async with Sandbox.open(_bare(level, stage.workspace)) as box:
            first = await box.snapshot()
            await _inside(box, write, *paths, *_HARMLESS)
            found = {change.path for change in (await box.diff(first)).changes if change.runs}
        wrong = (set(paths) - found) | (set(_HARMLESS) & found)
        return f"wrong about {sorted(wrong)}" if wrong else "flagged"


async def _runs_later(level: Level) -> tuple[str, str]:
    result = await _flagged(level, _RUN_LATER)
    with _stage() as stage:
        (stage.workspace / "sitecustomize.py").write_text(f"open({str(stage.mark)!r}, 'w')")
        subprocess.run([find_python()[0], "-c", ""], env={"PYTHONPATH": str(stage.workspace)}, check=False)
        return result, "yes" if stage.is_marked else "no"


async def _twins_of_names(level: Level) -> tuple[str, str]:
    """Names that some file systems take for `.git`; a plain comparison misses them."""
    paths = (".GIT/hooks/pre-commit", ".git\u200c/hooks/update", ".Git/config", "MAKEFILE", "\uff21GENTS.md")
    result = await _flagged(level, paths)
    return result, "no" if any(path.startswith(".git/") for path in paths) else "yes"


async def _first_in_path(level: Level) -> tuple[str, str]:
    """A folder of the workspace comes first in PATH, with helpers of the sandbox's names."""
    names = ("bwrap", "python3", "sh", "bash", "git", "mount", "rm", "tar", "cp")
    with _stage() as stage:
        programs = stage.workspace / "bin"
        programs.mkdir()
        for name in names:
            (programs / name).write_text(f"#!/bin/sh\ntouch {stage.mark}\n")
            (programs / name).chmod(0o755)
        former = os.environ["PATH"]
        os.environ["PATH"] = f"{programs}:{former}"
        try:
            with contextlib.suppress(SandboxError):
                async with Sandbox.open(_bare(level, stage.workspace)) as box:
                    first = await box.snapshot()
                    await box.restore(first)
            result = "ran" if stage.is_marked else "not run"
            subprocess.run(["git"], check=False)
            return result, "yes" if stage.is_marked else "no"
        finally:
            os.environ["PATH"] = former


HOST_SCENES = (
    Scene("A20", "write to names that a file system may take for .git", _twins_of_names, "flagged"),
    Scene("F1", "have git run a program by its settings, filters and hooks", _repository_of_traps, "not run"),
    Scene("F2", "put a .git with hooks in the place of .git", _new_hooks, "told undone"),
    Scene("F3", "the same as F1 in a repository in the repository", _nested_traps, "not run"),
    Scene("F3b", "the same in a work tree of it", _work_tree_of_traps, "not run"),
    Scene("F5", "have a helper load code by its environment", _environment, "inside only"),
    Scene("F6", "leave files that are run by themselves later", _runs_later, "flagged"),
    Scene("F7", "be found first in PATH", _first_in_path, "not run"),
)
