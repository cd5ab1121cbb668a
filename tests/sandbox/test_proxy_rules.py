"""Which hosts are allowed, and how requests for them are read."""

from __future__ import annotations

import ipaddress
import random
import socket
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.sandbox import Network, SandboxError, SandboxSpec
from pilotfish.sandbox.network_scenes import ALLOWED, HOSTS, odd_requests, requests
from pilotfish.sandbox.proxy.request import Body, Refusal, answer, read_request
from pilotfish.sandbox.proxy.rules import host_name, is_public, rule_for, rule_of


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("*", "has no port"),
        ("*:443", "allows too much"),
        ("*.org:443", "allows too much"),
        ("a.*.org:443", "allows too much"),
        ("*.*.org:443", "allows too much"),
        ("example.com", "has no port"),
        ("example.com:", "has no port"),
        ("example.com:0", "has no port"),
        ("example.com:65536", "has no port"),
        ("example.com:0443", "has no port"),
        ("example.com:*", "has no port"),
        ("1.2.3.4:443", "is an address"),
        ("1.2.3.4", "is an address"),
        ("[::1]:443", "is an address"),
        ("::1", "is an address"),
        ("127.1:443", "is no name"),
        ("0x7f.0x1:443", "is no name"),
        ("example.com.:443", "is no name"),
        ("-a.org:443", "is no name"),
        ("a_b.org:443", "is no name"),
        ("example .com:443", "is no name"),
        ("https://example.com:443", "is no name"),
        ("example.com\0:443", "is no name"),
        ("m\u00fcller.de:443", "xn--"),
        (f"{'a' * 64}.org:443", "is no name"),
        ("a.test:80=example.org:80", "does not lead to an address"),
        ("a.test:80=127.0.0.1", "does not lead to an address"),
        ("a.test:80=::1:80", "does not lead to an address"),
        ("*.a.test:80=127.0.0.1:80", "does not lead to an address"),
    ],
)
def test_bad_hosts_are_named_before_anything_starts(pattern: str, words: str) -> None:
    with pytest.raises(SandboxError) as refused:
        Network(("example.com:443", pattern))
    sentence = str(refused.value)
    assert repr(pattern) in sentence
    assert words in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_a_list_is_wanted() -> None:
    with pytest.raises(SandboxError, match="give a list such as"):
        Network("example.com:443")  # type: ignore[arg-type]
    with pytest.raises(SandboxError, match="at most 200"):
        Network(("example.com:443",) * 201)
    with pytest.raises(SandboxError, match="idle_s is 0"):
        Network(idle_s=0)


@pytest.mark.parametrize(
    ("level", "why"), [(2, "has no sockets at all"), (0, "cannot hold programs to a list")]
)
def test_only_level_3_has_a_network(level: int, why: str) -> None:
    SandboxSpec(desktop=False, level=level)  # type: ignore[arg-type]
    with pytest.raises(SandboxError, match=f"sandbox level {level} {why}.*example.com:443.*level 3"):
        SandboxSpec(desktop=False, level=level, network=Network(("example.com:443",)))  # type: ignore[arg-type]


def test_what_rules_allow() -> None:
    exact, wild = rule_of("Example.com:443"), rule_of("*.example.org:80")
    mapped = rule_of("a.example.org:80=[::1]:8080")
    assert exact.allows("example.com", 443)
    assert not exact.allows("example.com", 80)
    assert not exact.allows("x.example.com", 443)
    assert not exact.allows("xexample.com", 443)
    assert wild.allows("a.example.org", 80)
    assert wild.allows("a.b.example.org", 80)
    assert not wild.allows("example.org", 80)
    assert not wild.allows("xexample.org", 80)
    assert rule_for([wild, mapped], "a.example.org", 80) == mapped
    assert mapped.to == ("::1", 8080)
    assert rule_for([wild, mapped], "b.example.org", 80) == wild
    assert rule_for([wild, mapped], "b.example.org", 81) is None


@pytest.mark.parametrize(
    ("wanted", "lacking"),
    [
        (["example.com:443"], []),
        (["example.com:80"], ["example.com:80"]),
        (["a.example.org:80", "*.b.example.org:80", "*.example.org:80"], []),
        (["example.org:80", "*.org.test:80"], ["example.org:80", "*.org.test:80"]),
        (["mirror.test:80"], []),
        (["*.example.com:443"], ["*.example.com:443"]),
    ],
)
def test_what_a_list_lacks(wanted: list[str], lacking: list[str]) -> None:
    allowed = Network(("example.com:443", "*.example.org:80", "mirror.test:80=127.0.0.1:8080"))
    assert allowed.lacks(wanted) == lacking


@given(st.text(alphabet=string.ascii_letters + string.digits + "-.x\u212a\u0130_%@:[]\0\n ", max_size=12))
@settings(max_examples=500)
def test_a_name_has_one_spelling_and_is_no_address(text: str) -> None:
    try:
        name = host_name(text)
    except ValueError:
        return
    assert host_name(name) == name == text.lower()
    assert set(name) <= set(string.ascii_lowercase + string.digits + "-.")
    with pytest.raises(OSError, match="illegal IP address string"):
        socket.inet_aton(name)  # which reads every spelling of the C library
    with pytest.raises(ValueError, match="does not appear"):
        ipaddress.ip_address(name)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("64:ff9b::5db8:d822", True),
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("239.255.255.250", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("fe80::1", False),
        ("fc00::1", False),
        ("fd00:ec2::254", False),
        ("fec0::1", False),
        ("ff0e::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b:1::1", False),
        ("2002:7f00:1::", False),
        ("2001:0:7f00:1::", False),
        ("2001:db8::1", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) == public


def test_own_addresses_are_not_public() -> None:
    """Whatever address this machine has for others."""
    for info in socket.getaddrinfo(socket.gethostname(), None):
        assert not is_public(str(info[4][0]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("93.184.216.34", 9))
        assert not is_public(probe.getsockname()[0])


HEADS = [
    one
    for host in HOSTS
    if host not in ("localhost", f"x{ALLOWED}", f"sub.{ALLOWED}")
    for one in requests(host, 80)
]


@pytest.mark.parametrize("request_text", HEADS + odd_requests(8080))
def test_odd_requests_name_no_allowed_host(request_text: str) -> None:
    head, end, _ = request_text.encode("latin-1").partition(b"\r\n\r\n")
    try:
        request = read_request(head + end)
    except Refusal:
        return
    # What can be read is for another host or port, or too long, which the reader of heads refuses.
    assert (request.host, request.port) != (ALLOWED, 8080) or len(head) > 16384


def test_the_head_that_a_server_gets() -> None:
    request = read_request(
        b"POST http://OK.test:8080?a=%20b HTTP/1.1\r\nHost: ok.test:8080\r\nAccept:*/*\r\nX-Own: 1 \r\n"
        b"Proxy-Authorization: secret\r\nConnection: x-own, Keep-Alive, content-length\r\nUpgrade: h2c\r\n"
        b"Content-Length: 5\r\n\r\n"
    )
    assert (request.method, request.host, request.port, request.tunnel) == ("POST", "ok.test", 8080, False)
    assert request.head == (
        b"POST /?a=%20b HTTP/1.1\r\nhost: ok.test:8080\r\nconnection: close\r\ncontent-length: 5\r\n"
        b"accept: */*\r\n\r\n"
    )
    assert request.body.take(b"12345GET ") == b"12345"
    assert request.body.done


def test_a_tunnel() -> None:
    request = read_request(b"CONNECT ok.test:443 HTTP/1.0\r\nHost: ok.test\r\n\r\n")
    assert (request.host, request.port, request.tunnel, request.head) == ("ok.test", 443, True, b"")
    with pytest.raises(Refusal, match="with a body"):
        read_request(b"CONNECT ok.test:443 HTTP/1.1\r\nContent-Length: 1\r\n\r\n")


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5), st.binary(max_size=40), st.randoms())
def test_a_body_of_chunks_ends_where_it_ends(chunks: list[bytes], rest: bytes, chance: random.Random) -> None:
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    stream, reader, taken = body + rest, Body(None), b""
    while stream and not reader.done:
        cut = chance.randint(1, len(stream))
        taken += reader.take(stream[:cut])
        stream = stream[cut:]
    assert reader.done
    assert taken == body


@pytest.mark.parametrize(
    "body",
    [
        b"5;x=1\r\nhello",
        b"-5\r\n",
        b"0x5\r\n",
        b"5\nhello",
        b"2\r\nabc\r\n",
        b"0\r\nX: 1\r\n",
        b"1" * 20,
        b"\r\n",
    ],
)
def test_chunks_with_more_than_one_reading_are_refused(body: bytes) -> None:
    with pytest.raises(Refusal):
        Body(None).take(body)


@given(st.binary(max_size=300))
def test_any_head_is_read_or_refused(data: bytes) -> None:
    try:
        read_request(data + b"\r\n\r\n")
    except Refusal as refusal:
        said = answer(refusal.status, str(refusal))
        first, _, body = said.partition(b"\r\n")
        assert first.isascii()
        assert b"\n" not in first
        assert body.count(b"\r\n\r\n") == 1
