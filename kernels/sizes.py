"""Sums with sizes on the host. Triton's own do the same behind a wrapper that costs a microsecond a call."""

from __future__ import annotations


def ceil_div(a: int, b: int) -> int:
    """The least number of parts of size b > 0 that hold a."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The least power of two that is n or more; 1 for n below 1."""
    return 1 << (n - 1).bit_length() if n > 1 else 1
