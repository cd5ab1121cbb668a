"""Data sets of records: JSON Lines, plain or compressed by gzip, or one JSON list."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pilotfish.tasks.explain import shown
from pilotfish.tasks.reader import TaskError

SUFFIXES = (".jsonl", ".jsonl.gz", ".json")
MAX_BYTES = 1 << 30
Record = dict[str, Any]


def is_records(path: Path) -> bool:
    """Whether a path is named as a data set is, and is a file."""
    return path.name.endswith(SUFFIXES) and path.is_file()


def read_records(path: Path) -> Iterator[tuple[str, Record]]:
    """The records of a data set, each with the words that say where it stands.

    Raises `TaskError` for what cannot be read, with the place.
    """
    text = _text(path)
    if path.suffix == ".json":
        data = _json(path, text, "the file")
        if not isinstance(data, list):
            raise TaskError(f"{path}: a data set is a list of records, not {shown(data)}.")
        places = ((f"{path}, record {number}", record) for number, record in enumerate(data, start=1))
    else:
        lines = ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
        places = ((f"{path}, line {number}", _json(path, line, f"line {number}")) for number, line in lines)
    empty = True
    for place, record in places:
        if not isinstance(record, dict):
            raise TaskError(f"{place}: a record is a map of fields, not {shown(record)}.")
        empty = False
        yield place, record
    if empty:
        raise TaskError(f"{path}: the data set has no record.")


def text_of(
    record: Record,
    place: str,
    *names: str,
    default: str | None = None,
    like: tuple[str, str] = (r"(?s:.*)", "text"),
) -> str:
    """The text in the first of these fields that a record has.

    like: the expression that all of it matches, and what a person calls such a text.
    """
    name, value = _field(record, place, names, default)
    if not isinstance(value, str):
        raise TaskError(f"{place}: '{name}' is {shown(value)}; it must be text.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TaskError(f"{place}: '{name}' holds half a character; write whole characters.") from None
    if "\0" in value:
        raise TaskError(f"{place}: '{name}' holds a null character; remove it.")
    if not re.fullmatch(like[0], value, re.ASCII):
        raise TaskError(f"{place}: '{name}' is {shown(value)}; it must be {like[1]}.")
    return value


def texts_of(
    record: Record, place: str, *names: str, default: str | None = None, some: bool = False
) -> list[str]:
    """The list of texts in a field, which may be spelt as JSON inside a text; `some`: not an empty one."""
    name, value = _field(record, place, names, default)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise TaskError(f"{place}: '{name}' is {shown(value)}; it must be a list of names.") from None
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise TaskError(f"{place}: '{name}' is {shown(value)}; it must be a list of names.")
    if some and not value:
        raise TaskError(f"{place}: '{name}' is empty; name at least one test.")
    return value


def _field(record: Record, place: str, names: tuple[str, ...], default: str | None) -> tuple[str, Any]:
    for name in names:
        if record.get(name) is not None:
            return name, record[name]
    if default is None:
        raise TaskError(f"{place}: '{names[0]}' is missing; add it.")
    return names[0], default


def _text(path: Path) -> str:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise TaskError(f"{path}: the data set is larger than {MAX_BYTES} bytes; split it.")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TaskError(f"{path}: the compressed data is damaged ({error}); fetch it again.") from None
    except OSError as error:
        raise TaskError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions."
        ) from None


def _json(path: Path, text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}: {where} is not JSON ({error.msg}); the file may be cut off.") from None
    except RecursionError:
        raise TaskError(f"{path}: {where} is nested too deeply; flatten it.") from None
    except ValueError as error:
        raise TaskError(f"{path}: {where} is not JSON ({error}).") from None
