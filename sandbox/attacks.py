"""Attacks the sandbox and prints what came of it: `python -m pilotfish.sandbox.attacks [--level N] [--json]`.

Every attack is made inside, at each level, and outside as its twin: an attack that fails there too proves
nothing and is shown as such. The exit status is 0 only when all held.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import platform
import secrets
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pilotfish.sandbox.box import Sandbox
from pilotfish.sandbox.desktop_scenes import DESKTOP_SCENES
from pilotfish.sandbox.host_scenes import HOST_SCENES
from pilotfish.sandbox.levels import Level
from pilotfish.sandbox.network_scenes import NETWORK_SCENES
from pilotfish.sandbox.pieces import find_python
from pilotfish.sandbox.scenes import SCENES as PLAIN_SCENES
from pilotfish.sandbox.spec import SandboxSpec
from pilotfish.sandbox.syscalls import NUMBERS

SCENES = (*PLAIN_SCENES, *NETWORK_SCENES, *DESKTOP_SCENES, *HOST_SCENES)
ATTACKED: tuple[Level, ...] = (3, 2)
TOKEN = "PILOTFISH_ATTACK_TOKEN"

_PROBES = Path(__file__).with_name("probes.py")
_VICTIM = "/usr/bin/sleep"
_IPC_CREATE, _IPC_REMOVE, _QUEUE_CREATE = 0o1000, 0, 0o100


@dataclass(frozen=True)
class Case:
    """One attack of `attacks.toml`."""

    id: str
    what: str
    probe: str
    level3: str = ""
    level2: str = ""
    outside: str = ""
    twin: str = "yes"
    lacking: str = ""
    root: bool = False
    x86: bool = False

    def safe(self, level: Level) -> list[str]:
        """What may come of it at this level; nothing when the level has not what is attacked."""
        return (self.level3 if level == 3 else self.level2).split()


Verdict = Literal["held", "BROKEN", "unproved", "not here"]


@dataclass(frozen=True)
class Outcome:
    """What came of an attack. inside, outside: a word; '' outside when only root has a twin.

    verdict: `unproved` when the twin did not work either, `not here` when this machine lacks the target.
    """

    id: str
    what: str
    level: Level
    user: str
    inside: str
    outside: str
    verdict: Verdict

    @property
    def good(self) -> bool:
        """Whether there is nothing to mend."""
        return self.verdict in ("held", "not here")


def verdict(
    inside: str, outside: str, safe: Sequence[str], twin: Sequence[str], lacking: Sequence[str]
) -> Verdict:
    """What an attack and its twin say together."""
    if inside not in safe:
        return "BROKEN"
    if outside in lacking:
        return "not here"
    return "held" if not outside or outside in twin else "unproved"


def cases() -> list[Case]:
    """All attacks by programs that this machine can run."""
    table = tomllib.loads(_PROBES.with_name("attacks.toml").read_text())
    found = [Case(name, **fields) for name, fields in table.items()]
    return [case for case in found if not case.x86 or platform.machine() == "x86_64"]


@contextlib.contextmanager
def host() -> Iterator[dict[str, Any]]:
    """Things of the host to aim at: files, a process, servers, shared memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    queue = f"pilotfish-{secrets.token_hex(4)}".encode()
    column = platform.machine() == "aarch64"
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="pilotfish-attacked-", dir="/var/tmp"))
        )
        for name in ("secret", "spare"):
            (folder / name).write_text("of the host")
        (folder / "work").mkdir()
        os.environ[TOKEN] = "of the host"
        stack.callback(os.environ.pop, TOKEN)
        victim = subprocess.Popen([_VICTIM, "600"])
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        inherited = os.open(folder / "secret", os.O_RDONLY)
        os.set_inheritable(inherited, True)
        stack.callback(os.close, inherited)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for name, kind in (("socket", socket.SOCK_STREAM), ("datagram", socket.SOCK_DGRAM)):
            unix = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            unix.bind(str(folder / name))
            if kind == socket.SOCK_STREAM:
                unix.listen()
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{folder}")
        abstract.listen()
        key = secrets.randbelow(1 << 30) + 1
        memory = libc.shmget(key, 4096, _IPC_CREATE | 0o600)
        stack.callback(libc.shmctl, memory, _IPC_REMOVE, None)
        opened = libc.syscall(NUMBERS["mq_open"][column], queue, os.O_RDWR | _QUEUE_CREATE, 0o600, None)
        stack.callback(libc.syscall, NUMBERS["mq_unlink"][column], queue)
        stack.callback(os.close, opened)
        yield {
            "secret": str(folder / "secret"),
            "spare": str(folder / "spare"),
            "folder": str(folder),
            "victim": victim.pid,
            "port": server.getsockname()[1],
            "socket": str(folder / "socket"),
            "datagram": str(folder / "datagram"),
            "abstract": str(folder),
            "shm": key,
            "queue": queue.decode(),
        }


def _request(probes: dict[str, str], fact: dict[str, Any], work: str) -> bytes:
    column = platform.machine() == "aarch64"
    numbers = {name: pair[column] for name, pair in NUMBERS.items() if pair[column] is not None}
    return json.dumps({"probes": probes, "fact": fact, "work": work, "numbers": numbers}).encode()


async def _inside(box: Sandbox, probes: dict[str, str], fact: dict[str, Any]) -> dict[str, str]:
    request = _request(probes, fact, str(box.places.workspace))
    process = await box.run(["python3", "-I", "-S", "-c", _PROBES.read_text()], stdin=request)
    await process.wait(120)
    found: dict[str, str] = json.loads(process.output.splitlines()[-1])
    return found


def _outside(probes: dict[str, str], fact: dict[str, Any]) -> dict[str, str]:
    done = subprocess.run(
        [find_python()[0], "-I", "-S", _PROBES],
        input=_request(probes, fact, f"{fact['folder']}/work"),
        stdout=subprocess.PIPE,
        close_fds=False,
        check=True,
        timeout=120,
    )
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


async def attack(levels: Sequence[Level] = ATTACKED) -> list[Outcome]:
    """Make every attack at these levels, as the user that this process is.

    Raises `SandboxUnavailable` where this machine has not such a level.
    """
    found = []
    known = cases()
    user = "root" if os.geteuid() == 0 else "user"
    inside: dict[Level, dict[str, str]] = {}
    with host() as fact:
        for level in levels:
            probes = {case.id: case.probe for case in known if case.safe(level)}
            async with Sandbox.open(SandboxSpec(desktop=False, level=level)) as box:
                inside[level] = await _inside(box, probes, fact)
        # Last, as the twins really do it.
        twins = _outside({case.id: case.outside or case.probe for case in known}, fact)
    for case in known:
        twin = twins[case.id] if user == "root" or not case.root else ""
        for level in levels:
            if not (safe := case.safe(level)):
                continue
            result = inside[level].get(case.id, "nothing")
            word = verdict(result, twin, safe, case.twin.split(), case.lacking.split())
            found.append(Outcome(case.id, case.what, level, user, result, twin, word))
    for scene in SCENES:
        for level in levels:
            if level in scene.levels:
                result, twin = await scene.play(level)
                word = verdict(result, twin, [scene.safe], ["yes"], [])
                found.append(Outcome(scene.id, scene.what, level, user, result, twin, word))
    return found


def _order(one: Outcome) -> tuple[str, int, str, int]:
    return one.id[0], int("".join(filter(str.isdigit, one.id))), one.id, -one.level


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as text, a line for each."""
    lines = [f"{'case':5} {'level':5} {'as':4} {'result':8} {'inside':22} {'outside':12} attack"]
    for one in sorted(outcomes, key=_order):
        outside = one.outside or "(root only)"
        lines.append(
            f"{one.id:5} {one.level:<5} {one.user:4} {one.verdict:8} {one.inside:22} {outside:12} {one.what}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pilotfish.sandbox.attacks",
        description="Attack the sandbox, inside and, for comparison, outside.",
    )
    parser.add_argument("--level", type=int, choices=ATTACKED, help="only this level")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    levels: tuple[Level, ...] = (options.level,) if options.level else ATTACKED
    outcomes = asyncio.run(attack(levels))
    held = sum(one.verdict == "held" for one in outcomes)
    if options.json:
        print(json.dumps({"held": held, "of": len(outcomes), "attacks": [asdict(one) for one in outcomes]}))
    else:
        print(table(outcomes))
        absent = sum(one.verdict == "not here" for one in outcomes)
        print(f"{held} of {len(outcomes)} held; {absent} have no target on this machine, outside neither")
    sys.exit(not all(one.good for one in outcomes))


if __name__ == "__main__":
    main()
