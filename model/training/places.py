"""Where in a batch the loss looks, as numbers of rows.

A mask as an index makes the CPU wait for the GPU, forward and again backward, until it is known how many
places it has. Here they are counted where the batch is made.

Shape legend: N tokens of a batch, V vision placeholders among them, W tokens whose successor is trained on,
E hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Places(NamedTuple):
    """Rows of the N = B x T tokens of a batch, ascending, int64.

    shown: [V], placeholders; told: [N - V], the other tokens; order: [N], where each token stands in `told`
    followed by `shown`; asked: [W], tokens whose successor has a weight.
    """

    shown: Tensor
    told: Tensor
    order: Tensor
    asked: Tensor

    @staticmethod
    def of(ids_BT: Tensor, weights_BT: Tensor, placeholders: Sequence[int]) -> Places:
        """The places of a batch, on its device."""
        is_shown = torch.isin(ids_BT.flatten(), torch.tensor(placeholders, device=ids_BT.device))
        shown, told = is_shown.nonzero()[:, 0], (~is_shown).nonzero()[:, 0]
        order = torch.empty_like(ids_BT.flatten())
        order[torch.cat((told, shown))] = torch.arange(len(order), device=order.device)
        follows = torch.zeros_like(weights_BT, dtype=torch.bool)
        follows[:, :-1] = weights_BT[:, 1:] > 0
        return Places(shown, told, order, follows.flatten().nonzero()[:, 0])


class _Rows(torch.autograd.Function):
    """Rows that are different ones, so that no gradients have to be added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rows = x.shape[0]
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        into = gradients[0].new_zeros(ctx.rows, *gradients[0].shape[1:])
        return into.index_copy_(0, places, gradients[0]), None


class _Merged(torch.autograd.Function):
    """`told` and `shown` rows in the order of the batch; backward is a selection as well."""

    @staticmethod
    def forward(ctx: Any, told: Tensor, shown: Tensor, places: Places) -> Tensor:
        ctx.save_for_backward(places.told, places.shown)
        return torch.cat((told, shown)).index_select(0, places.order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        told, shown = ctx.saved_tensors
        return gradients[0].index_select(0, told), gradients[0].index_select(0, shown), None


def rows_at(x_NE: Tensor, places: Tensor) -> Tensor:
    """The rows [places, E] of tokens that are all different."""
    rows: Tensor = _Rows.apply(x_NE, places)  # type: ignore[no-untyped-call]
    return rows


def merged(told: Tensor, shown: Tensor, places: Places) -> Tensor:
    """All rows [N, E] from those of the told tokens and those of the placeholders.

    Raises `ValueError` when their numbers are others than the batch's.
    """
    for rows, own, what in ((told, places.told, "told"), (shown, places.shown, "shown")):
        if len(rows) != len(own):
            raise ValueError(f"the text holds {len(own)} {what} tokens, but {len(rows)} rows were given")
    rows_NE: Tensor = _Merged.apply(told, shown, places)  # type: ignore[no-untyped-call]
    return rows_NE
