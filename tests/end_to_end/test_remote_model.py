"""Whole runs with a model behind a server: the command, a server that plays a script, real sockets."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

from pilotfish.agent import doctor
from pilotfish.agent.events import Answered, EpisodeStarted, Intended, Resulted, Told, read_run
from pilotfish.agent.models import model_name, open_model
from pilotfish.agent.player import sampling
from pilotfish.agent.prompt import NO_CALL
from pilotfish.agent.settings import ServerSettings, Settings, SettingsError, load_settings
from pilotfish.model.protocol import ModelError
from pilotfish.model.remote import RemoteModel
from pilotfish.tasks.format import Task

from ..scripted_server import ScriptedServer, answer, call_delta, delta, error, reply, silent, stream
from .conftest import SHELL, Open

KEY = "sk-0123456789"
WRITE = answer("I write it.", [("shell", {"command": "echo done > result.txt"})], {"completion_tokens": 9})


def pilotfish(*arguments: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pilotfish.agent.cli", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )


def test_a_shell_task_through_the_command(tmp_path: Path) -> None:
    (tmp_path / "write-done.yaml").write_text(SHELL)
    cut = stream(call_delta('{"command": "touch half"}', id="x", name="shell"))
    script = [error(503, f"busy {KEY}"), cut, WRITE, answer("Done.", usage={"completion_tokens": 2})]
    with ScriptedServer(script) as server:
        model = f"openai:{server.url}#org/small-1"
        flags = ("--model", model, "--record-dir", tmp_path / "runs", "--json")
        done = pilotfish("run", "write-done.yaml", *flags, cwd=tmp_path, OPENAI_API_KEY=KEY)
    result = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (result["model"], result["passed"], result["answer"], result["steps"]) == (
        "org/small-1",
        True,
        "Done.",
        1,
    )
    refused, broken, again, last = (asked.body["messages"] for asked in server.asked)
    assert all(asked.headers["authorization"] == f"Bearer {KEY}" for asked in server.asked)
    assert refused == broken, "what was refused is asked again as it was"
    assert again[-1]["content"].startswith(broken[-1]["content"])
    assert last[:-2] == broken, "the conversation is as it was before the answer that broke off"
    folder = Path(result["folder"])
    run = read_run(folder)
    usages = [event.usage for event in run.events if isinstance(event, Answered)]
    assert [usage.output_tokens for usage in usages][1:] == [9, 2]
    assert [usage.retries for usage in usages] == [1, 0, 0]
    (intended,) = (event for event in run.events if isinstance(event, Intended))
    assert intended.call.arguments == {"command": "echo done > result.txt"}
    assert not (folder / "workspace" / "half").exists()
    (told,) = (event.text for event in run.events if isinstance(event, Told))
    assert told.startswith("The server ended the connection in the middle of the answer")
    assert told.endswith(NO_CALL)
    assert "sk-01234" not in "".join(
        path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
    )
    assert KEY not in done.stdout + done.stderr
    assistant, tool = last[-2:]
    assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"]


def test_ctrl_c_hangs_up(tmp_path: Path) -> None:
    (tmp_path / "write-done.yaml").write_text(SHELL)
    with ScriptedServer([silent]) as server:
        words = [
            "run",
            "write-done.yaml",
            "--model",
            f"openai:{server.url}#m",
            "--record-dir",
            "runs",
            "--json",
        ]
        command = [sys.executable, "-m", "pilotfish.agent.cli", *words]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
            while not server.asked and running.poll() is None:
                time.sleep(0.05)
            running.send_signal(signal.SIGINT)
            output, _ = running.communicate(timeout=60)
        assert server.hung_up.wait(10)
    assert (running.returncode, json.loads(output)["end"]) == (130, "stopped")


async def test_the_frames_arrive_as_they_were(web_task: Task, open_episode: Open, tmp_path: Path) -> None:
    press = [("computer", {"action": "left_click", "coordinate": [500, 200]})]
    done = [("computer", {"action": "done"})]
    with ScriptedServer([answer("", press), answer("", done)]) as server:
        async with open_episode(web_task, RemoteModel(server.url, "m")) as episode:
            outcome = await episode.run()
    assert (outcome.end, outcome.grade.passed) == ("done", True)
    run = read_run(tmp_path / "run")
    start, result = (
        next(event for event in run.events if isinstance(event, kind)) for kind in (EpisodeStarted, Resulted)
    )
    assert isinstance(start, EpisodeStarted)
    assert isinstance(result, Resulted)
    *_, call, told, shown = server.asked[1].body["messages"]
    assert call["tool_calls"][0]["function"]["name"] == "computer"
    assert told["content"] == "ok\nsettled"
    for clip, content in (
        (start.clip, server.asked[0].body["messages"][1]["content"]),
        (result.clip, shown["content"]),
    ):
        assert clip is not None
        names = [name for n, name in enumerate(clip.frames) if not n or name != clip.frames[n - 1]]
        pictures = [_decoded(part) for part in content if part["type"] == "image_url"]
        assert len(pictures) == len(names)
        for name, picture in zip(names, pictures, strict=True):
            assert np.array_equal(picture, run.frames.get(name))


def _decoded(part: dict[str, Any]) -> np.ndarray[Any, Any]:
    kind, _, data = part["image_url"]["url"].partition(";base64,")
    assert kind == "data:image/png"
    return np.asarray(Pictures.open(io.BytesIO(base64.b64decode(data, validate=True))).convert("RGB"))


async def test_a_server_that_goes_away_ends_the_episode(shell_task: Task, open_episode: Open) -> None:
    with ScriptedServer([reply(200, "<html>", "text/html")]) as server:
        async with open_episode(shell_task, RemoteModel(server.url, "m")) as episode:
            outcome = await episode.run()
            assert [message.role for message in episode.conversation.messages] == ["developer", "user"]
    assert outcome.end == "model_error"
    assert "text/html instead of a chat completion" in outcome.reason


async def test_thinking_without_end_is_named(shell_task: Task, open_episode: Open) -> None:
    with ScriptedServer([stream(delta(reasoning="Hm."), delta("length"))]) as server:
        async with open_episode(shell_task, RemoteModel(server.url, "m")) as episode:
            outcome = await episode.run()
        assert len(server.asked) == 3
    assert outcome.end == "token_limit"
    assert "the limit of 512 tokens was used up before an answer began" in outcome.reason


def opened(
    monkeypatch: pytest.MonkeyPatch, model: str, server: dict[str, Any], **variables: str
) -> RemoteModel:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = Settings(model=model, server=ServerSettings(**server))
    found = open_model(settings)(None)
    assert isinstance(found, RemoteModel)
    assert found.name == model_name(settings)
    return found


@pytest.mark.parametrize(
    ("model", "server", "variables", "url", "key"),
    [
        ("openai:http://localhost:1/v1#a/b", {}, {"OPENAI_API_KEY": KEY}, "http://localhost:1/v1", KEY),
        ("openai:http://lan:1/v1#a", {}, {"OPENAI_API_KEY": KEY}, "http://lan:1/v1", None),
        ("openai:http://lan:1/v1#a", {"key_variable": "LAN"}, {"LAN": KEY}, "http://lan:1/v1", KEY),
        ("openai:https://far/v1#a", {"key_variable": ""}, {"OPENAI_API_KEY": KEY}, "https://far/v1", None),
        ("openai:a/b", {"url": "https://far/v1/"}, {"OPENAI_API_KEY": KEY}, "https://far/v1", KEY),
        ("openai:a", {}, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, "http://127.0.0.1:1/v1", None),
    ],
)
def test_where_a_model_is_and_who_gets_the_key(
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    server: dict[str, Any],
    variables: dict[str, str],
    url: str,
    key: str | None,
) -> None:
    found = opened(monkeypatch, model, server, **variables)
    assert found.server.url == url
    header = found.server.client().headers.get("authorization")
    assert header == (f"Bearer {key}" if key else None)


@pytest.mark.parametrize(
    ("model", "server", "says"),
    [
        ("openai:a", {}, "no server"),
        ("openai:http://127.0.0.1:1/v1", {}, "no name"),
        ("openai:http://me:hunter2@127.0.0.1:1/v1", {}, "a name or a password"),
        ("openai:https://far/v1#a", {"key_variable": "NOT_THERE"}, "NOT_THERE"),
    ],
)
def test_models_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, model: str, server: dict[str, Any], says: str
) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        opened(monkeypatch, model, server)
    assert "hunter2" not in str(caught.value)


def test_how_long_an_answer_may_be() -> None:
    for settings, wanted in (
        (Settings(), (512, 120)),
        (Settings(model="openai:m"), (8192, 600)),
        (Settings(model="openai:m", answer_tokens=9, answer_seconds=2), (9, 2)),
    ):
        limits = sampling(settings, None)
        assert (limits.max_tokens, limits.max_seconds) == wanted


def test_server_settings_are_checked() -> None:
    assert load_settings({"server": {"clips": "video"}}).server.clips == "video"
    with pytest.raises(SettingsError, match=r"server.clip.*choose from clips"):
        load_settings({"server": {"clip": "video"}})


def test_the_doctor_asks_the_server() -> None:
    listing = reply(200, json.dumps({"data": [{"id": "small"}]}))
    with ScriptedServer([listing, listing, error(401, "no")]) as server:
        here, missing, refused = (
            doctor.model_piece(Settings(model=f"openai:{server.url}#{name}"))
            for name in ("small", "big", "small")
        )
    assert here.ok
    assert not missing.ok
    assert "small" in missing.mend
    assert "status 401" in refused.mend
