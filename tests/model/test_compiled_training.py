"""Training with compiled regions against the eager way, and where a batch's loss looks against masks."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from pilotfish.model.training import bench
from pilotfish.model.training.bench import drawn_batch
from pilotfish.model.training.loader import Batch
from pilotfish.model.training.places import Places, merged, rows_at
from pilotfish.model.training.settings import Settings, TrainingError
from pilotfish.model.training.train import Trainer

needs_compiler = pytest.mark.skipif(
    not torch.cuda.is_available() and shutil.which("g++") is None,
    reason="torch.compile needs a C++ compiler (g++) on a CPU",
)
SIZES = {
    "text": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 2, "head_dim": 32}
    | {"rotary_dim": 16, "dense_intermediate_size": 64, "num_local_experts": 4, "topk_blocks": 2}
    | {"index_dim": 32},
    "vision": {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32},
}
TINY: dict[str, Any] = {"sizes": SIZES, "device": "cpu", "bf16": False, "tokens": 640, "workers": 0}
TINY |= {"steps": 4, "seconds": 1e6, "warmup": 2, "log_every": 1, "width": 84, "height": 56}
TINY |= {"dense_share": 0.5, "save_every": 1e6}
LENGTHS = (128, 192, 320)


def batches_of(trainer: Trainer) -> list[Batch]:
    """Batches of several shapes, none of which is drawn twice."""
    return [drawn_batch(trainer, 640, length, seed) for seed, length in enumerate(LENGTHS)]


class Played(Trainer):
    """A trainer on drawn batches, those behind its step."""

    def _data(self) -> Any:
        return itertools.islice(itertools.cycle(batches_of(self)), self.step, None)


@needs_compiler
def test_compiled_regions_give_the_eager_losses_and_gradients(tmp_path: Path) -> None:
    trainer = Trainer(Settings(str(tmp_path), str(tmp_path / "out"), **TINY, compile=True))
    trainee = trainer.trainee
    torch.compiler.reset()
    graphs = []
    for batch in batches_of(trainer):
        for kind in ("dense", "sparse"):
            found = []
            for fused in (False, True):
                trainee.fused = fused
                torch.manual_seed(1)
                parts = trainee.losses(batch, 0.02, kind)  # type: ignore[arg-type]
                sum(parts.values()).backward()  # type: ignore[union-attr]
                gradients = {n: p.grad for n, p in trainee.named_parameters() if p.grad is not None}
                loads = [m.load for m in trainee.modules() if getattr(m, "load", None) is not None]
                found.append((parts, gradients, loads))
                trainee.zero_grad()
            for eager, compiled in zip(found[0][::2], found[1][::2], strict=True):
                torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)
            for name, gradient in found[0][1].items():
                assert (found[1][1][name] - gradient).norm() <= 1e-4 * gradient.norm(), name
            assert len(found[0][1]) == len(list(trainee.parameters()))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 5
    assert graphs[-1] == graphs[0], "a region was compiled again for another length"


@needs_compiler
def test_a_compiled_session_goes_on_exactly_and_keeps_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotfish.model.training.train.SYNC_EVERY", 1)
    eager = Settings(str(tmp_path), str(tmp_path / "eager"), **TINY)
    Played(eager).run()
    Played(Settings(str(tmp_path), str(tmp_path / "whole"), **TINY, compile=True)).run()
    settings = Settings(str(tmp_path), str(tmp_path / "parts"), **TINY, compile=True)
    first = Played(settings)
    one_step = first._one_step

    def then_stop(*arguments: Any) -> None:
        one_step(*arguments)
        first.stopping = first.step == 2

    first._one_step = then_stop  # type: ignore[method-assign]
    first.run()
    torch.compiler.reset()  # as in another process, where the first batch is one of another shape
    with pytest.raises(TrainingError, match=r"^compile is False, and True in the session in"):
        Played(Settings(str(tmp_path), str(tmp_path / "parts"), **TINY), go_on=True)
    Played(settings, go_on=True).run()
    one, two, plain = (torch.load(tmp_path / n / "checkpoint.pt") for n in ("whole", "parts", "eager"))
    assert one["step"] == two["step"] == 4
    for name, value in one["masters"].items():
        assert torch.equal(value, two["masters"][name]), name
    assert list(one["trainee"]) == list(plain["trainee"])
    assert list(one["masters"]) == list(plain["masters"])
    assert not any("_orig_mod" in name for name in one["trainee"])


def test_places_are_those_of_masks_and_so_are_gradients() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 9, (3, 50))
    weights = torch.rand(3, 50) * (torch.rand(3, 50) < 0.4)
    places = Places.of(ids, weights, (7, 8))
    mask = (ids == 7) | (ids == 8)
    table, media, probe = torch.randn(9, 4), torch.randn(int(mask.sum()), 4), torch.randn(3, 50, 4)
    results = []
    for by_mask in (True, False):
        words, shown = table.clone().requires_grad_(), media.clone().requires_grad_()
        if by_mask:
            x = words[ids].masked_scatter(mask[..., None], shown)
            hidden = x * probe
            asked, seen = hidden[:, :-1][weights[:, 1:] > 0], hidden[mask]
        else:
            x = merged(words[ids.flatten()[places.told]], shown, places).view(3, 50, 4)
            hidden = x * probe
            asked, seen = (rows_at(hidden.flatten(0, 1), at) for at in (places.asked, places.shown))
        (asked.square().sum() + seen.sin().sum()).backward()
        results.append((x.detach(), asked.detach(), seen.detach(), words.grad, shown.grad))
    torch.testing.assert_close(results[1], results[0])
    with pytest.raises(ValueError, match=r"holds \d+ shown tokens, but 0 rows were given"):
        merged(table[ids.flatten()[places.told]], table[:0], places)


BENCH = """
import sys
for name in ("pydantic", "playwright", "mss"):
    sys.modules[name] = None
from pilotfish.model.training.bench import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_bench_needs_neither_shards_nor_what_a_gpu_machine_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--device", "cpu", "--fp32", "--tokens", "256", "--length", "128", "--width", "84"]
    command = [sys.executable, "-c", BENCH, *given, "--height", "56", "--steps", "1", "--ways", "eager"]
    done = subprocess.run([*command, "--profile"], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert "eager: " in done.stdout
    parts = dict(part.split() for part in done.stdout.splitlines()[1].split(", "))
    assert list(parts) == [
        "batch",
        "vision",
        "text",
        "losses",
        "backward",
        "gradients",
        "Muon",
        "AdamW",
        "publishing",
    ]
    assert all(float(ms) >= 0 for ms in parts.values())
    assert float(parts["backward"]) > 0
    assert "operator calls" in done.stdout
    assert "aten::" in done.stdout
    assert bench.main([*command[3:], "--length", "20"]) == 1
    assert "give two rows of at least 42 tokens" in capsys.readouterr().err
