"""A conversation as token ids, through the checkpoint's own chat template.

Two things here are more than rendering:

- No text of a user, tool, file, screen or earlier answer can become a marker. Each such string is replaced by
  an unguessable stand-in before the template runs and put back afterwards, as ordinary text. Only what the
  template itself wrote can be a marker.
- Rendering is append-only: a conversation plus one more turn starts with the ids of the conversation, and on
  that a prefix cache lives. (The tool results after one answer are one turn: M3 puts them in one block.)
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import jinja2
import jinja2.ext
import jinja2.sandbox

from pilotfish.model.protocol import Clip, Image, Message, ModelError, ToolSpec
from pilotfish.model.tokenizer import (
    IMAGE,
    IMAGE_END,
    IMAGE_START,
    THINK_END,
    THINK_START,
    TURN_END,
    TURN_START,
    VIDEO,
    Tokenizer,
)

Thinking = Literal["enabled", "disabled", "adaptive"]
Media = Clip | Image
Grid = tuple[int, int, int]
GridOf = Callable[[Media], Sequence[Grid]]
"""The (t, h, w) grids of one picture or clip in patches; every temporal patch takes h*w/4 placeholders."""

MERGED = 4
"""Patches behind one placeholder (2x2)."""
FRAMES_PER_TEMPORAL_PATCH = 2

# Words of JSON schemas. They are ours, not a tool author's, so a template may look at them.
_SCHEMA_WORDS = (
    "type properties required description items enum const anyOf oneOf allOf not additionalProperties "
    "default title format minimum maximum minItems maxItems minLength maxLength pattern $ref $defs "
    "definitions string integer number boolean array object null"
)
SCHEMA_WORDS = frozenset(_SCHEMA_WORDS.split())


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation: token ids with the placeholders of its media, and the media in order."""

    ids: list[int]
    media: list[Media]


@dataclass(frozen=True)
class TrainingText:
    """A rendered conversation; `is_target[i]` says whether the model itself has to emit `ids[i]`."""

    ids: list[int]
    is_target: list[bool]
    media: list[Media]


class ChatFormat:
    """Renders conversations with one checkpoint's tokenizer and template."""

    def __init__(self, tokenizer: Tokenizer, template_text: str, grid_of: GridOf) -> None:
        """`grid_of` counts the patches of a picture or clip; raises `ModelError` for a broken template."""
        self.tokenizer = tokenizer
        self.template = compile_template(template_text)
        self._grid_of = grid_of

    @classmethod
    def from_folder(cls, folder: str | Path, tokenizer: Tokenizer, grid_of: GridOf) -> Self:
        """Take the template of a checkpoint's folder: `chat_template.jinja` or `tokenizer_config.json`."""
        return cls(tokenizer, read_template(folder), grid_of)

    def render(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        thinking: Thinking = "disabled",
        add_generation_prompt: bool = True,
        look: Callable[[], object] = lambda: None,
    ) -> Prompt:
        """The ids of a conversation, ending where the model's next words belong.

        look: called now and then while that takes long; what it raises ends the work. Raises `ModelError`
        when the template refuses the conversation or silently drops a part of it.
        """
        pieces = list(self._pieces(conversation, tools, thinking, add_generation_prompt))
        texts = (piece for piece in pieces if isinstance(piece, str))
        encoded = self.tokenizer.encode_each(texts, look)
        ids: list[int] = []
        for piece in pieces:
            ids += [piece] if isinstance(piece, int) else next(encoded)
        return Prompt(ids, _media_of(conversation))

    def render_training(
        self, conversation: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> TrainingText:
        """The ids of a conversation and which of them are the model's own to emit.

        Of an assistant turn these are everything after `]~b]ai\\n` and the first think marker (the generation
        prompt holds both) through `[e~[`.
        """
        turn_start, turn_end = self.tokenizer.id(TURN_START), self.tokenizer.id(TURN_END)
        think_ids = {self.tokenizer.id(THINK_START), self.tokenizer.id(THINK_END)}
        ids: list[int] = []
        is_target: list[bool] = []
        pieces = list(self._pieces(conversation, tools, "disabled", False))
        emitting = False
        for n, piece in enumerate(pieces):
            piece_ids = self._ids_of(piece)
            ids += piece_ids
            is_target += [emitting] * len(piece_ids)
            if piece == turn_end:
                emitting = False
            elif piece in think_ids and pieces[n - 2 : n] == [turn_start, "ai\n"]:
                emitting = True
        return TrainingText(ids, is_target, _media_of(conversation))

    def _ids_of(self, piece: int | str) -> list[int]:
        return [piece] if isinstance(piece, int) else self.tokenizer.encode(piece)

    def _pieces(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        thinking: Thinking,
        add_generation_prompt: bool,
    ) -> Iterator[int | str]:
        """The rendering as marker ids and the ordinary text between them, neighbouring text joined."""
        if thinking not in get_args(Thinking):
            raise ModelError(f"thinking is {thinking!r}; choose one of {', '.join(get_args(Thinking))}")
        veil = Veil()
        rendered = render_template(
            self.template, conversation, tools, thinking, add_generation_prompt, veil.hide, veil.tojson
        )
        texts: list[str] = []
        for piece in self._expanded(veil.reveal(rendered), _media_of(conversation)):
            if isinstance(piece, str):
                texts.append(piece)
                continue
            if text := "".join(texts):
                yield text
            texts.clear()
            yield piece
        if text := "".join(texts):
            yield text

    def _expanded(self, revealed: Iterable[tuple[str, bool]], media: Sequence[Media]) -> Iterator[int | str]:
        """Cut trusted text at its markers and expand each picture's and clip's marker to its placeholders."""
        image_id, video_id = self.tokenizer.markers.get(IMAGE), self.tokenizer.markers.get(VIDEO)
        waiting = iter(media)
        for text, trusted in revealed:
            if not trusted:
                yield text
                continue
            for piece in self.tokenizer.split_markers(text):
                if isinstance(piece, str) or piece not in (image_id, video_id):
                    yield piece
                    continue
                item = next(waiting, None)
                if not isinstance(item, Clip if piece == video_id else Image):
                    raise ModelError(
                        "the chat template shows pictures or clips that the conversation does not hold"
                    )
                yield from self._placeholders(item)
        if next(waiting, None) is not None:
            raise ModelError("the chat template leaves out a picture or clip; use a checkpoint with vision")

    def _placeholders(self, item: Media) -> Iterator[int | str]:
        """Per temporal patch: its time (clips only), then its placeholders between the image markers."""
        start, end = self.tokenizer.id(IMAGE_START), self.tokenizer.id(IMAGE_END)
        sizes = [height * width // MERGED for t, height, width in self._grid_of(item) for _ in range(t)]
        for n, size in enumerate(sizes):
            if isinstance(item, Clip):
                yield f"]<]{item.times_s[FRAMES_PER_TEMPORAL_PATCH * n]:.1f} seconds[>["
            yield start
            yield from [self.tokenizer.video_id if isinstance(item, Clip) else self.tokenizer.image_id] * size
            yield end


class Veil:
    """Stand-ins for untrusted strings while a template runs.

    White space at the ends of a string stays visible, so that a template that strips it still can.
    """

    def __init__(self) -> None:
        self._key = secrets.token_hex(16)
        self._hidden: list[str] = []
        self._pattern = re.compile(rf"q{self._key}n(\d+)([rj])z")

    def hide(self, text: str) -> str:
        """A stand-in for `text` that no one can guess."""
        core = text.strip()
        if not core:
            return text
        lead = text[: len(text) - len(text.lstrip())]
        trail = text[len(text.rstrip()) :]
        self._hidden.append(core)
        return f"{lead}q{self._key}n{len(self._hidden) - 1}rz{trail}"

    def tojson(self, value: Any, **options: Any) -> str:
        """JSON whose stand-ins remember that they are inside a JSON string."""
        return self._pattern.sub(rf"q{self._key}n\1jz", plain_tojson(value, **options))

    def reveal(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """The rendering in order, as (text, whether the template wrote it).

        Raises `ModelError` when the template left a string out, for the model would then miss it unnoticed.
        """
        pieces = self._pattern.split(rendered)
        dropped = set(range(len(self._hidden))) - {int(n) for n in pieces[1::3]}
        if dropped:
            text = self._hidden[min(dropped)]
            raise ModelError(
                f"the chat template leaves out {text[:60]!r}; it takes at most one root message, then one"
                " developer message, at the start"
            )
        yield pieces[0], True
        for number, kind, following in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            text = self._hidden[int(number)]
            yield (json.dumps(text, ensure_ascii=False)[1:-1] if kind == "j" else text), False
            yield following, True


def read_template(folder: str | Path) -> str:
    """The chat template of a checkpoint's folder; raises `ModelError` when there is none."""
    file = Path(folder) / "chat_template.jinja"
    config = Path(folder) / "tokenizer_config.json"
    try:
        if file.exists():
            return file.read_text(encoding="utf-8")
        template = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise ModelError(
            f"cannot read a chat template from {folder} ({error}); fetch the checkpoint again"
        ) from error
    if not isinstance(template, str):
        raise ModelError(f"{folder} has no chat_template.jinja; fetch the checkpoint again")
    return template


def compile_template(text: str) -> jinja2.Template:
    """A chat template in the environment it is written for: sandboxed, blocks trimmed, loop controls."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = raise_exception
    # Whoever renders says what `tojson` does: the environment's filter calls the renderer's own.
    environment.filters["tojson"] = _context_tojson
    try:
        return environment.from_string(text)
    except jinja2.TemplateError as error:
        raise ModelError(f"the chat template is broken ({error}); fetch the checkpoint again") from error


@jinja2.pass_context
def _context_tojson(context: jinja2.runtime.Context, value: Any, *arguments: Any, **options: Any) -> str:
    names = ("ensure_ascii", "indent", "separators", "sort_keys")
    rendered: str = context["_tojson"](value, **dict(zip(names, arguments, strict=False)), **options)
    return rendered


def plain_tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` of chat templates: unlike Jinja's own it neither escapes HTML nor sorts keys."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def render_template(
    template: jinja2.Template,
    conversation: Sequence[Message],
    tools: Sequence[ToolSpec] = (),
    thinking: Thinking = "disabled",
    add_generation_prompt: bool = False,
    hide: Callable[[str], str] = str,
    tojson: Callable[..., str] = plain_tojson,
) -> str:
    """The text of a conversation, every string that is not ours passed through `hide` first."""
    try:
        return template.render(
            messages=[_message_dict(message, hide) for message in conversation],
            tools=[_tool_dict(tool, hide) for tool in tools] or None,
            thinking_mode=thinking,
            add_generation_prompt=add_generation_prompt,
            _tojson=tojson,
        )
    except Exception as error:  # a template is a program of the checkpoint's makers and may fail in any way
        raise ModelError(f"the chat template refuses this conversation: {error}") from error


def _message_dict(message: Message, hide: Callable[[str], str]) -> dict[str, Any]:
    """A message in the shape chat templates read."""
    parts: list[dict[str, str]] = []
    for part in message.parts:
        if isinstance(part, str):
            parts.append({"type": "text", "text": hide(part)})
        else:
            parts.append({"type": "video" if isinstance(part, Clip) else "image"})
    only_text = all(part["type"] == "text" for part in parts)
    shown: dict[str, Any] = {
        "role": message.role,
        "content": "".join(part["text"] for part in parts) if only_text else parts,
    }
    if message.reasoning is not None:
        shown["reasoning_content"] = hide(message.reasoning)
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "type": "function",
                "function": {"name": hide(call.name), "arguments": _hide_all(_given(call.arguments), hide)},
            }
            for call in message.tool_calls
        ]
    return shown


def _tool_dict(tool: ToolSpec, hide: Callable[[str], str]) -> dict[str, Any]:
    """A tool in the shape chat templates read."""
    return {
        "type": "function",
        "function": {
            "name": hide(tool.name),
            "description": hide(tool.description),
            "parameters": _hide_all(tool.parameters, hide, SCHEMA_WORDS),
        },
    }


def _hide_all(value: Any, hide: Callable[[str], str], known: frozenset[str] = frozenset()) -> Any:
    """Every string in a JSON value hidden, keys included, except the known words."""
    if isinstance(value, str):
        return value if value in known else hide(value)
    if isinstance(value, dict):
        return {_hide_all(str(key), hide, known): _hide_all(item, hide, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hide_all(item, hide, known) for item in value]
    return value


def _given(value: Any) -> Any:
    """Arguments without those that are None: M3 writes no tag for them."""
    if isinstance(value, dict):
        return {key: _given(item) for key, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list | tuple) else value


def _media_of(conversation: Sequence[Message]) -> list[Media]:
    return [part for message in conversation for part in message.parts if not isinstance(part, str)]
