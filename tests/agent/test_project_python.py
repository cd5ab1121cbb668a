"""What of the host an environment in a project's folder may have shown, and what never."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.agent.project_python import own_python


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder outside of /tmp, which a sandbox has one of its own of."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="pilotfish-test-"))
    yield folder
    shutil.rmtree(folder)


def installation(prefix: Path) -> Path:
    """What a Python looks like from outside, beside what nobody else is to see."""
    for name in (
        "bin/python3.12",
        "lib/python3.12/os.py",
        "share/keyrings/login",
        "share/zoneinfo/UTC",
        ".key",
    ):
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).write_text("")
    return prefix


def project(folder: Path, python: str | Path, home: str | Path | None = None) -> Path:
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to(python)
    if home is not None:
        (bin_folder.parent / "pyvenv.cfg").write_text(f"home = {home}\n")
    return folder


def test_of_an_installation_only_what_programs_need_is_shown(place: Path) -> None:
    prefix = installation(place / "3.12.1")
    (prefix / "lib64").symlink_to("lib")
    (prefix / "include").symlink_to("/etc")
    (place / "3.12").symlink_to("3.12.1")
    repo = project(place / "repo", place / "3.12/bin/python3.12", place / "3.12/bin")
    found = own_python(repo)
    pieces = ("bin", "lib", "lib64", "share/zoneinfo")
    ways = (place / "3.12", prefix)
    assert found.mounts == {way / piece: str(way / piece) for way in ways for piece in pieces}
    assert found.links == {str(repo): "/workspace"}
    assert found.env["PATH"].startswith("/workspace/.venv/bin:/usr/local/bin:")
    assert found.notes == (f".venv stands on {ways[0]} and {ways[1]}, shown in the sandbox read-only.",)


def test_what_is_no_installation_or_somebodys_home_is_not_shown(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = place / "secrets"
    (secrets / "bin").mkdir(parents=True)
    (secrets / "bin" / "python3").write_text("")
    home = installation(place / "home")
    (home / "below").mkdir()
    monkeypatch.setenv("HOME", str(home))
    for number, (python, why) in enumerate(
        {
            secrets / "bin/python3": "is not the folder of a Python installation",
            home / "bin/python3.12": "is or holds somebody's home folder",
            Path("/home") / "bin/python3": "is or holds somebody's home folder",
            Path("/etc/bin/python3"): "is where the sandbox has files of its own",
            Path("/tmp/x/bin/python3"): "is where the sandbox has files of its own",
        }.items()
    ):
        found = own_python(project(place / f"repo{number}", python, python.parent))
        prefix = python.parent.parent
        assert (found.mounts, found.notes) == (
            {},
            (f".venv leads to {prefix}, which {why}, so it is not shown in the sandbox.",),
        )


def test_links_that_go_in_circles_or_nowhere_or_stay_inside_show_nothing(place: Path) -> None:
    circle = project(place / "circle", "python3")
    (circle / ".venv/bin/python3").symlink_to("python")
    inside = project(place / "inside", "../../py/bin/python3.12")
    installation(inside / "py")
    system = project(place / "system", "/usr/bin/python3", "/usr/bin")
    for repo in (circle, inside, system):
        found = own_python(repo)
        assert (found.mounts, found.notes) == ({}, ())
    installation(place / "env")
    linked = place / "linked"
    linked.mkdir()
    (linked / ".venv").symlink_to(place / "env")
    (place / "env/bin/python").symlink_to("python3.12")
    found = own_python(linked)
    assert (found.mounts, found.links, found.env) == ({}, {}, {})
    assert found.notes[0].startswith(f".venv is a link to {place}/env, which is not followed")
    assert own_python(place).name == ""


def test_below_level_3_nothing_is_shown_and_what_follows_is_told(place: Path) -> None:
    repo = project(place / "repo", installation(place / "3.12") / "bin/python3.12")
    two, none = own_python(repo, 2), own_python(repo, 0)
    assert (two.mounts, two.env, none.mounts) == ({}, {}, {})
    assert two.notes == (f".venv stands on {place}/3.12, which programs at sandbox level 2 cannot read.",)
    assert none.notes == ()
    site = repo / ".venv/lib/python3.12/site-packages"
    site.mkdir(parents=True)
    (site / "own.pth").write_text(f"{repo}/src\n")
    assert (
        "imports the project from your folder and not from the copy (own.pth)" in own_python(repo, 0).notes[0]
    )
