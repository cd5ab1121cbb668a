"""What `pilotfish code` hands back: the patch, and the branch or the file that were asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pilotfish.agent import events as log
from pilotfish.agent.run_folder import PATCH
from pilotfish.agent.whole_file import write_whole
from pilotfish.sandbox import SandboxError
from pilotfish.sandbox.git import GitError
from pilotfish.sandbox.repository import Repository
from pilotfish.sandbox.worktree import WorkTree

if TYPE_CHECKING:
    from pilotfish.agent.code import CodeTarget

_TITLE = 70


def hand_back(
    target: CodeTarget,
    tree: WorkTree,
    repository: Repository,
    events: log.EventLog,
    notes: list[str],
    *,
    stopped: bool,
) -> None:
    """Write the patch, make the branch, and put both on record. A run that was stopped makes no branch.

    What cannot be made where it was asked for is put on record as undone: the patch in the run's folder has
    the work. All of it may be done again after a kill. Raises `SandboxError` where the repository is gone.
    """
    run = log.read_run(events.folder)
    patch = events.folder / PATCH
    try:
        taken, own = tree.take()
        changed = tree.changed(tree.base, taken)
        data = tree.patch(tree.base, taken)
    except GitError as error:
        raise SandboxError(
            f"{str(error).removesuffix('.')}; the work is in {tree.folder}, and `pilotfish resume "
            f"{events.folder}` hands it back when {repository.folder} is as it was."
        ) from error
    try:
        write_whole(patch, data)
    except OSError as error:
        raise log.LogError(
            f"Cannot write {patch} ({error.strerror}); free some space, then `pilotfish resume` writes it."
        ) from error
    notes = [*notes, *(f"{path} is a repository of its own and not part of the result." for path in own)]
    notes += tree.not_taken()
    if changed and tree.mostly_line_ends(tree.base, taken):
        notes.append("More than half of the changed lines differ in nothing but their ends (CRLF or LF).")
    commit = branch = ""
    undone: list[str] = []
    if changed:
        ends = [one for one in run.events if isinstance(one, log.EpisodeEnded) and not one.parent]
        commit = tree.keep(taken, _message(target.instruction, ends[-1].answer if ends else ""))
        if target.branch and not stopped:
            try:
                tree.bring_to(repository, target.branch)
                branch = target.branch
            except SandboxError as error:
                undone.append(f"The branch {target.branch!r} was not made: {error}")
        if target.patch and not stopped:
            try:
                _write_new(Path(target.patch), data)
                patch = Path(target.patch)
            except FileExistsError:
                undone.append(f"{target.patch} was not written: there is another file of that name by now.")
            except OSError as error:
                undone.append(f"{target.patch} was not written ({error.strerror}); take {patch}.")
    events.append(
        log.HandedBack(
            base=tree.base,
            commit=commit,
            patch=str(patch) if changed else "",
            branch=branch,
            changed=[(one.how, one.path, one.before) for one in changed],
            notes=notes,
            undone=undone,
        )
    )


def _message(instruction: str, answer: str) -> str:
    """The message of the commit: the instruction's first line, then the model's summary."""
    title = instruction.strip().splitlines()[0]
    title = title if len(title) <= _TITLE else title[: _TITLE - 1] + "…"
    return f"{title}\n\n{answer.strip()}\n" if answer.strip() else f"{title}\n"


def _write_new(path: Path, data: bytes) -> None:
    """Put a file in place whole where there is none, or the same. Raises `FileExistsError`, or `OSError`."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    write_whole(draft, data)
    try:
        path.hardlink_to(draft)  # which replaces nothing
    except FileExistsError:
        if not (path.is_file() and path.read_bytes() == data):
            raise
    finally:
        draft.unlink(missing_ok=True)
