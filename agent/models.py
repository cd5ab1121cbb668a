"""From the setting `model` to something that answers."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pilotfish.agent.settings import Settings
from pilotfish.model.protocol import Model, ModelError
from pilotfish.tasks.format import Task

if TYPE_CHECKING:
    from pilotfish.model.remote import RemoteModel

ModelFor = Callable[[Task | None], Model]
"""The model that plays a task; None is an instruction without a task file."""

SERVED = "openai:"
"""How the names of models begin that a server answers for."""
KEY_VARIABLE, URL_VARIABLE = "OPENAI_API_KEY", "OPENAI_BASE_URL"


def check_model(settings: Settings, task: Task | None) -> None:
    """Raise what `open_model` and its result would for this task, as far as that shows without loading."""
    if settings.model == "solution":
        _solution(task)
    elif settings.model.startswith(SERVED):
        served_model(settings)
    else:
        from pilotfish.model.folder import check_folder

        _check_spelling(settings)
        check_folder(settings.model)


def shortcoming(settings: Settings, task: Task | None, *, among_others: bool = False) -> str | None:
    """Why the model that ships is of little use here, as a sentence; None if it may do, or is not used.

    among_others: whether the task is one of many.
    """
    if settings.model != "nano" or (task is not None and "computer" in task.tools):
        return None
    what = f"tasks such as {task.name}" if task is not None and among_others else "this"
    return (
        f"The model nano knows only small pages like those of MiniWoB++ and will hardly do {what}; give "
        "--model the folder of a checkpoint that can."
    )


def open_model(settings: Settings) -> ModelFor:
    """Load what `settings.model` names. Raises `ModelError` with the mend when it is not there.

    The weights are loaded once; every task gets the same model, except that a solution belongs to its task.
    """
    if settings.model == "solution":
        return _solution
    if settings.model.startswith(SERVED):
        remote = served_model(settings)
        return lambda task: remote
    _check_spelling(settings)
    from pilotfish.model.engine import Engine

    engine = Engine(settings.model, attention=settings.attention)
    return lambda task: engine


def loading(settings: Settings) -> str:
    """What is waited for while `open_model` is at work, in words."""
    return f"the model {model_name(settings)} to be loaded"


def _check_spelling(settings: Settings) -> None:
    if settings.model == "nano" or Path(settings.model).exists():
        return
    near = difflib.get_close_matches(settings.model, ["nano", "solution"], n=1)
    mend = (
        f"the nearest is {near[0]!r}"
        if near
        else f"give nano, a checkpoint's folder, {SERVED}URL#NAME or solution"
    )
    raise ModelError(f"there is no model {settings.model!r}; {mend}.")


def _solution(task: Task | None) -> Model:
    from pilotfish.agent.solution import solution_model

    if task is None:
        raise ModelError("An instruction has no reference solution; choose another --model.")
    return solution_model(task)


def served_model(settings: Settings) -> RemoteModel:
    """The model of a server that `settings.model` names. Raises `ModelError` for a name, URL or key that
    cannot be used; the server itself is not asked.
    """
    from pilotfish.model.remote import RemoteModel
    from pilotfish.model.remote_http import Patience, check_url

    server = settings.server
    url, name = _address(settings.model)
    url = url or server.url or os.environ.get(URL_VARIABLE) or ""
    if not url:
        raise ModelError(
            f"The model {settings.model!r} has no server; write {SERVED}URL#NAME, or set server.url or the "
            f"variable {URL_VARIABLE}."
        )
    url = check_url(url)
    if not name:
        raise ModelError(
            f"The model {settings.model!r} has no name; write {SERVED}URL#NAME with one that the server has."
        )
    return RemoteModel(
        url,
        name,
        key=_key(settings, url),
        clips=server.clips,
        patience=Patience(server.connect_s, server.first_byte_s, server.piece_s, server.retries),
        extra=server.extra,
    )


async def reach(model: Model, settings: Settings) -> None:
    """Raise `ModelError` if the server of a model that a server answers for cannot be reached."""
    if settings.model.startswith(SERVED):
        from pilotfish.model.remote import RemoteModel

        if isinstance(model, RemoteModel):
            await model.server.reach()


def _address(model: str) -> tuple[str, str]:
    """The URL, which may be empty, and the name in `openai:NAME` or `openai:URL#NAME`."""
    address = model.removeprefix(SERVED)
    if "://" not in address.partition("#")[0]:
        return "", address
    url, _, name = address.partition("#")
    return url, name


def _key(settings: Settings, url: str) -> str | None:
    """The key for a server, if there is one. The common variable's key may be meant for someone else, so it
    does not leave this machine unencrypted.
    """
    variable = settings.server.key_variable
    if variable is not None:
        if variable and variable not in os.environ:
            raise ModelError(f"The variable {variable} that server.key_variable names is not set; set it.")
        return os.environ.get(variable)
    parts = urlsplit(url)
    here = parts.hostname in ("localhost", "127.0.0.1", "::1")
    return os.environ.get(KEY_VARIABLE) if here or parts.scheme == "https" else None


def attention_of(settings: Settings) -> str:
    """How the model attends to what it read; '' for one that does not run in this process."""
    return "" if settings.model == "solution" or settings.model.startswith(SERVED) else settings.attention


def model_name(settings: Settings) -> str:
    """What reports call the model: `nano`, `solution`, a server's name for it, or that of the checkpoint's
    folder.
    """
    if settings.model.startswith(SERVED):
        return _address(settings.model)[1]
    return settings.model if settings.model in ("nano", "solution") else Path(settings.model).name
