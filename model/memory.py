"""How much memory is free for caches, on the device and in the limits this process runs under."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from pilotfish.model.protocol import ModelError

GIB = 1024**3
KEPT_BYTES = 128 * 1024**2
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of malloc.h


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on a device.

    On a GPU what the driver has left and what torch holds without using it; on a CPU what the machine has
    left, or less where a control group allows less.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return min(_machine_bytes(), *_group_bytes())


def gib(count: int) -> str:
    """Bytes as a person reads them in a sentence."""
    return f"{count / GIB:.2f} GiB"


def keep_freed_memory() -> bool:
    """Let this process keep up to `KEPT_BYTES` that it freed instead of giving them back; whether it can.

    The layers of a pass on a CPU ask for the same few megabytes again and again, and a page that is new costs
    more than what is written to it. Only glibc is asked.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    return bool(libc.mallopt(_MMAP_THRESHOLD, KEPT_BYTES) and libc.mallopt(_TRIM_THRESHOLD, KEPT_BYTES))


@contextlib.contextmanager
def memory_named(what: str, mend: str) -> Iterator[None]:
    """Turn running out of memory into a ModelError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise ModelError(f"There is not enough memory for {what}; {mend}.") from None
        raise


def _machine_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        pages = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else -1
        return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else sys.maxsize
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _group_bytes() -> list[int]:
    """What this process's control groups leave it; files that can be read again at need count as free."""
    left = [sys.maxsize]
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return left
    for _, controllers, path in groups:
        if controllers == "":
            root, most, used, cached = "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "
        elif "memory" in controllers.split(","):
            root, most, used = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = "total_inactive_file "
        else:
            continue
        folder = Path(root + path)
        for group in (folder, *folder.parents):
            if not group.is_relative_to(root):
                break
            try:
                limit = (group / most).read_text().strip()
                if limit != "max":
                    stat = (group / "memory.stat").read_text().splitlines()
                    again = sum(int(line.split()[1]) for line in stat if line.startswith(cached))
                    left.append(max(0, int(limit) - int((group / used).read_text()) + again))
            except OSError:  # the root group has none, and another namespace's are not shown
                continue
    return left
