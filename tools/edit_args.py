"""The arguments of the `edit` tool."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from pilotfish.tools.base import ToolArgs
from pilotfish.tools.words import short


def _range(value: object) -> tuple[int, int]:
    wrong = ValueError(
        f"is {short(value)}, but must be [first, last] line numbers, from 1 on; last -1 is the end"
    )
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise wrong
    try:
        first, last = (int(part) for part in value)
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if any(isinstance(part, bool) for part in value) or first < 1 or (last != -1 and last < first):
        raise wrong
    return first, last


Lines = Annotated[
    tuple[int, int],
    BeforeValidator(_range),
    WithJsonSchema({"type": "array", "items": {"type": "integer"}}),
]


def _refuse_nothing(old: str, new: str) -> None:
    """Raise ValueError for a replacement that asks for nothing."""
    if old == "":
        raise ValueError("`old_text` is empty; give the text to replace, or use `insert` with a line")
    if old == new:
        raise ValueError(
            "`old_text` and `new_text` are the same, so nothing would change; give another new text"
        )


class Replacement(ToolArgs):
    """One of several replacements."""

    old_text: str
    new_text: str
    replace_all: bool = False

    @model_validator(mode="after")
    def _require_a_change(self) -> Replacement:
        _refuse_nothing(self.old_text, self.new_text)
        return self


class EditArgs(ToolArgs):
    """One look at a file, or one change. Line numbers start at 1."""

    command: Literal["view", "create", "replace", "insert", "patch", "move", "delete", "undo"]
    path: str = Field(description="file in the workspace")
    old_text: str | None = Field(None, description="replace: the exact text")
    new_text: str | None = Field(None, description="replace, insert, create: the new text")
    replace_all: bool = Field(False, description="replace: every match")
    whole_word: bool = Field(False, description="whole words")
    edits: list[Replacement] | None = Field(None, min_length=1, description="replace: several, all or none")
    patch: str | None = Field(None, description="patch: a unified diff of the file")
    to: str | None = Field(None, description="move: the new path")
    line: int | None = Field(None, ge=0, description="insert: after it, 0 for the top; replace: on it")
    lines: Lines | None = Field(None, description="view: [first,last]")
    overwrite: bool = Field(False, description="create: replace a file that exists")
    encoding: str | None = Field(None, description="if not Unicode nor declared: gbk, ...")

    @model_validator(mode="after")
    def _require_what_the_command_needs(self) -> EditArgs:
        needs = {"replace": ("old_text", "new_text"), "insert": ("line", "new_text"), "create": ("new_text",)}
        needs |= {"patch": ("patch",), "move": ("to",)}
        if self.edits is not None:
            if self.command != "replace" or self.old_text is not None or self.new_text is not None:
                raise ValueError("`edits` goes with `replace` alone, without `old_text` and `new_text`")
            if self.line is not None or self.whole_word:
                raise ValueError(
                    "`line` and `whole_word` go with one `old_text`, not with `edits`; leave them out"
                )
            return self
        for need in needs.get(self.command, ()):
            if getattr(self, need) is None:
                raise ValueError(f"`{self.command}` needs `{need}`")
        if self.command == "replace":
            _refuse_nothing(self.old_text or "", self.new_text or "")
            if self.line == 0:
                raise ValueError("`line` is 0, but the first line is 1")
        return self

    @property
    def replacements(self) -> list[Replacement]:
        """What `replace` is to do."""
        if self.edits is not None:
            return self.edits
        assert self.old_text is not None
        assert self.new_text is not None
        return [Replacement(old_text=self.old_text, new_text=self.new_text, replace_all=self.replace_all)]
