"""Copies of the workspace to go back to, kept beside the sandbox and out of its reach."""

from __future__ import annotations

import secrets
from pathlib import Path

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.trees import copy_tree, empty_folder, remove_tree


class Snapshots:
    """Whole copies, one folder each.

    Files, folders, links, modes and times come back; open files and programs do not.
    """

    def __init__(self, workspace: Path, store: Path) -> None:
        self._workspace = workspace
        self._store = store

    def take(self) -> str:
        """Copy the workspace; returns the name of the copy."""
        name = secrets.token_hex(6)
        target = self._store / name
        target.mkdir(mode=0o700)
        try:
            copy_tree(self._workspace, target)
        except OSError as error:
            remove_tree(target)
            raise SandboxError(
                f"the snapshot could not be taken ({error.strerror}), free some space."
            ) from error
        return name

    def restore(self, name: str) -> None:
        """Make the workspace what it was. The folder itself stays, so that programs inside keep seeing it."""
        source = self._store / name
        if not name.isalnum() or not source.is_dir():
            raise SandboxError(f"there is no snapshot {name!r} of this sandbox, take one first.")
        try:
            empty_folder(self._workspace)
            copy_tree(source, self._workspace)
        except OSError as error:
            raise SandboxError(
                f"snapshot {name!r} could not be restored ({error.strerror}), it is kept: try again."
            ) from error
