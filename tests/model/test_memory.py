"""What a process keeps of the memory that it freed."""

from __future__ import annotations

import subprocess
import sys

FAULTS = """
import resource, torch
from pilotfish.model.memory import keep_freed_memory

def faults():
    for size in (1, 8, 2) * 10:
        torch.ones(size * 1024**2)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if keep_freed_memory():
    before = faults()
    print(faults() - before)
else:
    print(0)
"""


def test_memory_that_was_freed_is_taken_again() -> None:
    """Without it most of these tensors are new memory, some 80,000 pages in all."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 1000
