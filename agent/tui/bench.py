"""How quick the interface is: `python -m pilotfish.agent.tui.bench`.

It plays `pilotfish attach` and `pilotfish tui` on a pseudo-terminal of 80x24, presses keys and waits for
what they show: with 5,000 steps and a result of 35,000 lines, beside a run whose answers stream at full
speed, and idle with five runs that are being played.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pilotfish.agent import events as log
from pilotfish.agent.control.client import ControlError, RunClient
from pilotfish.agent.control.spawn import start_supervised
from pilotfish.agent.control.wire import Control, Stop
from pilotfish.agent.events import EVENTS
from pilotfish.agent.stats import percentile
from pilotfish.model.protocol import Usage
from pilotfish.sandbox.busy import warn_when_busy

STEPS, LINES, LIVE = 5_000, 35_000, 5
KEYS = {
    "up": "\x1b[A",
    "down": "\x1b[B",
    "page up": "\x1b[5~",
    "page down": "\x1b[6~",
    "home": "\x1b[H",
    "end": "\x1b[F",
}
_CALM_S = 0.3
"""Seconds at most to wait for calm before a key."""
_CODES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])"
)


class Terminal:
    """A command on a pseudo-terminal, which is read as it writes. on: one that another command has left."""

    def __init__(
        self, words: list[str], columns: int = 80, rows: int = 24, on: Terminal | None = None
    ) -> None:
        if on is None:
            self.leader, follower = pty.openpty()
            self.name = os.ttyname(follower)
            fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        else:
            self.leader, self.name = on.leader, on.name
            follower = os.open(self.name, os.O_RDWR | os.O_NOCTTY)
        environment = {name: value for name, value in os.environ.items() if name not in ("TMUX", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pilotfish.agent.entry", *words],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            env=environment | {"TERM": "xterm-256color"},
        )
        os.close(follower)
        self.raw = b""
        """All that it has written."""
        self._from = 0

    @property
    def text(self) -> str:
        """What it has written since the last key, without its codes."""
        return _CODES.sub(b"", self.raw[self._from :]).decode("utf-8", "replace")

    def press(self, keys: str) -> None:
        """Send keys; what was shown before them is forgotten."""
        end = time.perf_counter() + _CALM_S
        while time.perf_counter() < end and self._read(_CALM_S / 10):
            pass  # what earlier keys have shown
        self._from = len(self.raw)
        os.write(self.leader, keys.encode())

    def wait(self, pattern: str, seconds: float = 60) -> float:
        """Read until something is shown; returns the seconds that took. Raises TimeoutError."""
        began = time.perf_counter()
        expected = re.compile(pattern)
        while not expected.search(self.text):
            left = began + seconds - time.perf_counter()
            if left <= 0 or not self._read(left):
                raise TimeoutError(f"{pattern!r} was not shown within {seconds:g} s: {self.text[-500:]!r}")
        return time.perf_counter() - began

    def rest(self, seconds: float) -> None:
        """Read for a while."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self._read(left)
        self._from = len(self.raw)

    def wait_for_end(self, seconds: float = 30) -> None:
        """Read until the command has ended."""
        end = time.perf_counter() + seconds
        while self.process.poll() is None and time.perf_counter() < end:
            self._read(0.1)

    def seconds_used(self) -> float:
        """Processor time of the command so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()
        self.process.wait()
        os.close(self.leader)

    def _read(self, seconds: float) -> bool:
        if not select.select([self.leader], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.leader, 1 << 16)
        except OSError:
            return False
        self.raw += data
        return bool(data)


@contextlib.contextmanager
def on_terminal(*words: str) -> Iterator[Terminal]:
    """A command of pilotfish on a terminal."""
    terminal = Terminal(list(words))
    try:
        yield terminal
    finally:
        terminal.close()


def large_run(folder: Path, steps: int = STEPS, lines: int = LINES) -> Path:
    """A finished run of so many steps, of which the last has a result of so many lines."""
    folder.mkdir(parents=True)
    target = {"target": {"workspace": None}, "settings": {}}
    records: list[log.Event] = [
        log.RunStarted(run=folder.name, pilotfish="0", command="run", model="nano", options=target),
        log.EpisodeStarted(episode=1, task="instruction", instruction="A long piece of work."),
    ]
    for number in range(1, steps + 1):
        call = log.CallData(id=f"c{number}", name="shell", arguments={"command": f"make part-{number}"})
        usage = Usage(input_tokens=20_000 + number, cached_tokens=19_000, output_tokens=60)
        text = "\n".join(f"line {line} of the result" for line in range(lines if number == steps else 12))
        thinking = "Is this the part that fails? " * 8
        records += [
            log.Answered(step=number, reasoning=thinking, calls=[call], usage=usage, seconds=1.5),
            log.Intended(step=number, call=call),
            log.Resulted(step=number, call_id=call.id, ok=number % 9 > 0, text=text, seconds=0.5),
        ]
    with (folder / EVENTS).open("w") as file:
        for number, record in enumerate(records, 1):
            whole = record.model_copy(update={"n": number, "t": 1e9 + number})
            file.write(whole.model_dump_json() + "\n")
    return folder


def key_times(terminal: Terminal, rounds: int) -> list[float]:
    """Seconds from a key of the list of steps to what it shows."""
    times = []
    for _ in range(rounds):
        for name in ("up", "up", "page up", "down", "page down", "home", "down", "end"):
            terminal.press(KEYS[name])
            times.append(terminal.wait(r"row [\d,]+ of"))
    return times


def result_times(terminal: Terminal, rounds: int) -> list[float]:
    """Seconds from a key of the details, with the long result in it, to what it shows."""
    terminal.press("\r")
    terminal.press(KEYS["end"])
    terminal.wait(rf"line {LINES - 1} ")
    times = []
    for _ in range(rounds):
        for name in (
            "page up",
            "page up",
            "up",
            "down",
            "page down",
            "home",
            "page down",
            "page down",
            "end",
        ):
            terminal.press(KEYS[name])
            times.append(terminal.wait(r"line \d+ |Thinking"))
    return times


def _tell(what: str, times: list[float]) -> None:
    p50, p95 = (1000 * percentile(times, share) for share in (0.5, 0.95))
    print(
        f"{what}: {len(times)} keys, p50 {p50:.0f} ms, p95 {p95:.0f} ms, most {1000 * max(times):.0f} ms",
        flush=True,
    )


def idle_share(terminal: Terminal, seconds: float = 20) -> float:
    """The share of one processor that a command uses while nothing happens."""
    terminal.rest(3)
    before = terminal.seconds_used()
    terminal.rest(seconds)
    return (terminal.seconds_used() - before) / seconds


def busy_times(terminal: Terminal, rounds: int) -> list[float]:
    """Seconds from a key of the list to the row that it goes to, while much else is shown."""
    terminal.press(KEYS["home"])
    terminal.wait("row 1 of")
    times = []
    for _ in range(rounds):
        for name, row in (("down", 2), ("up", 1)):
            terminal.press(KEYS[name])
            times.append(terminal.wait(f"row {row} of"))
    return times


def _start(runs: Path, *words: str) -> Path:
    return asyncio.run(start_supervised(["run", *words], runs))


def _stop(folders: Iterable[Path]) -> None:
    async def stop(folder: Path) -> None:
        with contextlib.suppress(ControlError):
            client = await RunClient.connect(folder)
            await client.ask(Control(take=True, force=True))
            await client.ask(Stop())
            await client.close()

    for folder in folders:
        asyncio.run(stop(folder))


def main() -> None:
    """Measure and print."""
    warn_when_busy()
    with tempfile.TemporaryDirectory(prefix="pilotfish-bench-", ignore_cleanup_errors=True) as place:
        large = large_run(Path(place) / "large" / "20260101-000000-large0")
        with on_terminal("attach", str(large)) as terminal:
            took = terminal.wait(rf"row {STEPS + 2:,} of", 120)
            print(f"opened with {STEPS:,} steps after {took:.1f} s", flush=True)
            terminal.rest(1)
            _tell(f"the list with {STEPS:,} steps", key_times(terminal, 12))
            _tell(f"a result of {LINES:,} lines", result_times(terminal, 12))
            print(f"idle with it: {100 * idle_share(terminal):.1f} % of a processor", flush=True)
        runs = Path(place) / "runs"
        begun: list[Path] = []
        try:
            begun.append(_start(runs, "--instruction", "Write a long text.", "--model", "nano"))
            with on_terminal("attach", str(begun[0])) as terminal:
                terminal.wait(r"row \d+ of")
                terminal.rest(1)
                _tell("beside a run that writes as fast as nano can", busy_times(terminal, 40))
            words = ("web/sign-in", "--model", "solution", "--default-verdict", "ask")
            for _ in range(LIVE):
                begun.append(_start(runs, *words))
            with on_terminal("tui", "--record-dir", str(runs)) as terminal:
                terminal.wait(f"{LIVE} running|{LIVE + 1} running")
                idle = idle_share(terminal)
                print(f"idle at home, {LIVE} runs: {100 * idle:.1f} % of a processor", flush=True)
        finally:
            _stop(begun)


if __name__ == "__main__":
    main()
