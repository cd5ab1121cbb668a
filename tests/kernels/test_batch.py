"""Which rows belong to which sequence, and what each sees."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest
import torch

from pilotfish.kernels.batch import Batch


def test_rows_find_their_sequence_and_what_they_see() -> None:
    batch = Batch.packed([2, 0, 3], [5, 7, 3], "cpu")
    assert batch.row_sequences(7).tolist() == [0, 0, 2, 2, 2, 3, 3]
    assert batch.row_visible(7).tolist() == [4, 5, 1, 2, 3, 0, 0]
    assert (batch.max_queries, batch.max_keys) == (3, 7)


def test_any_batch_agrees_with_counting_row_by_row() -> None:
    for _ in range(50):
        keys = [random.randrange(20) for _ in range(random.randint(1, 5))]
        queries = [random.randint(0, length) for length in keys]
        rows = [
            (s, length - count + 1 + i)
            for s, (count, length) in enumerate(zip(queries, keys, strict=True))
            for i in range(count)
        ]
        batch = Batch.packed(queries, keys, "cpu")
        assert batch.row_sequences(len(rows)).tolist() == [s for s, _ in rows]
        assert batch.row_visible(len(rows)).tolist() == [seen for _, seen in rows]


def test_counts_of_visible_keys_stay_within_the_sequence() -> None:
    visible_T = torch.tensor([-3, 4, 99, 99], dtype=torch.int32)
    batch = dataclasses.replace(Batch.packed([3], [10], "cpu"), visible=visible_T)
    assert batch.row_visible(4).tolist() == [0, 4, 10, 0]


def test_more_rows_than_keys_see_nothing_at_first() -> None:
    assert Batch.packed([4, 2], [2, 0], "cpu").row_visible(6).tolist() == [0, 0, 1, 2, 0, 0]


def test_one_sequence_is_the_newest_of_its_keys(device: torch.device) -> None:
    batch = Batch.single(3, 10, device)
    assert batch.row_visible(3).tolist() == [8, 9, 10]
    assert batch.query_starts.device.type == device.type
    batch.check(3, torch.empty(10, 4, device=device), 4)


@pytest.mark.parametrize("queries", [-1, 6])
def test_one_sequence_has_no_more_tokens_than_keys(queries: int) -> None:
    with pytest.raises(ValueError, match=f"queries is {queries}: .*0 to "):
        Batch.single(queries, 5, "cpu")


@pytest.mark.parametrize(("queries", "keys"), [([1], [1, 2]), ([], [])])
def test_every_sequence_has_both_lengths(queries: list[int], keys: list[int]) -> None:
    with pytest.raises(ValueError, match="give one per sequence"):
        Batch.packed(queries, keys, "cpu")


def test_what_does_not_fit_the_keys_is_refused() -> None:
    batch = Batch.packed([1, 1], [3, 4], "cpu")
    keys = torch.empty(7, 2, 8)
    batch.check(2, keys, 32, "k")
    for wrong, given, says in (
        (batch, keys.to("meta"), "contiguous torch.int32 [3] on meta, as k, is accepted"),
        (dataclasses.replace(batch, key_starts=None), keys, "None with 2 sequences: give it, or pages"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            wrong.check(2, given, 32, "k")
