"""What is trained: the model, the heads that teach it to read screens, and its fp32 masters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pilotfish.model.m3 import M3, initialise
from pilotfish.model.text import AttentionKind, IndexLoss, MoE
from pilotfish.model.tokenizer import Tokenizer
from pilotfish.model.training.heads import CELL, DenseHeads, Targets
from pilotfish.model.training.loader import Batch
from pilotfish.model.training.nano import nano_config, sized
from pilotfish.model.training.parallel import Group

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
PATCHES = 2  # temporal patches of a clip
NANO = Path(__file__).parent.parent / "nano"


class Masters:
    """fp32 copies of a bf16 module's parameters; the optimisers see these, the forward pass the module.

    Half the traffic of autocast, and what is trained is what ships: the exported tensors are the
    module's own.
    """

    def __init__(self, module: nn.Module):
        self.live = dict(module.named_parameters())
        self.named = {name: nn.Parameter(p.detach().float().clone()) for name, p in self.live.items()}

    def take_gradients(self, group: Group, part: str = "") -> Tensor:
        """Move the module's gradients here, averaged over the processes, and clip them to norm 1.

        part: what the names of the parameters begin with; others are left as they are. Returns the norm
        before clipping.
        """
        for name, p in self.live.items():
            taken = p.grad is not None and name.startswith(part)
            self.named[name].grad = p.grad.float() if taken and p.grad is not None else None
            p.grad = None
        chosen = [p for name, p in self.named.items() if name.startswith(part)]
        group.average_gradients(chosen)
        return nn.utils.clip_grad_norm_(chosen, 1.0)

    @torch.no_grad()
    def publish(self) -> None:
        """Write the updated values back into the module."""
        live: list[Tensor] = list(self.live.values())
        torch._foreach_copy_(live, list(self.named.values()))


class Trainee(nn.Module):
    """The model and the heads that teach it to read screens."""

    def __init__(self, model: M3, rows: int, columns: int):
        super().__init__()
        self.model = model
        self.heads = DenseHeads(model.config, rows, columns)
        self.segment = PATCHES

    def losses(self, batch: Batch, noise: float, attention: AttentionKind = "sparse") -> dict[str, Tensor]:
        """Every part of the loss, unweighted. `attention` is the main branch's; "dense" is the warm-up."""
        c = self.model.config
        out: dict[str, Tensor] = {}
        media = see(self.model, batch, noise, self.segment)
        index_loss = IndexLoss()
        hidden = self.model.hidden(batch.ids, media=media, attention=attention, index_loss=index_loss)
        wanted = batch.weights[:, 1:] > 0
        logits = self.model.language_model.lm_head(hidden[:, :-1][wanted]).float()
        per_token = F.cross_entropy(logits, batch.ids[:, 1:][wanted], reduction="none")
        weights = batch.weights[:, 1:][wanted]
        out["answer"] = (per_token * weights).sum() / weights.sum()
        out["kl"] = index_loss.total()
        if media is not None:
            place = (batch.ids == c.image_token_id) | (batch.ids == c.video_token_id)
            shown = torch.cat((batch.image_frames[:, 0], batch.clip_frames[:, (0, 3)].flatten()))
            targets = Targets(batch.letters[shown].flatten(0, 1), batch.centre[shown].flatten(0, 1))
            out |= self.heads.loss(media, hidden[place], targets)
        return out


def see(model: M3, batch: Batch, noise: float, segment: int = PATCHES) -> Tensor | None:
    """Vision tokens of a batch's pictures, then of its clips; None for text alone.

    segment: temporal patches that attend to each other: a clip's own two, one (each patch for itself) or more
    (clips that follow one another; their number must come out even).
    """
    parts = []
    for members in (batch.image_frames, batch.clip_frames):
        if len(members):
            patches, (t, h, w) = frame_patches(batch.frames, members, noise)
            size = 1 if t == 1 else segment
            parts.append(model.encode_media(patches, [(size, h, w)] * (len(members) * t // size)))
    return torch.cat(parts) if parts else None


def frame_patches(frames: Tensor, members: Tensor, noise: float) -> tuple[Tensor, tuple[int, int, int]]:
    """Patch vectors [M*P, 1176] of M pictures (members [M, 2]) or clips ([M, 4]), and the grid of each.

    On the device; the order and values of `images.clip_patches`.
    """
    height, width = frames.shape[1:3]
    if height % CELL or width % CELL:
        raise ValueError(f"training frames are {width}x{height}; both sides must be multiples of {CELL}")
    mean = torch.tensor(MEAN, device=frames.device)
    std = torch.tensor(STD, device=frames.device)
    pixels = (frames.float() / 255 - mean) / std
    if frames.is_cuda:
        pixels = pixels.bfloat16()
    if noise:
        pixels = pixels + noise * torch.randn_like(pixels)
    x = pixels[members]  # [M, frames, height, width, 3]
    M, t, h, w = members.shape[0], members.shape[1] // 2, height // 14, width // 14
    x = x.view(M, t, 2, h // 2, 2, 14, w // 2, 2, 14, 3)
    x = x.permute(0, 1, 3, 6, 4, 7, 9, 2, 5, 8)  # M, t, row, column, 2, 2, channel, time, 14, 14
    return x.reshape(M * t * h * w, -1), (t, h, w)


def build(
    width: int, height: int, device: str, bf16: bool, sizes: Mapping[str, Mapping[str, Any]] | None = None
) -> Trainee:
    """A nano, or one of other sizes, with random weights and its heads for frames of this size; router biases
    stay in fp32.
    """
    model = M3(sized(nano_config(Tokenizer.from_folder(NANO)), sizes or {}))
    initialise(model)
    trainee = Trainee(model, height // CELL, width // CELL).to(device).train()
    return in_bf16(trainee) if bf16 else trainee


def in_bf16(trainee: Trainee) -> Trainee:
    """The same in bf16, but for the router biases."""
    trainee.bfloat16()
    for module in trainee.model.modules():
        if isinstance(module, MoE):
            module.e_score_correction_bias.data = module.e_score_correction_bias.float()
    return trainee
