"""A server's streamed answer, from bytes to chunks.

Servers agree on server-sent events with pieces of JSON, and on little else: calls come with or without index
and id, in any order, their arguments as text or as an object; thinking has two names; some servers leave
tool calls or thinking in the text, in M3's grammar. All of that is read here. Calls are given out only when
the answer is whole: what broke off is never acted on.
"""

from __future__ import annotations

import json
import re
import secrets
import string
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pilotfish.model.arguments import coerce
from pilotfish.model.parser import AnswerParser
from pilotfish.model.protocol import (
    CallChunk,
    ModelError,
    TextChunk,
    ThinkingChunk,
    ToolCall,
    ToolSpec,
    Usage,
)

MAX_EVENT_BYTES = 8 * 1024**2
MAX_ANSWER_CHARS = 16 * 1024**2
MAX_CALLS = 1000
BYTES_PER_TOKEN = 4
"""A guess at what an answer cost, for servers that do not tell."""
REASONING_FIELDS = ("reasoning_content", "reasoning")

Said = ThinkingChunk | TextChunk

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


class Trouble(Exception):
    """The server or the way to it failed; the message is a clause whose subject is the server."""

    def __init__(self, clause: str, *, wait_s: float | None = None, final: bool = False) -> None:
        """wait_s: seconds that the server asks to be left alone. final: asking again cannot help."""
        super().__init__(clause)
        self.wait_s = wait_s
        self.final = final


def may_pass(status: int) -> bool:
    """Whether a request that was answered with this HTTP status may succeed later."""
    return status in (408, 409, 425, 429) or status >= 500


class EventLines:
    """Server-sent events out of bytes: the data of each event, however the bytes are cut."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[str] = []
        self._size = 0  # of the event under way

    def feed(self, data: bytes) -> Iterator[str]:
        """Take more bytes; raises ModelError for an event that is endless or not UTF-8."""
        # The halves of \r\n may come apart, so a \r at the very end waits for what follows.
        searched = max(0, len(self._rest) - 1)
        self._rest += data
        begin = 0
        for end in _LINE_END.finditer(self._rest, searched):
            yield from self._line(bytes(self._rest[begin : end.start()]))
            begin = end.end()
        # A new object, as the search above still holds the old one.
        self._rest = self._rest[begin:] if begin else self._rest
        _check_size(self._size + len(self._rest))

    def close(self) -> Iterator[str]:
        """The bytes have ended; the last event may lack its empty line. Raises Trouble within a character."""
        try:
            self._rest.decode()
        except UnicodeDecodeError:
            raise Trouble("ended the connection within a character") from None
        for line in (bytes(self._rest.rstrip(b"\r")), b""):
            yield from self._line(line)

    def _line(self, line: bytes) -> Iterator[str]:
        if not line:
            if self._data:
                yield "\n".join(self._data)
            self._data, self._size = [], 0
            return
        self._size += len(line)
        _check_size(self._size)
        name, _, value = _text(line).partition(":")
        if name.removeprefix("\N{BYTE ORDER MARK}") == "data":
            self._data.append(value.removeprefix(" "))


class WholeBody:
    """The body of an answer that was not streamed, in the manner of `EventLines`."""

    def __init__(self) -> None:
        self._body = bytearray()

    def feed(self, data: bytes) -> Iterator[str]:
        """Take more bytes; raises ModelError for an endless body."""
        self._body += data
        _check_size(len(self._body))
        return iter(())

    def close(self) -> Iterator[str]:
        """The bytes have ended."""
        yield _text(bytes(self._body))


@dataclass
class _Call:
    """A call under way. `index` is its place in the answer; `given` holds arguments that are an object."""

    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    given: dict[str, Any] | None = None


class AnswerReader:
    """Puts one answer together. `feed` it each event's data, then ask for `calls`.

    finish: the server's `finish_reason`, None until it has come. done: whether the server has said that
    nothing follows. reasoning_field: how it calls thinking. faults: a sentence for each call that could not
    be read. answered: whether text or a call has come, not only thinking. logprobs: of the tokens that the
    server gave one for. retries: set by whoever asks again.
    """

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self.done = self.answered = False
        self.finish: str | None = None
        self.reasoning_field: str | None = None
        self.faults: list[str] = []
        self.logprobs: list[float] = []
        self.retries = 0
        self._schemas = {tool.name: tool.parameters for tool in tools}
        self._parser = AnswerParser(tools)
        self._written = self._size = 0
        self._made_s = time.perf_counter()
        self._began_s: float | None = None
        self._usage: Mapping[str, Any] = {}
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}  # the newest call that the server counts so
        self._called_in_text: list[CallChunk] = []

    @property
    def begun(self) -> bool:
        """Whether anything of the answer has come."""
        return self._began_s is not None

    def feed(self, data: str) -> list[Said]:
        """Take the data of one event, or the body of an answer that was not streamed.

        Raises Trouble for data that is no JSON object and for an error of the server, ModelError for an
        answer that is endless or was withheld.
        """
        if data.strip() == "[DONE]":
            self.done = True
            return []
        piece = _object(data)
        if error := piece.get("error"):
            raise _server_error(error)
        if isinstance(piece.get("usage"), dict):
            self._usage = piece["usage"]
        choices = piece.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return []
        delta = choice.get("delta") or choice.get("message")
        said = self._delta(delta) if isinstance(delta, dict) else []
        self.logprobs += _logprobs(choice.get("logprobs"))
        if len(self.logprobs) > MAX_ANSWER_CHARS:
            self._too_long()
        if isinstance(choice.get("finish_reason"), str):
            self.finish = choice["finish_reason"]
            if self.finish == "content_filter":
                raise ModelError(
                    "The server withheld its answer (content_filter); word the task differently."
                )
        return said

    def close(self) -> list[Said]:
        """What was still waiting to be told from a call in the text."""
        return self._said(self._parser.close())

    def calls(self, cut_by: str | None = None) -> list[CallChunk]:
        """The calls of the answer, in order; fills `faults`. Call it after `close`.

        cut_by: what ended the answer early, if anything did; a call that is then incomplete is a fault.
        """
        self.faults += self._parser.faults
        if not self._calls:
            return self._called_in_text
        found = []
        taken: set[str] = set()
        *_, last = calls = sorted(self._calls, key=lambda call: call.index)
        for call in calls:
            try:
                arguments = self._arguments(call, cut_by if call is last else None)
            except _Unreadable as fault:
                self.faults.append(str(fault))
                continue
            id = call.id if call.id and call.id not in taken else _fresh_id()
            taken.add(id)
            found.append(CallChunk(ToolCall(id, call.name, arguments)))
        return found

    def usage(self) -> Usage:
        """What the answer cost by the server's count; what it does not tell of the answer is estimated."""
        details = self._usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        written = _count(self._usage.get("completion_tokens"))
        ended_s = time.perf_counter()
        began_s = ended_s if self._began_s is None else self._began_s
        return Usage(
            input_tokens=_count(self._usage.get("prompt_tokens")),
            cached_tokens=_count(cached),
            output_tokens=-(-self._written // BYTES_PER_TOKEN) if written is None else written,
            prefill_s=began_s - self._made_s,
            decode_s=ended_s - began_s,
            retries=self.retries,
        )

    def _delta(self, delta: Mapping[str, Any]) -> list[Said]:
        said: list[Said] = []
        for name in REASONING_FIELDS:
            # Some servers send the same thinking under both names.
            if isinstance(thought := delta.get(name), str) and thought:
                self._count(thought)
                self.reasoning_field = name
                said.append(ThinkingChunk(thought))
                break
        for text in _texts(delta.get("content") or delta.get("refusal")):
            self._count(text)
            said += self._said(self._parser.feed(text))
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            if isinstance(call, dict):
                self._call_delta(call)
        return said

    def _call_delta(self, delta: Mapping[str, Any]) -> None:
        function = delta.get("function")
        function = function if isinstance(function, dict) else {}
        id, name = (str(value or "") for value in (delta.get("id"), function.get("name")))
        arguments = function.get("arguments")
        self._count(f"{name}{arguments or ''}")
        self.answered = True
        call = self._call_of(delta.get("index"), id, name)
        call.id = call.id or id
        if not call.name:
            call.name = name
        elif name != call.name and not id:
            call.name += name
        if isinstance(arguments, dict):
            call.given = arguments
        elif isinstance(arguments, str):
            call.arguments.append(arguments)

    def _call_of(self, index: Any, id: str, name: str) -> _Call:
        """The call that a delta belongs to. Some servers count every call as 0, some do not count."""
        if isinstance(index, int):
            call = self._at.get(index)
            if call is not None and not (id and name and call.id and call.id != id):
                return call
            self._at[index] = self._new_call(index)
            return self._at[index]
        known = [call for call in self._calls if id and call.id == id]
        if not known and (id or name or not self._calls):
            return self._new_call(len(self._calls))
        return known[0] if known else self._calls[-1]

    def _new_call(self, index: int) -> _Call:
        if len(self._calls) == MAX_CALLS:
            raise ModelError(f"The server's answer has more than {MAX_CALLS} calls; it was not used.")
        self._calls.append(_Call(index))
        return self._calls[-1]

    def _arguments(self, call: _Call, cut_by: str | None) -> dict[str, Any]:
        """The typed arguments of a call; raises `_Unreadable`."""
        if not call.name:
            raise _Unreadable("a tool call names no tool, so it was not executed")
        text = "".join(call.arguments)
        try:
            # A whole answer may leave out the arguments of a tool that has none; a cut one had not got there.
            value = call.given or (_strict_json(text) if text.strip() or cut_by else {})
            if not isinstance(value, dict):
                raise ValueError(f"{text[:60]!r} is none")
            typed = coerce(value, self._schemas.get(call.name, {}))
        except (ValueError, RecursionError) as error:
            if cut_by:
                raise _Unreadable(
                    f"{cut_by} was reached inside a call of {call.name!r}, so it was not executed"
                ) from None
            raise _Unreadable(
                f"a call of {call.name!r} was not executed: its arguments are not a JSON object ({error})"
            ) from None
        return dict(typed)

    def _said(self, events: Sequence[Said | CallChunk]) -> list[Said]:
        said: list[Said] = []
        self.answered = self.answered or any(not isinstance(event, ThinkingChunk) for event in events)
        for event in events:
            if isinstance(event, CallChunk):
                self._called_in_text.append(event)
            else:
                said.append(event)
        if any(isinstance(event, ThinkingChunk) for event in said) and self.reasoning_field is None:
            self.reasoning_field = REASONING_FIELDS[0]
        return said

    def _count(self, text: str) -> None:
        if text and self._began_s is None:
            self._began_s = time.perf_counter()
        self._size += len(text)
        self._written += len(text.encode("utf-8", "surrogatepass"))
        if self._size > MAX_ANSWER_CHARS:
            self._too_long()

    def _too_long(self) -> NoReturn:
        raise ModelError(f"The server's answer has more than {MAX_ANSWER_CHARS} characters; it was not used.")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ModelError(
            "The server sent bytes that are not UTF-8, so its answer was not used; update the server."
        ) from None


def _check_size(size: int) -> None:
    if size > MAX_EVENT_BYTES:
        raise ModelError(
            f"The server sent a piece of more than {MAX_EVENT_BYTES} bytes, so its answer was not used; "
            "check that it is a server of chat completions."
        )


class _Unreadable(Exception):
    """A call cannot be read; the message is the fault."""


def _object(data: str) -> dict[str, Any]:
    try:
        piece = json.loads(data)
    except (ValueError, RecursionError):
        raise Trouble(f"sent a piece that is not JSON ({data[:60]!r})") from None
    if not isinstance(piece, dict):
        raise Trouble(f"sent a piece that is not a JSON object ({data[:60]!r})")
    return piece


def _server_error(error: Any) -> Trouble:
    """An error that the server sends in place of a piece."""
    code = str(error.get("code")) if isinstance(error, dict) else ""
    final = re.fullmatch("[1-5][0-9][0-9]", code) is not None and not may_pass(int(code))
    return Trouble(f"sent an error ({error_text({'error': error})})", final=final)


def error_text(body: Any) -> str:
    """What a server says went wrong, whatever the shape of its JSON."""
    found = body
    for name in ("error", "message", "detail", "msg"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else json.dumps(found)


def _texts(content: Any) -> list[str]:
    """The text of `content`, which is a string or a list of parts."""
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number of JSON")

    return json.loads(text, parse_constant=refuse)


def _logprobs(given: Any) -> list[float]:
    tokens = given.get("content") if isinstance(given, dict) else None
    listed = tokens if isinstance(tokens, list) else []
    found = [token.get("logprob") for token in listed if isinstance(token, dict)]
    return [float(value) for value in found if isinstance(value, int | float) and abs(value) < 1e9]


def _count(value: Any) -> int | None:
    """A number of tokens, or None if it is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _fresh_id() -> str:
    # Nine letters and digits: the one form that every server takes back.
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
