"""The arguments of the `browser` tool."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from pilotfish.tools.base import ToolArgs
from pilotfish.tools.words import seconds, short

BrowserAction = Literal[
    "navigate",
    "back",
    "forward",
    "reload",
    "read",
    "click",
    "fill",
    "select",
    "upload",
    "wait",
    "tabs",
    "open_tab",
    "switch_tab",
    "close_tab",
    "downloads",
    "accept_dialog",
    "dismiss_dialog",
]

WAIT_S, MAX_WAIT_S = 10.0, 60.0
"""How long `wait` and `downloads` may take when they do not say, and at most, in seconds."""
_NEEDS = {
    "navigate": ("url", "'http://localhost:8000/'"),
    "click": ("ref", "'e3', as `read` names them"),
    "fill": ("ref", "'e3', as `read` names them"),
    "select": ("ref", "'e3', as `read` names them"),
    "upload": ("ref", "'e3', as `read` names them"),
    "switch_tab": ("tab", "2, as `tabs` numbers them"),
}
_NEEDS_TOO = {
    "fill": ("text", "what is to stand there"),
    "select": ("text", "the option's words"),
    "upload": ("files", "['report.pdf'], paths in the workspace"),
}
_SCHEMES = ("http", "https", "file", "about", "data", "blob", "chrome", "view-source")
_HOST = re.compile(r"(localhost|\[[0-9a-fA-F:]+\]|[\w-]+(\.[\w-]+)+)(:\d+)?([/?#].*)?", re.ASCII)


def _address(value: object) -> str:
    """A URL from what a person may type: `localhost:8000`, `example.com/a`, `/workspace/page.html`."""
    text = value.strip() if isinstance(value, str) else ""
    scheme, colon, _ = text.partition(":")
    if colon and scheme.lower() in _SCHEMES and re.search(r"[\x00-\x1f]", text) is None:
        return text
    if text.startswith("/") and "\0" not in text:
        return "file://" + quote(text)
    if _HOST.fullmatch(text):
        return "http://" + text
    raise ValueError(
        f"is {short(value)}, but must be an address such as http://localhost:8000/ or "
        "file:///workspace/page.html"
    )


def _ref(value: object) -> int:
    found = re.fullmatch(r"\[?e?(\d{1,9})\]?", str(value).strip())
    if isinstance(value, bool) or found is None:
        raise ValueError(f"is {short(value)}, but must be one of the page's references, such as e3")
    return int(found[1])


def _wait(value: object) -> float:
    number = seconds(value)
    if not 0 <= number <= MAX_WAIT_S:
        raise ValueError(f"is {short(value)}, but must be 0 to {MAX_WAIT_S:g} seconds")
    return number


class BrowserArgs(ToolArgs):
    """One action on the tab in front."""

    action: BrowserAction
    url: Annotated[str, BeforeValidator(_address), WithJsonSchema({"type": "string"})] | None = None
    ref: Annotated[int, BeforeValidator(_ref), WithJsonSchema({"type": "string"})] | None = Field(
        None, description="an element as read names it: e3"
    )
    text: str | None = Field(None, description="to fill in, to select, to wait for, or a prompt's answer")
    submit: bool = Field(False, description="press Enter after fill")
    files: list[str] | None = Field(None, description="to upload: paths in the workspace")
    tab: int | None = Field(None, description="number of a tab")
    offset: int = Field(0, ge=0, description="read: characters to pass over")
    timeout: Annotated[float, BeforeValidator(_wait), WithJsonSchema({"type": "number"})] | None = Field(
        None, description=f"of wait and downloads: seconds, at most {MAX_WAIT_S:g}"
    )

    @model_validator(mode="after")
    def _has_what_the_action_needs(self) -> BrowserArgs:
        for needs in (_NEEDS, _NEEDS_TOO):
            name, example = needs.get(self.action, ("action", ""))
            if getattr(self, name) is None:
                raise ValueError(f"`{self.action}` needs `{name}`: {example}")
        return self
