"""Checkpoint folders: what loads, what is saved, and what is said about folders that do not fit."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import MiniMaxM3SparseForConditionalGeneration

from pilotfish.model import checkpoint
from pilotfish.model.chat import read_template
from pilotfish.model.config import M3Config
from pilotfish.model.folder import find_folder
from pilotfish.model.m3 import M3
from pilotfish.model.protocol import ModelError
from pilotfish.model.tokenizer import Tokenizer

IDS = torch.arange(3, 120)[None]
ROUTER = "language_model.model.layers.1.block_sparse_moe.gate.weight"
BIAS = "language_model.model.layers.1.block_sparse_moe.e_score_correction_bias"
PATCHES = "vision_tower.vision_model.embeddings.patch_embedding.weight"
Q = "language_model.model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def model(tiny_model: Callable[..., M3]) -> M3:
    return tiny_model(0)


@pytest.fixture
def folder(model: M3, tmp_path: Path) -> Path:
    checkpoint.save(model, tmp_path / "saved")
    return tmp_path / "saved"


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        result = model(IDS) if isinstance(model, M3) else model(input_ids=IDS).logits
    assert isinstance(result, Tensor)
    return result


def edit(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Change the tensors of a folder's single file."""
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def refusal(folder: Path) -> str:
    """The one sentence with which a folder is refused."""
    with pytest.raises(ModelError) as error:
        checkpoint.load(folder)
    sentence = str(error.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


@pytest.mark.parametrize("shard_bytes", [checkpoint.SHARD_BYTES, 100_000, 1])
def test_what_was_saved_comes_back(model: M3, tmp_path: Path, shard_bytes: int) -> None:
    checkpoint.save(model, tmp_path, shard_bytes=shard_bytes)
    loaded, config = checkpoint.load(tmp_path)
    assert config == model.config
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    shards = list(tmp_path.glob("model-*.safetensors"))
    assert len(shards) == (0 if shard_bytes > 1e6 else len(shards))
    assert (tmp_path / "model.safetensors.index.json").exists() == bool(shards)


@pytest.mark.parametrize("shard_bytes", [checkpoint.SHARD_BYTES, 100_000])
def test_transformers_loads_what_was_saved(model: M3, tmp_path: Path, shard_bytes: int) -> None:
    checkpoint.save(model, tmp_path, shard_bytes=shard_bytes)
    theirs, report = MiniMaxM3SparseForConditionalGeneration.from_pretrained(
        tmp_path, output_loading_info=True, dtype=torch.float32
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert torch.allclose(logits(theirs.eval()), logits(model), atol=1e-5)


@pytest.mark.parametrize("shard", ["5GB", "100KB"])
def test_what_transformers_saves_loads_here(folder: Path, tmp_path: Path, shard: str) -> None:
    theirs = MiniMaxM3SparseForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=shard)
    assert (len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1) == (shard == "100KB")
    ours, _ = checkpoint.load(tmp_path / "theirs")
    assert torch.allclose(logits(theirs), logits(ours), atol=1e-5)


def test_half_precision_keeps_router_and_patches_whole(model: M3, tmp_path: Path) -> None:
    checkpoint.save(model, tmp_path, dtype=torch.bfloat16)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        dtypes = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    kept = {name for name, dtype in dtypes.items() if dtype == "F32"}
    assert {ROUTER, BIAS, PATCHES} <= kept
    assert len(kept) == 5, "two layers with a router and its bias, and the patch embedding"
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    as_stored, _ = checkpoint.load(tmp_path)
    assert as_stored.state_dict()[Q].dtype == torch.bfloat16
    assert as_stored.state_dict()[ROUTER].dtype == torch.float32
    widened, _ = checkpoint.load(tmp_path, dtype=torch.float32)
    assert torch.equal(widened.state_dict()[Q], model.state_dict()[Q].to(torch.bfloat16).float())


def test_a_router_stored_narrow_loads_as_it_is_or_whole(folder: Path) -> None:
    edit(folder, lambda t: t.update({name: t[name].bfloat16() for name in t}))
    as_stored, _ = checkpoint.load(folder)
    assert as_stored.state_dict()[ROUTER].dtype == torch.bfloat16
    assert torch.isfinite(logits(as_stored)).all()
    narrowed, _ = checkpoint.load(folder, dtype=torch.bfloat16)
    assert narrowed.state_dict()[ROUTER].dtype == torch.float32
    assert torch.equal(logits(as_stored), logits(narrowed))


def test_saving_replaces_an_older_layout(tiny_model: Callable[..., M3], tmp_path: Path) -> None:
    for seed, shard_bytes in [(0, 100_000), (1, checkpoint.SHARD_BYTES), (2, 300_000), (3, 100_000)]:
        model = tiny_model(seed)
        checkpoint.save(model, tmp_path, shard_bytes=shard_bytes)
        assert torch.equal(logits(checkpoint.load(tmp_path)[0]), logits(model))
    assert {path.name for path in tmp_path.glob("model-*")} == set(
        json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"].values()
    )
    assert not list(tmp_path.glob(".saving*"))


def test_a_failed_save_leaves_the_old_checkpoint(
    folder: Path, model: M3, tiny_model: Callable[..., M3]
) -> None:
    before = logits(model)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ModelError, match="cannot be written"):
            checkpoint.save(tiny_model(1), folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert torch.equal(logits(checkpoint.load(folder)[0]), before)
    assert not list(folder.glob(".saving*"))


def test_saving_over_a_loaded_checkpoint(folder: Path) -> None:
    """Weights are mapped from the files that are being replaced."""
    loaded, _ = checkpoint.load(folder)
    before = logits(loaded)
    checkpoint.save(loaded, folder)
    assert torch.equal(logits(loaded), before)
    assert torch.equal(logits(checkpoint.load(folder)[0]), before)


def mxfp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise in groups of 32 inputs as the OCP specification does."""
    padded = torch.nn.functional.pad(weight.float(), (0, -weight.shape[1] % 32)).unflatten(1, (-1, 32))
    exponent = (padded.abs().amax(-1).log2().floor() - 8).clamp(-127, 127)
    values = (padded / exponent.exp2()[..., None]).clamp(-448, 448).flatten(1)[:, : weight.shape[1]]
    return values.to(torch.float8_e4m3fn), (exponent + 127).to(torch.uint8)


QUANTISED = re.compile(r"self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj|experts\.(\d+\.w[123]|gate|up|down)")


def test_mxfp8_is_dequantised(tiny_model: Callable[..., M3], tmp_path: Path) -> None:
    model = tiny_model(0, dense_intermediate_size=90)  # the last group of 32 is short
    checkpoint.save(model, tmp_path, dtype=torch.bfloat16)
    names = [
        n for n in model.state_dict() if n.startswith("language_model.model.layers") and QUANTISED.search(n)
    ]
    assert len(names) == 3 * 4 + 3 + 2 * (4 * 3 + 3)

    def quantise(tensors: dict[str, Tensor]) -> None:
        for name in names:
            tensors[name], scale = mxfp8(model.state_dict()[name])
            tensors[name.removesuffix("weight") + "weight_scale_inv"] = scale

    edit(tmp_path, quantise)
    edit_json(tmp_path / "config.json", lambda c: c.update(quantization_config={"quant_method": "mxfp8"}))
    loaded, _ = checkpoint.load(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    for name in names:
        weight, scale = stored[name].float(), stored[name.removesuffix("weight") + "weight_scale_inv"]
        row, column = weight.shape[0] - 1, weight.shape[1] - 1
        for i, j in [(0, 0), (0, 31), (0, min(32, column)), (row, column)]:
            by_hand = float(weight[i, j]) * 2.0 ** (int(scale[i, j // 32]) - 127)
            assert float(loaded.state_dict()[name][i, j]) == by_hand
        assert loaded.state_dict()[name].dtype == torch.bfloat16
    assert (
        torch.nn.functional.cosine_similarity(logits(loaded).float(), logits(model), dim=-1).median() > 0.98
    )


def test_mxfp8_values_are_exact() -> None:
    weight = torch.tensor([[1.0, -448.0, 2.0**-9, 0.0]]).to(torch.float8_e4m3fn)
    for scale in (0, 100, 127, 140, 240):
        result = checkpoint.dequantise_mxfp8(weight, torch.tensor([[scale]], dtype=torch.uint8))
        expected = [math.ldexp(x, scale - 127) for x in (1.0, -448.0, 2.0**-9, 0.0)]
        if scale > 10:
            assert result.tolist() == [expected]
        else:  # subnormal in bf16
            assert torch.allclose(
                result.double(), torch.tensor([expected], dtype=torch.float64), atol=2.0**-133
            )


@pytest.mark.parametrize("fault", ["absent", "shape", "dtype"])
def test_mxfp8_without_a_fitting_scale(folder: Path, fault: str) -> None:
    scale_name = Q.removesuffix("weight") + "weight_scale_inv"

    def change(tensors: dict[str, Tensor]) -> None:
        tensors[Q], scale = mxfp8(tensors[Q])
        if fault == "shape":
            tensors[scale_name] = scale[:, :1].contiguous()
        elif fault == "dtype":
            tensors[scale_name] = scale.float()

    edit(folder, change)
    assert scale_name in refusal(folder)


def test_mtp_tensors_and_unknown_keys_are_noted(
    folder: Path, model: M3, caplog: pytest.LogCaptureFixture
) -> None:
    edit(folder, lambda t: t.update({"mtp.layers.0.enorm.weight": torch.ones(4), "mtp.x": torch.ones(1)}))
    edit_json(folder / "config.json", lambda c: c.update(wheels=4, horn=True))
    with caplog.at_level(logging.WARNING):
        loaded, config = checkpoint.load(folder)
    assert torch.equal(logits(loaded), logits(model))
    assert config.unknown_keys == ("horn", "wheels")
    assert "horn and 1 more" in caplog.text
    assert "mtp.layers.0.enorm.weight and 1 more" in caplog.text


def test_a_sound_folder_loads_in_silence(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint.load(folder)
    assert not caplog.records


def test_missing_tensors_are_named(folder: Path) -> None:
    edit(folder, lambda t: [t.pop(n) for n in list(t) if "layers.2.self_attn" in n])
    assert re.search(r"lacks language_model\.model\.layers\.2\.self_attn\.\S+ and 9 more", refusal(folder))


def test_unknown_tensors_are_named(folder: Path) -> None:
    edit(folder, lambda t: t.update({"language_model.extra": torch.ones(1)}))
    sentence = refusal(folder)
    assert "holds language_model.extra," in sentence
    assert "more" not in sentence


def test_misshapen_tensors_are_named(folder: Path) -> None:
    edit(folder, lambda t: t.update({Q: t[Q][:-1].contiguous()}))
    sentence = refusal(folder)
    assert Q in sentence
    assert "[63, 64] where [64, 64]" in sentence


def test_a_weight_of_integers_is_named(folder: Path) -> None:
    edit(folder, lambda t: t.update({Q: t[Q].to(torch.int32)}))
    assert f"{Q} is stored as I32" in refusal(folder)


def test_another_models_weights_are_refused(
    folder: Path, tmp_path: Path, tiny_model: Callable[..., M3]
) -> None:
    checkpoint.save(tiny_model(0, intermediate_size=48), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "config.json", folder)
    assert "different models" in refusal(folder)


def test_folders_without_a_checkpoint(tmp_path: Path, folder: Path) -> None:
    assert "nowhere" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "config.json" in refusal(tmp_path / "empty")
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(folder)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:5], id="half a length"),
        pytest.param(lambda data: data[:400], id="half a header"),
        pytest.param(lambda data: data[:-1], id="one byte short"),
        pytest.param(lambda data: data + b"\0", id="one byte long"),
        pytest.param(lambda data: b"\xff" * 8 + data[8:], id="endless header"),
        pytest.param(lambda data: data[:8] + b"x" + data[9:], id="no JSON"),
        pytest.param(lambda data: b"<html>not found</html>" * 9, id="a web page"),
    ],
)
@pytest.mark.parametrize("shard_bytes", [checkpoint.SHARD_BYTES, 300_000])
def test_damaged_files_are_named(
    model: M3, tmp_path: Path, damage: Callable[[bytes], bytes], shard_bytes: int
) -> None:
    checkpoint.save(model, tmp_path, shard_bytes=shard_bytes)
    victim = sorted(tmp_path.glob("*.safetensors"))[-1]
    victim.write_bytes(damage(victim.read_bytes()))
    assert victim.name in refusal(tmp_path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 20_000), byte=st.integers(0, 255))
def test_a_flipped_header_byte_never_escapes(folder: Path, position: int, byte: int) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    broken = bytearray(data)
    broken[position % header] = byte
    path.write_bytes(broken)
    with suppress(ModelError):
        checkpoint.load(folder)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "JSON"),
        ("[]", "weight_map"),
        ('{"weight_map": {}}', "weight_map"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "'../../etc/passwd'"),
        ('{"weight_map": {"a": 3}}', "3"),
        (
            '{"weight_map": {"a": "model-00009-of-00009.safetensors"}}',
            "model-00009-of-00009.safetensors is missing",
        ),
    ],
)
def test_bad_indexes_are_named(folder: Path, content: str, words: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    assert words in refusal(folder)


def test_an_index_that_promises_too_much(model: M3, tmp_path: Path) -> None:
    checkpoint.save(model, tmp_path, shard_bytes=300_000)
    index = tmp_path / "model.safetensors.index.json"
    some_file = min(path.name for path in tmp_path.glob("model-*"))
    edit_json(index, lambda i: i["weight_map"].update({"a.b": some_file}))
    assert "promises a.b" in refusal(tmp_path)


def test_the_total_size_of_an_index_is_not_trusted(model: M3, tmp_path: Path) -> None:
    """The published index states a size that is not the payload's."""
    checkpoint.save(model, tmp_path, shard_bytes=300_000)
    edit_json(tmp_path / "model.safetensors.index.json", lambda i: i["metadata"].update(total_size=1))
    assert torch.equal(logits(checkpoint.load(tmp_path)[0]), logits(model))


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors.index.json", "tokenizer_config.json"]
)
def test_json_without_end_is_refused(folder: Path, name: str) -> None:
    """The parser gives nesting this deep up with a RecursionError."""
    (folder / "model.safetensors").unlink()
    (folder / name).write_text("[" * 100_000)
    readers = {"tokenizer.json": Tokenizer.from_folder, "tokenizer_config.json": read_template}
    with pytest.raises(ModelError, match=re.escape(str(folder))):
        readers.get(name, checkpoint.load)(folder)


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("text_config", "num_hidden_layers", 0),
        ("text_config", "num_hidden_layers", 10**12),
        ("text_config", "hidden_size", -64),
        ("text_config", "hidden_size", "64"),
        ("text_config", "num_key_value_heads", 3),
        ("text_config", "num_experts_per_tok", 9),
        ("text_config", "rms_norm_eps", None),
        ("text_config", "rms_norm_eps", -1e-6),
        ("text_config", "rope_theta", 0),
        ("vision_config", "rope_theta", -1),
        ("text_config", "moe_layer_freq", [0, 1]),
        ("text_config", "scoring_func", "softmax"),
        ("text_config", "use_gemma_norm", False),
        ("text_config", "attention_output_gate", True),
        ("text_config", "tie_word_embeddings", True),
        ("text_config", "rope_scaling", {"type": "yarn", "factor": 4}),
        ("vision_config", "patch_size", 16),
        ("vision_config", "num_attention_heads", 5),
        ("vision_config", "hidden_act", "quick_gelu"),
        (None, "model_type", "llama"),
        (None, "vision_config", None),
        (None, "image_token_index", 512),
        (None, "quantization_config", {"quant_method": "nvfp4"}),
    ],
)
def test_impossible_configurations_are_named(
    folder: Path, place: str | None, key: str, value: object
) -> None:
    edit_json(folder / "config.json", lambda c: (c[place] if place else c).update({key: value}))
    sentence = refusal(folder)
    assert key in sentence or "patches must be" in sentence or key.split("_")[-1] in sentence


def test_every_size_survives_config_json(tiny_config: Callable[..., M3Config]) -> None:
    for head_dim in (16, 44, 128):
        for rotary in range(0, 17, 2):
            config = tiny_config(head_dim=head_dim, rotary_dim=rotary)
            assert config.text.rotary_dim == rotary
            assert M3Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_weights_are_mapped_not_copied(folder: Path) -> None:
    loaded, _ = checkpoint.load(folder)
    address = loaded.state_dict()[Q].data_ptr()
    with open("/proc/self/maps", encoding="ascii") as maps:  # noqa: PTH123
        spans = [
            line.split() for line in maps if line.rstrip().endswith(os.fspath(folder / "model.safetensors"))
        ]
    ranges = [tuple(int(x, 16) for x in span[0].split("-")) for span in spans]
    assert any(start <= address < end for start, end in ranges)


def test_a_file_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match=r"notes\.txt is a file; give the folder"):
        find_folder(tmp_path / "notes.txt")
    with pytest.raises(ModelError, match="no model 'nanoo'; give nano"):
        find_folder("nanoo")
