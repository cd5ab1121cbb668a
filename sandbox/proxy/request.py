"""What a program inside asks of the proxy, read so strictly that nobody else can read it differently.

RFC 9110 and 9112, with less than they allow: one spelling of each host, no folded lines, no user names, no
fragments, one way to say how long a body is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pilotfish.sandbox.proxy.rules import host_name, port_number

MAX_LINE = 16 * 1024
MAX_HEAD = 64 * 1024

_METHOD = re.compile(rb"[A-Z][A-Z-]{0,19}")
_VISIBLE = re.compile(rb"[\x21-\x7e]+")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_LENGTH = re.compile(rb"[0-9]{1,15}")

# They concern this connection only, or are written anew.
_OURS = {
    b"host",
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"te",
    b"trailer",
    b"upgrade",
    b"http2-settings",
    b"content-length",
    b"transfer-encoding",
}


class Refusal(Exception):
    """A request that is not served. The sentence is for who asked; status is HTTP's."""

    def __init__(self, sentence: str, status: int = 403, host: str = "", port: int = 0) -> None:
        super().__init__(sentence)
        self.status = status
        self.host = host
        self.port = port


@dataclass(frozen=True)
class Request:
    """A request that could be read. head: what the server is sent before the body; empty for CONNECT."""

    method: str
    host: str
    port: int
    head: bytes
    body: Body

    @property
    def tunnel(self) -> bool:
        """Whether bytes are carried as they are, both ways."""
        return self.method == "CONNECT"


class Body:
    """How much of what follows a head belongs to the request."""

    def __init__(self, length: int | None) -> None:
        """length: bytes; None is chunked."""
        self._left = length or 0
        self._line = b""
        self._expects: Literal["size", "data", "end", "last"] = "size" if length is None else "data"
        self._chunked = length is None
        self.done = length == 0

    def take(self, data: bytes) -> bytes:
        """The part of it that belongs to the body; sets `done`. Raises `Refusal` for chunks that are none."""
        taken = 0
        while taken < len(data) and not self.done:
            if self._expects == "data":
                step = min(self._left, len(data) - taken)
                self._left -= step
                taken += step
                if self._left == 0:
                    self._expects, self.done = "end", not self._chunked
            else:
                self._line += data[taken : taken + 1]
                taken += 1
                if self._line.endswith(b"\n"):
                    self._end_line()
                elif len(self._line) > 16:
                    raise Refusal("a chunk of the request has no size of its own line, send it plainly.", 400)
        return data[:taken]

    def _end_line(self) -> None:
        line, self._line = self._line, b""
        size = _SIZE_LINE.fullmatch(line)
        if self._expects == "size" and size:
            self._left = int(size[1], 16)
            self._expects = "data" if self._left else "last"
        elif self._expects != "size" and line == b"\r\n":
            self.done = self._expects == "last"
            self._expects = "size"
        else:
            raise Refusal("a chunk of the request is malformed, send it plainly and without trailers.", 400)


def read_request(head: bytes) -> Request:
    """Read a head, from its first byte to the empty line. Raises `Refusal`."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not all(map(_VISIBLE.fullmatch, words)) or not _METHOD.fullmatch(words[0]):
        raise Refusal(f"the request {shown(first)} is no plain line of method, target and version.")
    method, target = words[0].decode(), words[1].decode()
    if words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise Refusal(f"the request is for {shown(words[2])}, this proxy speaks HTTP/1.1.")
    path = ""
    if method == "CONNECT":
        host, port = _authority(target, None)
    else:
        if not target.startswith("http://"):
            mend = "use CONNECT for it" if target.startswith("https:") else "name an http:// address in full"
            raise Refusal(f"the target {shown(words[1])} is not one for a proxy, {mend}.")
        if "#" in target or "\\" in target:
            raise Refusal(f"the target {shown(words[1])} holds a fragment or a backslash, leave it out.")
        authority, path = re.fullmatch(r"([^/?]*)(.*)", target[7:]).groups()  # type: ignore[union-attr]
        host, port = _authority(authority, 80)
    fields = [_field(line, host, port) for line in lines]
    _check_host(fields, host, port, method)
    length = _length(fields, host, port)
    if method == "CONNECT":
        if length != 0:
            raise Refusal(
                "a CONNECT with a body is refused, send what follows after the answer.", 400, host, port
            )
        return Request(method, host, port, b"", Body(0))
    return Request(method, host, port, _head_for(words, path, host, port, fields, length), Body(length))


def _authority(text: str, default_port: int | None) -> tuple[str, int]:
    """Host and port of a target. Raises `Refusal` for everything with more than one reading."""
    name, colon, port = text.partition(":")
    try:
        if not colon and default_port is not None:
            return host_name(name), default_port
        return host_name(name), port_number(port)
    except ValueError as error:
        sentence = f"{shown(text)} is refused, name the host and port plainly ({error})."
        raise Refusal(sentence, host=shown(text)[1:-1]) from None


def _field(line: bytes, host: str, port: int) -> tuple[bytes, bytes]:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise Refusal(f"the header line {shown(line)} is malformed.", 400, host, port)
    return found[1].lower(), found[2].rstrip(b" \t")


def _check_host(fields: list[tuple[bytes, bytes]], host: str, port: int, method: str) -> None:
    named = [value for name, value in fields if name == b"host"]
    if not named:
        return
    try:
        same = _authority(named[0].decode("ascii"), port if method == "CONNECT" else 80) == (host, port)
    except (Refusal, UnicodeDecodeError):
        same = False
    if len(named) > 1 or not same:
        others = b", ".join(named)
        raise Refusal(
            f"the Host header {shown(others)} differs from the target {host}:{port}, name one host.",
            host=host,
            port=port,
        )


def _length(fields: list[tuple[bytes, bytes]], host: str, port: int) -> int | None:
    """Bytes of the body; None when it is chunked."""
    coded = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    lengths = [value for name, value in fields if name == b"content-length"]
    if coded == [b"chunked"] and not lengths:
        return None
    if coded or len(lengths) > 1 or (lengths and not _LENGTH.fullmatch(lengths[0])):
        raise Refusal("the request does not say in one plain way how long it is.", 400, host, port)
    return int(lengths[0]) if lengths else 0


def _head_for(
    words: list[bytes],
    path: str,
    host: str,
    port: int,
    fields: list[tuple[bytes, bytes]],
    length: int | None,
) -> bytes:
    """The head that the server gets: for one request, without what was meant for the proxy."""
    listed = {
        word.strip().lower() for name, value in fields if name == b"connection" for word in value.split(b",")
    }
    path = path if path.startswith("/") else f"/{path}"
    lines = [
        b"%s %s %s" % (words[0], path.encode(), words[2]),
        b"host: %s" % (host if port == 80 else f"{host}:{port}").encode(),
        b"connection: close",
    ]
    if length is None:
        lines.append(b"transfer-encoding: chunked")
    elif any(name == b"content-length" for name, _ in fields):
        lines.append(b"content-length: %d" % length)
    lines += [b"%s: %s" % field for field in fields if field[0] not in _OURS | listed]
    return b"\r\n".join([*lines, b"", b""])


def answer(status: int, sentence: str) -> bytes:
    """A response that says why not, in its first line too, as many programs show only that."""
    text = sentence.encode("ascii", "backslashreplace")
    head = b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, text, len(text) + 1) + text + b"\n"


def shown(data: bytes | str) -> str:
    """Words of a stranger in quotes: on one line, not too long, every odd character spelt out."""
    text = data.decode("latin-1") if isinstance(data, bytes) else data
    return ascii(text if len(text) <= 100 else f"{text[:97]}...")
