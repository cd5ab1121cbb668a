"""What the tables that choose a kernel know of the card it will run on."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Card:
    """A GPU, as far as kernels are cut to it."""

    cores: int
    """Multiprocessors."""
    capability: tuple[int, int]
    """Compute capability: 8.9 is (8, 9). From 9.0 on a kernel may start before the one in front has ended."""
    shared: int = 227 << 10
    """Bytes of shared memory that one program may have: 99 KiB on 8.6, 8.9 and 12.0."""


NO_CARD = Card(cores=2, capability=(0, 0))
"""For tensors on a CPU, where kernels run in Triton's interpreter."""


def card_of(device: torch.device) -> Card:
    """The card of a device; asked once."""
    return _card(device) if device.type == "cuda" else NO_CARD


@functools.cache
def _card(device: torch.device) -> Card:
    properties = torch.cuda.get_device_properties(device)
    return Card(
        properties.multi_processor_count,
        (properties.major, properties.minor),
        getattr(properties, "shared_memory_per_block_optin", 99 << 10),
    )


@contextlib.contextmanager
def fitting(name: str, device: torch.device) -> Iterator[None]:
    """Say in one sentence that a kernel does not fit the card of `device`; `name` is the argument there."""
    from triton.runtime.errors import OutOfResources  # kernels are launched only where triton is

    try:
        yield
    except OutOfResources as error:
        raise ValueError(
            f"{name} is on {torch.cuda.get_device_name(device)}, which has {error.limit} of the"
            f" {error.required} bytes of {error.name} that this takes: smaller blocks or heads are accepted,"
            " or a card of compute capability 9.0"
        ) from error
