"""What the tables that choose a kernel know of the card it will run on."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Card:
    """A GPU, as far as kernels are cut to it."""

    cores: int
    """Multiprocessors."""
    capability: tuple[int, int]
    """Compute capability: 8.9 is (8, 9). From 9.0 on a kernel may start before the one in front has ended."""


NO_CARD = Card(cores=2, capability=(0, 0))
"""For tensors on a CPU, where kernels run in Triton's interpreter."""


def card_of(device: torch.device) -> Card:
    """The card of a device; asked once."""
    return _card(device) if device.type == "cuda" else NO_CARD


@functools.cache
def _card(device: torch.device) -> Card:
    properties = torch.cuda.get_device_properties(device)
    return Card(properties.multi_processor_count, (properties.major, properties.minor))
