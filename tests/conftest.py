"""Without a GPU, kernels run in Triton's interpreter, which is decided when the first of them is imported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from .own_desktop import OwnDesktop

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell has what it starts in the background ignore Ctrl-C, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def _own_desktop() -> Iterator[OwnDesktop]:
    from .own_desktop import own_desktop  # the tests of kernels run where no desktop's packages are

    with own_desktop() as found:
        yield found


@pytest.fixture
def desktop(_own_desktop: OwnDesktop, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnDesktop]:
    """A person's own desktop, and DISPLAY set to it: three monitors, the pointer in the middle."""
    from .own_desktop import THREE

    monkeypatch.setenv("DISPLAY", _own_desktop.name)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    _own_desktop.set_monitors(THREE)
    _own_desktop.hand_moves(1400, 400)
    yield _own_desktop
    _own_desktop.tidy()
