"""The repository itself: its set-up, its lock, what it ships, and what its files may say."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import typer.main
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pilotfish.agent import cli

from .processes import living
from .waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("agent", "kernels", "model", "sandbox", "tasks", "tools")
MAX_TRACKED_BYTES = 48 * 2**20


def _tracked() -> list[Path]:
    """The files that git keeps, relative to the root, as far as they exist in this working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def _texts() -> Iterator[tuple[Path, str]]:
    """Every tracked text file with its content; symlinks and files that are not UTF-8 are passed over."""
    for path in _tracked():
        if (ROOT / path).is_symlink():
            continue
        try:
            yield path, (ROOT / path).read_text("utf-8")
        except UnicodeDecodeError:
            continue


def test_rooms_import_only_what_they_may() -> None:
    done = _lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_room_that_breaks_a_contract_is_caught(tmp_path: Path) -> None:
    """The contracts see through the symlinks in src/: one forbidden import in a copy breaks them."""
    _copy_tracked(tmp_path)
    with (tmp_path / "sandbox" / "spec.py").open("a") as file:
        file.write("\nfrom pilotfish.tools import grid  # noqa\n")
    done = _lint_imports(tmp_path)
    assert done.returncode == 1
    assert "the sandbox imports nothing of ours BROKEN" in done.stdout


def test_every_module_has_its_place_in_the_architecture() -> None:
    """Each is named under its room; those of the index have a page of their own."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    under = {part.partition("/")[0]: part for part in re.split(r"^## ", page, flags=re.MULTILINE)}
    under["tools"] += (ROOT / "docs" / "index.md").read_text("utf-8")
    modules = [path for path in _tracked() if path.parts[0] in ROOMS and path.suffix == ".py"]
    missing = [str(path) for path in modules if f"`{path.name}`" not in under[path.parts[0]]]
    assert [name for name in missing if not name.endswith("__init__.py")] == []


def test_what_rooms_may_not_share_is_equal_in_both() -> None:
    """Neither of these rooms may import the other."""
    trees = [ast.parse((ROOT / room / "busy.py").read_text("utf-8")) for room in ("kernels", "sandbox")]
    first, second = ([ast.dump(statement) for statement in tree.body[1:]] for tree in trees)
    assert first == second


def test_tracked_files_stay_small() -> None:
    assert sum((ROOT / path).stat().st_size for path in _tracked()) < MAX_TRACKED_BYTES


SHARED = (
    "/", "/app", "/dev", "/dev/shm", "/etc", "/home", "/home/user", "/mnt", "/opt", "/proc", "/root", "/run",
    "/srv", "/tmp", "/usr", "/usr/local", "/usr/src", "/var", "/workspace",
)  # fmt: skip
"""Folders that many machines have: what is named in them says nothing of this one."""


def of_this_machine(text: str, checkout: Path) -> list[str]:
    """The paths in a text that are there on this machine, in a folder above the checkout or in itself."""
    above = [folder for folder in (checkout, *checkout.parents) if str(folder) not in SHARED]
    # What stands behind a name, as in RUN/check/, is no path from the root.
    named = [Path(found.group()) for found in re.finditer(r"(?<![\w.}>-])(?:/[\w.-]*\w)+", text)]
    return [
        str(path)
        for path in named
        for folder in above
        if folder in path.parents and (folder / path.relative_to(folder).parts[0]).exists()
    ]


def test_no_file_names_the_machine_it_was_written_on() -> None:
    """Home folders, what lies in folders above this checkout, and hosts of package registries."""
    registries = [rf"\b{name}\.org\b" for name in ("pypi", "pythonhosted", "pytorch", "debian", "npmjs")]
    places = [r"/home/(?!user\b)\w+/", r"/Users/\w+/"]
    foreign = re.compile("|".join([*registries, *places]))
    for path, text in _texts():
        found = [*of_this_machine(text, ROOT), *(match.group() for match in foreign.finditer(text))]
        assert not found, path


def test_a_place_of_this_machine_is_told_from_one_of_an_example(tmp_path: Path) -> None:
    checkout = tmp_path / "build" / "clone"
    (checkout / "docs").mkdir(parents=True)
    for text in (f"see {checkout}/docs/x.md.", f'"{tmp_path}/build"', f"`{tmp_path}/build/clone/`"):
        assert of_this_machine(text, checkout)
    for text in (f"RUN{tmp_path}/build/", "/build/", "/dev/null"):
        assert not of_this_machine(text, checkout)
    assert not of_this_machine("/etc/passwd and /dev/null", Path("/dev/shm/clone"))
    assert not of_this_machine("/nonexistent/ and /nonexistent/x", Path("/nonexistent/clone"))


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path, text in _texts():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text):
            if not (ROOT / path.parent / target).exists():
                broken.append(f"{path}: {target}")
    assert not broken


def test_documents_name_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for path, text in _texts():
        if path.suffix == ".md":
            named = set(re.findall(r"`make ([a-z]+)", text))
            assert named <= targets, (
                f"{path} names make targets that are not there: {sorted(named - targets)}"
            )


def test_lock_pins_every_dependency_at_a_version_it_allows() -> None:
    pins: dict[str, set[str]] = {}
    for line in (ROOT / "requirements.lock").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            pin = Requirement(line)
            pins.setdefault(canonicalize_name(pin.name), set()).add(str(pin.specifier).removeprefix("=="))
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    settings = tomllib.loads(text)
    wanted = [Requirement(line) for line in settings["project"]["dependencies"]]
    wanted += [Requirement(line) for line in settings["dependency-groups"]["dev"]]
    for requirement in wanted:
        versions = pins.get(canonicalize_name(requirement.name), set())
        assert versions, f"{requirement.name} is not in requirements.lock: run make lock"
        assert all(requirement.specifier.contains(version) for version in versions), (
            f"{requirement}: run make lock"
        )


def _settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_project_declares_what_it_imports_and_nothing_else() -> None:
    """What a bench compares with is in the development group, and imported by a bench's peer alone."""
    imported: set[str] = set()
    compared: set[str] = set()
    for path in _tracked():
        if path.suffix == ".py" and path.parts[0] in ROOMS:
            found = compared if path.stem == "bench_peer" else imported
            for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.split(".")[0])
    group = {canonicalize_name(Requirement(line).name) for line in _settings()["dependency-groups"]["dev"]}
    imported |= {name for name in compared if canonicalize_name(name) not in group}
    imported -= {*sys.stdlib_module_names, "pilotfish", "pydantic_core"}  # pydantic_core: pydantic's own core
    declared = {canonicalize_name(Requirement(line).name) for line in _settings()["project"]["dependencies"]}
    sources = packages_distributions()
    brought_by = {
        module: {canonicalize_name(name) for name in sources.get(module, [])} for module in imported
    }
    assert {module for module, names in brought_by.items() if not names & declared} == set(), "not declared"
    assert declared - set().union(*brought_by.values()) == set(), "declared, but nothing imports it"


def test_wheel_holds_every_file_of_the_rooms(tmp_path: Path) -> None:
    """Real files behind the symlinks of src/, task files and pages too, and nothing that running left."""
    copy = tmp_path / "copy"
    _copy_tracked(copy)
    (copy / "tools" / "__pycache__").mkdir()
    (copy / "tools" / "__pycache__" / "old.pyc").write_bytes(b"leftover")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        copy,
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("pilotfish/")}
        licences = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
        entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert b"pilotfish = pilotfish.agent.entry:main" in archive.read(entry)
    rooms = {f"pilotfish/{path.as_posix()}" for path in _tracked() if path.parts[0] in ROOMS}
    assert packed == rooms | {"pilotfish/__init__.py", "pilotfish/py.typed"}
    assert licences


def test_set_up_twice_does_nothing_the_second_time() -> None:
    if not (ROOT / ".venv" / ".setup-stamp").exists():
        pytest.skip("this .venv was not made by `make setup`")
    # Inside `make test` another make would talk of its folders.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "--no-print-directory", "setup"]
    subprocess.run(make, cwd=ROOT, check=True, capture_output=True, timeout=170, env=env)
    again = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, env=env)
    assert (again.returncode, again.stdout) == (0, "setup: nothing to do\n"), again.stderr


def test_set_up_without_rights_names_what_is_missing_and_the_command(tmp_path: Path) -> None:
    path = _programs(tmp_path, "apt-get", "apt-cache", id_says="1000")
    done = _set_up(tmp_path, PATH=path, PYTHON=sys.executable)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "this account may not install: " in done.stderr
    assert re.search(r"`sudo apt-get update && sudo apt-get install .*\bxvfb\b.*\bmousepad\b.*`", done.stderr)
    assert not (tmp_path / "copy" / ".venv").exists()


def test_set_up_where_there_is_no_apt_names_the_programs(tmp_path: Path) -> None:
    done = _set_up(tmp_path, PATH=_programs(tmp_path, id_says="0"), PYTHON=sys.executable)
    assert done.returncode == 1
    assert re.fullmatch(
        r"setup: missing here: .*\bXvfb\b.*; install them with this system's .*\n", done.stderr
    )


def test_set_up_leaves_alone_what_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").touch()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / ".venv").symlink_to(tmp_path / "theirs")
    done = _set_up(tmp_path, PATH=os.environ["PATH"])
    assert done.returncode == 1
    assert re.fullmatch(r"setup: \.venv is a link to \S+theirs, which .*; remove the link .*\n", done.stderr)
    assert (tmp_path / "theirs" / "file").exists()


def test_set_up_with_an_old_python_says_which_is_needed(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" || exit 1\n')
    old.chmod(0o755)
    done = _set_up(tmp_path, PATH=_programs(tmp_path, id_says="0"), PYTHON=str(old))
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "Python 3.9.2" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_readme_documents_every_command() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("README.md is not written yet")
    text = readme.read_text("utf-8")
    commands = list(_commands(typer.main.get_command(cli.app), "pilotfish"))
    assert commands
    assert [command for command in commands if not re.search(rf"{command}\b", text)] == []


def _commands(command: Any, name: str) -> Iterator[str]:
    """The full names of a command and of those below it, hidden ones left out."""
    inner = getattr(command, "commands", {})
    for key, value in inner.items():
        if not value.hidden:
            yield from _commands(value, f"{name} {key}")
    if not inner:
        yield name


def _lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)


def _copy_tracked(folder: Path) -> None:
    """The working tree as a clone would have it: tracked files only, symlinks kept."""
    for path in [*_tracked(), *(Path("src/pilotfish") / room for room in ROOMS)]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / path).is_symlink():
            shutil.copy2(ROOT / path, folder / path, follow_symlinks=False)


def _programs(folder: Path, *more: str, id_says: str) -> str:
    """A PATH that holds the plainest programs, those in `more`, and an `id` that answers `id_says`."""
    programs = folder / "bin"
    programs.mkdir()
    for name in (
        "bash",
        "cat",
        "dirname",
        "flock",
        "git",
        "grep",
        "head",
        "mkdir",
        "sed",
        "sha256sum",
        "tail",
        *more,
    ):
        found = shutil.which(name)
        if found is None and name in more:
            pytest.skip(f"{name} is not on this machine")
        (programs / name).symlink_to(str(found))
    (programs / "id").write_text(f"#!/bin/sh\necho {id_says}\n")
    (programs / "id").chmod(0o755)
    return str(programs)


def _set_up(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/setup in a copy of the checkout, which has no .venv if the caller made none."""
    copy = folder / "copy"
    (copy / "scripts").mkdir(parents=True, exist_ok=True)
    for name in ("scripts/setup", "pyproject.toml", "requirements.lock"):
        shutil.copy2(ROOT / name, copy / name)
    command = [copy / "scripts" / "setup"]
    return subprocess.run(
        command,
        cwd=copy,
        env={"HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


PYTEST = """#!/bin/sh
echo $$ "$@" >> started
exec sleep 60
"""


@pytest.mark.parametrize(
    ("body", "told", "status"),
    [
        ("was = seen.exists(); seen.touch(); assert was", "That was FLAKY", 0),
        ("assert not seen", "once more: half/test_it.py::test_it", 2),
        ("import nothing_of_this_name", "once more", 2),
    ],
)
def test_a_test_that_fails_once_is_told_and_one_that_fails_twice_is_red(
    tmp_path: Path, body: str, told: str, status: int
) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in (".setup", "half", "rest"):
        (tmp_path / folder).mkdir()
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "rest/test_rest.py").write_text("def test_rest():\n    pass\n")
    seen = f"    seen = __import__('pathlib').Path({str(tmp_path / 'seen')!r})\n"
    (tmp_path / "half/test_it.py").write_text(f"def test_it():\n{seen}    {body}\n")
    command = ["make", "-o", "lint", "-o", "setup", "test", "HALF=half", "REST=rest"]
    own = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ("MFLAGS", "TESTS")}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=120)
    assert (told in done.stdout, done.returncode) == (True, status), done.stdout + done.stderr


def test_an_interrupted_make_test_leaves_neither_half_of_it(tmp_path: Path) -> None:
    """Ctrl-C goes to all that runs in the foreground of the terminal."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".setup").mkdir()
    pytest_there = tmp_path / ".venv/bin/pytest"
    pytest_there.parent.mkdir(parents=True)
    pytest_there.write_text(PYTEST)
    pytest_there.chmod(0o755)
    done = ["make", "-o", "lint", "-o", "setup", "test"]
    # A `make test TESTS=...` that this test is part of hands its words down to every make below it.
    own = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ("MFLAGS", "TESTS")}
    process = subprocess.Popen(done, cwd=tmp_path, env=own, stdout=subprocess.DEVNULL, start_new_session=True)
    started = tmp_path / "started"
    while process.poll() is None and (not started.exists() or started.read_text().count("\n") < 2):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) != 0
    pids = [int(line.split()[0]) for line in started.read_text().splitlines()]
    assert len(pids) == 2
    wait_for(lambda: not living(pids))
