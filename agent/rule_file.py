"""Adds a rule to the user's own configuration file; all else in it stays as it is, byte for byte."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pilotfish.agent.policy import Rule

_MARK = "\ufeff"


class RuleFileError(Exception):
    """The rule is not saved and the file as it was; the message is one sentence with the mend."""


def what_is_wrong(error: ValidationError | TypeError) -> str:
    """The end of a sentence about fields that make no rule."""
    if isinstance(error, TypeError):
        return "its fields must be named"
    first = error.errors(include_url=False, include_input=False)[0]
    fields = ", ".join(Rule.model_fields)
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']} (its fields are {fields})"


def save_rule(rule: Rule, path: Path | None = None) -> str:
    """Add a rule to the list `rules` of a TOML file; returns the file, and what else is to be said of it.

    path: None is the user's own file, `settings.FILES[0]`. Raises `RuleFileError`.
    """
    from pilotfish.agent.settings import FILES  # which know of rules

    path = (path or FILES[0]).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path = path.resolve()  # a link stays one
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # one at a time
            _rewrite(path, rule)
        finally:
            os.close(folder)
    except (OSError, UnicodeDecodeError) as error:
        raise RuleFileError(f"The rule cannot be saved in {path} ({error}); mend that.") from error
    hidden = FILES[1] if _has_rules(FILES[1]) else None
    return f"{path}{f' (but {hidden} has rules of its own, which count instead here)' if hidden else ''}"


def _rewrite(path: Path, rule: Rule) -> None:
    text = path.read_bytes().decode() if path.exists() else ""
    try:
        before = tomllib.loads(text.removeprefix(_MARK))
    except tomllib.TOMLDecodeError as error:
        raise RuleFileError(f"{path} cannot be read ({error}), so the rule is not saved; mend it.") from None
    no_more = RuleFileError(
        f"The `rules` in {path} have a form that takes no more; add the rule there by hand."
    )
    rules = before.get("rules", [])
    if not isinstance(rules, list):
        raise no_more
    fields = rule.model_dump(exclude_defaults=True)
    if fields in rules:
        return None
    wanted = before | {"rules": [*rules, fields]}
    for candidate in _candidates(text, fields):
        try:
            if tomllib.loads(candidate.removeprefix(_MARK)) == wanted:
                return _replace(path, candidate.encode())
        except tomllib.TOMLDecodeError:
            continue
    raise no_more


def _candidates(text: str, fields: dict[str, Any]) -> Iterator[str]:
    """The file with the rule in it, in every way that could be right: as a table of its own at the end, or
    within a list in brackets.
    """
    end = "\r\n" if "\r\n" in text else "\n"
    lines = [f"{name} = {_string(value)}" for name, value in fields.items()]
    gap = end if text.removeprefix(_MARK).strip() else ""
    yield text + ("" if not text or text.endswith("\n") else end) + gap + end.join(["[[rules]]", *lines, ""])
    item = "{" + ", ".join(lines) + "}"
    for match in re.finditer(r"\]", text):
        for comma in ("", ", "):
            yield f"{text[: match.start()]}{comma}{item}{text[match.start() :]}"


def _string(value: str) -> str:
    """A basic string of TOML, whose escapes are those of JSON, except that it knows no surrogates."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f]", lambda found: f"\\u{ord(found.group()):04x}", text)


def _replace(path: Path, data: bytes) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _has_rules(path: Path) -> bool:
    try:
        return "rules" in tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False
