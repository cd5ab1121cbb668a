"""One new token of each of several sequences on a CPU, with as few calls into torch as can be.

A decoding pass of a small model is hardly arithmetic: most of its time goes from one call to the next. So the
layers' modules are passed by: matrices that read the same rows are stacked into one, all heads of a layer are
normalised and rotated together, blocks are chosen in NumPy and read from the pages where they lie. The twin
is `M3.decode`, layer by layer; both agree within rounding.

As there, a sequence's scores do not depend on the others: products have `WIDTH` rows, and attention is one
call per sequence.

Shape legend: R rows (`WIDTH`), E hidden width, X values of a row, H query heads, G KV groups (= index heads),
D head width, I index width, N keys, C blocks of keys, K kept blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pilotfish.kernels.plain_selection import MAX_SCORE, NAN_SCORE
from pilotfish.model.cache import Cache
from pilotfish.model.config import TextConfig
from pilotfish.model.layers import GemmaRMSNorm, text_rotary
from pilotfish.model.m3 import M3
from pilotfish.model.pages import PagePool
from pilotfish.model.rows import WIDTH
from pilotfish.model.text import MLP, Attention, AttentionKind, Layer, MoE

Turn = tuple[Tensor, Tensor]
"""cos and sin of the rows' places, [R, 1, half the rotary width]."""


class FlatDecoder:
    """Decodes over one pool of pages. The model's matrices become views of stacked ones.

    Weights may change, in place or by others: then they are stacked anew.
    """

    def __init__(self, model: M3, pool: PagePool, attention: AttentionKind):
        self.config, self.pool, self.attention = model.config.text, pool, attention
        self._model = model.language_model
        self._weights = list(self._model.state_dict(keep_vars=True).values())
        self._state = (0, 0)

    def _lay_out(self) -> None:
        text = self._model.model
        self._embedding = text.embed_tokens.weight
        self._layers = [
            _Layer(number, layer, self.config, self.pool, self.attention == "sparse")
            for number, layer in enumerate(text.layers)
            if isinstance(layer, Layer)
        ]
        self._norm, self._head = _Norm(text.norm), self._model.lm_head.weight.t()

    def _state_of_weights(self) -> tuple[int, int]:
        """Another one when any weight has changed in place, or was replaced."""
        return sum(x._version for x in self._weights), hash(tuple([x.data_ptr() for x in self._weights]))

    @torch.no_grad()
    def decode(self, ids: Sequence[int], caches: Sequence[Cache]) -> Tensor:
        """Logits [rows, vocab] of up to `rows.WIDTH` new tokens, each of the sequence whose cache is given.

        A cache that is given several times takes as many tokens, one behind the other.
        """
        c, live = self.config, len(caches)
        if self._state != self._state_of_weights():
            self._lay_out()
            self._state = self._state_of_weights()
        # Of several tokens of a sequence each sees those before it: all keys of a layer are written at once.
        places = [cache.length + caches[:row].count(cache) for row, cache in enumerate(caches)]
        for cache, place in zip(caches, places, strict=True):
            cache.reserve(place + 1)
        padding = [0] * (WIDTH - live)
        cos, sin = text_rotary(torch.tensor([*places, *padding]), c.rotary_dim, c.rope_theta)
        turn = cos[:, None, : c.rotary_dim // 2], sin[:, None, : c.rotary_dim // 2]
        slots = torch.tensor([cache.row_of(place) for cache, place in zip(caches, places, strict=True)])
        seen = [(cache, place + 1) for cache, place in zip(caches, places, strict=True)]
        x_RE = F.embedding(torch.tensor([*ids, *padding]), self._embedding)
        for layer in self._layers:
            x_RE = x_RE + layer.attention(x_RE, turn, slots, seen)
            x_RE = x_RE + layer.mixture(x_RE, live)
        for cache in caches:
            cache.advance(1)
        return torch.mm(self._norm(x_RE), self._head)[:live]


class _Norm:
    def __init__(self, norm: GemmaRMSNorm):
        self.weight, self.eps = 1.0 + norm.weight.float(), norm.eps

    def __call__(self, x_RE: Tensor) -> Tensor:
        return F.rms_norm(x_RE.float(), x_RE.shape[-1:], self.weight, self.eps).to(x_RE.dtype)


class _Turned(NamedTuple):
    """Heads of one width, which are normalised and rotated together."""

    heads: int
    width: int
    weight: Tensor
    """1 + that of each head's norm, fp32 [heads, width]."""
    sizes: tuple[int, ...]
    """How many are queries, and how many keys."""


class _Layer:
    """A layer of the model, and the names of its buffers in the pool."""

    def __init__(self, number: int, layer: Layer, config: TextConfig, pool: PagePool, sparse: bool):
        c, own = config, layer.self_attn
        assert isinstance(own, Attention)
        self.config, self.pool = config, pool
        self.keys, self.values, self.index = (f"{kind}.{number}" for kind in ("keys", "values", "index"))
        self.indexed, self.sparse = own.sparse, own.sparse and sparse
        H, G = c.num_attention_heads, c.num_key_value_heads
        self.turned = [_turned((own.q_norm, H), (own.k_norm, G))]
        into = [own.q_proj, own.k_proj]
        if own.sparse:
            into += [own.index_q_proj, own.index_k_proj]
            index = _turned((own.index_q_norm, c.index_heads), (own.index_k_norm, 1))
            if index.width == self.turned[0].width:
                first = self.turned.pop()
                weight = torch.cat((first.weight, index.weight))
                index = _Turned(first.heads + index.heads, index.width, weight, first.sizes + index.sizes)
            self.turned.append(index)
        self.into, self.back = _stacked(*into, own.v_proj), own.o_proj.weight.t()
        self.before, self.after = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.mlp = _MLP(layer.mlp, c) if not layer.moe else None
        self.moe = _MoE(layer.block_sparse_moe, c) if layer.moe else None

    def attention(self, x_RE: Tensor, turn: Turn, slots: Tensor, seen: Sequence[tuple[Cache, int]]) -> Tensor:
        """What attention adds, [R, E]; writes the new keys. seen: each row's cache, and its keys."""
        given_RX = torch.mm(self.before(x_RE), self.into)
        parts: list[Tensor] = []
        at = 0
        for heads, width, weight, sizes in self.turned:
            flat = given_RX[:, at : at + heads * width].view(WIDTH, heads, width)
            parts += self._rotated(flat, weight, turn).split(sizes, dim=1)
            at += heads * width
        q_RHD, k_RGD, *index = parts
        v_RGD = given_RX[:, at:].view(WIDTH, k_RGD.shape[1], -1)
        live = len(seen)
        k_1GND = self._write(self.keys, k_RGD[:live].transpose(0, 1), slots)
        v_1GND = self._write(self.values, v_RGD[:live].transpose(0, 1), slots)
        ki_1NI = self._write(self.index, index[1][:live, 0], slots) if self.indexed else None
        out_RX = x_RE.new_zeros(WIDTH, q_RHD.shape[1] * v_RGD.shape[2])
        for row, (cache, keys) in enumerate(seen):
            q_1GRD = q_RHD[row].view(1, k_RGD.shape[1], -1, q_RHD.shape[2])
            if self.sparse and keys > self.config.topk_blocks * self.config.block_size:
                assert ki_1NI is not None
                blocks = self._choose(index[0][row], ki_1NI, cache, keys)
                k, v = (self._kept(x_1GND, blocks, cache, keys) for x_1GND in (k_1GND, v_1GND))
            else:
                k, v = (cache.read(x_1GND, keys) for x_1GND in (k_1GND, v_1GND))
            out = F.scaled_dot_product_attention(q_1GRD, k, v, scale=self.config.head_dim**-0.5)
            out_RX[row] = out.flatten()
        return torch.mm(out_RX, self.back)

    def mixture(self, x_RE: Tensor, live: int) -> Tensor:
        """What the layer's second half adds, [R, E]."""
        x_RE = self.after(x_RE)
        if self.mlp is not None:
            return self.mlp(x_RE)
        assert self.moe is not None
        return self.moe(x_RE, live)

    def _rotated(self, heads_RHD: Tensor, weight_HD: Tensor, turn: Turn) -> Tensor:
        cos, sin = turn
        half = cos.shape[-1]
        wide = F.rms_norm(heads_RHD.float(), heads_RHD.shape[-1:], None, self.config.rms_norm_eps)
        wide = wide.mul_(weight_HD)
        first, second = wide[..., :half], wide[..., half : 2 * half]
        aside = first * sin
        first.mul_(cos).addcmul_(second, sin, value=-1)
        second.mul_(cos).add_(aside)
        return wide.to(heads_RHD.dtype)

    def _write(self, name: str, new: Tensor, slots: Tensor) -> Tensor:
        buffer = self.pool.buffers[name]
        return buffer.index_copy_(-2, slots, new[None])

    def _choose(self, qi_GI: Tensor, ki_1NI: Tensor, cache: Cache, keys: int) -> npt.NDArray[np.int64]:
        """The blocks that each group keeps, ascending [G, K]; the rule is `plain_selection.top_blocks`'s."""
        c = self.config
        scores_GN = torch.mm(qi_GI.float(), cache.read(ki_1NI, keys)[0].float().t()).numpy()
        scores_GN = np.nan_to_num(scores_GN, nan=NAN_SCORE, posinf=MAX_SCORE, neginf=NAN_SCORE)
        blocks = -(-keys // c.block_size)
        padded = np.full((len(scores_GN), blocks * c.block_size), NAN_SCORE, dtype=np.float32)
        padded[:, :keys] = np.maximum(scores_GN, NAN_SCORE)
        best_GC = padded.reshape(len(scores_GN), blocks, -1).max(-1)
        best_GC[:, : c.init_blocks] = np.inf
        if c.local_blocks:
            best_GC[:, -c.local_blocks :] = np.inf
        order_GC = np.argsort(-best_GC, axis=1, kind="stable")
        return np.sort(order_GC[:, : c.topk_blocks], axis=1)

    def _kept(self, x_1GND: Tensor, blocks_GK: npt.NDArray[np.int64], cache: Cache, keys: int) -> Tensor:
        """The keys or values of the kept blocks, [1, G, L, D]: the last, its own, to its newest."""
        size = self.config.block_size
        pages_GK = torch.from_numpy(cache.numbers[blocks_GK])
        x_GCBD = x_1GND[0].unflatten(1, (-1, size))
        group_G1 = torch.arange(len(blocks_GK))[:, None]
        rest = size - 1 - (keys - 1) % size
        kept = x_GCBD[group_G1, pages_GK].flatten(1, 2)[None]
        return kept[:, :, : kept.shape[2] - rest]


class _MLP:
    def __init__(self, mlp: MLP, config: TextConfig):
        self.config = config
        self.into, self.back = _stacked(mlp.gate_proj, mlp.up_proj), mlp.down_proj.weight.t()

    def __call__(self, x_RE: Tensor) -> Tensor:
        return torch.mm(_swiglu(torch.mm(x_RE, self.into), self.config), self.back)


class _MoE:
    def __init__(self, moe: MoE, config: TextConfig):
        self.config, self.shared = config, _MLP(moe.shared_experts, config)
        self.gate, self.bias = moe.gate.weight.float().t(), moe.e_score_correction_bias.float()
        gate_up, down = moe.stacked()
        self.into, self.back = gate_up.transpose(1, 2).unbind(), down.transpose(1, 2).unbind()

    def __call__(self, x_RE: Tensor, live: int) -> Tensor:
        c = self.config
        scores = torch.mm(x_RE.float(), self.gate).sigmoid_()
        chosen = (scores[:live] + self.bias).topk(c.num_experts_per_tok, sorted=False).indices
        share = torch.zeros_like(scores)
        share[:live].scatter_(1, chosen, scores[:live].gather(1, chosen))
        share *= c.routed_scaling_factor / share.sum(1, keepdim=True).clamp_(min=1e-30)
        out_RE = self.shared(x_RE).float()
        for expert in sorted({*chosen.flatten().tolist()}):
            hidden = _swiglu(torch.mm(x_RE, self.into[expert]), c)
            own_R1 = share[:, expert, None]
            each_RE = torch.mm(hidden, self.back[expert]).float() * own_R1
            # What a row did not choose is none of its, even if it is no number.
            out_RE += each_RE if live == 1 else each_RE.masked_fill_(own_R1 == 0, 0)
        return out_RE.to(x_RE.dtype)


def _swiglu(gate_up_RX: Tensor, c: TextConfig) -> Tensor:
    """`layers.swiglu` of the two halves of each row."""
    gate, up = gate_up_RX.chunk(2, dim=1)
    gate, up = gate.clamp(max=c.swiglu_limit), up.clamp(-c.swiglu_limit, c.swiglu_limit)
    return up.add_(c.swiglu_beta).mul_(gate).mul_(gate.mul_(c.swiglu_alpha).sigmoid_())


def _turned(*groups: tuple[GemmaRMSNorm, int]) -> _Turned:
    weight = torch.cat([(1.0 + norm.weight.float()).expand(heads, -1) for norm, heads in groups])
    return _Turned(len(weight), weight.shape[1], weight, tuple(heads for _, heads in groups))


def _stacked(*linears: nn.Linear) -> Tensor:
    """The matrices of some layers side by side, [in, all outputs]; their own become views of them, or are."""
    own = [linear.weight.detach() for linear in linears]
    first, rows = own[0], [len(x) for x in own]
    ends = [x.data_ptr() + x.nbytes for x in own]
    same = all(
        x.is_contiguous() and x.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        for x in own
    )
    if same and ends[:-1] == [x.data_ptr() for x in own[1:]]:
        return first.as_strided((sum(rows), first.shape[1]), first.stride()).t()
    stacked = torch.cat(own)
    for linear, part in zip(linears, stacked.split(rows), strict=True):
        linear.weight.data = part
    return stacked.t()
