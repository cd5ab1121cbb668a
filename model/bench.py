"""How fast the network runs here, beside transformers' own MiniMax-M3: `python -m pilotfish.model.bench`.

The same checkpoint, type and number of threads on both sides, in turn: prefill of whole prompts, one step of
an agent (a clip of four frames of 1280x800 from its patches on, and some words, behind 8,192 tokens in the
cache), and single tokens of an answer. First both read the same prompt in fp32, and what they find is
compared. Each measurement is a process of its own: memory is the most that it ever held, its libraries
included (on a GPU, what torch allocated there). Times are medians of up to five runs within 15 seconds, at
least one; on a GPU after one that compiles the kernels. --long adds prompts of which transformers would mask
squares of tens of gigabytes, read by this project alone: on a GPU a million tokens, a step and an answer
behind them, and loading them from a file. They take minutes, and Ctrl-C keeps what was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pilotfish.kernels.busy import warn_when_busy
from pilotfish.model.bench_spec import Spec
from pilotfish.model.bench_table import Row, Side, columns, headline, line
from pilotfish.model.config import M3Config
from pilotfish.model.folder import find_folder
from pilotfish.model.protocol import ModelError

PROMPTS = (2048, 8192, 16_384)
LONG_PROMPTS, LONG_PEAK_BYTES = (32_768, 131_072), 4 * 10**9
"""On a CPU, where transformers' dense masks do not fit; and what a process may hold at most."""
MILLION, MILLION_S, MILLION_STEP_S, LOADED_BY = 1_048_576, 10.0, 0.3, 10.0
"""On a GPU: tokens, seconds that reading them and a step behind them may take, how much faster loading is."""
STEP_AFTER = 8192
DECODE_AFTER = (2048, 8192)
DECODED = 32
SCREEN = (1280, 800)
AGREE_ON, AGREE_WRITE = 2048, 16
JOBS = ("prefill", "step", "decode")
RANDOM = "random"


class Failed(Exception):
    """A measurement ended without a result; the message is one sentence."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and print the table; 0, 1 when a measurement fails, 2 for bad arguments, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m pilotfish.model.bench", description=__doc__)
    parser.add_argument(
        "--model", default="nano", help=f"nano, {RANDOM} (42 M random parameters) or a checkpoint's folder"
    )
    parser.add_argument("--only", default=",".join(JOBS), help=f"jobs, by comma: {', '.join(JOBS)}")
    parser.add_argument(
        "--long", action="store_true", help="also prompts of 32,768 and 131,072 tokens, on a GPU of 1,048,576"
    )
    parser.add_argument("--alone", action="store_true", help="do not run transformers")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side, default 2")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--dtype", default="auto", choices=("auto", "bfloat16", "float32"))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    jobs = options.only.split(",")
    for job in jobs:
        if job not in JOBS:
            parser.error(f"--only has {job!r}: {', '.join(JOBS)} are accepted")
    if not 1 <= options.threads <= 1024:
        parser.error(f"--threads is {options.threads}: 1 to 1024 is accepted")
    if not options.alone and importlib.util.find_spec("transformers") is None:
        print(
            "The bench compares with transformers, which is not installed: `make setup` brings it, or "
            "--alone measures without it.",
            file=sys.stderr,
        )
        return 1
    warn_when_busy()
    with tempfile.TemporaryDirectory(prefix="pilotfish-bench-") as scratch:
        try:
            folder = Path(scratch) if options.model == RANDOM else find_folder(options.model)
            if options.model != RANDOM:
                M3Config.from_folder(folder)
            asked = Spec(
                "describe", str(folder), device=options.device, dtype=options.dtype, threads=options.threads,
                screen=SCREEN,
            )  # fmt: skip
            return _run(asked, jobs, options)
        except (Failed, ModelError) as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("Stopped before anything was measured.", file=sys.stderr)
            return 130


def _run(asked: Spec, jobs: list[str], options: argparse.Namespace) -> int:
    if options.model == RANDOM:
        measure(dataclasses.replace(asked, job="make"))
    peer = None if options.alone else importlib.metadata.version("transformers")
    machine = {
        **measure(asked),
        "model": options.model,
        "threads": options.threads,
        "transformers": peer,
    }
    report: dict[str, Any] = {**machine, "agreement": None, "rows": [], "complete": False}

    def show(text: str) -> None:
        if not options.json:
            print(text, flush=True)

    show(headline(machine))
    stopped = False
    try:
        if peer is not None:
            report["agreement"] = agreement(asked)
            show(words_of(report["agreement"]))
        show(columns())
        for row in rows(asked, jobs, alone=options.alone, long=options.long, on_gpu=machine["gpu"]):
            report["rows"].append(row.as_json())
            show(line(row))
        report["complete"] = True
    except KeyboardInterrupt:
        stopped = True
    _tell("")
    if options.json:
        print(json.dumps(report))
    if stopped:
        print("Stopped; what was measured until then is above.", file=sys.stderr)
    return 130 if stopped else 0


def rows(asked: Spec, jobs: list[str], *, alone: bool, long: bool, on_gpu: bool = False) -> Iterator[Row]:
    """The table, in order."""
    specs = {
        "prefill": [dataclasses.replace(asked, job="prefill", tokens=n) for n in PROMPTS],
        "step": [dataclasses.replace(asked, job="step", before=STEP_AFTER)],
        "decode": [dataclasses.replace(asked, job="decode", tokens=DECODED, before=n) for n in DECODE_AFTER],
    }
    for job in JOBS:
        for spec in specs[job] if job in jobs else ():
            yield _row(spec, alone)
    if long:
        yield from _million(asked) if on_gpu else _long_prompts(asked)


def _long_prompts(asked: Spec) -> Iterator[Row]:
    for tokens in LONG_PROMPTS:
        spec = dataclasses.replace(asked, job="prefill", tokens=tokens, seconds=0.0)
        yield dataclasses.replace(_row(spec, alone=True), most_bytes=LONG_PEAK_BYTES)


def _million(asked: Spec) -> Iterator[Row]:
    prefill = _row(dataclasses.replace(asked, job="prefill", tokens=MILLION), alone=True)
    yield dataclasses.replace(prefill, most_s=MILLION_S)
    behind = dataclasses.replace(asked, before=MILLION)
    yield dataclasses.replace(
        _row(dataclasses.replace(behind, job="step"), alone=True), most_s=MILLION_STEP_S
    )
    yield _row(dataclasses.replace(behind, job="decode", tokens=DECODED), alone=True)
    load = _row(dataclasses.replace(behind, job="load"), alone=True)
    yield dataclasses.replace(load, before=0, most_s=prefill.ours.seconds / LOADED_BY)


def _row(spec: Spec, alone: bool) -> Row:
    ours = measure(spec)
    theirs, note = None, ""
    if not alone:
        try:
            theirs = measure(dataclasses.replace(spec, side="theirs"))
        except Failed as failure:
            note = str(failure)
    return Row(
        spec.job,
        ours["tokens"],
        spec.before,
        _side(ours),
        None if theirs is None else _side(theirs),
        None if theirs is None else difference(ours["scores"], theirs["scores"]),
        note=note,
    )


def _side(measured: dict[str, Any]) -> Side:
    return Side(measured["seconds"], measured["runs"], measured["peak_bytes"])


def difference(ours: list[float], theirs: list[float]) -> float:
    """Greatest difference of two lists of scores, in standard deviations of the first."""
    spread = statistics.pstdev(ours)
    worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    return worst / spread if spread else math.inf


def agreement(asked: Spec) -> dict[str, Any]:
    """How far both sides agree in fp32 on a prompt that ends with a clip, and on the tokens after it."""
    spec = dataclasses.replace(
        asked, job="agree", dtype="float32", before=AGREE_ON, tokens=AGREE_WRITE, seconds=0.0
    )
    ours, theirs = (measure(dataclasses.replace(spec, side=side)) for side in ("ours", "theirs"))
    same = [a == b for a, b in zip(ours["written"], theirs["written"], strict=True)]
    return {
        "tokens": ours["tokens"],
        "difference": difference(ours["scores"], theirs["scores"]),
        "written": len(same),
        "same": same.index(False) if False in same else len(same),
    }


def words_of(found: dict[str, Any]) -> str:
    """The agreement as a sentence."""
    return (
        f"In fp32, after {found['tokens']:,} tokens with a clip, the scores differ by at most "
        f"{found['difference']:.1g} of their standard deviation, and the first {found['same']} of "
        f"{found['written']} greedy tokens are the same."
    )


def measure(spec: Spec) -> dict[str, Any]:
    """Run one measurement in a process of its own; raises Failed."""
    name = "transformers" if spec.side == "theirs" else "ours"
    what = f"{spec.job} of {spec.tokens:,}" if spec.before == 0 else f"{spec.job} after {spec.before:,}"
    quiet = spec.job in ("describe", "make")
    command = [sys.executable, "-m", "pilotfish.model.bench_run", json.dumps(dataclasses.asdict(spec))]
    last: dict[str, Any] | None = None
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        _tell("" if quiet else f"{what}, {name} ...")
        try:
            assert process.stdout is not None
            for text in process.stdout:
                last = json.loads(text)
                if "read" in last:
                    _tell(f"{what}, {name}: {last['read']:,} tokens read ...")
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        _tell("")
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if code == 0 and last is not None:
        return last
    if last is not None and "error" in last:
        raise Failed(last["error"])
    if code < 0:
        raise Failed(f"{what}, {name}, was ended by signal {-code}, most likely for want of memory.")
    raise Failed(f"{what}, {name}, failed: {said[-1] if said else f'status {code}'}.")


def _tell(text: str) -> None:
    """What is being done, on a line of its own that the next one overwrites; only for people."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
