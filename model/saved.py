"""Sequences on disk: what was computed of a prompt, to go on from it in another process.

A file is safetensors: the tensors of the cache, the token ids and which of them are placeholders; its
metadata has the pictures' hashes and says what the scores depend on. It fits only where all of that is the
same, because a prompt must give the same scores whether its prefix was loaded, cached or computed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pilotfish.model.m3 import M3
from pilotfish.model.protocol import ModelError
from pilotfish.model.sequence import Span, Tokens, TokenSequence
from pilotfish.model.tokenizer import Tokenizer

FORMAT = "pilotfish sequence 1"


@dataclass(frozen=True, eq=False)
class Saved:
    """What a file gave: the tokens, and the tensors of their cache by the names of the pool's buffers."""

    tokens: Tokens
    tensors: dict[str, Tensor]


def key_of(model: M3, tokenizer: Tokenizer) -> dict[str, str]:
    """What the ids of a sequence mean and what computed it, as digests. Reads all weights."""
    weights = hashlib.sha256()
    for name, x in model.state_dict().items():
        weights.update(f"{name} {x.dtype} {list(x.shape)}\n".encode())
        weights.update(x.contiguous().cpu().flatten().view(torch.uint8).numpy())
    return {"weights": weights.hexdigest(), "tokenizer": tokenizer.digest}


def save(sequence: TokenSequence, path: Path | str, key: dict[str, str]) -> int:
    """Write the whole chunks of a sequence, which are what a prompt can reuse; returns their tokens.

    key: of `key_of`. A file that was there is replaced when the new one is complete. Raises ModelError with
    one sentence when there is no whole chunk, or the file cannot be written.
    """
    path, whole = Path(path), sequence.whole
    if not whole:
        raise ModelError(
            f"The conversation has {len(sequence.tokens)} tokens and is kept in steps of {sequence.chunk}; "
            "save a longer one."
        )
    tokens = sequence.tokens.cut(whole)
    spans = json.dumps([[span.start, span.end, span.content.hex()] for span in tokens.spans])
    tensors = {name: x[0].contiguous().cpu() for name, x in sequence.cache.tensors(whole).items()}
    tensors |= {"ids": torch.tensor(tokens.ids), "is_place": torch.tensor(tokens.is_place)}
    about = {"format": FORMAT, **_conditions(sequence), **key, "spans": spans, "sum": _sum(tensors, spans)}
    try:
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=path.parent) as scratch:
            save_file(tensors, Path(scratch) / "sequence", metadata=about)
            (Path(scratch) / "sequence").replace(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be written ({error}); free some space or name another.") from None
    return whole


def load(path: Path | str, sequence: TokenSequence, key: dict[str, str]) -> Saved:
    """Read a file for a sequence made as the saved one was; the sequence stays as it is.

    Raises ModelError with one sentence when the file is missing, damaged, something else, or made by other
    weights, another tokenizer or under other conditions than this sequence's.
    """
    path = Path(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as reader:
            about: dict[str, str] = reader.metadata() or {}
            if about.get("format") != FORMAT:
                raise ModelError(f"{path} is no saved conversation of this version; save it again.")
            for name, value in {**key, **_conditions(sequence)}.items():
                if about.get(name) != value:
                    raise ModelError(
                        f"{path} was saved with {name} {about.get(name)!r}, and here it is {value!r}; "
                        "compute the conversation here and save it again."
                    )
            tensors = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118 - not a dict
        return _checked(sequence, tensors, about)
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; name a conversation that was saved.") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{path} is damaged or no saved conversation ({error}); save it again.") from None


def _checked(sequence: TokenSequence, tensors: dict[str, Tensor], about: dict[str, str]) -> Saved:
    """The tokens and tensors of a file; raises ValueError or KeyError unless they fit together."""
    if _sum(tensors, about["spans"]) != about["sum"]:
        raise ValueError("its numbers do not add up")
    pool = sequence.cache.pool
    ids, is_place = tensors.pop("ids").numpy(), tensors.pop("is_place").numpy()
    spans = [Span(int(start), int(end), bytes.fromhex(key)) for start, end, key in json.loads(about["spans"])]
    shapes = {name: (*x.shape[1:-2], len(ids), x.shape[-1]) for name, x in pool.buffers.items()}
    if (
        {name: tuple(x.shape) for name, x in tensors.items()} != shapes
        or any(x.dtype != pool.dtype for x in tensors.values())
        or (str(ids.dtype), str(is_place.dtype), is_place.shape) != ("int64", "bool", (len(ids),))
        or len(ids) == 0
        or len(ids) % sequence.chunk
    ):
        raise ValueError("its tensors do not fit together")
    return Saved(Tokens(ids, is_place, tuple(spans)), {name: x[None] for name, x in tensors.items()})


def _conditions(sequence: TokenSequence) -> dict[str, str]:
    """What the last bits of a sequence's scores depend on beside its weights."""
    pool = sequence.cache.pool
    if pool.device.type == "cuda":
        device = torch.cuda.get_device_name(pool.device)
    else:
        threads = torch.get_num_threads()
        device = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {threads} threads"
    return {
        "device": device,
        "dtype": str(pool.dtype),
        "attention": sequence.attention,
        "chunk": str(sequence.chunk),
        "torch": torch.__version__,
    }


def _sum(tensors: dict[str, Tensor], spans: str) -> str:
    """A sum over all bytes of a file that matter: it finds damage, at the speed of memory."""
    digest = hashlib.sha256(spans.encode())
    for name in sorted(tensors):
        raw = tensors[name].contiguous().flatten().view(torch.uint8)
        words = len(raw) // 8 * 8
        total = int(raw[:words].view(torch.int64).sum()) + int(raw[words:].sum())
        digest.update(f"{name} {total}\n".encode())
    return digest.hexdigest()
