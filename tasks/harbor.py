"""Task folders of Harbor, as those of Terminal-Bench: played where nothing has to be built, and verified.

Source: harbor 0.26, its task format (`task.toml`, schema 1.4). The folders of the image's root (`/app`) are
folders of the workspace; tests and rewards lie in `/tests` and `/logs`, which are made anew for the verdict.
"""

from __future__ import annotations

import base64
import io
import json
import math
import shlex
import tarfile
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec
from pilotfish.tasks.clean import last_line, run_clean
from pilotfish.tasks.dockerfile import Image, Refused, check_base, read_dockerfile
from pilotfish.tasks.environment import End, Grade, StartError
from pilotfish.tasks.environment_fields import HarborEnvironment
from pilotfish.tasks.explain import explain, shown
from pilotfish.tasks.format import Task
from pilotfish.tasks.python_inside import SITE, python_inside
from pilotfish.tasks.reader import TaskError

_PLACE = "/tmp/harbor"
_LINKS = {f"/{name}": f"{_PLACE}/{name}" for name in ("tests", "logs", "solution")}
_MADE = (
    f"rm -rf {_PLACE} && mkdir -p {_PLACE}/tests {_PLACE}/solution {_PLACE}/logs/{{agent,verifier,artifacts}}"
)
_VERIFY = f"""{_MADE} && tar -x -f "$GRADER/tests.tar" -C {_PLACE}/tests || exit 125
unset PYTHONPYCACHEPREFIX; export PYTHONDONTWRITEBYTECODE=1
"""
_REWARD_BYTES = 1 << 16
_MAX_BYTES = 256 << 20
"""Of all files that a task brings along for one purpose, as they are laid out by way of memory."""
_READ = f"""for kind in json txt; do
  file=/logs/verifier/reward.$kind
  if [ -f $file ]; then echo $kind; head -c {_REWARD_BYTES} $file; exit; fi
done
"""
_START_S = 60.0
_MAX_TEXT = 1 << 20


def is_harbor(folder: Path) -> bool:
    """Whether a folder is a task of this form."""
    return (folder / "task.toml").is_file()


def harbor_tasks(folder: Path) -> list[Task]:
    """The task in a folder, or those in its sub-folders, by id. Raises `TaskError`."""
    folders = [folder] if is_harbor(folder) else [path for path in folder.iterdir() if is_harbor(path)]
    suite = _name(folder.resolve().parent if is_harbor(folder) else folder.resolve())
    return sorted((_task(path.resolve(), suite) for path in folders), key=lambda task: task.id)


def _task(folder: Path, suite: str) -> Task:
    path = folder / "task.toml"
    data = _toml(path)
    instruction = _text(folder / "instruction.md")
    refused, image, beside = "", Image(), dict[str, Path]()
    try:
        _refuse(path, data, folder)
        image = _image(path, data, folder)
        _env(path, data, "verifier")
        _weigh(folder, image.files)
        _files(folder, "tests")
        beside = _files(folder, "solution")
    except Refused as error:
        refused = str(error)
    if not refused and image.tops:
        where = ", ".join(f"{top} is the folder {top[1:]}" for top in image.tops)
        instruction += f"\n\nIn the workspace, which the edit tool works in, {where}."
    hosts = data.get("agent", {}).get("allowed_hosts") or []
    environment = {
        "kind": "harbor",
        "folder": str(folder),
        "refused": refused,
        "network": [host if ":" in str(host) else f"{host}:443" for host in hosts],
        "verifier_s": _number(path, data, "verifier", 600.0),
    }
    solve = folder / "solution" / "solve.sh"
    try:
        return Task.model_validate(
            {
                "id": _name(folder),
                "suite": suite,
                "instruction": instruction,
                "tools": ["shell", "edit"],
                "environment": environment,
                "limits": {"steps": 200, "seconds": _number(path, data, "agent", 600.0), "tokens": 1_000_000},
                "solution": [_solve(beside, image)] if solve.is_file() else [],
            }
        )
    except ValidationError as error:
        raise TaskError(f"{path}: {explain(error)}.") from None


class Harbor:
    """One task folder: what its image would hold, and a verdict by its own tests."""

    def __init__(self, task: Task, fields: HarborEnvironment) -> None:
        self._task, self._folder, self._seconds = task, Path(fields.folder), fields.verifier_s
        data = _toml(self._folder / "task.toml")
        self._image = _image(self._folder / "task.toml", data, self._folder)
        self._env = _env(self._folder / "task.toml", data, "verifier")

    def sandbox_spec(self) -> SandboxSpec:
        try:
            mounts, env = python_inside(("pytest",), "")
        except SandboxError:
            mounts, env = python_inside((), "")
            env.pop("PYTHONPATH")
        given = self._image.env
        if "PYTHONPATH" in given and "PYTHONPATH" in env:
            given = given | {"PYTHONPATH": f"{given['PYTHONPATH']}:{SITE}"}
        links = _LINKS | {top: f"/workspace{top}" for top in self._image.tops}
        return SandboxSpec(desktop=False, read_only=mounts, env=env | given, links=links)

    def screen(self, box: Sandbox) -> None:
        return None

    async def start(self, box: Sandbox) -> str:
        folders = " ".join(shlex.quote(f"/workspace{name}") for name in sorted(self._image.folders))
        command = f'{_MADE} && mkdir -p {folders} /workspace && tar -x -f "$GRADER/files.tar" -C /workspace'
        try:
            files = _tar({name[1:]: path for name, path in self._image.files.items()})
            exit_code, said, wrong = await run_clean(box, command, _START_S, {"files.tar": files})
        except (SandboxError, OSError) as error:
            raise StartError(f"{self._task.name} cannot be started: {error}") from error
        if exit_code != 0:
            raise StartError(f"{self._task.name}: its files cannot be laid out ({last_line(wrong or said)}).")
        return self._task.instruction.strip()

    async def finished(self, box: Sandbox) -> bool:
        return False

    async def grade(self, box: Sandbox, end: End) -> Grade:
        await box.shell.end_all()
        folder = self._folder / "tests"
        if not (folder / "test.sh").is_file():
            return Grade(0.0, False, f"{folder} has no test.sh, so nothing can be judged.")
        try:
            tests = _tar(_files(self._folder, "tests"))
        except (Refused, OSError) as error:
            return Grade(0.0, False, f"The tests cannot be laid out: {error}")
        env = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self._env.items())
        said = "/logs/verifier/test-stdout.txt"
        run = f"cd {shlex.quote(self._image.workdir)} && bash /tests/test.sh > {said} 2>&1"
        exit_code, _, wrong = await run_clean(
            box, f"{_VERIFY}{env}{run}", self._seconds, {"tests.tar": tests}
        )
        if exit_code is None:
            return Grade(0.0, False, f"tests/test.sh took longer than {self._seconds:g} s and was ended.")
        _, found, _ = await run_clean(box, _READ, _START_S)
        kind, _, text = found.partition("\n")
        if not kind:
            why = last_line(wrong)[:200]
            status = f"it ended with status {exit_code}" + (f", saying {why!r}" if why else "")
            return Grade(0.0, False, f"tests/test.sh wrote no reward.txt or reward.json; {status}.")
        try:
            reward = reward_of(kind, text)
        except ValueError as error:
            return Grade(0.0, False, f"reward.{kind} {error}.")
        return Grade(min(max(reward, 0.0), 1.0), reward >= 1.0, f"The reward was {reward:g}.")


def reward_of(kind: str, text: str) -> float:
    """The reward in a file: one number, or in JSON a map of numbers: `reward`, or else the lowest, counts.

    Raises `ValueError` with the end of a sentence.
    """
    found: Any = text.strip()
    if kind == "json":
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"is not JSON: {text.strip()[:60]!r}") from None
        if not isinstance(found, dict) or not found:
            raise ValueError(f"holds {shown(found)}; it must be a map of numbers")
        numbers = {name: _finite(value) for name, value in found.items()}
        return numbers.get("reward", min(numbers.values()))
    try:
        return _finite(float(found))
    except ValueError:
        raise ValueError(f"holds {found[:60]!r}; it must be one number") from None


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"holds {shown(value)}; it must be a map of numbers")
    return float(value)


def _refuse(path: Path, data: dict[str, Any], folder: Path) -> None:
    """Raise `Refused` for what a task needs besides an image."""
    environment = data.get("environment", {})
    for found, what in (
        (data.get("steps") or (folder / "steps").is_dir(), "has several steps"),
        (environment.get("gpus"), "needs a GPU"),
        (environment.get("mcp_servers"), "needs MCP servers"),
        (environment.get("healthcheck"), "needs a service that is looked after"),
        (environment.get("os", "linux") != "linux", "needs another system than Linux"),
        (any((folder / "environment").glob("*compose*.y*ml")), "needs several containers"),
    ):
        if found:
            raise Refused(f"{path}: the task {what}, which is not done here.")


def _image(path: Path, data: dict[str, Any], folder: Path) -> Image:
    environment = data.get("environment", {})
    dockerfile = folder / "environment" / "Dockerfile"
    try:
        image = read_dockerfile(dockerfile) if dockerfile.is_file() else Image()
        if not dockerfile.is_file():
            check_base(str(environment.get("docker_image") or "nothing"))
    except OSError as error:
        raise Refused(f"{dockerfile} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise Refused(f"{path}: the task {error}.") from None
    image.env |= _env(path, data, "environment")
    return image


def _env(path: Path, data: dict[str, Any], table: str) -> dict[str, str]:
    """The variables that a table of a task sets. Raises `Refused`."""
    env = data.get(table, {}).get("env") or {}
    if not isinstance(env, dict) or not all(
        isinstance(value, str) and "${" not in value and "\0" not in value for value in env.values()
    ):
        raise Refused(f"{path}: {table}.env must be a map of plain texts.")
    if not all(name.isidentifier() for name in env):
        raise Refused(f"{path}: {table}.env has a name that is none of a variable.")
    return env


def _toml(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{path}: not TOML ({error}).") from None
    except RecursionError:
        raise TaskError(f"{path}: nested too deeply; flatten it.") from None
    for name in ("agent", "verifier", "environment"):
        if not isinstance(data.get(name, {}), dict):
            raise TaskError(f"{path}: '{name}' is {shown(data[name])}; it must be a table.")
    hosts = data.get("agent", {}).get("allowed_hosts") or []
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise TaskError(f"{path}: 'agent.allowed_hosts' is {shown(hosts)}; it must be a list of names.")
    return data


def _number(path: Path, data: dict[str, Any], table: str, default: float) -> float:
    value = data.get(table, {}).get("timeout_sec", default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise TaskError(f"{path}: '{table}.timeout_sec' is {shown(value)}; it must be a number of seconds.")
    return float(value)


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise TaskError(f"{path}: not a regular file; a task needs one.")
    if not path.resolve().is_relative_to(path.parent.resolve()):
        raise TaskError(f"{path}: a link that leads out of the task's folder; put the file there.")
    try:
        if path.stat().st_size > _MAX_TEXT:
            raise TaskError(f"{path}: larger than {_MAX_TEXT} bytes; keep large files beside the task.")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8.") from None
    except OSError as error:
        raise TaskError(f"{path}: cannot be read ({error.strerror}); a task needs it.") from None
    if "\0" in text:
        raise TaskError(f"{path}: holds a null character; remove it.")
    return text


def _name(folder: Path) -> str:
    from pilotfish.tasks.data_sets import suite_name

    return suite_name(folder)


def _solve(files: dict[str, Path], image: Image) -> str:
    """The reference solution as a line for the shell, with the files that lie beside it."""
    packed = base64.encodebytes(_tar(files)).decode()
    here = shlex.quote(image.workdir if image.workdir != "/" else "/workspace")
    return f"base64 -d <<'END' | tar -x -C /solution && cd {here} && bash /solution/solve.sh\n{packed}END"


def _files(folder: Path, name: str) -> dict[str, Path]:
    """The files of a folder of the task, by their paths in it. Raises `Refused`."""
    inner = folder / name
    files = {str(path.relative_to(inner)): path for path in inner.rglob("*") if path.is_file()}
    _weigh(folder, files)
    return files


def _weigh(folder: Path, files: dict[str, Path]) -> None:
    """Raise `Refused` for a file that lies outside of the task, or for too much altogether."""
    for path in files.values():
        if not path.resolve().is_relative_to(folder.resolve()):
            raise Refused(f"{path} is a link that leads out of the task's folder.")
    if sum(path.stat().st_size for path in files.values()) > _MAX_BYTES:
        raise Refused(f"{folder}: its files are more than {_MAX_BYTES >> 20} MiB, which is not done here.")


def _tar(files: dict[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, path in sorted(files.items()):
            entry, data = tarfile.TarInfo(name), path.read_bytes()
            entry.size, entry.mode = len(data), 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
