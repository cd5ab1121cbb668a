"""A terminal that a test types into and reads: a tmux server of its own, without anybody's configuration."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


class Terminal:
    """One window of a private tmux server."""

    def __init__(self, socket: Path, env: Mapping[str, str]) -> None:
        self._socket, self._env = socket, dict(env)

    def start(self, command: Sequence[str], cwd: Path, width: int = 80, height: int = 24) -> None:
        """Run a command in it. When the command has ended, its last screen stays to be read."""
        line = f"exec {shlex.join(command)}"
        size = ["-x", str(width), "-y", str(height)]
        options = ["set", "-g", "remain-on-exit", "on", ";", "set", "-g", "escape-time", "0", ";"]
        self._tmux("-f", "/dev/null", *options, "new-session", "-d", *size, "-c", str(cwd), line)

    def again(self, command: Sequence[str]) -> None:
        """Run another command in the same window, once the one before has ended."""
        self._tmux("respawn-pane", f"exec {shlex.join(command)}")

    def settle(self) -> None:
        """Wait until the screen stands still, for longer than a new dialog heeds no key."""
        before, since = self.text(), time.monotonic()
        while time.monotonic() - since < 0.7:
            time.sleep(0.1)
            if (now := self.text()) != before:
                before, since = now, time.monotonic()

    def type(self, *keys: str) -> None:
        """Press keys by tmux's names of them, such as `a`, `Enter`, `C-c`, `Down`."""
        self._tmux("send-keys", *keys)

    def write(self, text: str) -> None:
        """Type text as it is."""
        self._tmux("send-keys", "-l", text)

    def text(self) -> str:
        """What stands on the screen."""
        return self._tmux("capture-pane", "-p")

    def resize(self, width: int, height: int) -> None:
        """Give the window another size, in characters."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def wait(self, *words: str, without: str = "", seconds: float = 60) -> str:
        """Wait until all words stand on the screen and `without` does not; returns the screen."""
        deadline = time.monotonic() + seconds
        while True:
            shown = self.text()
            if all(word in shown for word in words) and not (without and without in shown):
                return shown
            assert time.monotonic() < deadline, (
                f"{words} (without {without!r}) never stood on the screen:\n{shown}"
            )
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        """Of the command."""
        return int(self._tmux("display-message", "-p", "#{pane_pid}"))

    @property
    def status(self) -> int | None:
        """The command's exit status; None while it runs."""
        dead, status = self._tmux("display-message", "-p", "#{pane_dead} #{pane_dead_status}").split(" ")
        return int(status or 0) if dead == "1" else None

    def wait_for_end(self, seconds: float = 30) -> int:
        """The command's exit status, once it has ended."""
        deadline = time.monotonic() + seconds
        while (status := self.status) is None:
            assert time.monotonic() < deadline, f"it has not ended:\n{self.text()}"
            time.sleep(0.05)
        return status

    def close(self) -> None:
        """End the server and what runs in it."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), *words],
            env=self._env,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        return done.stdout.rstrip("\n")


@contextlib.contextmanager
def terminal(folder: Path, **env: str) -> Iterator[Terminal]:
    """A private terminal; its socket lies in `folder`, whose path has to be short."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("TMUX", "PILOTFISH_"))}
    there = Terminal(folder / "tmux", own | {"TERM": "xterm-256color", "LANG": "C.UTF-8"} | env)
    try:
        yield there
    finally:
        there.close()
