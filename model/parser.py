"""The incremental reader of answers: text as it is generated, in; thinking, text and tool calls, out.

It gives the same answer however the text is cut into pieces: every decision is a function of the text so far,
and text that could still become a marker waits until that is certain. Tool calls are read in M3's own grammar
and in the plain `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` that M3 uses under some prompts.

Nothing inside thinking is ever a call, nor is anything inside a code fence or inline code of the answer. Text
before the first call is kept; text between and after calls is dropped. No call is made up from half of one.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from pilotfish.model.arguments import MalformedCall, coerce, parse_arguments
from pilotfish.model.protocol import CallChunk, TextChunk, ThinkingChunk, ToolCall, ToolSpec
from pilotfish.model.tokenizer import NAMESPACE, THINK_END, THINK_START

Event = ThinkingChunk | TextChunk | CallChunk

FALSE_START_LIMIT = 256
"""Characters after a block's opening within which an invoke or the block's end must come, else it is text."""

_CALL_TAG = "<tool_call>"
_SLICE = 4096
_NS = re.escape(NAMESPACE)
_STRUCTURE = re.compile(_NS + r"\s*(?:<invoke(?=[\s>])|(?P<end></tool_call>))")
_STRUCTURE_INSIDE = re.compile(_NS + r"\s*(?:(?P<close></invoke>)|<invoke(?=\s)|</tool_call>)")
_HEADER = re.compile(_NS + r"""\s*<invoke\s+name\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+))\s*>""")
_BARE_CALL = re.compile(r'\{\s*"name"\s*:')


class _State(Enum):
    START = auto()  # nothing but think markers so far, or right after thinking
    THINKING = auto()
    CONTENT = auto()
    BLOCK = auto()  # inside M3's tool_call block
    JSON = auto()  # inside a JSON object that should be a call
    AFTER = auto()  # a call was read; the rest is dropped unless it is another call


@dataclass
class _CodeMarks:
    """Where the answer's text stands in Markdown: at a line's start, inside a fence, inside inline code."""

    fenced: bool = False
    head: str = ""
    ticks: int = 0

    def advance(self, text: str) -> None:
        for n, line in enumerate(text.split("\n")):
            if n:
                self.fenced ^= self._at_fence
                self.head, self.ticks = "", 0
            if len(self.head) < 3:
                self.head = (self.head + line).lstrip()[:3]
            self.ticks += line.count("`")

    @property
    def _at_fence(self) -> bool:
        """Whether the current line opens or closes a fence."""
        return self.head in ("```", "~~~")

    @property
    def in_code(self) -> bool:
        if self.fenced:
            return not self._at_fence
        return self.ticks % 2 == 1

    @property
    def at_line_start(self) -> bool:
        return not self.head


class AnswerParser:
    """Reads one answer. `feed` it text as it comes, then `close` it.

    `faults` collects one sentence for each call that could not be read; such a call yields no event.
    """

    def __init__(
        self, tools: Sequence[ToolSpec], starts_in_thinking: bool = False, id_prefix: str | None = None
    ) -> None:
        """`starts_in_thinking`: the prompt ended with `<mm:think>`. Never derived from the prompt's text."""
        self.faults: list[str] = []
        self._schemas = {tool.name: tool.parameters for tool in tools}
        self._state = _State.THINKING if starts_in_thinking else _State.START
        self._thought = False
        self._buffer = ""
        self._searched = 0  # of the buffer, in the states that wait for an end
        self._json = _JsonScan()
        self._opened = ""  # what opened the block or object being read
        self._invoked = False
        self._marks = _CodeMarks()
        self._events: list[Event] = []
        self._text: list[str] = []  # of the chunk under way, joined once
        self._id_prefix = secrets.token_hex(4) if id_prefix is None else id_prefix
        self._calls = 0
        self._fresh_thinking = starts_in_thinking

    @property
    def in_code(self) -> bool:
        """Whether the text so far ends inside code, where no call is read."""
        return self._state is _State.CONTENT and self._marks.in_code

    @property
    def in_call(self) -> bool:
        """Whether the text so far ends inside a call, or a block of them."""
        return self._state in (_State.BLOCK, _State.JSON)

    def feed(self, text: str) -> list[Event]:
        """Take more of the answer; return what has become certain."""
        # Long text goes in by slices, so that taking pieces off the buffer's front stays cheap.
        for start in range(0, len(text), _SLICE):
            self._buffer += text[start : start + _SLICE]
            self._run(final=False)
        return self._said()

    def close(self) -> list[Event]:
        """The answer has ended; return what was still waiting."""
        self._run(final=True)
        return self._said()

    def _said(self) -> list[Event]:
        self._end_text()
        events, self._events = self._events, []
        return events

    def _run(self, *, final: bool) -> None:
        steps = {
            _State.START: self._start,
            _State.THINKING: self._thinking,
            _State.CONTENT: self._content,
            _State.BLOCK: self._block,
            _State.JSON: self._json_object,
            _State.AFTER: self._after,
        }
        while self._buffer and steps[self._state](final):
            pass
        if final and self._state is _State.BLOCK and not self._buffer and not self._invoked:
            self._emit_text(self._opened)

    # Each step looks at the buffer and returns whether it got further; False means that more text is needed.

    def _start(self, final: bool) -> bool:
        for marker in (THINK_END, THINK_START):
            if marker is THINK_START and self._thought:
                continue
            if self._buffer.startswith(marker):
                self._take(len(marker))
                if marker is THINK_START:
                    self._state = _State.THINKING
                return True
            if not final and marker.startswith(self._buffer):
                return False
        self._state = _State.CONTENT
        return True

    def _thinking(self, final: bool) -> bool:
        if self._fresh_thinking:
            # A prompt that ends with the marker does not keep the model from writing it again.
            if not final and THINK_START.startswith(self._buffer) and self._buffer != THINK_START:
                return False
            self._fresh_thinking = False
            if self._buffer.startswith(THINK_START):
                self._take(len(THINK_START))
                return True
        end = self._buffer.find(THINK_END)
        if end >= 0:
            self._emit_thinking(self._take(end))
            self._take(len(THINK_END))
            self._state, self._thought = _State.START, True
            return True
        self._emit_thinking(
            self._take(len(self._buffer) - (0 if final else _overlap(self._buffer, THINK_END)))
        )
        return False

    def _content(self, final: bool) -> bool:
        special = re.search(r"[\]<{]", self._buffer)
        if special is None:
            self._emit_text(self._take(len(self._buffer)))
            return False
        self._emit_text(self._take(special.start()))
        opening = self._opening(final)
        if opening is None:
            return False
        if not opening:
            self._emit_text(self._take(1))
        return True

    def _after(self, final: bool) -> bool:
        special = re.search(r"[\]<]", self._buffer)
        self._take(len(self._buffer) if special is None else special.start())
        if special is None:
            return False
        opening = self._opening(final)
        if opening is None:
            return False
        if not opening:
            self._take(1)
        return True

    def _opening(self, final: bool) -> bool | None:
        """Whether a call opens at the buffer's start, which is then taken; None while that is uncertain."""
        if self._marks.in_code:
            return False
        for lead, state in ((NAMESPACE, _State.BLOCK), ("", _State.JSON)):
            fits = _starts_with(self._buffer, lead, _CALL_TAG, "" if state is _State.BLOCK else "{")
            if fits is None and not final:
                return None
            if fits:
                self._begin(state, fits)
                return True
        if self._buffer[0] == "{" and self._marks.at_line_start and self._state is _State.CONTENT:
            if _BARE_CALL.match(self._buffer):
                self._begin(_State.JSON, 0)
                return True
            if not final and _bare_call_possible(self._buffer):
                return None
        return False

    def _begin(self, state: _State, length: int) -> None:
        self._opened = self._take(length)
        self._state, self._searched, self._invoked, self._json = state, 0, False, _JsonScan()

    def _block(self, final: bool) -> bool:
        """Read M3's block up to the end of the next invoke, or of the block."""
        structure = _STRUCTURE.search(self._buffer)
        if structure is None:
            return self._wait_for_structure(final)
        if not self._invoked and len(self._buffer[: structure.start()].strip()) > FALSE_START_LIMIT:
            return self._false_start()
        self._take(structure.start())
        if structure.group("end"):
            self._take(structure.end() - structure.start())
            self._state = _State.AFTER
            return True
        return self._invoke(final)

    def _wait_for_structure(self, final: bool) -> bool:
        if self._invoked:
            self._take(len(self._buffer) - (0 if final else _tail(self._buffer)))
            return False
        settled = self._buffer[: len(self._buffer) - _tail(self._buffer)]
        if final or len(settled.strip()) > FALSE_START_LIMIT:
            return self._false_start()
        return False

    def _false_start(self) -> bool:
        """The block's opening was just text: give it back and go on reading text."""
        self._emit_text(self._opened)
        self._state = _State.CONTENT
        return True

    def _invoke(self, final: bool) -> bool:
        """Read one invoke; the buffer starts with its opening tag."""
        end = _STRUCTURE_INSIDE.search(self._buffer, max(len(NAMESPACE), self._searched))
        if end is None:
            self._invoked = True
            self._searched = len(self._buffer) - _tail(self._buffer[self._searched :])
            if final:
                self.faults.append("the answer ended inside a tool call, which was not executed")
                self._take(len(self._buffer))
            return False
        self._invoked, self._searched = True, 0
        text = self._take(end.start())
        if not end.group("close"):
            self.faults.append("a tool call has no </invoke>, so it was not executed")
            return True
        self._take(end.end() - end.start())
        header = _HEADER.match(text)
        name = (header.group(1) or header.group(2) or header.group(3) or "").strip() if header else ""
        if header is None or not name:
            self.faults.append("a tool call names no tool, so it was not executed")
            return True
        try:
            self._emit_call(name, parse_arguments(text[header.end() :], self._schemas.get(name, {})))
        except MalformedCall as fault:
            self.faults.append(f"a call of {name!r} was not executed: {fault}")
        return True

    def _json_object(self, final: bool) -> bool:
        """Read the JSON object at the buffer's start; it is a call if it names a tool and its arguments."""
        end = self._json.end(self._buffer)
        if end is None and not final:
            return False
        call = _json_call(self._buffer[:end]) if end is not None else None
        if call is None or end is None or (not self._opened and call[0] not in self._schemas):
            if self._opened:
                self.faults.append("a <tool_call> holds no JSON object with a name and arguments")
            self._emit_text(self._opened + self._take(1))
            self._state = _State.CONTENT
            return True
        name, arguments = call
        self._take(end)
        self._emit_call(name, coerce(arguments, self._schemas.get(name, {})))
        self._state = _State.AFTER
        return True

    def _take(self, length: int) -> str:
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken

    def _emit_text(self, text: str) -> None:
        self._marks.advance(text)
        if text:
            self._text.append(text)

    def _end_text(self) -> None:
        if self._text:
            self._events.append(TextChunk("".join(self._text)))
            self._text.clear()

    def _emit_thinking(self, text: str) -> None:
        if text:
            self._end_text()
            self._events.append(ThinkingChunk(text))

    def _emit_call(self, name: str, arguments: dict[str, Any]) -> None:
        self._end_text()
        self._events.append(CallChunk(ToolCall(f"{self._id_prefix}-{self._calls}", name, arguments)))
        self._calls += 1


class _JsonScan:
    """Finds the end of the JSON object a growing text starts with, looking at each character once."""

    def __init__(self) -> None:
        self._position = self._depth = 0
        self._in_string = self._escaped = False

    def end(self, text: str) -> int | None:
        """The index behind the object's last brace, or None if that is not there yet."""
        for index in range(self._position, len(text)):
            character = text[index]
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self._position = index
                    return index + 1
        self._position = len(text)
        return None


def _json_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """The name and arguments of a call written as JSON; arguments may be JSON inside a string."""
    try:
        call = json.loads(text)
        arguments = call.get("arguments", {})
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    name = call.get("name")
    return (name, arguments) if isinstance(name, str) and name and isinstance(arguments, dict) else None


def _starts_with(text: str, *words: str) -> int | None:
    """The length of the words at text's start, blanks allowed between them, up to where the last one begins.

    0: the text starts differently. None: it ends before that is certain.
    """
    position = 0
    for n, word in enumerate(words):
        if n and word and words[n - 1]:
            position += len(text[position:]) - len(text[position:].lstrip())
        if not text.startswith(word, position):
            return None if word.startswith(text[position:]) else 0
        if n < len(words) - 1:
            position += len(word)
    return position


def _bare_call_possible(text: str) -> bool:
    """Whether text could grow into `{"name":`, blanks allowed between the parts."""
    return re.fullmatch(r'\{\s*(?:"(?:n(?:a(?:m(?:e(?:"\s*)?)?)?)?)?)?', text) is not None


def _overlap(text: str, marker: str) -> int:
    """The length of the longest end of text that could be the beginning of marker."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


def _tail(text: str) -> int:
    """The length of the end of text that could be the beginning of a structural tag: marker, blanks, tag."""
    marker = text.rfind(NAMESPACE)
    if marker >= 0:
        begun = text[marker + len(NAMESPACE) :].lstrip()
        if any(tag.startswith(begun) for tag in ("<invoke", "</invoke>", "</tool_call>")):
            return len(text) - marker
    return _overlap(text, NAMESPACE)
