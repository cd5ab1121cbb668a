"""The served model under clients that are slow, leave, send too much, or mean harm."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import httpx2
import pytest
from PIL import Image as Pillow
from pydantic import ValidationError

from pilotfish.model.engine import Engine
from pilotfish.model.serving import anthropic_api, openai_api
from pilotfish.model.serving.app import MAX_BODY
from pilotfish.model.serving.run import listen

from .stage import PATHS, TOKEN, Stage, picture_url, post, served, with_pictures


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_who_leaves_stops_the_answer(address: str, stage: Stage, path: str, streaming: bool) -> None:
    stage.endless = "on and "
    host, _, port = address.removeprefix("http://").partition(":")
    body = json.dumps({**PATHS[path], "stream": streaming}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {TOKEN}\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        raw.sendall(head.encode() + body)
        while not stage.asked:
            threading.Event().wait(0.01)
        if streaming:
            assert raw.recv(100)
    assert stage.stopped.wait(20)


def test_a_body_that_is_too_large_and_requests_that_are_too_many(
    address: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v1/messages"
    monkeypatch.setattr("pilotfish.model.serving.app.MAX_BODY", 1000)
    big = post(address, path, {**PATHS[path], "system": "x" * 1000})
    assert (big.status_code, big.json()["error"]["type"]) == (413, "request_too_large")
    monkeypatch.setattr("pilotfish.model.serving.slots.MAX_WAITING", 0)
    busy = post(address, path, PATHS[path])
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "1")


def connect(address: str) -> socket.socket:
    host, _, port = address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def head_of(length: int, path: str = "/v1/messages", *lines: str) -> bytes:
    """A request's head that announces so many bytes."""
    known = [f"POST {path} HTTP/1.1", "host: x", f"x-api-key: {TOKEN}", f"content-length: {length}", *lines]
    return "\r\n".join([*known, "", ""]).encode()


def whole(path: str = "/v1/messages", **more: Any) -> bytes:
    body = json.dumps({**PATHS[path], **more}).encode()
    return head_of(len(body), path) + body


class Answers(io.BufferedReader):
    """Answers behind each other: what was received of the next one is kept for it."""

    def makefile(self, mode: str) -> Answers:
        return self

    def close(self) -> None:
        pass


def told(raw: socket.socket | Answers) -> tuple[int, dict[str, Any]]:
    """The status and body of the next answer on a connection."""
    answer = http.client.HTTPResponse(cast("socket.socket", raw))
    answer.begin()
    return answer.status, json.loads(answer.read())


def ended(raw: socket.socket) -> bool:
    """Whether the server ends a connection, whatever it says before."""
    try:
        while raw.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def cut_off(raw: socket.socket, data: bytes, pause_s: float) -> bool:
    """Whether the server ends a connection on which data comes again and again."""
    for _ in range(3000):
        try:
            raw.sendall(data)
        except OSError:
            return True
        threading.Event().wait(pause_s)
    return False


def test_refused_before_a_body_is_read(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(address) as raw:
        raw.sendall(head_of(MAX_BODY + 1))
        assert told(raw)[0] == 413
    monkeypatch.setattr("pilotfish.model.serving.slots.MAX_WAITING", 0)
    for path, kind in (("/v1/messages", "rate_limit_error"), ("/v1/chat/completions", "rate_limit_error")):
        with connect(address) as raw:
            raw.sendall(head_of(MAX_BODY, path))
            status, body = told(raw)
            assert (status, body["error"]["type"]) == (429, kind)


def test_bodies_and_pictures_of_all_together(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = picture_url(Pillow.new("L", (100, 100)))
    body = json.dumps(with_pictures(url)).encode()
    path = "/v1/chat/completions"
    for most, status in ((len(body) - 1, 429), (len(body) + 29_999, 429), (len(body) + 30_000, 200)):
        monkeypatch.setattr("pilotfish.model.serving.slots.MAX_HELD", most)
        assert post(address, path, body).status_code == status, "what was held before is given back"


@pytest.fixture
def one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.model.serving.slots.MAX_WAITING", 1)


def free_again(address: str) -> bool:
    """Whether the only place can be had, soon."""
    for _ in range(100):
        if post(address, "/v1/messages", PATHS["/v1/messages"]).status_code == 200:
            return True
        threading.Event().wait(0.1)
    return False


@pytest.mark.usefixtures("one_place")
def test_a_body_that_comes_too_slowly(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.model.serving.app.BODY_S", 0.5)
    with connect(address) as raw:
        raw.sendall(head_of(1000) + b"{")
        status, body = told(raw)
        assert status == 408
        assert "within 0.5 s (1 bytes did)" in body["error"]["message"]
        assert free_again(address)


@pytest.mark.usefixtures("one_place")
def test_clients_that_hang_up_in_their_body(address: str, stage: Stage) -> None:
    for _ in range(20):
        with connect(address) as raw:
            raw.sendall(head_of(1000) + b"{")
    assert free_again(address)
    assert len(stage.asked) == 1


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.model.serving.connection.TICK_S", 0.1)
    monkeypatch.setattr("pilotfish.model.serving.connection.HEAD_S", 0.5)
    monkeypatch.setattr("pilotfish.model.serving.connection.STALL_S", 1.0)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "begin", [b"", b"GET /health HTTP/1.1\r\nx-a", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nG"]
)
def test_a_head_that_does_not_come(address: str, begin: bytes) -> None:
    with connect(address) as raw:
        raw.sendall(begin)
        assert ended(raw)


@pytest.mark.usefixtures("hasty")
def test_a_body_that_goes_on_after_it_was_refused(address: str) -> None:
    with connect(address) as raw:
        raw.sendall(head_of(MAX_BODY + 1))
        assert told(raw)[0] == 413
        assert cut_off(raw, b"x", 0.01)


@pytest.mark.usefixtures("hasty", "one_place")
@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_nobody_reads(address: str, stage: Stage, path: str) -> None:
    stage.endless = "x" * 1_000_000
    with connect(address) as raw:
        raw.sendall(whole(path, stream=True))
        assert stage.stopped.wait(30)
        stage.reset()
        assert free_again(address)


@pytest.mark.usefixtures("hasty")
def test_a_stream_that_is_read_goes_on(address: str, stage: Stage) -> None:
    stage.endless = "x" * 100_000
    with connect(address) as raw:
        raw.sendall(whole(stream=True))
        for _ in range(40):  # longer than the limits of who does not read
            assert raw.recv(100_000)
            threading.Event().wait(0.05)
        assert not stage.stopped.is_set()


def test_what_is_sent_behind_a_request_is_bounded(
    address: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotfish.model.serving.connection.MAX_AHEAD", 300_000)
    stage.endless = "on and "
    with connect(address) as raw:
        raw.sendall(whole())
        while not stage.asked:
            threading.Event().wait(0.01)
        assert cut_off(raw, b"x" * 100_000, 0)
    assert stage.stopped.wait(30)


def test_requests_behind_each_other(address: str, stage: Stage) -> None:
    with connect(address) as raw:
        raw.sendall(whole() + whole("/v1/chat/completions") + whole())
        answers = Answers(raw.makefile("rb", buffering=0))
        assert [told(answers)[0] for _ in range(3)] == [200] * 3
    assert len(stage.asked) == 3


def test_connections_beyond_the_most(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.model.serving.connection.MAX_CONNECTIONS", 3)
    first = [connect(address) for _ in range(3)]
    with connect(address) as raw:
        assert ended(raw)
    for raw in first:
        raw.sendall(whole())
        assert told(raw)[0] == 200
        raw.close()


def test_bodies_in_pieces_and_lengths_that_lie(address: str, stage: Stage) -> None:
    body = json.dumps(PATHS["/v1/messages"]).encode()
    head = head_of(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    with connect(address) as raw:
        raw.sendall(head)
        for byte in body:
            raw.sendall(b"1\r\n" + bytes([byte]) + b"\r\n")
        raw.sendall(b"0\r\n\r\n")
        assert told(raw)[0] == 200
    with connect(address) as raw:
        raw.sendall(head_of(len(body) - 1) + body)
        assert told(raw)[0] == 400
        assert ended(raw)
    for wrong in (b"content-length: -1", b"content-length: x", b"content-length: 5\r\ncontent-length: 6"):
        with connect(address) as raw:
            raw.sendall(head.replace(b"transfer-encoding: chunked", wrong) + body)
            assert ended(raw)
    for flood in (b"x-a: " + b"a" * 10**6, b"\r\n".join([b"x-a: b"] * 50_000)):
        with connect(address) as raw:
            with contextlib.suppress(OSError):
                raw.sendall(head_of(5)[:-2] + flood)
            assert ended(raw)
    assert len(stage.asked) == 1
    assert httpx2.get(f"{address}/health").json() == {"status": "ok"}


@pytest.mark.parametrize("kind", [anthropic_api._Messages, openai_api._Completion])
def test_a_body_of_many_faults_is_told_the_first(kind: Any) -> None:
    body = {"model": "stage", "max_tokens": 5, "messages": [0] * 1000, "tools": [0] * 1000}
    with pytest.raises(ValidationError) as raised:
        kind.model_validate(body)
    assert raised.value.error_count() <= 2


PICTURES = {
    "dot": picture_url(Pillow.new("RGB", (1, 1))),
    "line": picture_url(Pillow.new("L", (1, 3000))),
    "gif": picture_url(Pillow.new("P", (20, 30)), "GIF"),
    "bomb": picture_url(Pillow.new("1", (10_000, 10_000))),
    "half": picture_url(Pillow.effect_noise((60, 60), 50))[:2000],
    "svg": "data:image/svg+xml;base64,"
    + base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode(),
}


def test_a_hundred_clients_with_pictures_of_all_kinds_at_once() -> None:
    """The shipped model; some read whole answers, some streams, some leave at once."""
    engine, (opened, where) = Engine("nano", device="cpu"), listen(0, None)

    def ask(number: int) -> tuple[str, int]:
        kind, url = list(PICTURES.items())[number % len(PICTURES)]
        content = [
            {"type": "text", "text": f"Say {number}."},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        body = {
            "model": "nano",
            "max_tokens": 2,
            "messages": [{"role": "user", "content": content if number % 4 else "Hello."}],
            "stream": bool(number % 2),
        }
        if number % 10 == 9:
            with connect(where) as raw:
                raw.sendall(head_of(10**6, "/v1/chat/completions") + json.dumps(body).encode())
            return "left", 0
        status = post(where, "/v1/chat/completions", body).status_code
        return kind if number % 4 else "text", status

    with served(engine, opened):
        with ThreadPoolExecutor(100) as threads:
            said = list(threads.map(ask, range(100)))
        for kind, status in said:
            wanted = {
                "left": {0},
                "line": {400, 429},
                "bomb": {400, 429},
                "half": {400, 429},
                "svg": {400, 429},
            }
            assert status in wanted.get(kind, {200, 429}), kind
        assert {kind for kind, status in said if status == 200} >= {"text", "gif"}
        assert ask(100) == ("text", 200)
    engine.close()
