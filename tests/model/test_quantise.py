"""Checkpoints written as MXFP8: values, layout, scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from pilotfish.model import checkpoint
from pilotfish.model.quantise import main, quantise, to_mxfp8
from pilotfish.model.training.samples import SampleMaker
from pilotfish.model.training.trainee import NANO


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(-30, 30), st.integers(0, 1000))
def test_a_value_moves_by_no_more_than_its_format_makes_it(inputs: int, exponent: int, seed: int) -> None:
    weight = torch.randn(3, inputs, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    values, scale = to_mxfp8(weight)
    assert values.shape == weight.shape
    assert scale.shape == (3, -(-inputs // 32))
    back = checkpoint.dequantise_mxfp8(values, scale).float()
    step = 2.0 ** (scale.int() - 127).float().repeat_interleave(32, dim=1)[:, :inputs]
    # Half of the last of three digits, or of the smallest value of the group; 448 stands for up to 512.
    near = torch.maximum(weight.abs() / 16, step * 2.0**-10)
    over = weight.abs() > 448 * step
    assert ((back - weight).abs() <= near).where(~over, (back.abs() == 448 * step)).all()


def test_what_is_quantised_already_stays_as_it_is() -> None:
    values, scale = to_mxfp8(torch.randn(4, 64))
    again, its_scale = to_mxfp8(checkpoint.dequantise_mxfp8(values, scale))
    assert torch.equal(again.view(torch.uint8), values.view(torch.uint8))
    assert torch.equal(its_scale, scale)
    nothing, scale = to_mxfp8(torch.zeros(2, 32))
    assert not nothing.float().any()
    assert not checkpoint.dequantise_mxfp8(nothing, scale).any()


def test_the_model_that_ships_scores_the_same_within_noise(tmp_path: Path) -> None:
    made = quantise("nano", tmp_path / "out")
    plain, _ = checkpoint.load(NANO)
    small, config = checkpoint.load(tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    names = [name for name, tensor in stored.items() if tensor.dtype == torch.float8_e4m3fn]
    assert made["quantised"] == len(names) == 8 * 4 + 2 * 3 + 6 * (8 * 3 + 3)
    assert all(stored[n.removesuffix("weight") + "weight_scale_inv"].dtype == torch.uint8 for n in names)
    for part in (
        "index_q_proj",
        "gate.weight",
        "norm",
        "embed_tokens",
        "lm_head",
        "vision_tower",
        "patch_merge",
    ):
        assert not [n for n in names if part in n and "experts" not in n]
    said = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert said["quant_method"] == "mxfp8"
    assert said["weight_block_size"] == [1, 32]
    assert config == plain.config
    assert made["bytes"] < 0.8 * (NANO / "model.safetensors").stat().st_size

    ids = torch.from_numpy(SampleMaker(NANO, 3).text(400).ids).long()[None]
    losses = []
    with torch.no_grad():
        scores = [model.float()(ids)[0] for model in (plain, small)]
    for one in scores:
        losses.append(float(torch.nn.functional.cross_entropy(one[:-1], ids[0, 1:])))
    assert abs(losses[0] - losses[1]) < 0.05
    assert torch.nn.functional.cosine_similarity(*scores, dim=-1).median() > 0.99
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (NANO / name).read_bytes()


def test_shards_stay_shards_and_take_the_place_of_what_was_there(tmp_path: Path) -> None:
    model, _ = checkpoint.load(NANO)
    shards, one, out = tmp_path / "shards", tmp_path / "one", tmp_path / "out"
    checkpoint.save(model, shards, shard_bytes=10 << 20)
    names = {path.name for path in shards.glob("*.safetensors")}
    assert len(names) > 2
    made = quantise(NANO, one)
    quantise(NANO, out)
    assert quantise(shards, out) == made
    assert {path.name for path in out.glob("*.safetensors")} == names
    expected, found = (checkpoint.load(folder)[0].state_dict() for folder in (one, out))
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_what_cannot_be_quantised_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nano", str(tmp_path / "out")]) == 0
    assert "MiB, 200 of" in capsys.readouterr().out
    for arguments, said in (
        ([str(tmp_path / "out"), str(tmp_path / "twice")], "is MXFP8 already; give a bf16 checkpoint."),
        (["nano", str(NANO)], "is the checkpoint itself; name another folder for the new one."),
        ([str(tmp_path), str(tmp_path / "x")], "holds no config.json; point --model at a checkpoint folder."),
        (["nano", "/dev/null/out"], "cannot be written ([Errno 20] Not a directory: '/dev/null/out')"),
    ):
        assert main(arguments) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
