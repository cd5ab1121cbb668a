"""Bringing the server up: its token's file, its socket, and an end in good order."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp

from pilotfish.model.protocol import ModelError
from pilotfish.model.serving.connection import Connection

if TYPE_CHECKING:
    from pilotfish.model.serving.app import CountingModel

GRACE_S = 5
MIN_TOKEN = 16


def token_in(path: Path) -> str:
    """The token a file holds; a new one is made where there is no file, for its owner's eyes only.

    Raises ModelError for a file that others may read, or that holds no token.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ModelError(f"Others may read {path} (mode {mode:o}); run `chmod 600 {path}`.")
            fcntl.flock(file, fcntl.LOCK_EX)  # two that begin at once agree on one token
            text = file.read(4096)
            if not text:
                text = secrets.token_urlsafe(32)
                file.write(text + "\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"Cannot use {path} ({reason}); name another with --token-file.") from None
    token = text.strip()
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ModelError(
            f"{path} holds no token; write one of at least {MIN_TOKEN} printable characters, or remove it."
        )
    return token


def listen(port: int | None, path: Path | None) -> tuple[socket.socket, str]:
    """A listening socket on loopback, or on a Unix socket only its owner can use; and its address.

    Raises ModelError when it cannot be had.
    """
    if path is not None:
        return _unix(path), f"unix:{path}"
    assert port is not None
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(("127.0.0.1", port))
    except OSError as error:
        opened.close()
        raise ModelError(f"Cannot listen on port {port} ({error.strerror}); choose another --port.") from None
    opened.listen(128)
    return opened, f"http://127.0.0.1:{opened.getsockname()[1]}"


def _unix(path: Path) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    try:
        with _alone(path):
            if path.is_socket() and not _answers(path):
                path.unlink()  # left by a server that was killed
            before = os.umask(0o177)
            try:
                opened.bind(str(path))
            finally:
                os.umask(before)
            opened.listen(128)
    except (OSError, ValueError) as error:
        opened.close()
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"Cannot listen on {path} ({reason}); choose another --socket.") from None
    return opened


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other servers from binding or removing sockets in the same folder meanwhile."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True


async def serve(
    model: CountingModel,
    token: str,
    opened: socket.socket,
    ready: Callable[[], None] = lambda: None,
    leaving: Callable[[str], None] = lambda words: None,
) -> None:
    """Answer until SIGINT or SIGTERM; answers being written are then ended.

    ready: called once it listens. leaving: told at the first signal what was served, in words.
    """
    from pilotfish.model.serving.app import Service  # brings more along than `watch` should wait for

    service = Service(model, token)
    await serve_app(service.app(), opened, ready, service.stop_all, leaving=lambda: leaving(service.served()))


async def serve_app(
    app: ASGIApp,
    opened: socket.socket,
    ready: Callable[[], None],
    stop_all: Callable[[], None],
    leaving: Callable[[], None] = lambda: None,
) -> None:
    """Answer with an application until SIGINT or SIGTERM.

    ready: called once it listens. leaving: called at the first signal. stop_all: ends every answer that is
    being written, called at each.
    """
    config = uvicorn.Config(
        app,
        http=Connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Server(config, stop_all, ready, leaving)
    name = opened.getsockname()
    try:
        await server.serve(sockets=[opened])
    finally:
        server.stop_listening()  # when it was cancelled it has not done so itself
        opened.close()
        _remove(name)


def close(opened: socket.socket) -> None:
    """Close a listening socket, and leave no Unix socket's file behind."""
    name = opened.getsockname()
    opened.close()
    _remove(name)


def _remove(name: object) -> None:
    """Remove a closed socket's file, unless it was removed and is another server's now."""
    if isinstance(name, str):
        path = Path(name)
        with contextlib.suppress(OSError), _alone(path):
            if not _answers(path):
                path.unlink()


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        stop_all: Callable[[], None],
        ready: Callable[[], None],
        leaving: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._stop_all, self._ready, self._leaving = stop_all, ready, leaving

    def stop_listening(self) -> None:
        for listening in getattr(self, "servers", ()):
            listening.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._leaving()
        self._stop_all()
        super().handle_exit(sig, frame)
        if sig == signal.SIGINT:
            self._captured_signals.clear()  # an end by Ctrl-C is an end in good order
