"""The bench: every job runs on both sides, in tiny, and what it prints can be read."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotfish.model import bench, bench_run, bench_table, checkpoint
from pilotfish.model.bench_spec import Spec
from pilotfish.model.bench_table import Row, Side
from pilotfish.model.m3 import count_parameters

SCREEN = (84, 56)
FAST = Side(0.5, 5, 10**9)
SLOW = Side(4.0, 1, 3 * 10**9)


@pytest.fixture
def asked(tiny_folder: Path) -> Spec:
    return Spec("describe", str(tiny_folder), dtype="float32", threads=1, screen=SCREEN, seconds=0.0)


@pytest.mark.parametrize(
    ("job", "sizes", "tokens"),
    [
        ("prefill", {"tokens": 300}, 300),
        ("step", {"before": 280}, 24 + 12),
        ("decode", {"before": 290, "tokens": 2}, 1),
        ("agree", {"before": 100, "tokens": 3}, 100 + 24 + 12),
    ],
)
def test_every_job_finds_the_same_on_both_sides(
    asked: Spec, job: str, sizes: dict[str, Any], tokens: int
) -> None:
    """Lengths past the 64 keys that the tiny model keeps, in more than one of the engine's chunks."""
    spec = dataclasses.replace(asked, job=job, **sizes)
    ours, theirs = (bench_run.JOBS[job](dataclasses.replace(spec, side=side)) for side in ("ours", "theirs"))
    for found in (ours, theirs):
        assert found["tokens"] == tokens
        assert found["peak_bytes"] > 0
        assert (found["seconds"] > 0) == (job != "agree")
    assert ours["written"] == theirs["written"]
    assert len(ours["written"]) == (3 if job == "agree" else 0)
    assert bench.difference(ours["scores"], theirs["scores"]) < 1e-3


def test_a_million_tokens_are_read_followed_and_loaded(asked: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, in tiny: the rows, their aims, and that what was loaded gives the scores of before."""
    monkeypatch.setattr(bench, "MILLION", 512)
    monkeypatch.setattr(bench, "DECODED", 2)
    rows = list(bench.rows(asked, [], alone=True, long=True, on_gpu=True))
    assert [(row.job, row.before) for row in rows] == [
        ("prefill", 0), ("step", 512), ("decode", 512), ("load", 0)
    ]  # fmt: skip
    assert [row.most_s for row in rows] == [10.0, 0.3, None, rows[0].ours.seconds / 10]


def without_warning(said: str) -> str:
    """What stood on standard error beside the warning of a machine that others use, as tests do."""
    return "".join(line for line in said.splitlines(True) if not line.startswith("This machine is busy"))


def test_json_is_all_that_is_printed(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("DECODE_AFTER", (40,)), ("DECODED", 2), ("SCREEN", SCREEN)):
        monkeypatch.setattr(bench, name, value)
    asked = ["--json", "--alone", "--threads", "1", "--only", "decode", "--model", str(tiny_folder)]
    assert bench.main(asked) == 0
    printed = capfd.readouterr()
    report = json.loads(printed.out)
    assert without_warning(printed.err) == ""
    assert report["complete"] is True
    assert report["parameters"] > 0
    (row,) = report["rows"]
    assert (row["job"], row["before"], row["theirs"], row["met"]) == ("decode", 40, None, None)
    assert row["ours"]["runs"] == 2


def test_rows_say_what_was_aimed_at() -> None:
    row = Row("prefill", 8192, 0, FAST, SLOW, 0.01)
    assert (row.ratio, row.aim, row.met) == (8.0, 6.0, True)
    words = ["prefill", "8,192", "-", "500.0", "ms", "4.00", "s", "8.0x", ">=", "6x", "met", "1.00", "GB"]
    assert bench_table.line(row).split() == [*words, "3.00", "GB", "0.01"]
    step = Row("step", 1542, 8192, SLOW, FAST)
    assert step.met is False
    assert "missed" in bench_table.line(step)
    alone = Row("prefill", 16_384, 0, FAST, None, note="transformers ended.")
    assert alone.met is None
    assert bench_table.line(alone).endswith("transformers ended.")
    limits: dict[str, Any] = {"most_s": 8.0, "most_bytes": 4 * 10**9}
    assert Row("prefill", 131_072, 0, SLOW, None, **limits).met
    heavy = Row("prefill", 131_072, 0, Side(7.0, 1, 5 * 10**9), None, **limits)
    assert "<= 8 s, <= 4 GB  missed" in bench_table.line(heavy)
    assert not dataclasses.replace(heavy, ours=Side(9.0, 1, 10**9)).met
    assert json.loads(json.dumps(heavy.as_json()))["most_bytes"] == 4 * 10**9
    names = bench_table.columns()
    assert names.index("ratio") + len("ratio") == bench_table.line(row).index("8.0x") + len("8.0x")


def test_the_random_checkpoint_has_the_size_of_the_aims(asked: Spec, tmp_path: Path) -> None:
    bench.measure(dataclasses.replace(asked, job="make", folder=str(tmp_path)))
    model, config = checkpoint.load(tmp_path)
    assert 41e6 < count_parameters(model) < 43e6
    assert sum(config.text.sparse_layers) == 6


def test_bad_arguments_are_sentences(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, words in (
        (["--only", "lunch"], "--only has 'lunch'"),
        (["--threads", "0"], "--threads is 0"),
        (["--dtype", "int3"], "'int3'"),
    ):
        with pytest.raises(SystemExit):
            bench.main(arguments)
        assert words in capsys.readouterr().err
    for model, words in (
        ("nowhere", "there is no model 'nowhere'; give nano"),
        (str(tmp_path), "holds no config.json"),
    ):
        assert bench.main(["--alone", "--model", model]) == 1
        error = without_warning(capsys.readouterr().err)
        assert words in error
        assert error.count("\n") == 1


def test_what_fails_in_a_measurement_is_a_sentence(asked: Spec) -> None:
    with pytest.raises(bench.Failed, match=r"^There is no device 'abacus' here; choose auto or cpu\.$"):
        bench.measure(dataclasses.replace(asked, device="abacus"))


def test_without_transformers_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert bench.main([]) == 1
    assert "transformers, which is not installed: `make setup`" in capsys.readouterr().err


STOPPED = """
import sys
from pilotfish.model import bench
bench.DECODE_AFTER, bench.DECODED, bench.PROMPTS = (8,), 2, (300_000,)
bench.JOBS = ("decode", "prefill")
sys.exit(bench.main(["--json", "--alone", "--threads", "1", "--model", sys.argv[1]]))
"""


def test_ctrl_c_keeps_what_was_measured(tiny_folder: Path) -> None:
    """The signal comes while the long prompt is read, to the bench and to what it started."""
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tiny_folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while b'"job": "prefill"' not in _arguments_of_child(process.pid):
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert without_warning(errors) == "Stopped; what was measured until then is above.\n"
    report = json.loads(out)
    assert report["complete"] is False
    assert [row["job"] for row in report["rows"]] == ["decode"]


def _arguments_of_child(pid: int) -> bytes:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return Path(f"/proc/{children[-1]}/cmdline").read_bytes() if children else b""
    except OSError:
        return b""


def test_the_bench_itself_needs_no_torch() -> None:
    """What it held would count as memory of the processes it starts."""
    code = "import sys, pilotfish.model.bench; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
