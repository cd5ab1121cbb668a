"""The programs a sandbox is built from: where they are, whether they work, how to get a missing one."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pilotfish.sandbox import cgroup, landlock
from pilotfish.sandbox.errors import SandboxError, SandboxUnavailable

if TYPE_CHECKING:
    from pilotfish.sandbox.spec import SandboxSpec

_OPEN_FILES = 640  # PID 1 parks descriptors from 256 on, at level 2 from 512 on
CHROMIUM_VARIABLE = "PILOTFISH_CHROMIUM"
_CHROMIUM_PLACES = (
    "/usr/lib/chromium/chromium",
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/opt/google/chrome/chrome",
    "/usr/bin/google-chrome",
)

# What bubblewrap says when the machine does not allow what it needs, and what to do about it.
_BWRAP_TROUBLE = (
    (
        "No permissions to create new namespace",
        "user namespaces are not permitted here",
        "allow them (sysctl -w kernel.unprivileged_userns_clone=1), or in a container run it with "
        "--security-opt seccomp=unconfined",
    ),
    (
        "nesting depth or",
        "no more user namespaces can be created here",
        "raise the limit with sysctl -w user.max_user_namespaces=15000",
    ),
    (
        "setting up uid map: Permission denied",
        "AppArmor forbids user namespaces to bubblewrap",
        "install its profile with apt-get install apparmor-profiles and "
        "apparmor_parser -r /usr/share/apparmor/extra-profiles/bwrap-userns-restrict",
    ),
    (
        "Failed RTM_NEWADDR",
        "AppArmor forbids user namespaces to bubblewrap",
        "install its profile with apt-get install apparmor-profiles and "
        "apparmor_parser -r /usr/share/apparmor/extra-profiles/bwrap-userns-restrict",
    ),
    (
        "Failed to make / slave",
        "the container forbids mounting",
        "run it with --security-opt apparmor=unconfined",
    ),
    (
        "Can't mount proc",
        "the container masks /proc",
        "run it with --security-opt systempaths=unconfined",
    ),
)


@dataclass(frozen=True)
class Piece:
    """One thing the sandbox needs.

    `detail` is what was found; `mend` the command that brings it, '' when ok.
    """

    name: str
    ok: bool
    detail: str
    mend: str = ""


@dataclass(frozen=True)
class Chromium:
    """A Chromium. `inner` is its path inside, `folder` the host folder to show as /opt/browser, if any."""

    host: Path
    folder: Path | None
    inner: PurePosixPath


def need(program: str, purpose: str, package: str) -> str:
    """The path of a program, or `SandboxUnavailable`."""
    path = shutil.which(program)
    if path is None:
        raise SandboxUnavailable(f"{program} is missing, it is needed {purpose}: apt-get install {package}")
    return path


def _need_open_files() -> None:
    """Raise `SandboxError` where PID 1, which inherits the limit, could not park its descriptors."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < _OPEN_FILES:
        raise SandboxError(
            f"a process may have {limit} files open here, {_OPEN_FILES} are needed to start a sandbox: raise "
            "that with `ulimit -n 1024`."
        )


def need_all(spec: SandboxSpec) -> None:
    """Raise `SandboxUnavailable` for a program that a sandbox of this spec needs and that is not here."""
    from pilotfish.sandbox.browser_driver import find_driver

    _need_open_files()
    need("bash", "for the shell", "bash")
    if spec.level == 3:
        need("bwrap", "to isolate the sandbox", "bubblewrap")
    if spec.desktop:
        need("Xvfb", "for the display", "xvfb")
        need("openbox", "for the windows on the display", "openbox")
    if spec.browser:
        find_driver()
        find_chromium()


def try_out(spec: SandboxSpec) -> None:
    """Raise `SandboxUnavailable` if a sandbox of this spec cannot be had here. Takes 0.1 seconds."""
    from pilotfish.sandbox.levels import check_level_2, without_level_3

    need_all(spec)
    if spec.level == 2:
        check_level_2()
    elif spec.level == 3 and not (piece := _isolation()).ok:
        trouble = SandboxUnavailable(f"{piece.detail}: {piece.mend}")
        raise trouble if spec.desktop else without_level_3(trouble)


def check_apart(program: str, workspace: Path) -> None:
    """Raise `SandboxError` for a program of the trusted side that programs inside could replace."""
    if Path(program).resolve().is_relative_to(workspace) or Path(program).absolute().is_relative_to(
        workspace
    ):
        raise SandboxError(
            f"{program} lies in the workspace, where programs inside could replace it: take its folder "
            "out of PATH."
        )


def start_trouble(stderr: str) -> SandboxUnavailable:
    """What the last words of bubblewrap, or of what stands in its place, mean: one sentence."""
    said = " ".join(stderr.split())
    if said.startswith(cgroup.CLOSED):
        group = said.removeprefix(cgroup.CLOSED)
        return SandboxUnavailable(
            f"the control group {group} could not be entered, something removed it: try again."
        )
    for words, meaning, mend in _BWRAP_TROUBLE:
        if words in said:
            return SandboxUnavailable(f"{meaning}, they are needed to isolate the sandbox: {mend}")
    return SandboxUnavailable(f"the sandbox could not be built ({said[-300:] or 'it said nothing'}).")


def find_python() -> tuple[str, Path | None]:
    """A Python for the guest, and the host folder to bind when it is not below /usr."""
    if os.access("/usr/bin/python3", os.X_OK):
        return "/usr/bin/python3", None
    real = Path(sys.base_prefix).resolve()
    return str(real / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"), real


# Imported, and not run as a script, so that it is compiled once and not for every sandbox.
_START = (
    "import sys; place, package, name = sys.argv[1].rsplit('/', 2); sys.path.append(place); "
    "__import__(package + '.' + name[:-3], fromlist=['main']).main(sys.argv[2:])"
)


def script_argv(python: str, script: str, *words: str) -> list[str]:
    """Run the `main(words)` of a script in a package, without the environment and other packages."""
    return [python, "-I", "-S", "-c", _START, script, *words]


def find_chromium() -> Chromium:
    """The Chromium to use, or `SandboxUnavailable`. PILOTFISH_CHROMIUM wins; snap stubs are passed over."""
    wish = os.environ.get(CHROMIUM_VARIABLE)
    if wish:
        if not os.access(wish, os.X_OK) or not Path(wish).is_file():
            raise SandboxUnavailable(
                f"{CHROMIUM_VARIABLE} is {wish!r}, which is not a program: correct or unset it."
            )
        return _browser(Path(wish))
    for place in map(Path, _CHROMIUM_PLACES):
        if os.access(place, os.X_OK) and not _is_snap_stub(place):
            return _browser(place)
    for cache in sorted(
        Path.home().glob(".cache/ms-playwright/chromium-*/chrome-linux*/chrome"), reverse=True
    ):
        return _browser(cache)
    raise SandboxUnavailable("Chromium is missing, it is needed for the browser: apt-get install chromium")


def _browser(host: Path) -> Chromium:
    real = host.resolve()
    if real.is_relative_to("/usr"):
        return Chromium(host, None, PurePosixPath(real))
    return Chromium(host, real.parent, PurePosixPath("/opt/browser") / real.name)


def _is_snap_stub(path: Path) -> bool:
    with path.resolve().open("rb") as file:
        start = file.read(4096)
    return start.startswith(b"#!") and b"snap" in start


def check() -> list[Piece]:
    """Look at every piece and try the isolation for real: what `pilotfish doctor` shows."""
    pieces = []
    for name, purpose, package in (
        ("bwrap", "to isolate the sandbox", "bubblewrap"),
        ("bash", "for the shell tool", "bash"),
        ("Xvfb", "for the display", "xvfb"),
        ("openbox", "for the windows on the display", "openbox"),
    ):
        path = shutil.which(name)
        pieces.append(
            Piece(
                name,
                path is not None,
                path or f"missing, needed {purpose}",
                "" if path else f"apt-get install {package}",
            )
        )
    if shutil.which("bwrap"):
        pieces.append(_isolation())
    pieces += [_level_2(), _control_group()]
    try:
        pieces.append(Piece("Chromium", True, str(find_chromium().host)))
    except SandboxUnavailable as error:
        meaning, _, mend = str(error).partition(": ")
        pieces.append(Piece("Chromium", False, meaning, mend))
    return pieces


def _isolation() -> Piece:
    """Whether bubblewrap can do what a sandbox has it do."""
    from pilotfish.sandbox.as_user import bwrap_as, is_real_root, user_for
    from pilotfish.sandbox.bwrap import probe_argv

    probe, held = probe_argv(), -1
    try:
        if is_real_root():
            probe, held = bwrap_as(user_for("0"), probe)
        done = subprocess.run(probe, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise start_trouble(done.stderr)
    except SandboxUnavailable as error:
        meaning, _, mend = str(error).partition(": ")
        return Piece("isolation", False, meaning, mend)
    finally:
        if held >= 0:
            os.close(held)
    return Piece("isolation", True, "user, process, network and mount namespaces work")


def _level_2() -> Piece:
    """What can be had without namespaces, by who asks for it."""
    found = landlock.version()
    if found >= landlock.NEEDED_VERSION:
        return Piece("sandbox level 2", True, f"Landlock {found}, for --sandbox-level 2")
    detail = f"Landlock {found or 'is missing'}, {landlock.NEEDED_VERSION} is needed for --sandbox-level 2"
    return Piece("sandbox level 2", False, detail, "start a Linux 6.12 or newer")


def _control_group() -> Piece:
    place = cgroup.working_place()
    if place is None:
        return Piece("control group", False, "none can be made: memory is bounded for each process only")
    return Piece("control group", True, f"version {place[0]}: memory is bounded for the whole sandbox")
