"""Adds a rule to the user's own configuration file; all else in it stays as it is, byte for byte."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pilotfish.agent.policy import Rule
from pilotfish.agent.spelling import wrong_value
from pilotfish.agent.whole_file import write_whole

_MARK = "\ufeff"


class RuleFileError(Exception):
    """The rule is not saved and the file as it was; the message is one sentence with the mend."""


def what_is_wrong(error: ValidationError | TypeError) -> str:
    """The end of a sentence about fields that make no rule."""
    if isinstance(error, TypeError):
        return "its fields must be named"
    first = error.errors(include_url=False)[0]
    name, fields = ".".join(map(str, first["loc"])), ", ".join(Rule.model_fields)
    if first["type"] == "extra_forbidden":
        return f"there is no field {name}; choose from {fields}"
    return wrong_value(name or "a rule", first).rstrip(".")


def saved_rules(path: Path | None = None) -> list[Rule]:
    """The rules of a TOML file, by default the user's own; none where there is no file. Raises
    `RuleFileError`.
    """
    from pilotfish.agent.settings import FILES

    path = (path or FILES[0]).expanduser()
    try:
        rules = tomllib.loads(path.read_text(encoding="utf-8-sig")).get("rules", [])
        if not isinstance(rules, list):
            raise TypeError("they are no list")
        return [Rule.model_validate(fields) for fields in rules]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        what = what_is_wrong(error) if isinstance(error, ValidationError) else error
        raise RuleFileError(f"The rules in {path} cannot be read ({what}); mend the file.") from None


def save_rule(rule: Rule, path: Path | None = None) -> str:
    """Add a rule to the list `rules` of a TOML file; returns the file, and what else is to be said of it.

    path: None is the user's own file, `settings.FILES[0]`. Raises `RuleFileError`.
    """
    return _save(path, lambda file: _rewrite(file, rule))


def save_rules(rules: Sequence[Rule], path: Path | None = None) -> str:
    """Put these in the place of all rules of a TOML file; comments among the old ones are lost. Otherwise
    like `save_rule`.
    """
    return _save(path, lambda file: _rewrite_all(file, rules))


def _save(path: Path | None, rewrite: Callable[[Path], None]) -> str:
    from pilotfish.agent.settings import FILES  # which know of rules

    path = (path or FILES[0]).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path = path.resolve()  # a link stays one
        if path.exists() and not path.is_file():  # a pipe would be waited for, a device be replaced
            raise OSError("it is not a file")
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # one at a time
            rewrite(path)
        finally:
            os.close(folder)
    except (OSError, UnicodeDecodeError, RuntimeError) as error:  # the last is a link to itself
        raise RuleFileError(f"The rules cannot be saved in {path} ({error}); mend that.") from error
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
                return write_whole(path, candidate.encode())
        except tomllib.TOMLDecodeError:
            continue
    raise no_more


def _rewrite_all(path: Path, rules: Sequence[Rule]) -> None:
    text = path.read_bytes().decode() if path.exists() else ""
    try:
        before = tomllib.loads(text.removeprefix(_MARK))
    except tomllib.TOMLDecodeError as error:
        raise RuleFileError(f"{path} cannot be read ({error}), so nothing is saved; mend it.") from None
    wanted = {name: value for name, value in before.items() if name != "rules"}
    if rules:
        wanted["rules"] = [rule.model_dump(exclude_defaults=True) for rule in rules]
    for bare in _without_rules(text):
        made = bare
        for rule in rules:
            made = next(_candidates(made, rule.model_dump(exclude_defaults=True)))
        with contextlib.suppress(tomllib.TOMLDecodeError):
            if tomllib.loads(made.removeprefix(_MARK)) == wanted:
                return write_whole(path, made.encode())
    raise RuleFileError(
        f"The `rules` in {path} have a form that cannot be changed here; change them by hand."
    )


def _without_rules(text: str) -> Iterator[str]:
    """The file without its rules, in every way that could be right."""
    yield text
    tables = re.sub(r"(?ms)^[ \t]*\[\[[ \t]*rules[ \t]*\]\].*?(?=^[ \t]*\[|\Z)", "", text)
    yield tables
    found = re.search(r"(?m)^[ \t]*rules[ \t]*=[ \t]*\[", text)
    for close in re.finditer(r"\][^\n]*(\n|\Z)", text[found.end() :]) if found else ():
        assert found is not None
        yield text[: found.start()] + text[found.end() + close.end() :]


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


def _has_rules(path: Path) -> bool:
    try:
        return "rules" in tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False
