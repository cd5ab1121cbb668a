"""What the bench compares with: full attention, and a selection of single tokens that all heads share.

The second is in the manner of DeepSeek's DSA: a token's score is the sum over index heads of weight x
ReLU(product), one set of 2,048 tokens serves every head, and attention gathers them one by one. It stands
here to show in numbers what blocks and a selection per group buy; it is no part of the model.

Shape legend: T new tokens, N keys, H query heads, G KV groups (= index heads), D head width, L kept tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pilotfish.kernels.sizes import ceil_div, power_of_2

FULL_BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)


def full_attention(
    q_THD: Tensor, k_NGD: Tensor, v_NGD: Tensor, *, causal: bool, backend: SDPBackend
) -> Tensor:
    """Full attention through torch by one of its libraries, [H, T, D]. One token: its heads stand as rows."""
    T, H, D = q_THD.shape
    G = k_NGD.shape[1]
    k, v = (x.transpose(0, 1)[None] for x in (k_NGD, v_NGD))
    q = q_THD.view(1, G, H // G, D) if T == 1 else q_THD.transpose(0, 1)[None]
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=T > 1)[0]


def token_level_attention(
    q_THD: Tensor, k_NGD: Tensor, v_NGD: Tensor, qi_TGD: Tensor, ki_ND: Tensor, weights_TG: Tensor, keep: int
) -> tuple[Tensor, Tensor]:
    """The T newest of N tokens attend to `keep` tokens each, the same for all heads; also these, int64 [T,
    L]."""
    T, H, D = q_THD.shape
    N, G = k_NGD.shape[:2]
    scores_TN = torch.empty(T, N, dtype=torch.float32, device=q_THD.device)
    _token_scores[(ceil_div(T, 64), ceil_div(N, 128))](
        qi_TGD, ki_ND, weights_TG, scores_TN, T, N, G=G, D=D, ROWS=64, KEYS=128, num_warps=4, num_stages=3
    )
    kept_TL = scores_TN.topk(min(keep, N), sorted=False).indices
    out_THD = torch.empty_like(q_THD)
    _token_attention[(T, G)](
        q_THD, k_NGD, v_NGD, kept_TL, out_THD, kept_TL.shape[1], N - T, D**-0.5,
        G=G, HEADS=H // G, PADDED=max(16, power_of_2(H // G)), D=D, KEYS=64,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return out_THD, kept_TL


@triton.jit
def _token_scores(
    qi, ki, weights, scores, tokens, keys,
    G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """ROWS tokens against KEYS keys: the weighted sum over heads of ReLU(product); -inf past the token."""
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    width = tl.arange(0, D)
    ki_ND = tl.load(ki + n[:, None].to(tl.int64) * D + width, mask=(n < keys)[:, None], other=0.0)
    sum_TN = tl.zeros([ROWS, KEYS], tl.float32)
    for g in range(G):
        qi_TD = tl.load(qi + (t[:, None] * G + g) * D + width, mask=(t < tokens)[:, None], other=0.0)
        weight_T = tl.load(weights + t * G + g, mask=t < tokens, other=0.0)
        sum_TN += weight_T[:, None] * tl.maximum(tl.dot(qi_TD, tl.trans(ki_ND), input_precision="ieee"), 0.0)
    sum_TN = tl.where(n[None] <= keys - tokens + t[:, None], sum_TN, float("-inf"))
    mask = (t < tokens)[:, None] & (n < keys)[None]
    tl.store(scores + t[:, None].to(tl.int64) * keys + n[None], sum_TN, mask=mask)


@triton.jit
def _token_attention(
    q, k, v, kept, out, keep, start, scale,
    G: tl.constexpr, HEADS: tl.constexpr, PADDED: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One token and group: its heads against the kept tokens, KEYS at a time."""
    t, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, width = tl.arange(0, PADDED), tl.arange(0, D)
    there = (head < HEADS)[:, None]
    rows = ((t * G + g) * HEADS + head)[:, None] * D + width
    q_RD = tl.load(q + rows, mask=there, other=0.0)
    top_R = tl.full([PADDED], float("-inf"), tl.float32)
    sum_R = tl.zeros([PADDED], tl.float32)
    out_RD = tl.zeros([PADDED, D], tl.float32)
    for first in range(0, keep, KEYS):
        place = first + tl.arange(0, KEYS)
        n = tl.load(kept + t * keep + place, mask=place < keep, other=0)
        at = (n[:, None] * G + g) * D + width
        seen = (place < keep) & (n <= start + t)
        k_LD = tl.load(k + at, mask=seen[:, None], other=0.0)
        v_LD = tl.load(v + at, mask=seen[:, None], other=0.0)
        s_RL = tl.where(
            seen[None], tl.dot(q_RD, tl.trans(k_LD), input_precision="ieee") * scale, float("-inf")
        )
        new_R = tl.maximum(top_R, tl.max(s_RL, 1))
        safe_R = tl.where(new_R == float("-inf"), 0.0, new_R)
        p_RL = tl.exp(s_RL - safe_R[:, None])
        shrink_R = tl.exp(top_R - safe_R)
        sum_R = sum_R * shrink_R + tl.sum(p_RL, 1)
        out_RD = out_RD * shrink_R[:, None] + tl.dot(p_RL.to(v_LD.dtype), v_LD, input_precision="ieee")
        top_R = new_R
    tl.store(out + rows, (out_RD / sum_R[:, None]).to(out.dtype.element_ty), mask=there)
