"""Reading a `Batch` on the device: which sequence a row belongs to, what it sees, where a block of its keys
lies.

Every kernel that meets a packed batch does it through these functions. They trust no number they read:
whatever the tensors hold, a row that belongs to no sequence sees nothing, and a block outside the keys
counts as not chosen.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pilotfish.kernels.batch import MOST_KEYS, Batch

CHANGING = ["tokens", "available", "per_group", "stride", "sequences", "pages_per_sequence", "first_row"]
"""Bounds that change from call to call. Kernels are not compiled anew for handsome ones among them."""


def batch_arguments(batch: Batch, first_row: int = 0) -> dict[str, Any]:
    """What the functions below take of a batch whose row `first_row` is a kernel's row 0.

    A tensor that is absent is replaced by one that is there, and never read.
    """
    pages, starts, visible = batch.pages, batch.key_starts, batch.visible
    return {
        "query_starts": batch.query_starts,
        "key_lengths": batch.key_lengths,
        "pages": batch.query_starts if pages is None else pages,
        "key_starts": batch.query_starts if starts is None else starts,
        "visible": batch.query_starts if visible is None else visible,
        "sequences": batch.sequences,
        "pages_per_sequence": 0 if pages is None else pages.shape[1],
        "first_row": first_row,
        "SEARCH": batch.sequences.bit_length(),
        "PAGED": pages is not None,
        "PACKED": starts is not None,
        "VISIBLE": visible is not None,
    }


LONGEST = tl.constexpr(MOST_KEYS)


@triton.jit
def sequence_of(row, query_starts, sequences, SEARCH: tl.constexpr):
    """The sequence of a row of the batch, `sequences` if it belongs to none: a binary search of SEARCH
    steps."""
    low = row * 0
    for i in tl.static_range(SEARCH):
        probe = low + (1 << (SEARCH - 1 - i))
        inside = probe <= sequences
        start = tl.load(query_starts + tl.where(inside, probe, 0))
        low = tl.where(inside & (start <= row), probe, low)
    return low


@triton.jit
def sequence_of_one(row, query_starts, sequences, SEARCH: tl.constexpr):
    """`sequence_of` for a single row, quick where every sequence has one new token."""
    if SEARCH > 1:
        guess = tl.minimum(row, sequences - 1)
        if (tl.load(query_starts + guess) <= row) & (row < tl.load(query_starts + guess + 1)):
            sequence = guess
        else:
            sequence = sequence_of(row, query_starts, sequences, SEARCH)
    else:
        sequence = sequence_of(row, query_starts, sequences, SEARCH)
    return sequence


@triton.jit
def visible_of(
    row, sequence, query_starts, key_lengths, visible, sequences, SEARCH: tl.constexpr, VISIBLE: tl.constexpr
):
    """How many keys a row of the batch sees, 0 if it belongs to no sequence."""
    known = sequence < sequences
    # Where there is one sequence, its length need not wait for the search.
    s = row * 0 if SEARCH == 1 else tl.where(known, sequence, 0)
    keys = tl.minimum(tl.maximum(tl.load(key_lengths + s), 0), LONGEST)
    if VISIBLE:
        seen = tl.minimum(tl.load(visible + row, mask=known, other=0), keys)
    else:
        seen = keys - (tl.load(query_starts + s + 1) - 1 - row)
    return tl.where(known, tl.maximum(seen, 0), 0)


@triton.jit
def block_of(
    id,
    seen,
    sequence,
    pages,
    key_starts,
    sequences,
    pages_per_sequence,
    available,
    BLOCK: tl.constexpr,
    PAGED: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Where the keys of a chosen block lie and how many of them a row that sees `seen` keys sees.

    Returns (place, limit): the page or the first row of the block, and its visible keys, 0 if the id names
    no block that the row sees. available: pages or rows of keys there are.
    """
    live = (id >= 0) & (id < (seen + BLOCK - 1) // BLOCK) & (sequence < sequences)
    id = tl.where(live, id, 0)
    s = tl.where(live, sequence, 0)
    limit = tl.minimum(seen - id * BLOCK, BLOCK)
    if PAGED:
        live &= id < pages_per_sequence
        place = tl.load(pages + s * pages_per_sequence + id, mask=live, other=-1)
    else:
        place = id * BLOCK
        if PACKED:
            place += tl.load(key_starts + s)
        limit = tl.minimum(limit, available - place)
    live &= (place >= 0) & (place < available)
    return tl.where(live, place, 0), tl.where(live, limit, 0)


@triton.jit
def list_of(
    id,
    place,
    sequence,
    key_starts,
    stride,
    BLOCK: tl.constexpr,
    PAGED: tl.constexpr,
    PACKED: tl.constexpr,
):
    """The number of a block among all blocks of all sequences; see `reverse_index.lists_per_group`.

    In pages: the page, or, with `stride` numbers for each sequence, those of sequence s from s * stride on.
    Among packed keys the first block of sequence s is number key_starts[s] // BLOCK + s, which leaves every
    sequence room for its last, partial block.
    """
    if PAGED:
        number = tl.where(stride > 0, sequence * stride + id, place)
    elif PACKED:
        number = tl.load(key_starts + sequence) // BLOCK + sequence + id
    else:
        number = id
    return number
