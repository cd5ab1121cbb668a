"""Where and in what numbers the network is computed."""

from __future__ import annotations

import os
from typing import Literal

import torch

from pilotfish.model.config import M3Config
from pilotfish.model.protocol import ModelError

DTypeName = Literal["auto", "bfloat16", "float32"]
CPU_CHUNK, GPU_CHUNK, WIDE_GPU_CHUNK = 512, 8192, 2048
"""Tokens computed at once; on a GPU so many that computing takes about as long as launching it."""
WIDE = 2048
"""Width of the text tower from which on fewer do."""


def chunk_for(config: M3Config, device: torch.device) -> int:
    """Tokens of a prompt that are computed at once."""
    if device.type == "cpu":
        return CPU_CHUNK
    return GPU_CHUNK if config.text.hidden_size < WIDE else WIDE_GPU_CHUNK


def pick_device(name: str) -> torch.device:
    """The device a setting means; raises ModelError for one that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise ModelError(f"There is no device {name!r} here; choose auto or cpu.") from None
    return device


def device_name(device: torch.device) -> str:
    """A device as a person knows it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


def pick_dtype(name: DTypeName, device: torch.device) -> torch.dtype:
    """The dtype a setting means on a device; raises ModelError for a name outside `DTypeName`."""
    if name == "auto":
        name = "bfloat16" if device.type != "cpu" or cpu_has_bf16() else "float32"
    if name not in ("bfloat16", "float32"):
        raise ModelError(f"dtype is {name!r}; choose auto, bfloat16 or float32.")
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def cpu_has_bf16() -> bool:
    """Whether this CPU multiplies bf16 natively; without, bf16 is several times slower than fp32."""
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def cpu_threads() -> int:
    """Threads for the network: half the cores, because the desktop and the browser run beside it.

    More threads than free cores make every small product wait for the slowest: on two busy cores two threads
    were measured twenty times slower than one. OMP_NUM_THREADS overrides.
    """
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(os.environ["OMP_NUM_THREADS"]))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)
