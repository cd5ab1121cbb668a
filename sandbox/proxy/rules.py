"""Which hosts may be reached: patterns, names in their one spelling, addresses that are public."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_LONGEST_NAME = 253
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: an IPv4 address in the last four bytes

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Rule:
    """One host and port that may be reached.

    wild: every name below `name`, but not `name` itself. to: the address and port that are dialled in its
    place, without asking for the name.
    """

    name: str
    port: int
    wild: bool = False
    to: tuple[str, int] | None = None

    def allows(self, name: str, port: int) -> bool:
        """Whether a name in its one spelling may be reached at this port."""
        same = name.endswith(f".{self.name}") if self.wild else name == self.name
        return same and port == self.port

    def covers(self, other: Rule) -> bool:
        """Whether everything that the other one allows is allowed by this one."""
        if not other.wild:
            return self.allows(other.name, other.port)
        inner = other.name == self.name or other.name.endswith(f".{self.name}")
        return self.wild and inner and other.port == self.port


def rule_of(pattern: str) -> Rule:
    """Read `NAME:PORT`, `*.NAME:PORT` or `NAME:PORT=ADDRESS:PORT`.

    Raises ValueError with one sentence that has the pattern and the mend.
    """
    left, mapped, right = pattern.partition("=")
    name, colon, port = left.rpartition(":")
    if _is_address(name.strip("[]")) or _is_address(left.strip("[]")):
        raise ValueError(
            f"network host {pattern!r} is an address, give the name of the host; for a machine of your own "
            f"give it a name, such as 'mirror.test:80={name or left}:{port or 80}'."
        )
    if not colon or not _is_port(port):
        raise ValueError(f"network host {pattern!r} has no port from 1 to 65535, write 'example.com:443'.")
    wild = name.startswith("*.")
    plain = name.removeprefix("*.")
    if "*" in plain or (wild and "." not in plain):
        raise ValueError(
            f"network host {pattern!r} allows too much, name a host such as 'example.com:443' or everything "
            "below one such as '*.example.org:443'."
        )
    try:
        plain = host_name(plain)
    except ValueError as error:
        raise ValueError(
            f"network host {pattern!r} is no name ({error}), write it as in 'example.com:443'."
        ) from None
    to = _place(right) if mapped and not wild else None
    if mapped and to is None:
        raise ValueError(
            f"network host {pattern!r} does not lead to an address and port, write one name and one address "
            "as in 'mirror.test:80=127.0.0.1:8080'."
        )
    return Rule(plain, int(port), wild, to)


def rule_for(rules: Sequence[Rule], name: str, port: int) -> Rule | None:
    """The rule that allows a host, one that names it before one that covers it."""
    found = [rule for rule in rules if rule.allows(name, port)]
    return min(found, key=lambda rule: rule.wild, default=None)


def host_name(text: str) -> str:
    """A host name in its one spelling. Raises ValueError with the reason when it is none.

    Only letters, digits and hyphens in labels with dots between them: names beyond ASCII have to be in
    punycode, a name may not end in a dot, and its last label starts with a letter, so that nothing that any
    program takes for an address (127.1, 2130706433, 0x7f.1) is a name.
    """
    if not text.isascii():
        raise ValueError("it holds characters beyond ASCII, use its xn-- form")
    name = text.lower()
    labels = name.split(".")
    if len(name) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError("letters, digits and hyphens with dots between them make a name")
    if not labels[-1][0].isalpha():
        raise ValueError("it is an address or ends like one")
    return name


def port_number(text: str) -> int:
    """A port in its one spelling. Raises ValueError with the reason when it is none."""
    if not _is_port(text):
        raise ValueError("a port is a number from 1 to 65535")
    return int(text)


def is_public(text: str) -> bool:
    """Whether an address belongs to the public network, and not to this machine or a private one."""
    address = ipaddress.ip_address(text)
    return _is_public(address) and not _is_own(str(address))


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return _is_public(ipaddress.IPv4Address(address.packed[-4:]))
        # Each of these leads to an IPv4 address, by ways that nothing that is reached today needs.
        if address.ipv4_mapped or address.sixtofour or address.teredo or address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _is_own(address: str) -> bool:
    """Whether this machine has the address: what it sends there it sends from there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            return str(probe.getsockname()[0]) == address
    except OSError:
        return False


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_port(text: str) -> bool:
    return _PORT.fullmatch(text) is not None and int(text) <= 0xFFFF


def _place(text: str) -> tuple[str, int] | None:
    host, _, port = text.rpartition(":")
    address = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not _is_address(address) or (":" in address) == (address == host) or not _is_port(port):
        return None
    return address, int(port)
