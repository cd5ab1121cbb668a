"""Turn what pydantic says about a task file into half a sentence with the field, its value and the mend."""

from __future__ import annotations

import difflib
import types
from collections.abc import Collection
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pilotfish.tasks.format import Task

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
    "string_too_short": "text that is not empty",
}


def explain(error: ValidationError) -> str:
    """The most telling error, without its full stop; a misspelt key comes before what it left missing."""
    errors = error.errors(include_url=False)
    first = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
    return _sentence(first)


def nearest(word: str, names: Collection[str]) -> str:
    """The end of a sentence that names the nearest valid words, or all of them where none is near."""
    likeness = {name: difflib.SequenceMatcher(None, word, name).ratio() for name in names}
    best = max(likeness.values(), default=0)
    near = [name for name in names if likeness[name] >= max(best - 0.05, 0.6)]
    if near:
        return f"; the nearest is '{near[0]}'" if len(near) == 1 else f"; the nearest are {', '.join(near)}"
    return f"; use one of {', '.join(names)}" if names else ""


def shown(value: object) -> str:
    """A value as a reader of the file would recognise it, short."""
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    return "'" + "".join(char if char.isprintable() else repr(char)[1:-1] for char in value[:60]) + "'"


def _sentence(error: ErrorDetails) -> str:
    place, owner, annotation = _walk(error["loc"])
    value, context = shown(error["input"]), error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            keys = owner.model_fields if owner else ()
            return f"'{place}' is not a known key{nearest(place.rpartition('.')[2], keys)}"
        case "missing":
            return f"'{place}' is missing; add it"
        case "union_tag_not_found":
            if not isinstance(error["input"], dict):
                return f"'{place}' is {value}; it must be a map with a kind"
            return f"'{place}.kind' is missing{nearest('', _tags(annotation))}"
        case "union_tag_invalid":
            return f"'{place}.kind' is '{context['tag']}'{nearest(str(context['tag']), _tags(annotation))}"
        case "literal_error":
            names = [name.strip("'") for name in context["expected"].replace(" or ", ", ").split(", ")]
            return f"'{place}' is {value}{nearest(str(error['input']), names)}"
        case "string_pattern_mismatch":
            return f"'{place}' is {value}; use at most 80 letters, digits, '.', '_' and '-'"
        case "value_error":
            return f"'{place}': {context['error']}" if place else str(context["error"])
        case kind if kind in _EXPECTED:
            return f"'{place}' is {value}; it must be {_EXPECTED[kind]}"
        case _:
            bound = error["msg"].partition(" should ")[2] or error["msg"]
            return f"'{place}' is {value}; it must {bound}"


def _walk(location: tuple[int | str, ...]) -> tuple[str, type[BaseModel] | None, Any]:
    """The field's path as a person writes it, the model that owns the field, and the field's annotation.

    pydantic's location also names the member of a union that was tried, which is not in the file.
    """
    if location and location[-1] == "[key]":
        location = location[:-2]
    place, owner = "", None
    current: Any = Task
    for step in location:
        models = _models(current)
        if isinstance(step, int):
            place += f"[{step}]"
            current = _element(current)
        elif len(models) > 1:
            current = next((model for model in models if step in (_tag(model), model.__name__)), str)
        else:
            owner = models[0] if models else None
            place += f".{step}" if place else step
            field = owner.model_fields.get(step) if owner else None
            current = field.annotation if field else _element(current)
    return place, owner, current


def _unwrap(annotation: Any) -> Any:
    return _unwrap(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation


def _models(annotation: Any) -> list[type[BaseModel]]:
    annotation = _unwrap(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType):
        return [model for part in get_args(annotation) for model in _models(part)]
    return []


def _tag(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("kind")
    return str(get_args(field.annotation)[0]) if field else None


def _tags(annotation: Any) -> list[str]:
    return [tag for model in _models(annotation) if (tag := _tag(model))]


def _element(annotation: Any) -> Any:
    annotation = _unwrap(annotation)
    return get_args(annotation)[-1] if get_origin(annotation) in (list, dict) else None
