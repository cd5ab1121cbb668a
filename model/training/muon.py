"""Muon for the matrices, AdamW for the rest.

`torch.optim.Muon` orthogonalises one matrix at a time; this model has some 270 small ones, so the launches
would cost more than the model. Here equal shapes share one batched Newton-Schulz iteration; a test holds
the update equal to torch's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalised(batch_BMN: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrix of each, by the quintic Newton-Schulz iteration (Jordan, 2024), in
    bf16."""
    a, b, c = COEFFICIENTS
    x = batch_BMN.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; scaled so that its RMS matches AdamW's (`match_rms_adamw`)."""

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.01, momentum: float = 0.95
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[tuple(p.shape)].append(p)
            for shape, params in by_shape.items():
                self._step_shape(params, shape, group["lr"], group["weight_decay"], group["momentum"])

    def _step_shape(
        self, params: list[nn.Parameter], shape: tuple[int, ...], lr: float, decay: float, momentum: float
    ) -> None:
        buffers: list[Tensor] = []
        for p in params:
            state = self.state[p]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(p)
            buffers.append(state["momentum"])
        grads = [p.grad for p in params]
        torch._foreach_lerp_(buffers, grads, 1 - momentum)  # type: ignore[arg-type]
        nesterov = torch._foreach_lerp(grads, buffers, momentum)  # type: ignore[arg-type]
        updates = orthogonalised(torch.stack(list(nesterov)))
        rate = lr * 0.2 * max(shape) ** 0.5
        weights: list[Tensor] = list(params)
        torch._foreach_mul_(weights, 1 - lr * decay)
        torch._foreach_add_(weights, list(updates.to(params[0].dtype).unbind()), alpha=-rate)


def split_parameters(
    named: Iterable[tuple[str, nn.Parameter]],
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(matrices for Muon, everything else for AdamW).

    Embeddings, the output head, the router, training-only heads, norms, biases and the patch embedding are
    not hidden matrices and stay with AdamW.
    """
    apart = ("embed_tokens", "lm_head", "block_sparse_moe.gate", "patch_embedding", "heads.")
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, p in named:
        (matrices if p.ndim == 2 and not any(part in name for part in apart) else rest).append(p)
    return matrices, rest
