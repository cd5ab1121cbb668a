"""What of the network a sandbox may reach, and what its programs have tried."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.proxy.rules import Rule, rule_of

PROXY_URL = "http://127.0.0.1:3128"
_KEPT = 10_000
_MAX_HOSTS = 200


@dataclass(frozen=True)
class Network:
    """The hosts that programs inside may reach; none by default.

    allow: each `NAME:PORT`, `*.NAME:PORT` for everything below a name, or `NAME:PORT=ADDRESS:PORT` for a
    machine of one's own: that address is dialled in place of the name, and need not be public.
    idle_s: seconds without a byte after which a connection is ended.
    """

    allow: tuple[str, ...] = ()
    idle_s: float = 300.0

    def __post_init__(self) -> None:
        if isinstance(self.allow, str):
            raise SandboxError(f"network hosts are {self.allow!r}, give a list such as ('example.com:443',).")
        object.__setattr__(self, "allow", tuple(self.allow))
        if len(self.allow) > _MAX_HOSTS:
            raise SandboxError(f"{len(self.allow)} network hosts are too many, give at most {_MAX_HOSTS}.")
        if not self.idle_s > 0:
            raise SandboxError(f"network idle_s is {self.idle_s}, give a number of seconds above 0.")
        _rules(self.allow)

    def lacks(self, wanted: Iterable[str]) -> list[str]:
        """Those of the wanted hosts that are not allowed."""
        rules = _rules(self.allow)
        return [one for one, need in zip(wanted, _rules(wanted), strict=True) if not _covered(need, rules)]

    def __str__(self) -> str:
        return f"network: {', '.join(self.allow) or 'none'}"


def _rules(patterns: Iterable[str]) -> list[Rule]:
    try:
        return [rule_of(pattern) for pattern in patterns]
    except ValueError as error:
        raise SandboxError(str(error)) from None


def _covered(wanted: Rule, rules: Sequence[Rule]) -> bool:
    return any(rule.covers(wanted) for rule in rules)


Verdict = Literal["allowed", "refused", "failed"]


@dataclass(frozen=True)
class Attempt:
    """One connection that a program inside asked for.

    number: counts from 1 in a sandbox. began: Unix time. method: of HTTP, `CONNECT` for a tunnel. host: as
    far as it could be read. verdict: `failed` was allowed and came to nothing. why: a sentence, or what ended
    it. sent, received: bytes to and from the host so far, all of them once it is `over`.
    """

    number: int
    began: float
    method: str
    host: str
    port: int
    verdict: Verdict
    why: str
    sent: int
    received: int
    seconds: float
    over: bool


Listener = Callable[[Sequence[Attempt], str], None]


class NetworkLog:
    """Every attempt at the network of one sandbox. The last 10,000 are kept here."""

    def __init__(self) -> None:
        self._attempts: dict[int, Attempt] = {}
        self.dropped = 0
        """How many older ones are not kept any more."""
        self.troubles: list[str] = []
        """Sentences about the proxy itself, if there was anything to say."""
        self.listener: Listener | None = None
        """Told each attempt twice if it is allowed, at its beginning and its end, and once if not; or a
        sentence about the proxy.
        """

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Those that are kept, in the order they came."""
        return tuple(self._attempts.values())

    def add(self, lines: Sequence[bytes]) -> None:
        """Take records of the proxy."""
        attempts = [Attempt(**json.loads(line)) for line in lines]
        self._attempts |= {attempt.number: attempt for attempt in attempts}
        while len(self._attempts) > _KEPT:
            del self._attempts[next(iter(self._attempts))]
            self.dropped += 1
        if self.listener is not None and attempts:
            self.listener(attempts, "")

    def trouble(self, sentence: str) -> None:
        """Say something about the proxy."""
        self.troubles.append(sentence)
        if self.listener is not None:
            self.listener([], sentence)
