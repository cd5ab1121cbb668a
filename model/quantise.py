"""MXFP8 checkpoints in the published layout: `python -m pilotfish.model.quantise FOLDER OUT`.

What the published MXFP8 release quantises is quantised: projections of attention, dense and shared MLPs, and
experts. Router, index branch, norms, embedding, head and the vision side stay as they are. A weight becomes
e4m3 [out, in] with one E8M0 byte for every 32 inputs, `NAME_scale_inv` [out, ceil(in / 32)].
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pilotfish.model import checkpoint
from pilotfish.model.config import M3Config
from pilotfish.model.folder import CONFIG, INDEX, WEIGHTS, find_folder
from pilotfish.model.protocol import ModelError

GROUP = 32
LARGEST, LARGEST_EXPONENT = 448.0, 8  # of e4m3
QUANTISED = re.compile(
    r"^language_model\.model\.layers\.\d+\."
    r"(self_attn\.[qkvo]_proj"
    r"|(mlp|block_sparse_moe\.shared_experts)\.(gate|up|down)_proj"
    r"|block_sparse_moe\.experts\.\d+\.w[123])\.weight$"
)
BESIDE = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def to_mxfp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 values [out, in] and E8M0 bytes [out, ceil(in / 32)] of a weight; `dequantise_mxfp8` goes back.

    The scale is the power of two of the group's greatest value over that of e4m3's, and what lies above 448
    then is 448. Source: OCP Microscaling Formats 1.0, section 6.3.
    """
    groups = F.pad(weight.float(), (0, -weight.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
    _, exponent = torch.frexp(groups.abs().amax(-1))  # the value is in [0.5, 1) x 2^exponent
    exponent = (exponent - 1 - LARGEST_EXPONENT).clamp(-127, 127)
    scaled = torch.ldexp(groups, -exponent[..., None]).clamp(-LARGEST, LARGEST)
    values = scaled.flatten(1)[:, : weight.shape[1]].to(torch.float8_e4m3fn)
    return values.contiguous(), (exponent + 127).to(torch.uint8)


def quantise(source: Path | str, out: Path) -> dict[str, int]:
    """Write the checkpoint in `source`, a folder or nano, to `out` as MXFP8, file by file; how many bytes and
    tensors. A checkpoint that was in `out` is replaced when the new one is complete.

    Raises ModelError for a folder that is no checkpoint, is MXFP8 already, or lies where the new one would.
    """
    folder = find_folder(source)
    config = M3Config.from_folder(folder)
    stored = checkpoint.read_headers(folder)
    if any(name.endswith(checkpoint.SCALE_SUFFIX) for name in stored):
        raise ModelError(f"{folder} is MXFP8 already; give a bf16 checkpoint.")
    if out.resolve() == folder.resolve():
        raise ModelError(f"{out} is the checkpoint itself; name another folder for the new one.")
    weight_map: dict[str, str] = {}
    size = 0
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=out) as scratch:
            draft = Path(scratch)
            for file in sorted({one.file for one in stored.values()}):
                tensors = _quantised(file)
                save_file(tensors, draft / file.name, metadata={"format": "pt"})
                weight_map |= dict.fromkeys(tensors, file.name)
                size += sum(tensor.nbytes for tensor in tensors.values())
            settings = config.to_dict("bfloat16")
            settings["quantization_config"] = {
                "quant_method": "mxfp8",
                "weight_block_size": [1, GROUP],
                "activation_scheme": "dynamic",
            }
            checkpoint.write_json(draft / CONFIG, settings)
            if not (draft / WEIGHTS).is_file():
                index = {"metadata": {"total_size": size}, "weight_map": weight_map}
                checkpoint.write_json(draft / INDEX, index)
            for name in BESIDE:
                if (folder / name).is_file():
                    shutil.copyfile(folder / name, draft / name)
            checkpoint.put_in_place(draft, out)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{out} cannot be written ({error}); free some space or name another.") from None
    scales = sum(name.endswith(checkpoint.SCALE_SUFFIX) for name in weight_map)
    return {"bytes": size, "tensors": len(weight_map), "quantised": scales}


def _quantised(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, those of `QUANTISED` as values and scales."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(file).items():
        if not QUANTISED.match(name):
            tensors[name] = tensor
            continue
        if not bool(tensor.isfinite().all()):
            raise ModelError(f"{name} in {file} is not finite; MXFP8 has no place for it.")
        tensors[name], scale = to_mxfp8(tensor)
        tensors[name.removesuffix(".weight") + checkpoint.SCALE_SUFFIX] = scale
    return tensors


def main(arguments: list[str] | None = None) -> int:
    """The command line; what is wrong is one sentence on standard error."""
    parser = argparse.ArgumentParser(description="Write a checkpoint as MXFP8, in the published layout.")
    parser.add_argument("source", help="folder of a bf16 checkpoint, or nano")
    parser.add_argument("out", type=Path, help="folder for the new one")
    said = parser.parse_args(arguments)
    try:
        made = quantise(said.source, said.out)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    size = made["bytes"] / 2**20
    print(f"{said.out}: {size:.1f} MiB, {made['quantised']} of {made['tensors']} tensors quantised")
    return 0


if __name__ == "__main__":
    sys.exit(main())
