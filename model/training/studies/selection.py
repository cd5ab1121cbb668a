"""Other ways to choose keys than MSA's, for the study that compares them; the model that ships has none.

Shape legend: B batch, T new tokens, N keys, H query heads, G KV groups (= index heads), D head width, I index
width.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pilotfish.kernels import reference as msa
from pilotfish.kernels.batch import Batch
from pilotfish.model.cache import Cache
from pilotfish.model.config import TextConfig
from pilotfish.model.m3 import M3
from pilotfish.model.text import Attention, AttentionKind, IndexLoss

Choice = Literal["msa", "full", "shared blocks", "tokens"]


class SharedBlocks(Attention):
    """MSA with one choice of blocks for all groups: by the mean of the index heads' products."""

    def _index(self, x_BTE: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        qi_BGTI, ki_BNI = super()._index(x_BTE, rotary)
        return qi_BGTI.mean(1, keepdim=True).expand_as(qi_BGTI).contiguous(), ki_BNI


class SharedTokens(Attention):
    """One choice of single tokens for all heads, in the manner of DSA: as many keys as MSA keeps.

    A token's score is the sum over index heads of weight x ReLU(product). The weights are above zero, so they
    scale the index queries. The choice learns from KL to the mean of all heads' attention.
    """

    def __init__(self, config: TextConfig, layer: int):
        super().__init__(config, layer)
        self.index_weight_proj = nn.Linear(config.hidden_size, config.index_heads, bias=False)
        nn.init.trunc_normal_(self.index_weight_proj.weight, std=0.02)

    def _index(self, x_BTE: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        qi_BGTI, ki_BNI = super()._index(x_BTE, rotary)
        weights_BG = F.softplus(self.index_weight_proj(x_BTE)).transpose(1, 2)
        return qi_BGTI * weights_BG[..., None], ki_BNI

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        index: tuple[Tensor, Tensor] | None,
        batch: Batch,
        cache: Cache | None,
        kind: AttentionKind,
        index_loss: IndexLoss | None,
    ) -> Tensor:
        assert index is not None
        assert cache is None, "this choice is for training and measuring only"
        scale, G = self.config.head_dim**-0.5, k.shape[1]
        scores_BTN = token_scores(*index)
        T = scores_BTN.shape[1]
        seen_TN = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
        keep_BTN = seen_TN.expand_as(scores_BTN)
        if kind == "sparse":
            keep_BTN = best_tokens(scores_BTN, seen_TN, self.config.topk_blocks * self.config.block_size)
        keep_BGTN = keep_BTN[:, None].expand(-1, G, -1, -1)
        if index_loss is not None:
            rows = torch.randperm(T, device=q.device)[: index_loss.rows]
            index_loss.terms.append(_kl(q[:, :, rows], k, scores_BTN[:, rows], keep_BTN[:, rows], scale))
        return msa.masked_attention(q, k, v, keep_BGTN, scale)


def token_scores(qi_BGTI: Tensor, ki_BNI: Tensor) -> Tensor:
    """Sum over index heads of ReLU(product), scaled by 1/sqrt(index width): fp32 [B, T, N]."""
    products = qi_BGTI.float() @ ki_BNI.float().transpose(-1, -2)[:, None]
    return products.relu().sum(1) * qi_BGTI.shape[-1] ** -0.5


@torch.no_grad()
def best_tokens(scores_BTN: Tensor, seen_TN: Tensor, budget: int) -> Tensor:
    """The `budget` best visible keys of each token: bool [B, T, N]."""
    ranked = scores_BTN.masked_fill(~seen_TN, float("-inf"))
    ids = ranked.topk(min(budget, ranked.shape[-1]), dim=-1).indices
    return torch.zeros_like(ranked, dtype=torch.bool).scatter_(-1, ids, True) & seen_TN


def _kl(q_BHTD: Tensor, k_BGND: Tensor, scores_BTN: Tensor, keep_BTN: Tensor, scale: float) -> Tensor:
    """Mean over tokens of KL(mean of all heads' attention || softmax of the scores), over the kept keys."""
    B, H, T, D = q_BHTD.shape
    G = k_BGND.shape[1]
    with torch.no_grad():
        logits = q_BHTD.reshape(B, G, H // G, T, D).float() @ k_BGND[:, :, None].float().transpose(-1, -2)
        hidden = ~keep_BTN[:, None, None]
        teacher = (logits * scale).masked_fill(hidden, float("-inf")).softmax(-1).mean((1, 2))
    student = scores_BTN.masked_fill(~keep_BTN, float("-inf")).log_softmax(-1).masked_fill(~keep_BTN, 0.0)
    return (torch.xlogy(teacher, teacher) - teacher * student).sum(-1).mean()


def with_choice(model: M3, choice: Choice) -> M3:
    """The model with its sparse layers' attention replaced where the choice needs that; weights are kept."""
    kinds: dict[Choice, type[Attention]] = {"shared blocks": SharedBlocks, "tokens": SharedTokens}
    if (kind := kinds.get(choice)) is not None:
        for n, layer in enumerate(model.language_model.model.layers):
            own = layer.get_submodule("self_attn")
            if model.config.text.sparse_layers[n]:
                other = kind(model.config.text, n)
                other.load_state_dict(own.state_dict(), strict=False)
                layer.set_submodule("self_attn", other)
    return model
