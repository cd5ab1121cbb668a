"""For each block of keys, the queries that chose it: the selection turned round, by counting.

The KV-outer pass walks key blocks and needs, for each, the queries that chose it. A counting sort gives
them in five launches, in the order of the tokens, without atomics and without asking the GPU anything:
count per tile of tokens, sum over tiles, sum over blocks, place. The lists are cut into pieces of bounded
length, because some blocks are chosen by every query and most by few.

An entry is the flat place (t * G + g) * K + j of a choice in ids [T, G, K]. It is left out if its id names
no block that the token sees, or repeats one named before in the same row.

Shape legend: T tokens, S sequences, G KV groups, K kept blocks, L lists (one per group and block of keys),
R tiles of tokens, E entries (= T * G * K), P pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.lookup import CHANGING, batch_arguments, block_of, list_of, sequence_of, visible_of
from pilotfish.kernels.sizes import ceil_div, power_of_2

TILE_TOKENS = 64
"""Tokens counted by one program. Fewer fill the card better and make the table of counts larger."""
STEP_ENTRIES = 64
"""Choices compared with each other at a time."""
LISTS_AT_ONCE = 64
"""Lists summed by one program."""

FIRST, COUNT, GROUP, ROW, FIELDS = 0, 1, 2, 3, 4
"""The columns of `ReverseIndex.pieces_PF`."""


@dataclass(frozen=True)
class ReverseIndex:
    """The lists of all blocks of keys, one after another, and the pieces they are cut into. All int32."""

    entries_E: Tensor
    """Entries, list after list, by token within a list; unused places at the end hold anything."""
    limits_E: Tensor
    """Beside each entry: how many keys of the block its token sees, 1 to block."""
    lists_TGK: Tensor
    """The list each choice went to; -1 for those left out."""
    pieces_PF: Tensor
    """Per piece: first entry, number of entries, group, and where the block's keys lie: its page, or its
    first row. P is an upper bound: the last pieces have 0 entries."""


def lists_per_group(keys: Tensor, batch: Batch, block: int) -> int:
    """How many blocks of keys there may be, from what the host knows."""
    longest = ceil_div(batch.max_keys, block)
    if batch.pages is not None:
        return min(keys.shape[0], batch.sequences * longest)
    if batch.key_starts is None:
        return min(ceil_div(keys.shape[0], block), longest)
    return keys.shape[0] // block + batch.sequences


def reverse_index(
    ids_TGK: Tensor, keys: Tensor, batch: Batch, block: int, piece: int, first_row: int = 0
) -> ReverseIndex:
    """Turn the selection of T rows of a batch round; row 0 of `ids_TGK` is row `first_row` of the batch.

    keys: [N, G, D], or pages [P, block, G, D]; only their number is used. piece: entries of a piece at most.
    """
    T, G, K = ids_TGK.shape
    device = ids_TGK.device
    per_group = lists_per_group(keys, batch, block)
    tiles = ceil_div(T, TILE_TOKENS)
    lists = ceil_div(G * per_group, LISTS_AT_ONCE) * LISTS_AT_ONCE
    entries, steps = T * G * K, lists // LISTS_AT_ONCE
    pieces = min(G * per_group, entries) + entries // piece

    counted = torch.int16 if T < 1 << 15 else torch.int32
    in_counts = ceil_div(tiles * lists * counted.itemsize, 16) * 4
    zeroed = torch.zeros(in_counts + pieces * FIELDS, dtype=torch.int32, device=device)
    counts_RL, pieces_PF = zeroed[:in_counts].view(counted), zeroed[in_counts:].view(pieces, FIELDS)
    lists_TGK, ranks_TGK, seen_TGK, entries_E, limits_E, totals_2L, rows_L, sums_2 = (
        torch.empty(n, dtype=torch.int32, device=device)
        for n in (*[entries] * 5, 2 * lists, lists, 2 * steps)
    )
    kept = power_of_2(K)
    # A pool of many more pages than the sequences can have: number the blocks by sequence instead of by page.
    by_sequence = batch.pages is not None and per_group < keys.shape[0]
    stride = ceil_div(batch.max_keys, block) if by_sequence else 0
    _count[(tiles, G)](
        ids_TGK, counts_RL, lists_TGK, ranks_TGK, seen_TGK, rows_L,
        T, keys.shape[0], per_group, stride, lists, *ids_TGK.stride()[:2],
        **batch_arguments(batch, first_row),
        G=G, K=K, KEPT=kept, BLOCK=block, TILE=TILE_TOKENS, STEP=max(STEP_ENTRIES // kept, 1), num_warps=8,
    )  # fmt: skip
    _sum_tiles[(steps,)](
        counts_RL, totals_2L, sums_2, tiles, lists, piece, LISTS=LISTS_AT_ONCE, TILES=64, num_warps=4
    )
    _cut[(steps,)](
        totals_2L, sums_2, rows_L, pieces_PF, lists, per_group, piece,
        LISTS=LISTS_AT_ONCE, STEPS=power_of_2(steps), FIELDS=FIELDS,
        num_warps=1 if steps <= 1024 else 4,
    )  # fmt: skip
    _place[(ceil_div(entries, 1024),)](
        counts_RL, totals_2L, lists_TGK, ranks_TGK, seen_TGK, entries_E, limits_E, entries, lists,
        PER_TILE=TILE_TOKENS * G * K, AT_ONCE=1024, num_warps=4,
    )  # fmt: skip
    return ReverseIndex(entries_E, limits_E, lists_TGK.view(T, G, K), pieces_PF)


@triton.jit
def _look_up(
    ids, lists, limits, places, tile, g, tokens, available, per_group, stride, ids_t, ids_g,
    query_starts, key_lengths, pages, key_starts, visible, sequences, pages_per_sequence, first_row,
    G: tl.constexpr, K: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    SEARCH: tl.constexpr, PAGED: tl.constexpr, PACKED: tl.constexpr, VISIBLE: tl.constexpr,
):  # fmt: skip
    """The list of each choice of a tile of tokens, how many keys its token sees, where the block lies."""
    e = tl.arange(0, TILE * KEPT)
    t, j = tile * TILE + e // KEPT, e % KEPT
    there = (t < tokens) & (j < K)
    row = first_row + t
    sequence = sequence_of(row, query_starts, sequences, SEARCH)
    seen = visible_of(row, sequence, query_starts, key_lengths, visible, sequences, SEARCH, VISIBLE)
    id = tl.load(ids + t.to(tl.int64) * ids_t + g * ids_g + j, mask=there, other=-1)
    place, limit = block_of(
        id, seen, sequence, pages, key_starts, sequences, pages_per_sequence, available, BLOCK, PAGED, PACKED
    )
    live = there & (limit > 0)
    for before in range(K - 1):
        other = tl.load(ids + t.to(tl.int64) * ids_t + g * ids_g + before, mask=live, other=-1)
        live &= (other != id) | (before >= j)
    number = list_of(
        tl.where(live, id, 0), place, tl.where(live, sequence, 0), key_starts, stride, BLOCK, PAGED, PACKED
    )
    live &= (number >= 0) & (number < per_group)
    list = g * per_group + number
    entry = (t * G + g) * K + j
    tl.store(lists + entry, tl.where(live, list, -1), mask=there)
    tl.store(limits + entry, limit, mask=there)
    tl.store(places + list, place, mask=live)


@triton.jit(do_not_specialize=CHANGING)
def _count(
    ids, counts, lists, ranks, limits, places, tokens, available, per_group, stride, all_lists,
    ids_t, ids_g,
    query_starts, key_lengths, pages, key_starts, visible, sequences, pages_per_sequence, first_row,
    G: tl.constexpr, K: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, SEARCH: tl.constexpr, PAGED: tl.constexpr, PACKED: tl.constexpr,
    VISIBLE: tl.constexpr,
):  # fmt: skip
    """Number the choices of a tile of tokens within each list, STEP tokens at a time; count them."""
    tile, g = tl.program_id(0), tl.program_id(1)
    _look_up(
        ids, lists, limits, places, tile, g, tokens, available, per_group, stride, ids_t, ids_g,
        query_starts, key_lengths, pages, key_starts, visible, sequences, pages_per_sequence, first_row,
        G, K, KEPT, BLOCK, TILE, SEARCH, PAGED, PACKED, VISIBLE,
    )  # fmt: skip
    tl.debug_barrier()
    counts += tile.to(tl.int64) * all_lists
    e = tl.arange(0, STEP * KEPT)
    # Summed over the choices of the same list: how many stand before, in the high half how many there are.
    weight = 0x10000 + (e[:, None] < e[None, :]).to(tl.int32)
    t, j = tile * TILE + e // KEPT, e % KEPT
    entry = (t * G + g) * K + j
    there = (t < tokens) & (j < K)
    list = tl.load(lists + entry, mask=there, other=-1)
    for _ in range(TILE // STEP):
        live = list >= 0
        before = tl.load(counts + list, mask=live, other=0).to(tl.int32)
        later = entry + STEP * G * K
        t += STEP
        there = (t < tokens) & (j < K)
        next_list = tl.load(lists + later, mask=there & (t < tile * TILE + TILE), other=-1)
        numbers = tl.sum(tl.where(list[:, None] == list[None, :], weight, 0), 0)
        # All threads have read the counts before any writes them; the next step reads what was written.
        tl.debug_barrier()
        tl.store(counts + list, (before + numbers // 0x10000).to(counts.dtype.element_ty), mask=live)
        tl.store(ranks + entry, before + numbers % 0x10000, mask=live)
        tl.debug_barrier()
        entry, list = later, next_list


@triton.jit(do_not_specialize=["tiles", "piece"])
def _sum_tiles(counts, totals, sums, tiles, all_lists, piece, LISTS: tl.constexpr, TILES: tl.constexpr):
    """Replace each tile's count of a list by the sum of the tiles before it; total the list."""
    step = tl.program_id(0)
    list = step * LISTS + tl.arange(0, LISTS)
    total = tl.zeros([LISTS], tl.int32)
    for first in range(0, tiles, TILES):
        tile = first + tl.arange(0, TILES)
        at = counts + tile.to(tl.int64)[:, None] * all_lists + list[None, :]
        there = (tile < tiles)[:, None]
        count = tl.load(at, mask=there, other=0).to(tl.int32)
        before = total[None, :] + tl.cumsum(count, 0) - count
        tl.store(at, before.to(counts.dtype.element_ty), mask=there)
        total += tl.sum(count, 0)
    tl.store(totals + list, total)
    tl.store(sums + step, tl.sum(total, 0))
    tl.store(sums + tl.num_programs(0) + step, tl.sum((total + piece - 1) // piece, 0))


@triton.jit(do_not_specialize=["per_group", "piece"])
def _cut(
    totals, sums, places, pieces, all_lists, per_group, piece,
    LISTS: tl.constexpr, STEPS: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """Where each list begins, written behind the totals; its pieces."""
    step, steps = tl.program_id(0), tl.num_programs(0)
    s = tl.arange(0, STEPS)
    entries_before = tl.sum(tl.load(sums + s, mask=s < step, other=0), 0)
    pieces_before = tl.sum(tl.load(sums + steps + s, mask=s < step, other=0), 0)
    list = step * LISTS + tl.arange(0, LISTS)
    total = tl.load(totals + list)
    first = entries_before + tl.cumsum(total, 0) - total
    tl.store(totals + all_lists + list, first)
    cut = (total + piece - 1) // piece
    first_piece = pieces_before + tl.cumsum(cut, 0) - cut
    place = tl.load(places + list, mask=total > 0, other=0)
    for i in range(tl.max(cut, 0)):
        at = pieces + (first_piece + i) * FIELDS
        there = i < cut
        tl.store(at, first + i * piece, mask=there)
        tl.store(at + 1, tl.minimum(total - i * piece, piece), mask=there)
        tl.store(at + 2, list // per_group, mask=there)
        tl.store(at + 3, place, mask=there)


@triton.jit(do_not_specialize=["all_entries"])
def _place(
    counts, totals, lists, ranks, seen, entries, limits, all_entries, all_lists,
    PER_TILE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Put every choice into its place."""
    entry = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    list = tl.load(lists + entry, mask=entry < all_entries, other=-1)
    live = list >= 0
    rank = tl.load(ranks + entry, mask=live, other=0)
    tile = (entry // PER_TILE).to(tl.int64)
    at = tl.load(totals + all_lists + list, mask=live, other=0)
    at += tl.load(counts + tile * all_lists + list, mask=live, other=0).to(tl.int32) + rank
    tl.store(entries + at, entry, mask=live)
    tl.store(limits + at, tl.load(seen + entry, mask=live, other=0), mask=live)
