"""The bench: every job runs, in tiny, and what it prints can be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from pilotfish.kernels import bench, bench_plot, bench_table, peers

CEILINGS = bench_table.Ceilings(copy=4e12, bf16=8e14, fp8=1.5e15)
ROWS = [
    bench_table.Row("chunk", 8192, keys, kind, ours, keys / 1000, 5.0)
    for keys in (131_072, 1 << 20)
    for kind, ours in (("bf16", 8.0), ("fp8", 5.0))
]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Sizes that an interpreter can bear, and no clock: what a job does stays."""
    sizes: dict[str, Any] = {
        "HEADS": 2, "GROUPS": 1, "WIDTH": 64, "BLOCK": 32, "KEPT": 1, "CHUNK": 16, "STEPS": (2, 3),
        "TOKENS": 4, "LENGTHS": dict.fromkeys(bench.LENGTHS, (32,)), "DEVICE": device.type,
        "FULL_BACKENDS": (SDPBackend.MATH,),
    }  # fmt: skip
    for name, value in sizes.items():
        monkeypatch.setattr(bench, name, value)

    def once(work: Callable[[], object], **_: Any) -> float:
        work()
        return 2.0

    monkeypatch.setattr(bench, "milliseconds", once)
    monkeypatch.setattr(bench, "graph_milliseconds", lambda steps: [step() for step in steps] and 1.0)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("job", bench.JOBS)
def test_every_job_runs(job: str) -> None:
    rows = list(bench.RUNS[job](CEILINGS, 32))
    assert rows
    for row in rows:
        assert row.ours_ms > 0
        assert row.full_ms is not None
        assert 0 < row.full_ms < float("inf")
        assert bench_table.line(row).startswith(row.job)
        assert row.keys == 32


def test_the_floor_is_arithmetic_for_chunks_and_traffic_for_one_token() -> None:
    """The figures that the targets were set by."""
    million = 1 << 20
    whole = bench.floor_ms(CEILINGS, million, million, torch.bfloat16)
    assert 750 < whole < 850
    assert whole > 1.5 * bench.floor_ms(CEILINGS, million, million, torch.float8_e4m3fn)
    one = bench.floor_ms(CEILINGS, 1, million, torch.bfloat16)
    assert 0.060 < one < 0.075
    assert one > 1.8 * bench.floor_ms(CEILINGS, 1, million, torch.float8_e4m3fn)


def test_the_picture_is_svg_with_a_line_per_type(tmp_path: Path) -> None:
    svg = ElementTree.fromstring(bench_plot.picture(ROWS))
    assert len(svg.findall(".//{http://www.w3.org/2000/svg}polyline")) == 3
    assert "1M" in {text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert ElementTree.fromstring(bench_plot.picture([])).tag.endswith("svg")


def test_a_row_in_words_and_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    row = bench_table.line(ROWS[0])
    assert row.split() == ["chunk", "8192", "131072", "bf16", "8.000", "131.072", "16.4x", "62%"]
    report = json.loads(json.dumps(bench.report(CEILINGS, ROWS)))
    assert report["rows"][0]["ratio"] == pytest.approx(16.384)
    columns = bench_table.headline(CEILINGS).splitlines()[1]
    assert columns.index("floor") + len("floor") == row.index("62%") + len("62%")


@pytest.mark.usefixtures("tiny")
def test_json_is_all_that_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(bench, "measure_ceilings", lambda: CEILINGS)
    plot = tmp_path / "times.svg"
    assert bench.main(["--json", "--only", "step,decode", "--keys", "32", "--plot", str(plot)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["job"] for row in report["rows"]] == ["step"] * 4 + ["decode"] * 2
    assert report["device"] == "a card"
    assert ElementTree.parse(plot)


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main([]) == 2
    assert "needs a CUDA GPU" in capsys.readouterr().err
    for arguments, words in (
        (["--only", "lunch"], "'lunch'"),
        (["--keys", "100"], "--keys is 100"),
        (["--plot", "nowhere/at/all.svg"], "--plot is nowhere/at/all.svg"),
        (["--plot", "."], "--plot is .: a file"),
        (["--plot", ""], "--plot is .: a file"),
    ):
        with pytest.raises(SystemExit):
            bench.main(arguments)
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(("new", "keys", "keep"), [(5, 90, 40), (3, 20, 40)])
def test_token_level_attention_is_what_it_claims(
    device: torch.device, new: int, keys: int, keep: int
) -> None:
    """Against its definition: a fair opponent is a right one."""
    H, G, D = 4, 2, 64
    q, k, v, qi, ki = (
        torch.randn(*s, device=device)
        for s in ((new, H, D), (keys, G, D), (keys, G, D), (new, G, D), (keys, D))
    )
    weights = torch.rand(new, G, device=device)
    out, kept = peers.token_level_attention(q, k, v, qi, ki, weights, keep)
    scores: Tensor = (torch.einsum("tgd,nd->tgn", qi, ki).relu() * weights[..., None]).sum(1)
    seen = torch.arange(keys, device=device) <= torch.arange(keys - new, keys, device=device)[:, None]
    best = scores.masked_fill(~seen, -1.0).topk(min(keep, keys)).indices
    assert torch.equal(kept.sort().values, best.sort().values)
    chosen = torch.zeros(new, keys, dtype=torch.bool, device=device).scatter_(1, best, True) & seen
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), attn_mask=chosen, enable_gqa=True
    )[0].transpose(0, 1)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
