"""What is trained: the model, the heads that teach it to read screens, and its fp32 masters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pilotfish.model.m3 import M3, initialise
from pilotfish.model.regions import compiled_regions, region
from pilotfish.model.text import AttentionKind, IndexLoss, MoE
from pilotfish.model.tokenizer import Tokenizer
from pilotfish.model.training.heads import CELL, DenseHeads, Targets
from pilotfish.model.training.loader import Batch
from pilotfish.model.training.nano import nano_config, sized
from pilotfish.model.training.parallel import Group
from pilotfish.model.training.places import Places, merged, rows_at

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
        theirs: list[Tensor] = []
        ours: list[Tensor] = []
        for name, p in self.live.items():
            master = self.named[name]
            if p.grad is not None and name.startswith(part):
                master.grad = torch.empty_like(master)
                theirs.append(p.grad)
                ours.append(master.grad)
            else:
                master.grad = None
            p.grad = None
        torch._foreach_copy_(ours, theirs)
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
        self.fused = False  # whether the model's regions are compiled
        self.told: Callable[[str], None] = lambda part: None  # of each part of a step that is over

    def losses(self, batch: Batch, noise: float, attention: AttentionKind = "sparse") -> dict[str, Tensor]:
        """Every part of the loss, unweighted. `attention` is the main branch's; "dense" is the warm-up."""
        with compiled_regions(self.fused):
            return self._losses(batch, noise, attention)

    def _losses(self, batch: Batch, noise: float, attention: AttentionKind) -> dict[str, Tensor]:
        c, tower = self.model.config, self.model.language_model.model
        places = batch.places or Places.of(batch.ids, batch.weights, (c.image_token_id, c.video_token_id))
        media = see(self.model, batch, noise, self.segment)
        self.told("vision")
        ids = batch.ids.flatten()
        told = tower.embed_tokens(ids.index_select(0, places.told))
        shown = told[:0] if media is None else media.to(told.dtype)
        x_BTE = merged(told, shown, places).unflatten(0, batch.ids.shape)
        index_loss = IndexLoss()
        hidden_NE = tower(x_BTE, None, attention, index_loss).flatten(0, 1)
        self.told("text")
        next_ids = ids.index_select(0, places.asked + 1)
        weights = batch.weights.flatten().index_select(0, places.asked + 1)
        answer = self._answer_loss(rows_at(hidden_NE, places.asked), next_ids, weights)
        out = {"answer": answer, "kl": index_loss.total()}
        if media is not None:
            frames = torch.cat((batch.image_frames[:, 0], batch.clip_frames[:, ::3].flatten()))
            rows, columns = (side // CELL for side in batch.frames.shape[1:3])
            if rows > self.heads.rows or columns > self.heads.columns:
                most = f"{self.heads.columns * CELL}x{self.heads.rows * CELL}"
                raise ValueError(
                    f"pictures of {columns * CELL}x{rows * CELL} pixels are larger than those of the heads, "
                    f"{most}; build it for larger ones"
                )
            cell = torch.arange(rows * columns, device=media.device).repeat(len(frames))
            targets = Targets(
                batch.letters.index_select(0, frames).flatten(0, 1),
                batch.centre.index_select(0, frames).flatten(0, 1),
                cell // columns,
                cell % columns,
            )
            out |= self.heads.loss(media, rows_at(hidden_NE, places.shown), targets)
        self.told("losses")
        return out

    @region
    def _answer_loss(self, hidden_WE: Tensor, ids_W: Tensor, weights_W: Tensor) -> Tensor:
        logits = self.model.language_model.lm_head(hidden_WE).float()
        per_token = F.cross_entropy(logits, ids_W, reduction="none")
        return (per_token * weights_W).sum() / weights_W.sum()


def see(model: M3, batch: Batch, noise: float, segment: int = PATCHES) -> Tensor | None:
    """Vision tokens of a batch's pictures, then of its clips; None for text alone.

    segment: temporal patches that attend to each other: a clip's own two, one (each patch for itself) or more
    (clips that follow one another; their number must come out even).
    """
    parts: list[Tensor] = []
    pixels = noisy_pixels(batch.frames, noise) if len(batch.frames) else batch.frames
    for members in (batch.image_frames, batch.clip_frames):
        if len(members):
            patches, (t, h, w) = frame_patches(pixels, members)
            size = 1 if t == 1 else segment
            parts.append(model.encode_media(patches, [(size, h, w)] * (len(members) * t // size)))
    return torch.cat(parts) if parts else None


def noisy_pixels(frames: Tensor, noise: float) -> Tensor:
    """What the tower sees of frames [F, height, width, 3], in bf16 on a GPU: normalised, noise laid over."""
    height, width = frames.shape[1:3]
    if height % CELL or width % CELL:
        raise ValueError(f"training frames are {width}x{height}; both sides must be multiples of {CELL}")
    kind = torch.bfloat16 if frames.is_cuda else torch.float32
    grain = torch.randn(frames.shape, device=frames.device, dtype=kind) if noise else None
    return _normalised(frames, grain, noise, kind, *_mean_and_std(frames.device))


@functools.cache
def _mean_and_std(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.tensor(MEAN, device=device), torch.tensor(STD, device=device)


@region
def _normalised(
    frames: Tensor, grain: Tensor | None, noise: float, kind: torch.dtype, mean: Tensor, std: Tensor
) -> Tensor:
    pixels = ((frames.float() / 255 - mean) / std).to(kind)
    return pixels if grain is None else pixels + noise * grain


@region
def frame_patches(pixels: Tensor, members: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """Patch vectors [M*P, 1176] of M pictures (members [M, 2]) or clips ([M, 4]), and the grid of each.

    On the device; the order and values of `images.clip_patches`.
    """
    height, width = pixels.shape[1:3]
    x = pixels[members]  # [M, frames, height, width, 3]
    M, t, h, w = members.shape[0], members.shape[1] // 2, height // 14, width // 14
    x = x.view(M, t, 2, h // 2, 2, 14, w // 2, 2, 14, 3)
    x = x.permute(0, 1, 3, 6, 4, 7, 9, 2, 5, 8)  # M, t, row, column, 2, 2, channel, time, 14, 14
    return x.reshape(M * t * h * w, -1), (t, h, w)


def build(
    width: int, height: int, device: str, bf16: bool, sizes: Mapping[str, Mapping[str, Any]] | None = None
) -> Trainee:
    """A nano, or one of other sizes, with random weights and its heads for frames of this size at most;
    router biases stay in fp32.
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
