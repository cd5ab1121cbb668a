"""One request to an OpenAI-compatible server, and what its failures mean.

`Trouble` is a failure after which the same request may succeed; what cannot succeed is a ModelError with the
mend. Certificates are checked, proxies are taken from the environment, redirects are not followed: the key
goes to the one address that a person gave.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import re
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx2

from pilotfish.model.protocol import ModelError
from pilotfish.model.remote_request import OPTIONAL
from pilotfish.model.remote_stream import (
    AnswerReader,
    EventLines,
    Said,
    Trouble,
    WholeBody,
    error_text,
    may_pass,
)

T = TypeVar("T")

GRACE_S = 5.0
"""How long to wait, after an answer's last piece, for what the server says it cost."""
CLOSING_S = 0.5
"""How long a request that was given up may take to let go."""
MAX_ERROR_BYTES, ERROR_S = 64 * 1024, 10.0

_REFUSAL = re.compile(r"un(recogni[sz]ed|known|expected)|support|permitted|allowed|extra", re.IGNORECASE)


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server, in seconds, and how often to ask it again.

    first_byte_s: from the request to the first byte of the answer. piece_s: between two pieces of it.
    pause_s: before a request is asked again; it doubles each time.
    """

    connect_s: float = 10.0
    first_byte_s: float = 90.0
    piece_s: float = 60.0
    retries: int = 4
    pause_s: float = 0.5


class Ended(Exception):
    """The answer must end: `stop` was set, or its time is over."""

    def __init__(self, reason: Literal["stop", "time"]) -> None:
        super().__init__(reason)
        self.reason = reason


class Unwanted(Exception):
    """The server refuses a field that it can do without."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


@dataclass(frozen=True)
class _Refused:
    """The body of a refusal: its message, and all of it."""

    text: str
    raw: str


class Watch:
    """Waits for things within one answer's bounds; what takes too long or is asked to stop is cancelled."""

    def __init__(self, stop: asyncio.Event, seconds: float) -> None:
        self._stop = stop
        self._deadline_s = time.monotonic() + seconds
        self._stopping: asyncio.Task[Literal[True]] | None = None

    async def __aenter__(self) -> Self:
        self._stopping = asyncio.ensure_future(self._stop.wait())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stopping is not None:
            self._stopping.cancel()

    @property
    def left_s(self) -> float:
        """Seconds that are left of the answer's time."""
        return max(0.0, self._deadline_s - time.monotonic())

    async def wait(self, work: Awaitable[T], seconds: float = float("inf")) -> T:
        """The result of `work`. Raises `Ended`, or TimeoutError when it takes longer than `seconds`."""
        task = asyncio.ensure_future(work)
        left_s = self.left_s
        waiting = {task} if self._stopping is None else {task, self._stopping}
        try:
            await asyncio.wait(waiting, timeout=min(seconds, left_s), return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set():
                raise Ended("stop")
            if task.done():
                return task.result()
            if left_s <= seconds:
                raise Ended("time")
            raise TimeoutError
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CLOSING_S)
            if task.done() and not task.cancelled():
                task.exception()


class Server:
    """The address of a server and how to speak with it."""

    def __init__(self, url: str, key: str | None, patience: Patience) -> None:
        """Raises ModelError for a URL or key that cannot be used."""
        self.url = check_url(url)
        self.patience = patience
        self._key = check_key(key)
        self._certificates: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"The server at {self.url}"

    def client(self) -> httpx2.AsyncClient:
        """Connections for one answer; use it as a context manager. The first time may take a second."""
        if self._certificates is None:
            addresses = [self.url, *getproxies().values()]
            # Without TLS the authorities need not be read, which takes longer than many an answer.
            self._certificates = (
                httpx2.create_ssl_context()
                if any(address.startswith("https:") for address in addresses)
                else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            )
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            return httpx2.AsyncClient(
                headers=headers,
                timeout=httpx2.Timeout(None, connect=self.patience.connect_s),
                verify=self._certificates,
                follow_redirects=False,
            )
        except (ImportError, ValueError, httpx2.InvalidURL) as error:
            raise ModelError(
                f"A proxy of the environment cannot be used ({error}); mend or unset it."
            ) from None

    async def ask(
        self, client: httpx2.AsyncClient, body: Mapping[str, Any], reader: AnswerReader, watch: Watch
    ) -> AsyncGenerator[Said, None]:
        """Ask once and read the answer to its end.

        Raises `Trouble` where asking again may help, `Unwanted` for a field to leave out, `Ended`, and
        ModelError.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                request = client.stream(
                    "POST", f"{self.url}/chat/completions", content=json.dumps(body).encode("ascii")
                )
                first_byte_s = self.patience.first_byte_s
                response = await watch.wait(stack.enter_async_context(request), first_byte_s)
                kind = _content_type(response)
                if response.status_code != 200:
                    raise self._refusal(response, await self._error(response, watch), body)
                if kind not in ("text/event-stream", "application/json", ""):
                    raise ModelError(
                        f"{self} answered with {kind} instead of a chat completion; check the URL, which "
                        "usually ends in /v1."
                    )
                pieces = WholeBody() if kind == "application/json" else EventLines()
                received = response.aiter_bytes()
                more = True
                while more and not reader.done:
                    data = await watch.wait(_next(received), self._pace(reader))
                    more = data is not None
                    for event in pieces.close() if data is None else pieces.feed(data):
                        for chunk in reader.feed(event):
                            yield chunk
            except TimeoutError:
                self._too_slow(reader)
            except httpx2.HTTPError as error:
                if reader.finish is None:
                    raise self._transport(error) from error
        if reader.finish is None and not reader.done and (isinstance(pieces, EventLines) or not reader.begun):
            raise Trouble("ended the connection")

    async def reach(self) -> None:
        """Raise ModelError when nothing can be reached there; what answers, or is slow to, may do."""
        try:
            async with asyncio.timeout(self.patience.connect_s), self.client() as client:
                await client.get(f"{self.url}/models")
        except TimeoutError:
            return
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            failure = self._transport(error)
            raise ModelError(
                f"{self} {failure}; start it." if isinstance(failure, Trouble) else str(failure)
            ) from None
        except httpx2.HTTPError:
            return

    async def models(self) -> list[str]:
        """The names of the models that the server lists. Raises ModelError when it does not say."""
        seconds = self.patience.connect_s
        try:
            async with asyncio.timeout(seconds), self.client() as client:
                response = await client.get(f"{self.url}/models")
        except TimeoutError:
            raise ModelError(f"{self} has not answered for {seconds:g} s; see what it is doing.") from None
        except httpx2.HTTPError as error:
            failure = self._transport(error)
            raise ModelError(
                f"{self} {failure}; start it." if isinstance(failure, Trouble) else str(failure)
            ) from None
        try:
            return [str(model["id"]) for model in response.raise_for_status().json()["data"]]
        except httpx2.HTTPStatusError:
            raise ModelError(
                f"{self} answered with status {response.status_code}; check its URL and the key."
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ModelError(f"{self} lists no models; check the URL, which usually ends in /v1.") from None

    def masked(self, text: str) -> str:
        """A server's words on one line, short, and without the key, which some repeat."""
        line = " ".join(text.split())
        if self._key is not None and len(self._key) > 5:
            line = line.replace(self._key, "***")
        return line if len(line) <= 300 else f"{line[:300]}…"

    def _pace(self, reader: AnswerReader) -> float:
        if reader.finish is not None:
            return GRACE_S
        return self.patience.piece_s if reader.begun else self.patience.first_byte_s

    def _too_slow(self, reader: AnswerReader) -> None:
        """What it means that nothing came; an answer whose end has come is whole without the rest."""
        if reader.finish is not None:
            return
        if reader.begun:
            raise Trouble(f"sent nothing for {self.patience.piece_s:g} s")
        raise ModelError(
            f"{self} has sent nothing for {self.patience.first_byte_s:g} s; see what it is doing, or raise "
            "server.first_byte_s."
        )

    async def _error(self, response: httpx2.Response, watch: Watch) -> _Refused:
        """What the body of a refusal says, as far as it comes."""
        body = bytearray()
        with contextlib.suppress(TimeoutError, httpx2.HTTPError):
            received = response.aiter_bytes()
            while (
                len(body) < MAX_ERROR_BYTES
                and (data := await watch.wait(_next(received), ERROR_S)) is not None
            ):
                body += data
        raw = body[:MAX_ERROR_BYTES].decode(errors="replace")
        try:
            text = error_text(json.loads(raw))
        except (ValueError, RecursionError):
            text = "" if _content_type(response) == "text/html" else raw
        return _Refused(self.masked(text) or response.reason_phrase, raw)

    def _refusal(self, response: httpx2.Response, said: _Refused, body: Mapping[str, Any]) -> Exception:
        """What a status other than 200 means."""
        status = response.status_code
        answered = f"{self} answered with status {status} ({said.text})"
        if may_pass(status):
            if "insufficient_quota" in said.raw:
                return ModelError(f"{answered}; the account behind the key has nothing left.")
            wait_s = _retry_after(response.headers.get("retry-after"))
            return Trouble(f"answered with status {status} ({said.text})", wait_s=wait_s)
        if response.is_redirect:
            place = response.headers.get("location", "nowhere")
            return ModelError(f"{self} redirects to {place}; give that address, as a key is not sent on.")
        if status in (401, 403):
            key, mend = "the key", "check"
            if self._key is None:
                key, mend = "a request without a key", "set"
            return ModelError(
                f"{self} refuses {key} (status {status}: {said.text}); {mend} OPENAI_API_KEY (sent only "
                "over https or to this machine), or the variable that server.key_variable names."
            )
        if status == 404:
            return ModelError(
                f"{answered}; check the model's name, {body.get('model')!r}, and the URL, which usually "
                "ends in /v1."
            )
        if status in (400, 422) and _REFUSAL.search(said.text):
            for field in OPTIONAL:
                if field in body and re.search(rf"\b{field}\b", said.text):
                    return Unwanted(field)
        return ModelError(f"{answered}; it may want other settings, see server and answer_tokens.")

    def _transport(self, error: httpx2.HTTPError) -> Exception:
        """What a failure below HTTP means."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return ModelError(
                    f"{self} shows a certificate that cannot be trusted ({cause.verify_message}); add its "
                    "authority to this machine's, or name it with SSL_CERT_FILE."
                )
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
            return ModelError(f"{self} cannot be asked ({error}); check its URL and the key.")
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
            return Trouble(f"cannot be reached ({str(error) or type(error).__name__})")
        return Trouble(f"broke the connection ({str(error) or type(error).__name__})")


def check_url(url: str) -> str:
    """A base URL without a slash at its end; raises ModelError for one that cannot be used."""
    mend = "write it as http://127.0.0.1:8000/v1"
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ModelError(
            "The server's URL holds a name or a password; put the key into an environment variable."
        )
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 (a property that raises)
        httpx2.URL(url)
    except (ValueError, httpx2.InvalidURL) as error:
        raise ModelError(f"The server's URL {url!r} cannot be read ({error}); {mend}.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ModelError(f"The server's URL {url!r} is none of http or https; {mend}.")
    if parts.query or parts.fragment:
        raise ModelError(f"The server's URL {url!r} has more than an address and a path; {mend}.")
    return url.rstrip("/").removesuffix("/chat/completions")


def check_key(key: str | None) -> str | None:
    """A key without blanks around it, None for an empty one; raises ModelError if no header takes it."""
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ModelError("The server's key has characters that no key has; set its variable again.")
    return key or None


def _content_type(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


async def _next(received: AsyncIterator[bytes]) -> bytes | None:
    """The next bytes, None at their end."""
    return await anext(received, None)


def _retry_after(value: str | None) -> float | None:
    """The seconds that a Retry-After header asks for, as a number or a date; None if it does not say."""
    if value is None:
        return None
    if re.fullmatch(r"\s*\d{1,9}(\.\d*)?\s*", value):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
