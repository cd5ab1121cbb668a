"""The bench's table: what a line holds, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Row:
    """One line of the table. Times in ms; `full` is full attention, None where it was not run."""

    job: str
    new_tokens: int
    keys: int
    index_type: str
    ours_ms: float
    full_ms: float | None
    floor_ms: float | None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times faster than full attention."""
        return None if self.full_ms is None else self.full_ms / self.ours_ms

    @property
    def share(self) -> float | None:
        """Share of the floor reached."""
        return None if self.floor_ms is None else self.floor_ms / self.ours_ms


@dataclass(frozen=True)
class Ceilings:
    """What this card does at best: bytes/s of a copy (read and written), FLOP/s of a large matrix product."""

    copy: float
    bf16: float
    fp8: float

    def floor_ms(self, bf16_flop: float, fp8_flop: float = 0.0, moved_bytes: float = 0.0) -> float:
        """The longer of arithmetic and traffic."""
        return 1e3 * max(bf16_flop / self.bf16 + fp8_flop / self.fp8, moved_bytes / self.copy)


def headline(ceilings: Ceilings) -> str:
    """The card, its ceilings, and the names of the columns."""
    columns = ("job", 10), ("new", -9), ("keys", -9), ("  index", 8), ("ours ms", -10), ("full ms", -10)
    names = "".join(n.ljust(w) if w > 0 else n.rjust(-w) for n, w in (*columns, ("ratio", -8), ("floor", -7)))
    return (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: copy {ceilings.copy / 1e12:.2f} TB/s,"
        f" matrix products {ceilings.bf16 / 1e12:.0f} TFLOP/s bf16, {ceilings.fp8 / 1e12:.0f} fp8\n{names}"
    )


def line(row: Row) -> str:
    """A row of the table."""
    full = "-" if row.full_ms is None else f"{row.full_ms:.3f}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.1f}x"
    share = "-" if row.share is None else f"{row.share:.0%}"
    what = f"{row.job:<10}{row.new_tokens:>9}{row.keys:>9}  {row.index_type:<6}"
    return f"{what}{row.ours_ms:>10.3f}{full:>10}{ratio:>8}{share:>7}  {row.note}".rstrip()
