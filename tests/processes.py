"""Whether processes of the host still live. One that only waits to be collected does not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable


def living(pids: Iterable[int]) -> list[str]:
    """State and command of those of the processes that live."""
    return _living("-p", ",".join(map(str, pids)) or "0")


def living_in_session(number: int) -> list[str]:
    """State and command of each process that lives in a session."""
    return _living("-s", str(number))


def _living(*which: str) -> list[str]:
    command = ["ps", *which, "-o", "stat=,args="]
    found = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return [line for line in found if not line.startswith("Z")]
