"""Servers that refuse, stall, break off or are not there, over real sockets: what is asked again or told."""

from __future__ import annotations

import asyncio
import email.utils
import json
import shutil
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from pilotfish.model.protocol import (
    Limits,
    ModelError,
)
from pilotfish.model.remote import RemoteModel
from pilotfish.model.remote_http import Patience

from ..scripted_server import (
    ScriptedServer,
    Step,
    answer,
    call_delta,
    delta,
    error,
    reply,
    silent,
    stream,
)
from .remote_play import WAIT, calls_of, end_of, play, text_of


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (reply(200, "<html>Welcome</html>", "text/html"), "text/html instead of a chat completion"),
        (reply(200, "\x00\x01", "image/png"), "image/png"),
        (error(400, "too many images"), "too many images"),
        (error(401, "bad key secret-key"), "refuses the key (status 401: bad key ***); check OPENAI_API_KEY"),
        (error(404, "no such model"), "model's name, 'm'"),
        (reply(302, "", Location="http://elsewhere.example/v1"), "redirects to http://elsewhere.example"),
        (reply(429, '{"error": {"message": "no", "code": "insufficient_quota"}}'), "nothing left"),
        (error(429, "slow", Retry_After="3600"), "3600 s"),
        (stream(b"data: \xff\xfe\n\n"), "not UTF-8"),
        (stream(b"data: " + b"x" * (9 * 1024**2)), "more than 8388608 bytes"),
        (stream(*[b"data: " + b"x" * 1024**2 + b"\n"] * 9), "more than 8388608 bytes"),
        (stream({"error": {"message": "no such tool", "code": 400}}), "sent an error (no such tool)"),
        (stream(delta(content="a"), delta("content_filter")), "withheld"),
    ],
)
async def test_what_cannot_succeed_is_not_asked_again(step: Step, says: str) -> None:
    with ScriptedServer([step]) as server:
        with pytest.raises(ModelError) as caught:
            await play(server, key="secret-key")
        assert len(server.asked) == 1
    assert says in str(caught.value)
    assert "secret-key" not in str(caught.value)
    assert "\n" not in str(caught.value)


def _slam(connection: Any) -> None:
    """Close without a word."""


SHORT = email.utils.formatdate(time.time() - 60, usegmt=True)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (_slam, "broke the connection"),
        (stream(), "ended the connection"),
        (stream(b": keep alive\n\n"), "ended the connection"),
        (stream(b'data: {"choices": [{"del'), "not JSON"),
        (reply(200, '{"choices": [{"mess'), "not JSON"),
        (reply(200, '{"detail": "hm"}'), "ended the connection"),
        (stream(b"data: 5\n\n"), "not a JSON object"),
        (stream({"error": {"message": "overloaded", "code": 503}}), "overloaded"),
        (reply(500, "<html>" + "x" * 99, "text/html"), "status 500 (Said)"),
        (error(503, "loading the model", Retry_After="0"), "loading the model"),
        (error(429, "slow down", Retry_After=SHORT), "slow down"),
        (reply(200, b"\x1f\x8b broken", Content_Encoding="gzip"), "broke the connection"),
    ],
)
async def test_what_may_pass_is_asked_again_a_few_times(step: Step, says: str) -> None:
    with ScriptedServer([step, step, answer("There.", WAIT)]) as server:
        chunks = await play(server)
        assert (text_of(chunks), calls_of(chunks)) == ("There.", WAIT)
        assert (len(server.asked), end_of(chunks).usage.retries) == (3, 2)
        assert server.asked[0].body == server.asked[2].body
    with ScriptedServer([step]) as server:
        with pytest.raises(ModelError, match="3 times") as caught:
            await play(server)
        assert len(server.asked) == 3
    assert says in str(caught.value)


async def test_a_server_that_is_not_there() -> None:
    with ScriptedServer([]) as server:
        pass
    with pytest.raises(ModelError, match=r"The server at http.* cannot be reached .*3 times"):
        await play(server)


async def test_what_the_server_asks_for_is_waited() -> None:
    began_s = time.monotonic()
    with ScriptedServer([error(429, "slow", Retry_After="1"), answer("Now.")]) as server:
        assert text_of(await play(server)) == "Now."
    assert time.monotonic() - began_s > 0.9


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([], "ended the connection"),
        ([b'data: {"choices": [{"del'], "not JSON"),
        (['data: {"choices": "ü'.encode()[:-1]], "within a character"),
        ([b"data: nonsense\n\n", delta("stop")], "not JSON"),
        ([{"error": {"message": "out of memory"}}], "out of memory"),
        ([1.0], "sent nothing for 0.3 s"),
    ],
)
async def test_an_answer_that_breaks_off_is_not_acted_on(
    pieces: list[bytes | dict[str, Any] | float], says: str
) -> None:
    broken = stream(delta(content="I wait. "), call_delta('{"duration": 1}', index=0, name="wait"), *pieces)
    script = [broken, answer("Well."), broken, broken, broken]
    with ScriptedServer(script) as server:
        model = RemoteModel(server.url, "m", patience=Patience(piece_s=0.3, retries=2))
        chunks = await play(model)
        assert (text_of(chunks), calls_of(chunks)) == ("I wait. ", [])
        (fault,) = end_of(chunks).faults
        assert says in fault
        assert "nothing of it was executed" in fault
        assert len(server.asked) == 1, "what was begun is not asked again"
        assert end_of(await play(model)).faults == ()
        assert [len(end_of(await play(model)).faults) for _ in range(2)] == [1, 1]
        with pytest.raises(ModelError, match="3 answers in a row"):
            await play(model)


async def test_a_server_that_never_answers() -> None:
    with ScriptedServer([silent]) as server:
        with pytest.raises(ModelError, match=r"has sent nothing for 0\.2 s"):
            await play(server, patience=Patience(first_byte_s=0.2))
        assert server.hung_up.wait(10)
        assert len(server.asked) == 1
        chunks = await play(server, limits=Limits(max_seconds=0.2))
        assert end_of(chunks).reason == "time"


async def test_the_whole_answer_has_its_time() -> None:
    drip = stream(call_delta('{"duration": 1}', name="wait"), *[delta(content="x"), 0.05] * 400)
    with ScriptedServer([drip]) as server:
        chunks = await play(server, limits=Limits(max_seconds=0.5))
        assert server.hung_up.wait(10)
    assert end_of(chunks).reason == "time"
    assert set(text_of(chunks)) == {"x"}


async def until_asked(server: ScriptedServer) -> None:
    """Wait until a request has come and its answer had time to begin."""
    while not server.asked:  # noqa: ASYNC110 (a thread fills the list)
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)


@pytest.mark.parametrize("place", ["before", "connecting", "waiting", "reading", "pausing"])
async def test_stop_ends_it_at_once(place: str) -> None:
    stop = asyncio.Event()
    steps = {
        "reading": stream(delta(content="x"), call_delta("{}", name="wait"), then=silent),
        "pausing": error(429, "slow", Retry_After="60"),
    }
    with ScriptedServer([steps.get(place, silent)]) as server:
        model = RemoteModel(server.url, "m")
        answering = asyncio.ensure_future(play(model, stop=stop))
        if place == "connecting":
            await asyncio.sleep(0)
        elif place != "before":
            await until_asked(server)
        stop.set()
        began_s = time.monotonic()
        chunks = await asyncio.wait_for(answering, 30)
        assert time.monotonic() - began_s < 1
        if place in ("waiting", "reading"):
            assert server.hung_up.wait(10), "the server is let go"
    assert end_of(chunks).reason == "stop"
    assert calls_of(chunks) == []


async def test_whoever_leaves_early_lets_the_server_go() -> None:
    with ScriptedServer([stream(delta(content="x"), then=silent)]) as server:
        answering = asyncio.ensure_future(play(server, patience=Patience()))
        await until_asked(server)
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert server.hung_up.wait(10)


async def test_fields_that_a_server_refuses_are_left_out() -> None:
    refusals = [
        error(400, "Unrecognized request argument supplied: chat_template_kwargs"),
        error(400, "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."),
        error(422, "Extra inputs are not permitted: parallel_tool_calls"),
    ]
    with ScriptedServer([*refusals, answer("a"), answer("b")]) as server:
        model = RemoteModel(server.url, "m", extra={"top_k": 5})
        assert text_of(await play(model)) == "a"
        assert text_of(await play(model)) == "b"
    *_, last = (asked.body for asked in server.asked)
    assert len(server.asked) == 5
    assert {"chat_template_kwargs", "max_tokens", "parallel_tool_calls"}.isdisjoint(last)
    assert (last["max_completion_tokens"], last["top_k"]) == (512, 5)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://example.com/v1", "http or https"),
        ("example.com/v1", "http or https"),
        ("http://", "http or https"),
        ("http://user:pass@example.com/v1", "a name or a password"),
        ("http://user:pass@[::1/v1", "a name or a password"),
        ("https://example.com/v1?key=1", "more than an address"),
        ("http://example.com:99999/v1", "cannot be read"),
        ("http://[::1/v1", "cannot be read"),
    ],
)
def test_urls_that_cannot_be_used(url: str, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        RemoteModel(url, "m")
    assert "pass@" not in str(caught.value)


def test_keys_that_cannot_be_sent() -> None:
    with pytest.raises(ModelError, match="no key has"):
        RemoteModel("http://127.0.0.1/v1", "m", key="a\nb")
    assert RemoteModel("http://127.0.0.1/v1/chat/completions/", "m", key=" \n").server.url.endswith("/v1")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of this machine's own making, for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=127.0.0.1"
    words = [*make.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(words, check=True, capture_output=True)
    return certificate, key


async def test_certificates_are_checked(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    with ScriptedServer([answer("Hello.")], tls) as server:
        with pytest.raises(ModelError, match="certificate that cannot be trusted"):
            await play(server, key="secret-key")
        assert server.asked == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert text_of(await play(server)) == "Hello."


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer([answer("Hello.")]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", "")
        assert text_of(await play(RemoteModel("http://model.invalid/v1", "m"))) == "Hello."
        assert proxy.asked[0].path == "http://model.invalid/v1/chat/completions"
        monkeypatch.setenv("http_proxy", "nonsense://127.0.0.1")
        with pytest.raises(ModelError, match="proxy of the environment cannot be used"):
            await play(RemoteModel("http://model.invalid/v1", "m"))


async def test_a_missing_key_is_told_with_its_variable() -> None:
    refused = pytest.raises(ModelError, match=r"refuses a request without a key .*; set OPENAI_API_KEY")
    with ScriptedServer([error(401, "who are you")]) as server, refused:
        await play(RemoteModel(server.url, "m"))


async def test_models_are_listed() -> None:
    listing = json.dumps({"data": [{"id": "a"}, {"id": "b"}]})
    with ScriptedServer([reply(200, listing), error(401, "no"), reply(200, "<html>")]) as server:
        model = RemoteModel(server.url, "a")
        assert await model.server.models() == ["a", "b"]
        for says in ("status 401", "lists no models"):
            with pytest.raises(ModelError, match=says):
                await model.server.models()
