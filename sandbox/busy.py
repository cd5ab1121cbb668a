"""Whether figures taken now would mean something (`kernels/busy.py`, where kernels are not imported)."""

from __future__ import annotations

import os
import sys

_IDLE = 0.25
"""Of a processor, for each there is, that others may take before times are far off."""


def warn_when_busy() -> None:
    """Say on standard error if other work keeps this machine busy, by the load of the last minute."""
    load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > _IDLE * (processors + 1):
        print(
            f"This machine is busy with other work (load {load:.1f} on {processors} processors), so these "
            "times will mean little; measure again when it is idle.",
            file=sys.stderr,
            flush=True,
        )
