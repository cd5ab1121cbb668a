"""The selection turned round: every choice in the list of its block, in the order of the tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.reverse_index import reverse_index

Lists = dict[tuple[int, int], list[tuple[int, int]]]


def _listed(ids_TGK: Tensor, keys: Tensor, batch: Batch, block: int, piece: int, first_row: int = 0) -> Lists:
    """By group and place of the block: (entry, limit) in the order of the list, out of its pieces."""
    index = reverse_index(ids_TGK, keys, batch, block, piece, first_row)
    lists: Lists = {}
    for first, count, group, row in index.pieces_PF.tolist():
        assert 0 <= count <= piece
        entries, limits = (x[first : first + count].tolist() for x in (index.entries_E, index.limits_E))
        if count:
            lists.setdefault((group, row), []).extend(zip(entries, limits, strict=True))
    entries = sorted(entry for members in lists.values() for entry, _ in members)
    assert entries == (index.lists_TGK.flatten() >= 0).nonzero().flatten().tolist()
    return lists


def _wanted(ids_TGK: Tensor, batch: Batch, block: int, first_row: int = 0) -> Lists:
    T, G, K = ids_TGK.shape
    seen_T = batch.row_visible(first_row + T).tolist()
    sequence_T = batch.row_sequences(first_row + T).tolist()
    lists: Lists = {}
    for t, rows in enumerate(ids_TGK.tolist()):
        seen, s = seen_T[first_row + t], sequence_T[first_row + t]
        for g, row in enumerate(rows):
            for j, id in enumerate(row):
                if id < 0 or id * block >= seen or id in row[:j]:
                    continue
                if batch.pages is not None:
                    place = int(batch.pages[s, id])
                else:
                    place = id * block + (0 if batch.key_starts is None else int(batch.key_starts[s]))
                lists.setdefault((g, place), []).append(((t * G + g) * K + j, min(block, seen - id * block)))
    return lists


@pytest.mark.parametrize("kept", [1, 5, 16, 32])
def test_one_sequence(device: torch.device, kept: int) -> None:
    batch = Batch.single(130, 300, device)
    ids = torch.randint(-1, 12, (130, 2, kept), dtype=torch.int32, device=device)
    assert _listed(ids, torch.empty(300, 2, 64, device=device), batch, 32, 16) == _wanted(ids, batch, 32)


@pytest.mark.parametrize("paged", [0, 27, 40])
def test_many_sequences(device: torch.device, paged: int) -> None:
    """In pages too: of a pool with fewer or more of them than the sequences can have."""
    queries, keys = [30, 0, 50, 1], [45, 17, 200, 90]
    pages = torch.randperm(28, device=device).reshape(4, 7).int() % (paged or 1) if paged else None
    batch = Batch.packed(queries, keys, device, pages)
    ids = torch.randint(-1, 9, (81, 3, 4), dtype=torch.int32, device=device)
    shape = (paged, 32, 3, 64) if paged else (352, 3, 64)
    assert _listed(ids, torch.empty(shape, device=device), batch, 32, 7) == _wanted(ids, batch, 32)


def test_rows_from_the_middle_of_a_batch(device: torch.device) -> None:
    batch = Batch.packed([40, 60], [100, 60], device)
    ids = torch.randint(0, 4, (30, 1, 3), dtype=torch.int32, device=device)
    keys = torch.empty(160, 1, 64, device=device)
    assert _listed(ids, keys, batch, 32, 8, first_row=25) == _wanted(ids, batch, 32, first_row=25)


def test_all_in_one_list(device: torch.device) -> None:
    batch = Batch.single(500, 500, device)
    ids = torch.zeros(500, 1, 1, dtype=torch.int32, device=device)
    lists = _listed(ids, torch.empty(500, 1, 64, device=device), batch, 64, 100)
    assert [entry for entry, _ in lists[0, 0]] == list(range(500))
    assert [limit for _, limit in lists[0, 0]] == [min(t + 1, 64) for t in range(500)]


def test_nothing_chosen(device: torch.device) -> None:
    ids = torch.full((70, 2, 4), -1, dtype=torch.int32, device=device)
    assert _listed(ids, torch.empty(100, 2, 64, device=device), Batch.single(70, 100, device), 32, 8) == {}
