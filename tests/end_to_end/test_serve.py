"""The served model as a user starts it: the shipped weights, a real port, an official client, Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import openai
import pytest

from .test_command_line import PILOTFISH

pytestmark = pytest.mark.timeout(120)


def test_nano_answers_an_official_client_until_ctrl_c(tmp_path: Path) -> None:
    token = tmp_path / "token"
    command = [*PILOTFISH, "serve", "--port", "0", "--token-file", str(token), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            key = token.read_text().strip()
            click = {
                "type": "object",
                "properties": {"action": {"enum": ["left_click", "wait"]}},
                "required": ["action"],
            }
            with openai.OpenAI(base_url=told["address"] + "/v1", api_key=key, max_retries=0) as client:
                done = client.chat.completions.create(
                    model=told["model"],
                    messages=[{"role": "user", "content": "Click."}],
                    tools=[{"type": "function", "function": {"name": "computer", "parameters": click}}],
                    tool_choice="required",
                    temperature=0,
                    max_tokens=60,
                )
            (choice,) = done.choices
            assert choice.message.tool_calls is not None
            for call in choice.message.tool_calls:
                assert call.type == "function"
                assert json.loads(call.function.arguments)["action"] in ("left_click", "wait")
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            said = process.stderr.read()
            assert process.wait(30) == 0
            assert re.search(
                r"\nStopping; served in \d+ s: 1 answer; \d+ tokens read, [1-9]\d* written\.\n$", said
            )
        finally:
            process.kill()


def test_a_port_in_use_is_told_before_the_model_loads(tmp_path: Path) -> None:
    command = [*PILOTFISH, "serve", "--port", "1", "--socket", str(tmp_path / "no" / "s")]
    command += ["--token-file", str(tmp_path / "token"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "choose another --socket" in json.loads(done.stdout)["error"]
    assert "Loading" not in done.stderr
