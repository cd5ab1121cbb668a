"""One or several processes that train together, one GPU each (`torchrun --nproc-per-node N`)."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Group:
    """This process's place among those that train together; a single process needs no group."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @staticmethod
    def from_environment(device: str) -> Group:
        """The group `torchrun` describes; NCCL on GPUs, Gloo elsewhere."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return Group()
        group = Group(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_RANK", "0")))
        if device == "cuda":
            torch.cuda.set_device(group.local_rank)
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        return group

    @property
    def leads(self) -> bool:
        """Whether this process writes the log and the checkpoints."""
        return self.rank == 0

    def average_gradients(self, params: list[nn.Parameter]) -> None:
        """Give every process the mean gradient; one that has none counts as zero."""
        if self.world == 1:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params])
        self.average(flat)
        for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
            p.grad = part.view_as(p)

    def average(self, values: Tensor) -> Tensor:
        """The mean over the processes, in place."""
        if self.world > 1:
            dist.all_reduce(values)
            values /= self.world
        return values

    def agree(self, value: float, device: str) -> float:
        """The first process's number, in all of them."""
        if self.world == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=device)
        dist.broadcast(shared, 0)
        return float(shared.item())

    def close(self) -> None:
        """Leave the group."""
        if self.world > 1:
            dist.destroy_process_group()
