"""How fast the index is on this machine, beside others: `python -m pilotfish.tools.index.bench [FOLDER]`.

Without a folder it indexes a copy of the texts of this Python's own library and its installed packages.
Everything is timed in a process of its own, without its start; memory is the sum over all processes of what
each has for itself and its part of what they share (PSS), sampled twenty times a second. universal-ctags is
measured where it is on the PATH, aider's repository map with `--aider PYTHON`, a Python that has it. All get
the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pilotfish.sandbox.busy import warn_when_busy
from pilotfish.tools.index.bench_peers import AIDER, AIDER_CACHE, ctags_command, is_universal_ctags
from pilotfish.tools.index.listing import list_files
from pilotfish.tools.index.repository import Index
from pilotfish.tools.index.rules import left_out_by_name

_SAMPLE_SECONDS = 0.05
_MAP_TOKENS = 4096
_OURS = """
import json, sys, time
from pathlib import Path
began = time.monotonic()
from pilotfish.tools.index.repository import Index
with Index(sys.argv[1], Path(sys.argv[2])) as index:
    started = time.monotonic()
    done = index.update()
    updated = time.monotonic()
    found = index.map(int(sys.argv[3]))
    mapped = time.monotonic()
print(json.dumps({"update": updated - started, "map": mapped - updated, "read": done.read,
    "symbols": found.symbols, "tokens": found.tokens, "complete": done.complete}))
"""


@dataclass(frozen=True)
class Row:
    """One measurement: seconds in all, megabytes at most, and what else there is to say."""

    name: str
    seconds: float
    megabytes: float
    note: str


class _Memory:
    """The most memory that a process and all that it started had together, in bytes."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self.peak

    def _sample(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            self.peak = max(self.peak, sum(map(_own_bytes, _family(self._pid))))


def _family(pid: int) -> list[int]:
    found, coming = [], [pid]
    while coming:
        found.append(coming.pop())
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{found[-1]}/task").iterdir():
                coming += map(int, (task / "children").read_text().split())
    return found


def _own_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _measured(command: list[str], limit_s: float) -> tuple[dict[str, Any] | None, float, float]:
    """What a command printed as its last line of JSON, its wall seconds and its megabytes."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    memory = _Memory(process.pid)
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        output = ""
    seconds = time.monotonic() - began
    last = output.strip().splitlines()[-1:] or [""]
    with contextlib.suppress(ValueError):
        return json.loads(last[0]), seconds, memory.stop() / 1e6
    return None, seconds, memory.stop() / 1e6


def copy_own_library(folder: Path, most: int | None) -> None:
    """Copy the texts of this Python's library and installed packages into a folder, at most so many files."""
    paths = sysconfig.get_paths()
    left = most if most is not None else sys.maxsize
    for name, source in (("library", paths["stdlib"]), ("packages", paths["purelib"])):
        for entry in list_files(Path(source), above=False).entries:
            relative = os.fsdecode(entry.path)
            if left and left_out_by_name(entry.path, entry.size) is None and "site-packages/" not in relative:
                target = folder / name / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(source, relative), target)
                left -= 1


def measure(tree: Path, scratch: Path, aider: str | None, limit_s: float) -> dict[str, Any]:
    """All measurements of one tree, as `--json` prints them."""
    database = scratch / "index.sqlite"
    ours = [sys.executable, "-c", _OURS, str(tree), str(database), str(_MAP_TOKENS)]
    rows = []

    def run_ours(name: str) -> Row:
        said, _, megabytes = _measured(ours, limit_s)
        if said is None or not said["complete"]:
            raise SystemExit(f"The index was not made within {limit_s:g} s; give a longer --limit.")
        note = f"update {said['update']:.2f} s ({said['read']} read), map {said['map']:.2f} s"
        note += f", {said['symbols']} definitions in {said['tokens']} tokens"
        return Row(name, said["update"] + said["map"], megabytes, note)

    with _probe(tree) as probe:
        rows.append(run_ours("index, cold"))
        rows.append(run_ours("index, nothing changed"))
        probe.write_text("def changed_by_the_bench():\n    return 1\n")
        rows.append(run_ours("index, one file changed"))
    with Index(tree, database) as index:
        counted = index.counted()
        files = [one.path for one in index.files(("parsed",)) if not one.path.startswith('"')]
    listing = scratch / "files"
    listing.write_text("".join(f"{tree / path}\n" for path in files))
    if aider is not None:
        if list(tree.glob(AIDER_CACHE)):
            raise SystemExit(f"aider has a cache in {tree}; remove {AIDER_CACHE} there to see it start cold.")
        for name in ("aider's map, cold", "aider's map, warm"):
            said, seconds, megabytes = _measured(
                [aider, "-c", AIDER, str(tree), str(listing), str(_MAP_TOKENS)], limit_s
            )
            note = f"{said['tokens']} tokens" if said else "did not end in time"
            rows.append(Row(name, said["seconds"] if said else seconds, megabytes, note))
        for cache in tree.glob(AIDER_CACHE):
            shutil.rmtree(cache)
    if is_universal_ctags():
        _, seconds, megabytes = _measured(ctags_command(listing, scratch / "tags"), limit_s)
        count = sum(1 for _ in (scratch / "tags").open("rb")) if (scratch / "tags").exists() else 0
        rows.append(Row("universal-ctags", seconds, megabytes, f"{count} tags, nothing kept between runs"))
    return {
        "tree": str(tree),
        "cores": len(os.sched_getaffinity(0)),
        "files": {state: {"files": number, "lines": lines} for state, (number, lines) in counted.items()},
        "rows": [asdict(row) for row in rows],
    }


@contextlib.contextmanager
def _probe(tree: Path) -> Any:
    """A file that can be changed, removed at the end."""
    probe = tree / "changed_by_the_bench.py"
    probe.write_text("def before():\n    return 1\n")
    try:
        yield probe
    finally:
        probe.unlink()


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    shown = {state: result["files"].get(state, {"files": 0, "lines": 0}) for state in ("parsed", "text")}
    files = sum(one["files"] for one in shown.values())
    lines = sum(one["lines"] for one in shown.values())
    text = [
        f"{files} files, {lines} lines; parsed {shown['parsed']['files']} files, "
        f"{shown['parsed']['lines']} lines; {result['cores']} cores",
        "",
        f"{'':26} {'s':>8} {'files/s':>9} {'lines/s':>11} {'MB':>7} {'times cold':>11}",
    ]
    cold = result["rows"][0]["seconds"]
    for row in result["rows"]:
        rates = f"{files / row['seconds']:9.0f} {lines / row['seconds']:11.0f}"
        text.append(
            f"{row['name']:26} {row['seconds']:8.2f} {rates} {row['megabytes']:7.0f}"
            f" {row['seconds'] / cold:10.2f}x  {row['note']}"
        )
    return "\n".join(text)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m pilotfish.tools.index.bench",
        description="Measure the index of a folder, or of this Python's own library.",
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--aider", metavar="PYTHON", help="a Python that has aider-chat")
    parser.add_argument("--files", type=int, help="at most so many files of the library")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for one measurement")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warn_when_busy()
    with tempfile.TemporaryDirectory(prefix="pilotfish-bench-") as temporary:
        tree = options.folder
        if tree is None:
            tree = Path(temporary, "tree")
            copy_own_library(tree, options.files)
        scratch = Path(temporary, "scratch")
        scratch.mkdir()
        result = measure(tree.resolve(), scratch, options.aider, options.limit)
    print(json.dumps(result) if options.json else table(result))


if __name__ == "__main__":
    main()
