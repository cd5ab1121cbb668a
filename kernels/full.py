"""Full attention of a chunk to a long prefix on Hopper, by cuDNN.

cuDNN's kernel is half as fast again as FlashAttention's in torch, but prepares itself for every shape anew,
which takes as long as a chunk does. So it attends to pieces of a prefix in few sizes, without a mask, the
heads of a group as rows of one head. FlashAttention does the rest, with the chunk itself; the results are
merged by their log-sum-exps.

Shape legend: H query heads, G KV groups, T new tokens, N keys, D head width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pilotfish.kernels.card import card_of

Attended = tuple[Tensor, Tensor]
"""A part's attention [1, heads, rows, D] and its log-sum-exps in fp32 [1, heads, rows]."""
Attend = Callable[[Tensor, Tensor, Tensor, float], Attended]
"""Attends from q to k and v with a scale."""

PIECE = 131_072
"""Keys of the smallest piece."""
CHUNK = 2048
"""Chunks are whole numbers of so many tokens: others are rare, and each would be a shape of its own."""


def takes(q_BHTD: Tensor, k_BGND: Tensor) -> bool:
    """Whether `attend_to_long_prefix` takes these and pays."""
    B, _, T, D = q_BHTD.shape
    if not (
        q_BHTD.is_cuda
        and q_BHTD.dtype in (torch.bfloat16, torch.float16)
        and B == 1
        and D in (64, 128)
        and T % CHUNK == 0
        and k_BGND.shape[2] - T >= PIECE
        and card_of(q_BHTD.device).capability[0] == 9
    ):
        return False
    rows = q_BHTD.reshape(1, k_BGND.shape[1], -1, D)
    asked = torch.backends.cuda.SDPAParams(rows, k_BGND, k_BGND, None, 0.0, False, False)
    return torch.backends.cuda.can_use_cudnn_attention(asked)


def _cudnn(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Attended:
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, False, False, scale=scale
    )
    return found[0], found[1].view(q.shape[:3])


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Attended:
    found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=scale)
    return found[0], found[1]


def attend_to_long_prefix(
    q_1HTD: Tensor,
    k_1GND: Tensor,
    v_1GND: Tensor,
    scale: float,
    attend: Attend = _cudnn,
    attend_last: Attend = _flash,
    piece: int = PIECE,
) -> Tensor:
    """Attention [1, H, T, D] of the T newest tokens to every key they see.

    attend: to all of some keys. attend_last: to the last keys, causally. piece: keys of the smallest piece.
    """
    H, T, D = q_1HTD.shape[1:]
    G, N = k_1GND.shape[1:3]
    rows_1GRD = q_1HTD.reshape(1, G, H // G * T, D)
    first, whole = 0, (N - T) // piece * piece

    total, lse = attend_last(q_1HTD, k_1GND[:, :, whole:], v_1GND[:, :, whole:], scale)
    total = total.float()
    while first < whole:
        end = first + (piece << (((whole - first) // piece).bit_length() - 1))
        out, out_lse = attend(rows_1GRD, k_1GND[:, :, first:end], v_1GND[:, :, first:end], scale)
        out, out_lse = out.reshape(1, H, T, D), out_lse.reshape(1, H, T)
        share = torch.sigmoid(out_lse - lse)[..., None]  # of the weights so far and these
        total = total + share * (out.float() - total)
        lse = torch.logaddexp(lse, out_lse)
        first = end
    return total.to(q_1HTD.dtype)
