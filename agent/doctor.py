"""`pilotfish doctor`: every piece a run needs, whether it works here, and the command that mends it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from pilotfish.agent.events import LogError
from pilotfish.agent.models import SERVED, served_model
from pilotfish.agent.run_folder import check_writable
from pilotfish.agent.settings import Settings
from pilotfish.sandbox import Piece, check

OPTIONAL = frozenset({"GPU", "MiniWoB++ pages", "sandbox level 2", "control group"})
"""Pieces without which the rest still works."""


def examine(settings: Settings) -> list[Piece]:
    """Look at every piece, in the order in which a run needs them."""
    return [
        _python(),
        *_packages(),
        _gpu(),
        *check(),
        *_display(),
        model_piece(settings),
        _pages(),
        _record_dir(settings.record_dir),
    ]


def _python() -> Piece:
    return Piece(
        "Python", sys.version_info >= (3, 11), platform.python_version(), "install Python 3.11 or newer"
    )


def _packages() -> Iterator[Piece]:
    for name in ("torch", "mss", "python-xlib", "playwright"):
        try:
            yield Piece(name, True, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Piece(name, False, "missing", f"pip install {name}")


def _gpu() -> Piece:
    try:
        import torch
    except ImportError:
        return Piece("GPU", False, "torch is missing", "pip install torch")
    if torch.cuda.is_available():
        return Piece("GPU", True, torch.cuda.get_device_name())
    return Piece("GPU", False, "none; models run on the processor", "")


def _display() -> Iterator[Piece]:
    """What a display of the sandbox offers, tried for real where there is a sandbox."""
    import asyncio

    from pilotfish.agent.damage import XDamageWatcher
    from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec

    async def try_it() -> Piece:
        async with Sandbox.open(SandboxSpec(width=64, height=64)) as box:
            try:
                XDamageWatcher(box.display.name).close()
            except LookupError:
                mend = "none needed; frames are compared instead, which costs more"
                return Piece("display", True, f"no XDamage ({mend})")
            return Piece("display", True, "Xvfb, openbox and XDamage work")

    try:
        yield asyncio.run(try_it())
    except SandboxError as error:
        yield Piece("display", False, "the sandbox cannot show one", str(error))


def model_piece(settings: Settings) -> Piece:
    """What answers: the checkpoint, which is not loaded, or the server, which is asked what it has."""
    if settings.model == "solution":
        return Piece("checkpoint", True, "none needed: the model is a task's own solution")
    if settings.model.startswith(SERVED):
        return _server(settings)
    from pilotfish.model.folder import find_folder
    from pilotfish.model.info import describe
    from pilotfish.model.protocol import ModelError

    try:
        folder = find_folder(settings.model)
        describe(folder)
    except ModelError as error:
        return Piece("checkpoint", False, settings.model, str(error))
    return Piece("checkpoint", True, str(folder))


def _server(settings: Settings) -> Piece:
    """Whether the server that answers for the model can be reached and lists it."""
    import asyncio

    from pilotfish.model.protocol import ModelError

    try:
        model = served_model(settings)
        listed = asyncio.run(model.server.models())
    except ModelError as error:
        return Piece("model server", False, settings.model, str(error))
    names = ", ".join(listed[:5])
    mend = f"choose one of {names}" if names else "load a model there"
    return Piece("model server", model.name in listed, f"{model.name} at {model.server.url}", mend)


def _pages() -> Piece:
    found = importlib.util.find_spec("miniwob") is not None
    return Piece(
        "MiniWoB++ pages", found, "installed" if found else "missing", "" if found else "pip install miniwob"
    )


def _record_dir(folder: Path) -> Piece:
    try:
        check_writable(folder)
    except LogError as error:
        return Piece(
            "run folder", False, str(error).removesuffix("."), "or choose another one with --record-dir"
        )
    return Piece("run folder", True, str(folder.absolute()))
