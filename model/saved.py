"""Sequences on disk: what was computed of a prompt, to go on from it in another process.

A file is safetensors: the tensors of the cache, the token ids and which of them are placeholders; its
metadata has the pictures' hashes and says what the scores depend on. It fits only where all of that is the
same, because a prompt must give the same scores whether its prefix was loaded, cached or computed.

The numbers go between the file and the pages themselves, a few MiB at a time, so that neither way takes
memory. The sums of these pieces are in the header, which is written last.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pilotfish.model import transfer
from pilotfish.model.cache import Cache
from pilotfish.model.m3 import M3
from pilotfish.model.protocol import ModelError
from pilotfish.model.sequence import Span, Tokens, TokenSequence
from pilotfish.model.tokenizer import Tokenizer
from pilotfish.model.transfer import Piece

FORMAT = "pilotfish sequence 2"
_MAX_HEADER = 100_000_000  # bytes; safetensors' own limit
_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


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
    path, whole, cache = Path(path), sequence.whole, sequence.cache
    if not whole:
        raise ModelError(
            f"The conversation has {len(sequence.tokens)} tokens and is kept in steps of {sequence.chunk}; "
            "save a longer one."
        )
    tokens = sequence.tokens.cut(whole)
    spans = json.dumps([[span.start, span.end, span.content.hex()] for span in tokens.spans])
    about = {"format": FORMAT, **_conditions(sequence), **key, "spans": spans, "sum": _sum_of(spans, [])}
    layout = _layout(cache, whole)
    begin = len(_header(layout, about))
    ids, is_place = torch.from_numpy(tokens.ids), torch.from_numpy(tokens.is_place)
    try:
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=path.parent) as scratch:
            with (Path(scratch) / "sequence").open("xb") as file:
                sums = transfer.write(file.fileno(), _token_pieces(ids, is_place, layout, begin))
                sums += transfer.write(file.fileno(), _pieces(cache, whole, layout, begin))
                file.write(_header(layout, {**about, "sum": _sum_of(spans, sums)}))
            (Path(scratch) / "sequence").replace(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be written ({error}); free some space or name another.") from None
    return whole


def load(
    path: Path | str,
    sequence: TokenSequence,
    key: dict[str, str],
    make_room: Callable[[int], None] | None = None,
) -> int:
    """Make an empty sequence hold what a file has; returns its tokens.

    make_room: called with their number when all that the header tells is right, to give the sequence pages;
    without, it takes them itself. Raises ModelError with one sentence when the file is missing, damaged,
    something else, or made by other weights, another tokenizer or under other conditions than this
    sequence's; the sequence is empty then.
    """
    assert sequence.length == 0, "a file's tokens are a sequence's first"
    path, cache = Path(path), sequence.cache
    try:
        with path.open("rb") as file:
            about, header, begin = _read_header(file.fileno())
            _refuse_others(path, about, {"format": FORMAT, **key, **_conditions(sequence)})
            tokens = int(header["ids"]["shape"][0])
            layout = _layout(cache, tokens)
            if header != layout or tokens < 1 or tokens % sequence.chunk:
                raise ValueError("its tensors do not fit together")
            if os.fstat(file.fileno()).st_size != begin + layout["is_place"]["data_offsets"][1]:
                raise ValueError("its size is not what its header says")
            spans = [Span(int(a), int(b), bytes.fromhex(key)) for a, b, key in json.loads(about["spans"])]
            (make_room or cache.reserve)(tokens)
            cache.reserve(tokens)
            ids, is_place = torch.empty(tokens, dtype=torch.int64), torch.empty(tokens, dtype=torch.bool)
            sums = transfer.read(file.fileno(), _token_pieces(ids, is_place, layout, begin))
            sums += transfer.read(file.fileno(), _pieces(cache, tokens, layout, begin))
            if _sum_of(about["spans"], sums) != about["sum"]:
                raise ValueError("its numbers do not add up")
        sequence.hold(Tokens(ids.numpy(), is_place.numpy(), tuple(spans)))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; name a conversation that was saved.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ModelError(f"{path} is damaged or no saved conversation ({error}); save it again.") from None
    finally:
        cache.trim()
    return tokens


def _refuse_others(path: Path, about: dict[str, Any], wanted: dict[str, str]) -> None:
    for name, value in wanted.items():
        if about.get(name) == value:
            continue
        if name == "format":
            raise ModelError(f"{path} is no saved conversation of this version; save it again.")
        raise ModelError(
            f"{path} was saved with {name} {about.get(name)!r}, and here it is {value!r}; "
            "compute the conversation here and save it again."
        )


def _layout(cache: Cache, tokens: int) -> dict[str, dict[str, Any]]:
    """A file's tensors as its header describes them: ids, the pool's buffers, placeholders."""
    layout: dict[str, dict[str, Any]] = {}
    end = 0

    def add(name: str, dtype: str, width: int, shape: Sequence[int]) -> None:
        nonlocal end
        begin, end = end, end + prod(shape) * width
        layout[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}

    add("ids", "I64", 8, [tokens])
    for name, buffer in sorted(cache.pool.buffers.items()):
        shape = (*buffer.shape[1:-2], tokens, buffer.shape[-1])
        add(name, _NAMES[buffer.dtype], buffer.dtype.itemsize, shape)
    add("is_place", "BOOL", 1, [tokens])
    return layout


def _header(layout: dict[str, dict[str, Any]], about: dict[str, str]) -> bytes:
    """What a safetensors file begins with; as long for any sum."""
    text = json.dumps({"__metadata__": about, **layout}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _read_header(file: int) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The metadata, the description of the tensors and where their bytes begin; raises ValueError."""
    length = int.from_bytes(os.pread(file, 8, 0), "little")
    if length > _MAX_HEADER:
        raise ValueError(f"its header would have {length} bytes")
    header = json.loads(os.pread(file, length, 8))
    return header.pop("__metadata__", {}), header, 8 + length


def _token_pieces(
    ids: Tensor, is_place: Tensor, layout: dict[str, dict[str, Any]], begin: int
) -> list[Piece]:
    return [
        Piece(begin + layout[name]["data_offsets"][0], [x.view(torch.uint8)])
        for name, x in (("ids", ids), ("is_place", is_place))
    ]


def _pieces(cache: Cache, tokens: int, layout: dict[str, dict[str, Any]], begin: int) -> list[Piece]:
    """The rows of a cache's pages in the order of a file, cut in the same places whatever pages they are."""
    pieces = []
    for name, buffer in sorted(cache.pool.buffers.items()):
        offset = begin + layout[name]["data_offsets"][0]
        width = buffer.shape[-1] * buffer.dtype.itemsize
        step = max(1, transfer.PIECE_BYTES // (width * cache.pool.block)) * cache.pool.block
        for rows in buffer.flatten(0, -3):
            for start in range(0, tokens, step):
                end = min(start + step, tokens)
                parts = [rows[a:b].view(-1).view(torch.uint8) for a, b in cache.rows(start, end)]
                pieces.append(Piece(offset, parts))
                offset += (end - start) * width
    return pieces


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


def _sum_of(spans: str, sums: Sequence[int]) -> str:
    """A sum over all of a file that matters, from those of its pieces in order; finds damage."""
    return hashlib.sha256(json.dumps([spans, list(sums)]).encode()).hexdigest()
