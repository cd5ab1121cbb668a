"""One measurement of the bench, in a process of its own so that its peak of memory is its own.

It reads a `Spec` as JSON from its only argument and prints JSON lines: how far it has come, then what it
measured, or one sentence about what is wrong.
"""

from __future__ import annotations

import json
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pilotfish.model import checkpoint, saved
from pilotfish.model.bench_spec import Spec
from pilotfish.model.config import M3Config, TextConfig, VisionConfig
from pilotfish.model.device import DTypeName, chunk_for, pick_device, pick_dtype
from pilotfish.model.images import FACTOR, clip_patches
from pilotfish.model.m3 import M3, count_parameters, initialise
from pilotfish.model.memory import keep_freed_memory
from pilotfish.model.protocol import Clip, ModelError
from pilotfish.model.sequence import Tokens, TokenSequence
from pilotfish.model.vision import Grid


class Network(Protocol):
    """What both sides can do: read tokens behind those they hold, and forget some."""

    device: torch.device

    def clear(self) -> None: ...
    def truncate(self, length: int) -> None: ...
    def prepare(self, ids: list[int]) -> None: ...
    def read(
        self, ids: list[int], patches: Tensor | None = None, grids: list[Grid] | None = None
    ) -> Tensor: ...


class Ours:
    """This project's network as `Engine` runs it: prompts in chunks, answers token by token."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype, clip: Clip):
        if device.type == "cpu":
            keep_freed_memory()
        self.model, config = checkpoint.load(folder, device, dtype)
        self.device, self.clip = device, clip
        self.place_ids = (config.image_token_id, config.video_token_id)
        self.clear()

    def clear(self) -> None:
        self.ids: list[int] = []
        self.sequence = TokenSequence(self.model, chunk=chunk_for(self.model.config, self.device))

    def truncate(self, length: int) -> None:
        self.sequence.truncate(length)
        del self.ids[length:]

    def prepare(self, ids: list[int]) -> None:
        self.read(ids)

    def save(self, path: Path) -> None:
        saved.save(self.sequence, path, {})

    def load(self, path: Path) -> None:
        saved.load(path, self.sequence, {})

    def read(self, ids: list[int], patches: Tensor | None = None, grids: list[Grid] | None = None) -> Tensor:
        self.ids += ids
        if len(ids) == 1 and len(self.ids) > 1:
            return self.sequence.append(ids[0])
        media = [] if patches is None else [self.clip]

        def features(_: int) -> Tensor:
            assert patches is not None
            assert grids is not None
            if not seen:  # chunks ask one by one; an engine keeps what it encoded
                seen.append(self.model.encode_media(patches.to(self.device), grids))
            return seen[0]

        seen: list[Tensor] = []
        tokens = Tokens.lay_out(self.ids, media, self.place_ids)
        told_s = time.perf_counter()

        def tell() -> bool:
            nonlocal told_s
            if time.perf_counter() - told_s > 5:
                told_s = time.perf_counter()
                _print({"read": self.sequence.length})
            return False

        scores = self.sequence.extend(tokens, features, tell)
        assert scores is not None
        return scores


@dataclass
class Measured:
    """What a job found."""

    seconds: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """Of the last token."""
    written: list[int] = field(default_factory=list)
    """Greedy tokens."""
    tokens: int = 0


def main() -> int:
    """Do what the argument says; 0, or 1 after a sentence."""
    spec = Spec(**json.loads(sys.argv[1]))
    try:
        _print(JOBS[spec.job](spec))
    except ModelError as error:
        _print({"error": str(error)})
        return 1
    except ImportError as error:
        mend = "`make setup` installs a transformers that knows minimax_m3_vl; --alone measures without it"
        _print({"error": f"transformers cannot be used ({error}); {mend}."})
        return 1
    return 0


def describe(spec: Spec) -> dict[str, Any]:
    """The machine and the checkpoint."""
    device = pick_device(spec.device)
    dtype = pick_dtype(_dtype(spec), device)
    config = M3Config.from_folder(spec.folder)
    with torch.device("meta"):
        parameters = count_parameters(M3(config))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {
        "device": name, "gpu": device.type == "cuda", "torch": torch.__version__, "parameters": parameters,
        "dtype": str(dtype).removeprefix("torch."),
    }  # fmt: skip


def make(spec: Spec) -> dict[str, Any]:
    """Write a random checkpoint of the size that the aims were set with."""
    torch.manual_seed(0)
    model = M3(random_config())
    initialise(model)
    checkpoint.save(model, spec.folder, dtype=torch.bfloat16)
    return {}


def random_config() -> M3Config:
    """42 M parameters; 8 layers, the last 6 of them with MSA, which keeps 8 blocks of 64 keys."""
    sparse = (False,) * 2 + (True,) * 6
    text = TextConfig(
        hidden_size=512, num_hidden_layers=8, vocab_size=4096, num_attention_heads=8, num_key_value_heads=2,
        head_dim=64, intermediate_size=192, shared_intermediate_size=384, dense_intermediate_size=2048,
        num_local_experts=8, num_experts_per_tok=2, sparse_layers=sparse, moe_layers=sparse, index_heads=2,
        index_dim=64, block_size=64, topk_blocks=8, rotary_dim=32, rope_theta=1e6,
    )  # fmt: skip
    vision = VisionConfig(hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=1408)
    return M3Config(text, vision, projector_hidden_size=512, image_token_id=4094, video_token_id=4095)


def prefill(spec: Spec) -> Measured:
    """A whole prompt."""
    network, ids = _network(spec), _ids(spec, spec.tokens)

    def read() -> Tensor:
        network.clear()
        return network.read(ids)

    return _timed(spec, network, read, tokens=len(ids))


def step(spec: Spec) -> Measured:
    """A clip and some words behind a prefix that is in the cache, from its patches on."""
    network, ids = _network(spec), _ids(spec, spec.before)
    network.prepare(ids)
    patches, grids, turn = _turn(spec)

    def read() -> Tensor:
        network.truncate(len(ids))
        return network.read(turn, patches, grids)

    return _timed(spec, network, read, tokens=len(turn))


def decode(spec: Spec) -> Measured:
    """Single tokens behind a prefix; each is one run."""
    network, ids = _network(spec), _ids(spec, spec.before)
    network.prepare(ids)
    ahead = iter(_ids(spec, spec.tokens + 2)[::-1])
    network.read([next(ahead)])
    return _timed(spec, network, lambda: network.read([next(ahead)]), tokens=1, runs=spec.tokens)


def load(spec: Spec) -> Measured:
    """A prefix that was saved, into an empty sequence; then it must give the scores it gave before."""
    network, ids = _network(spec), _ids(spec, spec.before)
    if not isinstance(network, Ours):
        raise ModelError("Only this project saves prefixes; ask for its side.")
    network.prepare(ids)
    patches, grids, turn = _turn(spec)
    scores = network.read(turn, patches, grids)
    with tempfile.TemporaryDirectory(prefix="pilotfish-bench-") as scratch:
        network.save(Path(scratch) / "prefix")

        def read() -> Tensor:
            network.clear()
            network.load(Path(scratch) / "prefix")
            return scores

        measured = _timed(spec, network, read, tokens=len(ids))
        network.ids = list(ids)
        if not torch.equal(network.read(turn, patches, grids), scores):
            raise ModelError("A prefix that was loaded gives other scores than before it was saved.")
    return measured


def agree(spec: Spec) -> Measured:
    """A prompt with a clip, and the tokens that are then most likely one after another."""
    network, ids = _network(spec), _ids(spec, spec.before)
    network.prepare(ids)
    patches, grids, turn = _turn(spec)
    scores = network.read(turn, patches, grids)
    measured = Measured(scores=scores.float().tolist(), tokens=len(ids) + len(turn))
    allowed = torch.ones(scores.shape[0], dtype=torch.bool, device=scores.device)
    allowed[list(_place_ids(spec))] = False
    for _ in range(spec.tokens):
        measured.written.append(int(scores.masked_fill(~allowed, -torch.inf).argmax()))
        scores = network.read(measured.written[-1:])
    return measured


def _network(spec: Spec) -> Network:
    device = pick_device(spec.device)
    torch.set_num_threads(spec.threads)
    dtype = pick_dtype(_dtype(spec), device)
    if spec.side == "ours":
        return Ours(Path(spec.folder), device, dtype, _clip(spec))
    from pilotfish.model.bench_peer import Theirs  # transformers need not be installed

    return Theirs(Path(spec.folder), device, dtype)


def _timed(
    spec: Spec, network: Network, read: Callable[[], Tensor], *, tokens: int, runs: int = 5
) -> Measured:
    """So many runs, or fewer when they would take longer than allowed, but one at least."""
    measured, used_s = Measured(tokens=tokens), 0.0
    if network.device.type == "cuda":
        read()  # compiles kernels
    while not measured.seconds or (len(measured.seconds) < runs and used_s < spec.seconds):
        _settle(network)
        began_s = time.perf_counter()
        scores = read()
        _settle(network)
        measured.seconds.append(time.perf_counter() - began_s)
        used_s += measured.seconds[-1]
        measured.scores = scores.float().tolist()
    return measured


def _settle(network: Network) -> None:
    if network.device.type == "cuda":
        torch.cuda.synchronize()


def _dtype(spec: Spec) -> DTypeName:
    return "bfloat16" if spec.dtype == "bfloat16" else "float32" if spec.dtype == "float32" else "auto"


def _place_ids(spec: Spec) -> tuple[int, int]:
    config = M3Config.from_folder(spec.folder)
    return config.image_token_id, config.video_token_id


def _ids(spec: Spec, count: int) -> list[int]:
    """Tokens at random, the same for both sides, none of them the place of a picture."""
    known = np.setdiff1d(np.arange(M3Config.from_folder(spec.folder).text.vocab_size), _place_ids(spec))
    return np.random.default_rng(0).choice(known, count).tolist()


def _clip(spec: Spec) -> Clip:
    """Four frames on which something moves."""
    width, height = spec.screen
    frames = np.empty((4, height, width, 3), dtype=np.uint8)
    squares = np.random.default_rng(1).integers(0, 256, (-(-height // 8), -(-width // 8), 3))
    frames[:] = squares.repeat(8, 0).repeat(8, 1)[:height, :width]
    for number, frame in enumerate(frames):
        frame[: height // 4, number * width // 8 : (number + 1) * width // 8] = 255
    return Clip(frames, (0.0, 0.1, 0.2, 0.3))


def _turn(spec: Spec) -> tuple[Tensor, list[Grid], list[int]]:
    """Patches and grids of a clip, and its tokens between a few words."""
    patches, grids = clip_patches(_clip(spec))
    places = sum(t * h * w for t, h, w in grids) * 14 * 14 // FACTOR**2
    words = _ids(spec, 24)
    return torch.from_numpy(patches.copy()), grids, [*words[:4], *[_place_ids(spec)[1]] * places, *words[4:]]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), platform.machine())


def _peak_bytes(spec: Spec) -> int:
    if pick_device(spec.device).type == "cuda":
        return torch.cuda.max_memory_allocated()
    try:  # ru_maxrss begins with what the process that started this one held
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):  # not Linux
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _report(job: Callable[[Spec], Measured]) -> Callable[[Spec], dict[str, Any]]:
    @torch.no_grad()
    def run(spec: Spec) -> dict[str, Any]:
        found = job(spec)
        return {
            "seconds": statistics.median(found.seconds) if found.seconds else 0.0,
            "runs": len(found.seconds), "peak_bytes": _peak_bytes(spec), "scores": found.scores,
            "written": found.written, "tokens": found.tokens,
        }  # fmt: skip

    return run


def _print(data: dict[str, Any]) -> None:
    print(json.dumps(data), flush=True)


JOBS: dict[str, Callable[[Spec], dict[str, Any]]] = {
    "describe": describe,
    "make": make,
    **{job.__name__: _report(job) for job in (prefill, step, decode, load, agree)},
}


if __name__ == "__main__":
    sys.exit(main())
