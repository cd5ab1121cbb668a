"""Requests that cannot be met are refused before anything starts, each with one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotfish.sandbox import Limits, Sandbox, SandboxError, SandboxSpec, SandboxUnavailable, check
from pilotfish.sandbox.pieces import find_chromium, start_trouble

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("size", [0, -1, 15, 8193])
def test_display_sizes(size: int) -> None:
    with pytest.raises(SandboxError, match=f"display width is {size}, choose 16 to 8192 pixels"):
        SandboxSpec(width=size)
    with pytest.raises(SandboxError, match=f"display height is {size}"):
        SandboxSpec(height=size)


def test_workspaces(tmp_path: Path) -> None:
    SandboxSpec(workspace=tmp_path)
    with pytest.raises(SandboxError, match="is not a folder, create it first"):
        SandboxSpec(workspace=tmp_path / "missing")
    for forbidden in (Path("/"), Path.home(), Path.home().parent):
        with pytest.raises(SandboxError, match="holds your home folder"):
            SandboxSpec(workspace=forbidden)


@pytest.mark.parametrize(
    "inner", ["/workspace/x", "/tmp/a", "/usr/share/x", "/", "opt/x", "/opt/../etc", "/opt//x", "/run"]
)
def test_read_only_places(tmp_path: Path, inner: str) -> None:
    SandboxSpec(read_only={tmp_path: "/opt/data"})
    with pytest.raises(SandboxError, match="choose a plain one such as '/opt/data'"):
        SandboxSpec(read_only={tmp_path: inner})
    with pytest.raises(SandboxError, match="does not exist"):
        SandboxSpec(read_only={tmp_path / "missing": "/opt/data"})


def test_other_values() -> None:
    with pytest.raises(SandboxError, match="limit open_files is 0"):
        Limits(open_files=0)
    with pytest.raises(SandboxError, match="desktop=True"):
        SandboxSpec(browser=True, desktop=False)
    for env in ({"A=B": "1"}, {"": "1"}, {"A": "1\0"}):
        with pytest.raises(SandboxError, match="cannot be set"):
            SandboxSpec(env=env)


@pytest.mark.parametrize(
    ("program", "package"),
    [("bwrap", "bubblewrap"), ("Xvfb", "xvfb"), ("openbox", "openbox"), ("bash", "bash")],
)
async def test_missing_piece_is_named_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, package: str
) -> None:
    for other in {"bwrap", "Xvfb", "openbox", "bash"} - {program}:
        (tmp_path / other).symlink_to(f"/usr/bin/{other}")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match=f"^{program} is missing, .*: apt-get install {package}$"):
        await Sandbox.start(SandboxSpec())
    piece = next(piece for piece in check() if piece.name == program)
    assert not piece.ok
    assert piece.mend == f"apt-get install {package}"


async def test_missing_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTFISH_CHROMIUM", "/nowhere/chromium")
    with pytest.raises(SandboxUnavailable, match="PILOTFISH_CHROMIUM is '/nowhere/chromium'"):
        await Sandbox.start(SandboxSpec(browser=True))
    monkeypatch.setattr("pilotfish.sandbox.pieces._CHROMIUM_PLACES", ())
    monkeypatch.delenv("PILOTFISH_CHROMIUM")
    monkeypatch.setenv("HOME", "/nowhere")
    with pytest.raises(SandboxUnavailable, match=r"Chromium is missing.*apt-get install chromium$"):
        await Sandbox.start(SandboxSpec(browser=True))


def test_snap_stub_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub, real = tmp_path / "chromium-browser", tmp_path / "chrome"
    stub.write_text("#!/bin/sh\nexec snap run chromium\n")
    real.write_bytes(b"\x7fELF")
    stub.chmod(0o755)
    real.chmod(0o755)
    monkeypatch.delenv("PILOTFISH_CHROMIUM", raising=False)
    monkeypatch.setattr("pilotfish.sandbox.pieces._CHROMIUM_PLACES", (str(stub), str(real)))
    found = find_chromium()
    assert (found.host, found.folder, str(found.inner)) == (real, tmp_path, "/opt/browser/chrome")


async def test_isolation_that_this_machine_does_not_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A bwrap of its own words: what it prints where user namespaces are switched off.
    fake = tmp_path / "bwrap"
    fake.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace, likely...' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxUnavailable, match=r"^user namespaces are not permitted here, .*sysctl -w"):
        await Sandbox.start(SandboxSpec(desktop=False))
    piece = next(piece for piece in check() if piece.name == "isolation")
    assert not piece.ok
    assert "sysctl" in piece.mend


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (
            "bwrap: Creating new namespace failed: nesting depth or ... exceeded (ENOSPC)",
            "max_user_namespaces",
        ),
        ("bwrap: setting up uid map: Permission denied", "AppArmor"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "AppArmor"),
        ("bwrap: Failed to make / slave: Permission denied", "apparmor=unconfined"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "masks /proc"),
        ("bwrap: something\nnew", "it said nothing|something new"),
        ("", "it said nothing"),
    ],
)
def test_every_trouble_of_bubblewrap_has_a_sentence(stderr: str, words: str) -> None:
    sentence = str(start_trouble(stderr))
    assert "\n" not in sentence
    import re

    assert re.search(words, sentence)


def test_check_finds_everything_here() -> None:
    needed = {"bwrap", "bash", "Xvfb", "openbox", "isolation", "Chromium"}
    pieces = {piece.name: piece for piece in check()}
    assert set(pieces) == needed | {"sandbox level 2", "control group"}
    assert all(pieces[name].ok and not pieces[name].mend for name in needed)
    assert all(piece.detail for piece in pieces.values())
