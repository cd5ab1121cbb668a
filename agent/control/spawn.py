"""Starts runs as processes of their own, which outlive whoever started them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

OUTPUT = "output.log"
"""What a run that was started so has printed, in its folder."""
_PREFIX = "pilotfish: "


class StartError(Exception):
    """A run did not start; the message is the sentence that it ended with."""


async def start_supervised(
    words: Sequence[str],
    record_dir: Path | None = None,
    on_wait: Callable[[str], None] = lambda what: None,
) -> Path:
    """Start `pilotfish WORDS --supervised` (run, code, demo or resume) and return its run folder, where it
    can be reached by then. A model that takes long to load is waited for; a cancelled wait ends the process.

    record_dir: where its folder is made; None is as the settings say. on_wait: told what is waited for, in
    words such as "the model nano to be loaded". Raises `StartError`.
    """
    words = [*words, "--supervised"]
    if record_dir is not None and words[0] != "resume":
        words += ["--record-dir", str(record_dir)]
    on_wait("its process to start")
    started = _Started(words)
    try:
        told = await _read_folder(started.pipe, on_wait)
    except asyncio.CancelledError:
        started.give_up()
        raise
    finally:
        os.close(started.pipe)
    if not told.endswith(b"\n"):
        raise StartError(started.last_words())
    folder = Path(os.fsdecode(told[:-1]))
    started.keep_output(folder / OUTPUT)
    return folder


class _Started:
    """A process that plays a run, in a session of its own; `pipe` tells its folder."""

    def __init__(self, words: Sequence[str]) -> None:
        self.pipe, theirs = os.pipe()
        descriptor, name = tempfile.mkstemp(prefix="pilotfish-", suffix=".log")
        self._output = Path(name)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pilotfish.agent.entry", *words, "--folder-to", str(theirs)],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                pass_fds=[theirs],
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
            os.close(theirs)
        # Else it would stay as a zombie once it has ended.
        threading.Thread(target=self._process.wait, daemon=True).start()

    def give_up(self) -> None:
        """End it."""
        self._process.terminate()
        self._output.unlink(missing_ok=True)

    def last_words(self) -> str:
        """Why it ended."""
        lines = self._output.read_text("utf-8", "replace").splitlines()
        self._output.unlink(missing_ok=True)
        said = [line.removeprefix(_PREFIX) for line in lines if line.startswith(_PREFIX)]
        said = said or [line for line in lines if line.strip()]
        return said[-1] if said else "The run ended before it had begun."

    def keep_output(self, place: Path) -> None:
        """Put what it prints where it belongs; across file systems as a link to it."""
        place.unlink(missing_ok=True)
        try:
            self._output.rename(place)
        except OSError:
            with contextlib.suppress(OSError):
                place.symlink_to(self._output)


async def _read_folder(descriptor: int, on_wait: Callable[[str], None]) -> bytes:
    """What is written to a pipe until nobody can write to it any more, from the first line that is a path on;
    the lines before say what is waited for.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    data = b""
    try:
        while True:
            await readable.wait()
            piece = os.read(descriptor, 4096)
            if not piece:
                return data
            data += piece
            while b"\n" in data and not data.startswith(b"/"):
                line, _, data = data.partition(b"\n")
                on_wait(os.fsdecode(line))
            readable.clear()
    finally:
        loop.remove_reader(descriptor)
