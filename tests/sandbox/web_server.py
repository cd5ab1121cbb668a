"""Servers of this machine for the tests of the network: one that answers, one that never does."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator

PAGE = """<!doctype html><title>served</title><h1>hello</h1><script>
Promise.all(["/data", "http://evil.test/"].map(async url => {
  try { return (await (await fetch(url)).text()).trim() } catch (error) { return "failed" }
})).then(found => { document.body.dataset.found = JSON.stringify(found) })
</script>"""
BIG = bytes(range(256)) * 32768  # 8 MiB


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind = "text/plain"
        if self.path == "/page":
            body, kind = PAGE.encode(), "text/html"
        elif self.path == "/big":
            body = BIG
        else:
            body = f"{self.command} {self.headers['host']} {self.path}".encode()
        self._say(body, kind)

    def do_POST(self) -> None:
        if self.headers["transfer-encoding"] == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers["content-length"]))
        self._say(f"{len(data)} {hashlib.sha256(data).hexdigest()}".encode())

    do_PUT = do_POST

    def _say(self, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        self.server.seen.append(self.path)  # type: ignore[attr-defined]


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024  # with five, the kernel lets callers wait for minutes

    def handle_error(self, request: object, client_address: object) -> None:
        """Callers leave when they like."""


@contextlib.contextmanager
def web_server() -> Iterator[http.server.ThreadingHTTPServer]:
    """A web server on 127.0.0.1; `seen` has the paths that it was asked for."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.seen = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """A port where connections are taken and nothing is said."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]
