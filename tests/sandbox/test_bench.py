"""The benchmark's command line; what it measures is no matter of tests."""

from __future__ import annotations

import json
import subprocess
import sys

from pilotfish.sandbox.bench.rows import Row, row, table


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pilotfish.sandbox.bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_one_group_as_json() -> None:
    done = bench("--only", "shell", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "before" in found["load average"]
    rows = {row["what"]: row for row in found["rows"]}
    assert rows["shell command `true`"]["n"] == 300
    assert rows["shell command `true`"]["aim"] == 2
    assert all(0 < row["p50"] <= row["p95"] for row in rows.values())


def test_an_unknown_group_is_named() -> None:
    done = bench("--only", "shell,sehll")
    assert done.returncode == 2
    assert "'sehll' is not there, choose from ready, shell" in done.stderr


def test_a_row_is_judged_by_its_median() -> None:
    found = row("a", [1.0, 2.0, 9.0], aim=2)
    assert (found.n, found.p50, found.p95, found.verdict) == (3, 2.0, 9.0, "met")
    assert row("a", [1.0, 2.1, 9.0], aim=2).verdict == "MISSED"
    assert row("a", [1.0]).verdict == ""
    lines = table([found, Row("b", note="not installed")]).splitlines()
    assert lines[1].split()[:4] == ["a", "3", "2.00", "9.00"]
    assert lines[2].split() == ["b", "not", "installed"]
