"""`pilotfish code` on projects with an environment of their own, whose Python lies outside of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.code import CodeTarget, run_code
from pilotfish.agent.settings import Settings
from pilotfish.model.scripted import ScriptedModel

from ..sandbox.repositories import make
from .conftest import call, turn

BASE = Path(os.path.realpath(sys.base_prefix))
UV = Path(sys.prefix, "bin", "uv")
FILES: dict[str, str | bytes] = {
    "src/sums/__init__.py": "def add(a, b):\n    return a + b\n",
    "tests/test_sums.py": """import sys
import unittest

import sums


class Sums(unittest.TestCase):
    def test_add(self):
        self.assertEqual(sums.add(1, 2), 3)
        self.assertTrue(sys.prefix.endswith("/.venv"))
""",
    ".gitignore": ".venv\n",
}


def made(folder: Path, how: str) -> Path:
    """A project whose package is installed by its path in its own environment, as editable installs do it."""
    repo = make(folder / "repo", FILES)
    if how == "uv":
        command = [str(UV), "venv", "--offline", "--no-config", "--python", sys.executable, ".venv"]
    else:
        command = [str(BASE / "bin" / "python3"), "-m", "venv", "--without-pip", ".venv"]
    subprocess.run(command, cwd=repo, check=True, capture_output=True)
    (site,) = (repo / ".venv" / "lib").glob("python3*/site-packages")
    (site / "sums.pth").write_text(f"{repo}/src\n")
    script = repo / ".venv" / "bin" / "adds"
    script.write_text(f"#!{repo}/.venv/bin/python\nimport sums\nprint(sums.add(20, 22), sums.__file__)\n")
    script.chmod(0o755)
    return repo


async def worked(repo: Path, command: str, level: int = 3) -> tuple[log.Tested, list[str], str]:
    """The tests before the change, what was told, and what a command of the model's printed."""
    settings = Settings(record_dir=repo.parent / "runs", sandbox_level=level)
    model = ScriptedModel([turn(call("shell", command=command)), turn(text="Done.")])
    result = await run_code(CodeTarget(str(repo), "Look around."), settings, model=model)
    events = log.read_run(Path(result["folder"])).events
    tested = next(one for one in events if isinstance(one, log.Tested))
    told = [one.text for one in events if isinstance(one, log.Told)]
    said = next(one.text for one in events if isinstance(one, log.Resulted))
    return tested, told, said


@pytest.mark.parametrize("how", ["venv", "uv"])
async def test_tests_run_with_the_environment_of_the_project(tmp_path: Path, how: str) -> None:
    repo = made(tmp_path, how)
    tested, told, said = await worked(
        repo, f"adds; which python; touch {BASE}/lib/x; ls -A {BASE} {BASE.parent} {repo.parent}"
    )
    assert (tested.command, tested.status) == (".venv/bin/python -m unittest discover -s tests", 0)
    assert f"42 {repo}/src/sums/__init__.py" in said
    assert "/workspace/.venv/bin/python" in said
    assert "Read-only file system" in said or "Permission denied" in said
    assert f"{repo.parent}:\nrepo" in said.removesuffix("\n").split("\n\n")
    if not BASE.is_relative_to("/usr"):
        assert told[0].startswith(f".venv stands on {BASE}")
        assert f"{BASE.parent}:\n{BASE.name}\n" in said


async def test_an_environment_that_does_not_run_is_told_and_the_machine_s_python_takes_its_place(
    tmp_path: Path,
) -> None:
    repo = make(tmp_path / "repo", FILES)
    (repo / ".venv" / "bin").mkdir(parents=True)
    (repo / ".venv" / "bin" / "python").symlink_to("/nowhere/bin/python3")
    tested, told, _ = await worked(repo, "true")
    assert tested.command == "python3 -m unittest discover -s tests"
    assert told[0] == (
        ".venv leads to /nowhere, which is not the folder of a Python installation, so it is not shown in "
        "the sandbox."
    )
    assert told[1].startswith("In the sandbox .venv/bin/python -c ")
    assert told[1].endswith("so the tests are run by python3 -m unittest discover -s tests.")
