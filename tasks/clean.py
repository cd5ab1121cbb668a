"""Run commands in a shell that the model had no hand in."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Mapping
from typing import IO

from pilotfish.sandbox import Sandbox

MAX_SAID = 4 << 20

# A shell that owes the model nothing: fresh environment, no start-up files, programs of the system only,
# and Python neither reads nor leaves compiled files beside the sources.
_CLEAN_SHELL = """
export GRADER=$(mktemp -d) || exit 125
trap 'chmod -R u+rwx "$GRADER"; rm -rf "$GRADER"' EXIT
tar -x -C "$GRADER" || exit 125
export HOME="$GRADER" PYTHONPYCACHEPREFIX="$GRADER/.pycache"
eval "$1" < /dev/null
"""


async def run_clean(
    box: Sandbox,
    command: str,
    timeout_s: float,
    files: Mapping[str, str | bytes] | None = None,
    stdout: IO[bytes] | None = None,
) -> tuple[int | None, str, str]:
    """Run bash text in the workspace, in a shell that the model had no hand in.

    files: written to a fresh folder named by $GRADER, {path in it: content}. stdout: takes all of the
    standard output, of which otherwise the middle is dropped when it is long. Returns exit status (None when
    it ran out of time and was killed with all that it started), standard output and standard error.
    """
    with tempfile.TemporaryFile() as stderr:
        fds = {2: stderr.fileno()} | ({} if stdout is None else {1: stdout.fileno()})
        process = await box.run(
            ["bash", "--noprofile", "--norc", "-c", _CLEAN_SHELL, "check", command],
            stdin=_archive(files or {}),
            fds=fds,
        )
        try:
            exit_code: int | None = await process.wait(timeout_s)
        except TimeoutError:
            exit_code = None
        await process.kill()
        stderr.seek(0)
        return exit_code, process.output, stderr.read(MAX_SAID).decode("utf-8", "replace")


def last_line(text: str) -> str:
    """The last line that says something."""
    return text.strip().rpartition("\n")[2]


def _archive(files: Mapping[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
