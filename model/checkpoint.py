"""Checkpoint folders: safetensors under the published names, both ways.

A folder holds `config.json` and `model.safetensors`, or shards that `model.safetensors.index.json` lists.
Only headers are read until everything is known to fit; then tensors stream in shard by shard, mapped from the
file, so that on a CPU a kept dtype costs no copy. MXFP8 weights (e4m3 with one E8M0 scale per 32 inputs) are
dequantised as they come. Everything wrong with a folder is a ModelError of one sentence.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pilotfish.model.config import M3Config
from pilotfish.model.folder import CONFIG, INDEX, WEIGHTS
from pilotfish.model.m3 import M3
from pilotfish.model.protocol import ModelError

SHARD_BYTES = 4 * 1024**3

# Published in fp32 inside the bf16 checkpoint, and kept so whatever dtype is asked for.
_KEPT_FP32 = (
    ".block_sparse_moe.gate.weight",
    ".e_score_correction_bias",
    ".patch_embedding.weight",
)
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_MXFP8, _SCALES, _GROUP = "F8_E4M3", {"U8", "F8_E8M0"}, 32
SCALE_SUFFIX = ".weight_scale_inv"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stored:
    """One tensor as a file's header describes it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def load(
    folder: Path | str, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> tuple[M3, M3Config]:
    """Load a checkpoint folder for inference: in eval mode, without gradients.

    dtype: what the weights become (None keeps each as stored; MXFP8 becomes bf16). The router and the patch
    embedding stay fp32. Keys of config.json that nobody knows and tensors of the MTP head are reported by a
    warning in the log and otherwise ignored. Raises ModelError for a folder that does not fit together.
    """
    folder = Path(folder)
    config = M3Config.from_folder(folder)
    if config.unknown_keys:
        _log.warning(
            "%s holds unknown keys, which are ignored: %s", folder / CONFIG, _listing(config.unknown_keys)
        )
    with torch.device("meta"):
        model = M3(config)
    stored = read_headers(folder)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    _check_fit(folder, stored, wanted)
    by_file: dict[Path, list[str]] = {}
    for name in wanted:
        by_file.setdefault(stored[name].file, []).append(name)
    for file, names in sorted(by_file.items()):
        tensors = {}
        with _opened(file) as reader:
            for name in names:
                tensor = _read(name, stored, reader)
                tensors[name] = tensor.to(device, _dtype_for(name, stored[name], dtype))
        model.load_state_dict(tensors, strict=False, assign=True)
    return model.eval().requires_grad_(False), config


def save(
    model: M3, folder: Path | str, *, dtype: torch.dtype | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a folder that `load` and transformers read; one file, or shards when it would pass `shard_bytes`.

    dtype: what the weights become (None keeps them); the router and the patch embedding stay fp32 unless they
    are narrower already. A checkpoint that was in the folder is replaced only after the new one is complete.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as scratch:
            _write(model, Path(scratch), dtype, shard_bytes)
            put_in_place(Path(scratch), folder)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder} cannot be written ({error}); free some space or name another.") from None


def put_in_place(draft: Path, folder: Path) -> None:
    """Move the files of a complete checkpoint into a folder, in place of one that is there."""
    written = {path.name: path for path in draft.iterdir()}
    for stale in [*folder.glob("model*.safetensors"), folder / INDEX]:
        if stale.name not in written:
            stale.unlink(missing_ok=True)
    for name, path in written.items():
        path.replace(folder / name)


def _write(model: M3, folder: Path, dtype: torch.dtype | None, shard_bytes: int) -> None:
    state = model.state_dict()
    shards = list(_shards(state, dtype, shard_bytes))
    count = len(shards)
    total = 0
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = WEIGHTS if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
        tensors = {
            name: state[name].detach().to("cpu", _dtype_to_save(name, state[name], dtype)).contiguous()
            for name in names
        }
        save_file(tensors, folder / file, metadata={"format": "pt"})
        total += sum(tensor.nbytes for tensor in tensors.values())
        weight_map.update(dict.fromkeys(names, file))
    main = dtype or state["language_model.lm_head.weight"].dtype
    write_json(folder / CONFIG, model.config.to_dict(str(main).removeprefix("torch.")))
    if count > 1:
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def read_headers(folder: Path | str) -> dict[str, Stored]:
    """Describe every tensor of a checkpoint folder from its files' headers, without reading weights."""
    folder = Path(folder)
    promised = _weight_map(folder)
    stored: dict[str, Stored] = {}
    for file in sorted({folder / name for name in promised.values()} or {folder / WEIGHTS}):
        with _opened(file) as reader:
            for name in reader.keys():  # noqa: SIM118 - not a dict
                view = reader.get_slice(name)
                stored[name] = Stored(file, str(view.get_dtype()), tuple(view.get_shape()))
    lost = [name for name, file in promised.items() if name not in stored or stored[name].file.name != file]
    if lost:
        raise ModelError(
            f"{folder / INDEX} promises {_listing(lost)}, which {promised[lost[0]]} does not hold; "
            "copy the checkpoint again."
        )
    return stored


def _weight_map(folder: Path) -> dict[str, str]:
    """Which file holds which tensor; empty when there is a single file."""
    if (folder / WEIGHTS).is_file():
        return {}
    index = folder / INDEX
    try:
        data = json.loads(index.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{folder} holds neither {WEIGHTS} nor {INDEX}; copy the whole checkpoint, in safetensors form."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{index} cannot be read as JSON ({error}); copy the checkpoint again.") from None
    promised = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(promised, dict) or not promised:
        raise ModelError(f"{index} has no weight_map; copy the checkpoint again.")
    for name, file in promised.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelError(f"{index} places {name} in {file!r}; it must be the name of a file beside it.")
    return promised


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt", device="cpu") as reader:
            yield reader
    except FileNotFoundError:
        raise ModelError(f"{file} is missing; copy the whole checkpoint.") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is damaged or cut short ({error}); copy it again.") from None


def _check_fit(folder: Path, stored: dict[str, Stored], wanted: dict[str, tuple[int, ...]]) -> None:
    """Raise ModelError unless the files hold what the configuration asks for."""
    other = "config.json and the weights belong to different models."
    if missing := [name for name in wanted if name not in stored]:
        raise ModelError(f"{folder} lacks {_listing(missing)}; {other}")
    wrong = [name for name, shape in wanted.items() if stored[name].shape != shape]
    if wrong:
        first = wrong[0]
        raise ModelError(
            f"{folder} has the wrong shape for {_listing(wrong)} "
            f"({list(stored[first].shape)} where {list(wanted[first])} is needed); {other}"
        )
    mtp = [name for name in stored if name.startswith("mtp.") or ".mtp." in name]
    if mtp:
        _log.warning("%s holds an MTP head, which is not used: %s", folder, _listing(mtp))
    scales = {_scale_name(name) for name in wanted if stored[name].dtype == _MXFP8}
    if unknown := [
        name for name in stored if name not in wanted and name not in scales and name not in set(mtp)
    ]:
        raise ModelError(f"{folder} holds {_listing(unknown)}, for which the model has no place; {other}")
    for name, shape in wanted.items():
        kind = stored[name].dtype
        if kind == _MXFP8:
            _check_scale(name, stored, shape)
        elif kind not in _FLOATS:
            raise ModelError(
                f"{name} is stored as {kind}; load a bf16, fp16, fp32 or MXFP8 checkpoint instead."
            )


def _check_scale(name: str, stored: dict[str, Stored], shape: tuple[int, ...]) -> None:
    scale = stored.get(_scale_name(name))
    if scale is None or len(shape) != 2:
        raise ModelError(
            f"{name} is stored in fp8 without {_scale_name(name)}; load an MXFP8 or bf16 checkpoint."
        )
    groups = (shape[0], -(-shape[1] // _GROUP))
    if scale.shape != groups or scale.dtype not in _SCALES:
        raise ModelError(
            f"{_scale_name(name)} is {scale.dtype} {list(scale.shape)} where E8M0 {list(groups)} is needed; "
            "load an MXFP8 checkpoint with groups of 32, or a bf16 one."
        )


def _read(name: str, stored: dict[str, Stored], reader: Any) -> Tensor:
    """Read one weight from its opened file; a scale may live in another shard."""
    tensor: Tensor = reader.get_tensor(name)
    if stored[name].dtype != _MXFP8:
        return tensor
    scale_name = _scale_name(name)
    with _opened(stored[scale_name].file) as scale_reader:
        scale: Tensor = scale_reader.get_tensor(scale_name)
    return dequantise_mxfp8(tensor, scale.view(torch.uint8))


def dequantise_mxfp8(weight: Tensor, scale: Tensor) -> Tensor:
    """Return bf16 weights [out, in] of e4m3 values and E8M0 bytes [out, ceil(in / 32)].

    A scale byte s means 2**(s - 127). The product is exact in bf16 wherever it is not subnormal. Source: OCP
    Microscaling Formats 1.0; the published MXFP8 checkpoint calls the scale "inv", yet it multiplies.
    """
    exponents = scale.to(torch.int32) - 127
    spread = exponents.repeat_interleave(_GROUP, dim=1)[:, : weight.shape[1]]
    return torch.ldexp(weight.to(torch.float32), spread).to(torch.bfloat16)


def _scale_name(name: str) -> str:
    return name.removesuffix(".weight") + SCALE_SUFFIX


def _dtype_for(name: str, stored: Stored, asked: torch.dtype | None) -> torch.dtype:
    if asked is not None and name.endswith(_KEPT_FP32):
        return torch.float32
    return asked or _FLOATS.get(stored.dtype, torch.bfloat16)


def _dtype_to_save(name: str, tensor: Tensor, asked: torch.dtype | None) -> torch.dtype:
    return tensor.dtype if asked is None or name.endswith(_KEPT_FP32) else asked


def _shards(state: dict[str, Tensor], dtype: torch.dtype | None, limit: int) -> Iterator[list[str]]:
    """Split the names in order so that a shard passes `limit` bytes only when a single tensor does."""
    shard: list[str] = []
    size = 0
    for name, tensor in state.items():
        bytes_ = tensor.numel() * _dtype_to_save(name, tensor, dtype).itemsize
        if shard and size + bytes_ > limit:
            yield shard
            shard, size = [], 0
        shard.append(name)
        size += bytes_
    yield shard


def write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _listing(names: Iterable[str]) -> str:
    first, *rest = names
    return f"{first} and {len(rest)} more" if rest else first
