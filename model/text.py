"""The text tower of MiniMax-M3.

What is unusual about it:
- the first layers are dense; later ones are sparse twice over: MSA attention and a mixture of experts;
- an index branch (one small head per KV group, one shared key head) picks the blocks of keys each group
  sees; it has no value and no output, and learns only from a KL loss against the main branch;
- Gemma norms (1 + weight) everywhere, also on queries and keys per head, before a rotary embedding of part
  of the head;
- the router scores by sigmoid; its bias takes part in choosing experts, never in weighting them.

Shape legend: B batch, T new tokens, N all tokens, H query heads, G KV groups, D head width, E hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pilotfish.kernels import reference as msa
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.card import card_of
from pilotfish.kernels.layer import full_attention, selected_attention, trained_attention
from pilotfish.model.cache import Cache
from pilotfish.model.config import TextConfig
from pilotfish.model.layers import GemmaRMSNorm, norm_and_rotate, swiglu, text_rotary
from pilotfish.model.paged import PagedRows
from pilotfish.model.regions import region
from pilotfish.model.rows import Rows

AttentionKind = Literal["sparse", "dense"]


@dataclass
class IndexLoss:
    """Collects the index branch's KL loss of each sparse layer during a training pass.

    While the main branch is dense (the warm-up), the loss is over every visible key; after that, over the
    kept ones.

    rows: how many query positions (drawn anew for each layer, the same over the batch) enter the loss in the
    warm-up and where no kernels are; elsewhere all do.
    """

    rows: int = 64
    terms: list[Tensor] = field(default_factory=list)

    def warm_up(self, q: Tensor, k: Tensor, qi: Tensor, ki: Tensor, scale: float) -> None:
        """Add one dense layer's term; see `kernels.reference.index_kl` for the shapes."""
        keys = k.shape[2]
        rows = torch.randperm(keys, device=q.device)[: self.rows]
        seen = torch.arange(keys, device=q.device)[None] <= rows[:, None]
        keep = seen.expand(k.shape[0], k.shape[1], -1, -1)
        self.terms.append(msa.index_kl(q[:, :, rows], k, qi[:, :, rows], ki, keep, scale))

    def total(self) -> Tensor:
        """Sum over layers of the mean KL, in nat."""
        return torch.stack(self.terms).sum()


class Attention(nn.Module):
    """Grouped-query attention; in a sparse layer the index branch chooses its blocks of keys."""

    def __init__(self, config: TextConfig, layer: int):
        super().__init__()
        self.config, self.layer, self.sparse = config, layer, config.sparse_layers[layer]
        c, width = config, config.head_dim
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * width, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * width, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * width, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * width, c.hidden_size, bias=False)
        self.q_norm = GemmaRMSNorm(width, c.rms_norm_eps)
        self.k_norm = GemmaRMSNorm(width, c.rms_norm_eps)
        if self.sparse:
            self.index_q_proj = nn.Linear(c.hidden_size, c.index_heads * c.index_dim, bias=False)
            self.index_k_proj = nn.Linear(c.hidden_size, c.index_dim, bias=False)
            self.index_q_norm = GemmaRMSNorm(c.index_dim, c.rms_norm_eps)
            self.index_k_norm = GemmaRMSNorm(c.index_dim, c.rms_norm_eps)

    def forward(
        self,
        x_BTE: Tensor,
        rotary: tuple[Tensor, Tensor],
        batch: Batch | None,
        cache: Cache | Rows | PagedRows | None,
        kind: AttentionKind,
        index_loss: IndexLoss | None,
    ) -> Tensor:
        q, k, v, index = self._projected(x_BTE, rotary)
        if isinstance(cache, PagedRows):
            out = cache.attend(self.layer, self.config, q, k, v, index, kind == "dense")
        elif isinstance(cache, Rows):
            out = self._rows(q, k, v, index, cache, kind)
        else:
            assert batch is not None
            out = self._attend(q, k, v, index, batch, cache, kind, index_loss)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    @region
    def _projected(
        self, x_BTE: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """Queries [B, H, T, D], keys and values [B, G, T, D], and what `_index` gives in a sparse layer."""
        q = norm_and_rotate(self.q_norm, self._heads(self.q_proj, x_BTE), *rotary).transpose(1, 2)
        k = norm_and_rotate(self.k_norm, self._heads(self.k_proj, x_BTE), *rotary).transpose(1, 2)
        v = self._heads(self.v_proj, x_BTE).transpose(1, 2)
        return q, k, v, self._index(x_BTE.detach(), rotary) if self.sparse else None

    def _rows(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        index: tuple[Tensor, Tensor] | None,
        rows: Rows,
        kind: AttentionKind,
    ) -> Tensor:
        """Attention [1, H, WIDTH, D] of one token each of several sequences, to its own sequence alone."""
        outs = []
        for r, (cache, batch) in enumerate(zip(rows.caches, rows.batches, strict=True)):
            own = slice(r, r + 1)
            picked = None if index is None else (index[0][:, :, own], index[1][:, own])
            q_own, k_own, v_own = (x[:, :, own].contiguous() for x in (q, k, v))
            outs.append(self._attend(q_own, k_own, v_own, picked, batch, cache, kind, None))
        return rows.padded(outs, dim=2)

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
        """Attention [B, H, T, D] of new tokens to themselves and what their cache holds, which takes them."""
        c, scale = self.config, self.config.head_dim**-0.5
        if cache is not None:
            k, v = cache.append(self.layer, k, v)
        if index is not None:
            qi, ki = index
            if cache is not None:
                ki = cache.append_index(self.layer, ki)
        keys = k.shape[2]
        within_budget = keys <= c.topk_blocks * c.block_size
        choice = {
            "block": c.block_size,
            "topk": c.topk_blocks,
            "local": c.local_blocks,
            "init": c.init_blocks,
        }
        if index is not None and index_loss is not None and kind == "sparse":
            out, loss = trained_attention(q, k, v, qi, ki, **choice, scale=scale, rows=index_loss.rows)
            index_loss.terms.append(loss)
        elif index is None or kind == "dense" or within_budget:
            out = full_attention(q, k, v, scale)
            if index is not None and index_loss is not None:
                index_loss.warm_up(q, k, qi, ki, scale)
        else:
            out = selected_attention(q, k, v, qi, ki, batch, **choice, scale=scale)
        return out

    def _heads(self, projection: nn.Linear, x_BTE: Tensor) -> Tensor:
        """What a projection gives each head, [B, T, heads, D]."""
        return projection(x_BTE).unflatten(-1, (-1, self.config.head_dim))

    def _index(self, x_BTE: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Index queries [B, G, T, Di] and keys [B, T, Di]; no gradient leaves through `x`."""
        q = self.index_q_proj(x_BTE).unflatten(-1, (-1, self.config.index_dim))
        k = self.index_k_proj(x_BTE)[:, :, None]
        q, k = norm_and_rotate(self.index_q_norm, q, *rotary), norm_and_rotate(self.index_k_norm, k, *rotary)
        return q.transpose(1, 2), k[:, :, 0]


class MLP(nn.Module):
    """SwiGLU-OAI with separate gate and up: the dense layers and the shared expert."""

    def __init__(self, config: TextConfig, width: int):
        super().__init__()
        self.config = config
        self.gate_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        c = self.config
        hidden = swiglu(self.gate_proj(x), self.up_proj(x), c.swiglu_alpha, c.swiglu_limit, c.swiglu_beta)
        return self.down_proj(hidden)


class Expert(nn.Module):
    """One routed expert under its published names: w1 = gate, w3 = up, w2 = down."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.config = config
        self.w1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.w3 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        c = self.config
        return self.w2(swiglu(self.w1(x), self.w3(x), c.swiglu_alpha, c.swiglu_limit, c.swiglu_beta))


class MoE(nn.Module):
    """Routed experts plus one shared expert.

    Prefill runs the chosen experts on their tokens alone, on a GPU in grouped products, for which nothing is
    asked back from the device. Decoding runs those that any sequence chose on all
    rows, so that no product's height depends on what the others chose; under a CUDA graph, where nothing may
    depend on the choice, each row gathers its experts' weights. Training runs every expert on every token in
    one batched product: at the sizes trained here that is faster than gathering.
    """

    def __init__(self, config: TextConfig):
        super().__init__()
        self.config = config
        self.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=False)
        self.e_score_correction_bias = nn.Buffer(torch.zeros(config.num_local_experts))
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.num_local_experts))
        self.shared_experts = MLP(config, config.shared_intermediate_size)
        self.load: Tensor | None = None  # training: share of the choices each expert got in the last pass
        self._stacks: tuple[Tensor, Tensor] | None = None

    def forward(self, x_BTE: Tensor, rows: Rows | PagedRows | None = None) -> Tensor:
        """rows: whose tokens they are when decoding."""
        x = x_BTE.flatten(0, 1)
        scores, chosen = self._choose(x)
        if self.training:
            routed = self._all_experts(x, scores, chosen)
        else:
            weights = scores.gather(1, chosen)
            weights = weights / weights.sum(-1, keepdim=True)
            if rows is None:
                routed = self._chosen_experts(x, weights, chosen)
            elif isinstance(rows, Rows):
                routed = self._experts_of_rows(x, weights, chosen[: rows.live])
            else:
                routed = self._gathered_experts(x, weights, chosen)
        out = routed * self.config.routed_scaling_factor + self.shared_experts(x)
        return out.view_as(x_BTE)

    def _choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of all experts (fp32 [tokens, experts]) and ids of the chosen ones [tokens, chosen]."""
        scores = F.linear(x.float(), self.gate.weight.float()).sigmoid()
        chosen = (
            (scores + self.e_score_correction_bias.float())
            .topk(self.config.num_experts_per_tok, sorted=False)
            .indices
        )
        return scores, chosen

    def _chosen_experts(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Each expert on the tokens that chose it, which lie side by side meanwhile."""
        picks = chosen.flatten()
        order = picks.argsort(stable=True)
        run = self._in_groups if self._takes_groups(x) else self._one_by_one
        each = run(x.index_select(0, order // chosen.shape[1]), picks[order])
        if x.device.type == "cpu":
            place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order))).view(chosen.shape)
            return F.embedding_bag(place, each, mode="sum", per_sample_weights=weights.to(each.dtype))
        back = torch.empty_like(each).index_copy_(0, order, each)
        return (back.unflatten(0, chosen.shape) * weights[..., None]).sum(1).to(x.dtype)

    def _one_by_one(self, rows: Tensor, picks: Tensor) -> Tensor:
        """Each row by its expert, of ascending numbers; what goes element by element, on all at once."""
        counts = picks.bincount(minlength=self.config.num_local_experts).tolist()
        used = [expert for expert, count in zip(self.experts, counts, strict=True) if count]
        sizes = [count for count in counts if count]
        parts = list(zip(used, rows.split(sizes), strict=True))
        gate, up = (torch.cat([getattr(e, name)(own) for e, own in parts]) for name in ("w1", "w3"))
        hidden = self._swiglu(gate, up).split(sizes)
        return torch.cat([e.get_submodule("w2")(own) for e, own in zip(used, hidden, strict=True)])

    def _in_groups(self, rows: Tensor, picks: Tensor) -> Tensor:
        """The same in grouped products, for which nothing is asked back from the device."""
        gate_up, down = self.stacked()
        experts = torch.arange(gate_up.shape[0], device=rows.device)
        ends = torch.searchsorted(picks, experts, right=True).to(torch.int32)
        hidden = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends)
        return F.grouped_mm(self._swiglu(*hidden.chunk(2, dim=-1)), down.transpose(1, 2), offs=ends)

    def _experts_of_rows(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for e in chosen.unique().tolist():
            token, slot = (chosen == e).nonzero(as_tuple=True)
            rows = self.experts[e](x)
            out.index_add_(0, token, (rows[token] * weights[token, slot, None]).to(x.dtype))
        return out

    def _takes_groups(self, x: Tensor) -> bool:
        """Whether torch has a kernel for the grouped products: bf16 in rows of whole 16 bytes."""
        c = self.config
        aligned = c.hidden_size % 8 == 0 and c.intermediate_size % 8 == 0
        return x.is_cuda and x.dtype == torch.bfloat16 and aligned and card_of(x.device).capability >= (8, 0)

    def _gathered_experts(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        gate_up, down = (stack[chosen.flatten()] for stack in self.stacked())
        each = x.repeat_interleave(chosen.shape[1], dim=0)[..., None]
        hidden = self._swiglu(*(gate_up @ each)[..., 0].chunk(2, dim=-1))
        out = (down @ hidden[..., None])[..., 0].unflatten(0, chosen.shape)
        return (out * weights[..., None]).sum(1).to(x.dtype)

    def _swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        c = self.config
        return swiglu(gate, up, c.swiglu_alpha, c.swiglu_limit, c.swiglu_beta)

    def stacked(self) -> tuple[Tensor, Tensor]:
        """w1 and w3 in a row, and w2, of all experts, each [experts, ...]; the experts' own become views."""
        experts = cast("list[Expert]", list(self.experts))
        first = experts[0]
        own = [x.weight.data_ptr() for x in (first.w1, first.w3, first.w2)]
        if self._stacks is None or own != [
            x.data_ptr() for x in (*self._stacks[0][0].chunk(2), self._stacks[1][0])
        ]:
            gate_up = torch.stack([torch.cat((e.w1.weight.detach(), e.w3.weight.detach())) for e in experts])
            self._stacks = gate_up, torch.stack([e.w2.weight.detach() for e in experts])
            for expert, w13, w2 in zip(experts, *self._stacks, strict=True):
                expert.w1.weight.data, expert.w3.weight.data = w13.chunk(2)
                expert.w2.weight.data = w2
        return self._stacks

    def _all_experts(self, x: Tensor, scores: Tensor, chosen: Tensor) -> Tensor:
        """Every expert on every token, weighed with 0 where it was not chosen; sets `load`."""
        c = self.config
        experts = torch.arange(c.num_local_experts, device=x.device)
        picked = (chosen[..., None] == experts).any(1).float()
        self.load = picked.mean(0).detach() / c.num_experts_per_tok
        share = scores * picked  # as products, whose gradient is a product too, not a scatter
        share = share / share.sum(-1, keepdim=True)
        w1, w2, w3 = (
            torch.stack([getattr(e, name).weight for e in self.experts]) for name in ("w1", "w2", "w3")
        )
        gate = F.linear(x, w1.flatten(0, 1))
        up = F.linear(x, w3.flatten(0, 1))
        hidden = self._swiglu(gate, up)
        hidden = hidden.unflatten(-1, (c.num_local_experts, -1)) * share[..., None].to(hidden.dtype)
        return F.linear(hidden.flatten(1), w2.transpose(0, 1).flatten(1))


class Layer(nn.Module):
    """Pre-norm block: attention, then a dense MLP or a mixture of experts."""

    def __init__(self, config: TextConfig, layer: int):
        super().__init__()
        self.input_layernorm = GemmaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = GemmaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.moe = config.moe_layers[layer]
        if self.moe:
            self.block_sparse_moe = MoE(config)
        else:
            self.mlp = MLP(config, config.dense_intermediate_size)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        batch: Batch | None,
        cache: Cache | Rows | PagedRows | None,
        kind: AttentionKind,
        index_loss: IndexLoss | None,
    ) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), rotary, batch, cache, kind, index_loss)
        return self._through_mlp(x, attended, cache if isinstance(cache, Rows | PagedRows) else None)

    @region
    def _through_mlp(self, x: Tensor, attended: Tensor, rows: Rows | PagedRows | None) -> Tensor:
        x = x + attended
        h = self.post_attention_layernorm(x)
        return x + (self.block_sparse_moe(h, rows) if self.moe else self.mlp(h))


class TextModel(nn.Module):
    """Embedding, layers, final norm."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.config = config
        # Its own draw of weights, which nobody keeps, would import seconds' worth of torch where a model is
        # laid out before it is loaded.
        blank = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=blank)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = GemmaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        x_BTE: Tensor,
        cache: Cache | None = None,
        kind: AttentionKind = "sparse",
        index_loss: IndexLoss | None = None,
    ) -> Tensor:
        """Hidden states after the final norm, [B, T, E]; with a cache B is 1 and the tokens follow it."""
        start, T = 0 if cache is None else cache.length, x_BTE.shape[1]
        batch = Batch.single(T, start + T, x_BTE.device)
        if cache is not None:
            cache.reserve(start + T)
        positions = torch.arange(start, start + T, device=x_BTE.device)
        x_BTE = self._through(x_BTE, positions, batch, cache, kind, index_loss)
        if cache is not None:
            cache.advance(T)
        return x_BTE

    def decode(self, x_1RE: Tensor, rows: Rows | PagedRows, kind: AttentionKind) -> Tensor:
        """Hidden states after the final norm, [1, WIDTH, E], of a new token of each of several sequences."""
        rows.reserve()
        x_1RE = self._through(x_1RE, rows.positions, None, rows, kind, None)
        rows.advance()
        return x_1RE

    def _through(
        self,
        x_BTE: Tensor,
        positions_T: Tensor,
        batch: Batch | None,
        cache: Cache | Rows | PagedRows | None,
        kind: AttentionKind,
        index_loss: IndexLoss | None,
    ) -> Tensor:
        rotary = text_rotary(positions_T, self.config.rotary_dim, self.config.rope_theta)
        for layer in self.layers:
            x_BTE = layer(x_BTE, rotary, batch, cache, kind, index_loss)
        return self.norm(x_BTE)


class CausalLM(nn.Module):
    """The text tower and its output head, as the checkpoint names them."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.model = TextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
