"""What a model changed, as a patch, and what tests say of that patch on a fresh copy.

Everything happens inside the sandbox, with a git repository of the grader's own: the `.git` of the workspace
was in the model's hands. A work starts as a tar archive (see `start_work`), of which each copy is made anew.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotfish.sandbox import Sandbox
from pilotfish.tasks.clean import last_line, run_clean

MAX_PATCH = 16 << 20
"""Bytes of the longest patch that is taken."""
MAX_LOG = 64 << 20
_SECONDS = 300.0
_BASE = "base.tar"
_NO_PATCH, _NO_TESTS = 120, 121
"""Statuses of the check below: the patch does not apply, the tests' own patch does not."""

ATTRIBUTES = "* -text -eol -filter -ident -working-tree-encoding -export-ignore -export-subst\n"
"""The attributes of a repository whose files are what was committed, byte for byte."""

# What tests and checkers leave beside the work is not part of it, whether or not the repository says so.
_LEFT = "__pycache__/\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n.hypothesis/\n*.pyc\n*.egg-info/\n"

_GIT = f"""
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
unpack() {{ mkdir -p "$1" && tar -x -f "$GRADER/{_BASE}" -C "$1"; }}
own() {{ git init --quiet --template= "$1" && mkdir -p "$1/.git/info" &&
  printf '%s%s\n' {shlex.quote(ATTRIBUTES)} "${{DIFFED-}}" > "$1/.git/info/attributes" &&
  printf '%s' {shlex.quote(_LEFT)} > "$1/.git/info/exclude"; }}
"""

_START = f"""{_GIT}
tar -x -f "$GRADER/{_BASE}" && git init --quiet --initial-branch=main --template= . || exit
git config user.name user && git config user.email user@localhost
printf '%s' {shlex.quote(_LEFT)} > .git/info/exclude
git add --all --force . && git commit --quiet --allow-empty --message='The state to start from'
"""

# Repositories that a model made inside its work are left out, as git itself would leave them out.
_DIFF = f"""{_GIT}
unpack "$GRADER/base" && own "$GRADER/own" || exit
export GIT_DIR="$GRADER/own/.git"
git --work-tree="$GRADER/base" -C "$GRADER/base" add --all --force . && base=$(git write-tree) || exit
mapfile -d '' -t nested < <(find . -mindepth 2 -name .git -prune -printf ':(exclude,literal)%P\\0')
git --work-tree=. add --all -- . "${{nested[@]%/.git}}" || exit
git diff --cached --binary --full-index --no-renames --no-color "$base"
"""

_CHECK = f"""{_GIT}
unpack "$GRADER/work" && own "$GRADER/work" && cd "$GRADER/work" || exit
git add --all --force . || exit
if [ -s "$GRADER/patch" ]; then
  git apply --whitespace=nowarn --include="$ONLY" "$GRADER/patch" || exit {_NO_PATCH}
fi
if [ -s "$GRADER/tests" ]; then
  for file in "${{TESTS[@]}}"; do
    git checkout --quiet -- ":(literal)$file" 2> /dev/null || rm -rf -- "$file"
  done
  git apply --whitespace=nowarn "$GRADER/tests" || exit {_NO_TESTS}
fi
unset PYTHONPYCACHEPREFIX
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$PWD/src:$PWD${{PYTHONPATH:+:$PYTHONPATH}}"
"""

_TOUCHED = re.compile(r"^(?:---|\+\+\+) [ab]/(.+?)\t?$", re.MULTILINE)


class WorkError(Exception):
    """A work cannot be started or compared; one sentence."""


@dataclass(frozen=True)
class Checked:
    """What tests printed, both outputs in order. trouble: why they did not run or come to an end, if so."""

    log: str
    exit_code: int | None
    trouble: str = ""


async def start_work(box: Sandbox, base: bytes) -> None:
    """Make the workspace a git repository of one commit with the files of a tar archive.

    Raises `WorkError`.
    """
    exit_code, said, wrong = await run_clean(box, _START, _SECONDS, {_BASE: base})
    if exit_code != 0:
        raise WorkError(f"the files to start from cannot be laid out: {last_line(wrong or said)[:200]}")


async def patch_of(box: Sandbox, base: bytes) -> str:
    """What the workspace has become, as a patch to the files of the archive; '' when nothing changed.

    What the work's own .gitignore names is left out. Raises `WorkError`.
    """
    try:
        return (await _patch(box, base, _DIFF)).decode()
    except UnicodeDecodeError:  # text in another encoding; as git's binary patch it is plain ASCII
        return (await _patch(box, base, f"DIFFED='* -diff'\n{_DIFF}")).decode("ascii", "replace")


async def _patch(box: Sandbox, base: bytes, script: str) -> bytes:
    with tempfile.TemporaryFile() as out:
        exit_code, _, wrong = await run_clean(box, script, _SECONDS, {_BASE: base}, out)
        size = out.seek(0, 2)
        if exit_code != 0:
            why = f"took over {_SECONDS:g} s" if exit_code is None else f"failed: {last_line(wrong)[:200]}"
            raise WorkError(f"comparing the workspace with its beginning {why}")
        if size > MAX_PATCH:
            raise WorkError(f"the changes are {size} bytes, and a patch may have {MAX_PATCH}")
        out.seek(0)
        return out.read()


async def check_patch(
    box: Sandbox,
    base: bytes,
    patch: str,
    command: str,
    timeout_s: float,
    *,
    tests: str = "",
    files: Mapping[str, str | bytes] | None = None,
    only: str = "*",
) -> Checked:
    """Run a bash command in a fresh copy of the archive's files with the patch, and after it `tests`.

    tests: a patch whose files replace what the model made of them. files: laid into $GRADER too. only: the
    pattern of the files whose changes are taken from the patch.
    """
    script = (
        f"ONLY={shlex.quote(only)}\nTESTS=({shlex.join(touched(tests))})\n{_CHECK}\nexec 2>&1\n{command}\n"
    )
    laid = {_BASE: base, "patch": patch.encode(), "tests": tests.encode()}
    with tempfile.TemporaryFile() as out:
        exit_code, _, wrong = await run_clean(box, script, timeout_s, {**laid, **(files or {})}, out)
        out.seek(0)
        log = out.read(MAX_LOG).decode("utf-8", "replace")
    trouble = ""
    if exit_code is None:
        trouble = f"The tests took longer than {timeout_s:g} s and were ended."
    elif exit_code == _NO_PATCH:
        trouble = f"The patch does not apply: {last_line(wrong)[:200]}."
    elif exit_code == _NO_TESTS:
        trouble = f"The patch of the tests does not apply: {last_line(wrong)[:200]}."
    return Checked(log, exit_code, trouble)


def touched(patch: str) -> Sequence[str]:
    """The files that a patch names, each once, in order."""
    return list(dict.fromkeys(_TOUCHED.findall(patch)))
