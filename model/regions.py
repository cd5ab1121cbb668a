"""Stretches of the model between its kernels and products that training may have compiled.

A region is a function of which all layers share one compiled form; sizes that change between batches are
symbols in it from the first call on, so what is computed does not depend on which batch came first. Nothing
of a module is replaced: names in checkpoints, hooks and the eager way stay as they are.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
_COMPILING: ContextVar[bool] = ContextVar("compiling", default=False)


def region(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which `compiled_regions` has compiled; a region called by a region is part of it."""
    made: list[Callable[P, R]] = []

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling() or not _COMPILING.get():
            return function(*args, **kwargs)
        if not made:
            made.append(torch.compile(function, dynamic=True, fullgraph=True))
        return made[0](*args, **kwargs)

    return run


@contextlib.contextmanager
def compiled_regions(wanted: bool = True) -> Iterator[None]:
    """Have regions that are called meanwhile, here, compiled. Their backward passes may run later."""
    token = _COMPILING.set(wanted)
    try:
        yield
    finally:
        _COMPILING.reset(token)


def prepare_compiler(deterministic: bool) -> None:
    """Let the compiler choose, where it would measure which of several forms is faster, always the same one.

    Otherwise sums may be taken in another order in the next process.
    """
    from torch._inductor import config  # takes a second to import

    if hasattr(config, "deterministic"):
        config.deterministic = deterministic
