"""How much stands between a sandbox and the host: level 3, 2 or 0, and what each can and cannot promise."""

from __future__ import annotations

from typing import Literal

from pilotfish.sandbox import landlock
from pilotfish.sandbox.errors import SandboxUnavailable

Level = Literal[3, 2, 0]
LEVELS: tuple[Level, ...] = (3, 2, 0)

LOST_AT_2 = (
    "no display, no browser, no sockets at all (not even a server of its own), no private /tmp; programs see "
    "the names and sizes of your files and the names of your processes"
)

_MEANING: dict[Level, str] = {
    3: "sandbox level 3 of 3: namespaces of its own and filtered system calls",
    2: f"sandbox level 2 of 3: Landlock and filtered system calls, but no namespaces: {LOST_AT_2}",
    0: "NOT SANDBOXED: programs run on this machine itself, with your files, your network and your rights",
}


def meaning(level: Level) -> str:
    """What a run at this level is shown with."""
    return _MEANING[level]


def without_level_3(trouble: SandboxUnavailable) -> SandboxUnavailable:
    """Why there is no level 3, with the other way if there is one. Nothing falls back by itself."""
    if landlock.version() < landlock.NEEDED_VERSION:
        return trouble
    return SandboxUnavailable(
        f"{str(trouble).removesuffix('.')}; or go without it at level 2 (--sandbox-level 2), which has "
        f"{LOST_AT_2}."
    )


def check_level_2() -> None:
    """Raises `SandboxUnavailable` where the kernel has not what level 2 is made of."""
    found = landlock.version()
    if found < landlock.NEEDED_VERSION:
        raise SandboxUnavailable(
            f"sandbox level 2 needs version {landlock.NEEDED_VERSION} of Landlock and this kernel has "
            f"{found or 'none'}: start a Linux 6.12 or newer with landlock among its lsm= modules"
        )
