"""Where the served model listens, and the token it asks for."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import openai
import pytest

from pilotfish.model.protocol import (
    ModelError,
)
from pilotfish.model.serving.run import close, listen, token_in

from .stage import HELLO, TOKEN, Stage, served


def test_on_a_unix_socket_that_is_its_owners_alone(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "s"
    opened, where = listen(None, path)
    assert where == f"unix:{path}"
    assert path.stat().st_mode & 0o077 == 0
    with served(stage, opened):
        with pytest.raises(ModelError, match="choose another --socket"):
            listen(None, path)
        transport = httpx2.HTTPTransport(uds=str(path))
        with (
            httpx2.Client(transport=transport) as http,
            openai.OpenAI(base_url="http://pilotfish/v1", api_key=TOKEN, http_client=http) as client,
        ):
            done = client.chat.completions.create(model="stage", messages=HELLO)
        assert done.choices[0].message.content == "Hello there"
    assert not path.exists()
    left, _ = listen(None, path)
    left.close()  # as a killed server leaves it
    again, _ = listen(None, path)
    close(again)


def test_a_socket_of_another_server_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first, _ = listen(None, path)
    path.unlink()
    second, _ = listen(None, path)
    close(first)
    assert path.is_socket()
    close(second)
    assert not path.exists()


def test_servers_that_begin_at_once_share_a_token_and_not_a_socket(tmp_path: Path) -> None:
    listen(None, tmp_path / "s")[0].close()  # as a killed server leaves it

    def begin(n: int) -> tuple[str, socket.socket | None]:
        token = token_in(tmp_path / "token")
        try:
            return token, listen(None, tmp_path / "s")[0]
        except ModelError:
            return token, None

    with ThreadPoolExecutor(8) as threads:
        begun = list(threads.map(begin, range(8)))
    assert len({token for token, _ in begun}) == 1
    (opened,) = (opened for _, opened in begun if opened is not None)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
    close(opened)


def test_a_port_that_is_taken(address: str) -> None:
    with pytest.raises(ModelError, match="choose another --port"):
        listen(int(address.rpartition(":")[2]), None)


def test_the_token_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "token"
    made = token_in(path)
    assert len(made) >= 32
    assert token_in(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(ModelError, match="chmod 600"):
        token_in(path)
    for text in ("short", "with blanks in it, far too many", "\x00" * 40):
        path.unlink()
        path.touch(0o600)
        path.write_text(text)
        with pytest.raises(ModelError, match="holds no token"):
            token_in(path)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ModelError, match="--token-file"):
        token_in(tmp_path / "link")
