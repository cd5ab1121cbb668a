"""What a sandbox is asked to be: sizes, workspace, environment, limits.

Checked before anything is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.levels import LEVELS, Level
from pilotfish.sandbox.network import Network

INNER_WORKSPACE = PurePosixPath("/workspace")
INNER_HOME = PurePosixPath("/home/user")
INNER_TMP = PurePosixPath("/tmp")
INNER_RUNTIME = PurePosixPath("/run/user")
INNER_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/usr/games"


@dataclass(frozen=True)
class Places:
    """Paths as programs inside see them. At level 3 they are always these; below it they are the host's."""

    workspace: PurePosixPath = INNER_WORKSPACE
    home: PurePosixPath = INNER_HOME
    tmp: PurePosixPath = INNER_TMP
    runtime: PurePosixPath = INNER_RUNTIME


# Mount points the sandbox makes itself, or lets its programs write to: binding over or below them would
# either replace what protects the host or follow links that a program inside has planted.
_RESERVED = (
    "/workspace",
    "/proc",
    "/dev",
    "/sys",
    "/run",
    "/tmp",
    "/usr",
    "/etc",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
)


@dataclass(frozen=True)
class Limits:
    """Bounds on what one sandbox may use. Sizes are bytes.

    processes counts threads too, over the whole sandbox (at level 2, over all of the user's). memory_bytes is
    what all programs and memory-backed folders of a sandbox may take together; `Sandbox.bounds` says who
    counts it. disk_growth is how much bigger the workspace may become, disk_free what is left of its disk for
    others, or a twentieth of it where that is less; both are looked at several times a second. The other
    numbers hold for each process, the three `*_folder` ones for each memory-backed folder.
    """

    processes: int = 4096
    open_files: int = 8192
    file_bytes: int = 2 << 30
    data_bytes: int = 8 << 30
    memory_bytes: int = 8 << 30
    disk_growth: int = 16 << 30
    disk_free: int = 512 << 20
    tmp_folder: int = 1 << 30
    home_folder: int = 1 << 30
    shm_folder: int = 1 << 30

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise SandboxError(f"limit {name} is {value}, it must be a positive number.")


@dataclass(frozen=True)
class SandboxSpec:
    """What `Sandbox.open` builds.

    width, height: the X display in pixels. desktop: start an X display and a window manager. browser: refuse
    to open at once when no Chromium is found (with False that is found out by `browser.open`). workspace: a
    folder of the host that appears as /workspace; None is a private folder, removed at close. snapshots: a
    folder of the host, outside the workspace, that keeps its snapshots; None is a private one too. read_only:
    host folders or files to show inside, {host path: inner path}. links: links to make inside, {`/app`:
    where below /workspace or /tmp it leads}. env: extra environment of every process
    inside. level: how much stands around it (docs/sandbox.md): 3 is everything; 2 is for machines without
    user namespaces and has neither display nor browser; 0 is nothing at all. network: the
    hosts that programs inside may reach; none by default.
    """

    width: int = 1280
    height: int = 800
    desktop: bool = True
    browser: bool = False
    workspace: Path | None = None
    snapshots: Path | None = None
    read_only: Mapping[Path, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    level: Level = 3
    network: Network = field(default_factory=Network)

    def __post_init__(self) -> None:
        for side in ("width", "height"):
            value = getattr(self, side)
            if not 16 <= value <= 8192:
                raise SandboxError(f"display {side} is {value}, choose 16 to 8192 pixels.")
        if self.browser and not self.desktop:
            raise SandboxError("a browser needs a display, so browser=True goes with desktop=True.")
        if self.level not in LEVELS:
            raise SandboxError(f"sandbox level is {self.level!r}, choose 3, 2 or 0.")
        if self.level != 3 and self.desktop:
            raise SandboxError(
                f"sandbox level {self.level} has no display, open it with desktop=False or at level 3."
            )
        if self.level != 3 and self.read_only:
            first = str(next(iter(self.read_only)))
            raise SandboxError(
                f"sandbox level {self.level} cannot show {first!r} at another path, leave read_only out or "
                "open it at level 3."
            )
        if self.level != 3 and self.links:
            raise SandboxError(
                f"sandbox level {self.level} has no root of its own for the link {next(iter(self.links))!r}, "
                "leave links out or open it at level 3."
            )
        if self.level != 3 and self.network.allow:
            why = "has no sockets at all" if self.level == 2 else "cannot hold programs to a list"
            raise SandboxError(
                f"sandbox level {self.level} {why}, so leave the {self.network} out or open it at level 3."
            )
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise SandboxError(
                    f"environment variable {name!r} cannot be set, check its name for '=' and null bytes."
                )
        if self.workspace is not None:
            _check_workspace(self.workspace)
        for host, inner in self.read_only.items():
            _check_read_only(host, inner)
        for link, target in self.links.items():
            _check_link(link, target)


def _check_workspace(workspace: Path) -> None:
    if not workspace.is_dir():
        raise SandboxError(f"workspace {str(workspace)!r} is not a folder, create it first.")
    real = workspace.resolve()
    home = Path.home().resolve()
    if real == home or real in home.parents:
        raise SandboxError(
            f"workspace {str(real)!r} holds your home folder, choose one that has nothing but the work in it."
        )


def _check_link(link: str, target: str) -> None:
    path, end = PurePosixPath(link), PurePosixPath(target)
    plain = path.is_absolute() and ".." not in path.parts and str(path) == link and "\0" not in link
    reserved = ("/tmp/.X11-unix", *(place for place in _RESERVED if place != "/tmp"))
    plain = plain and link not in ("/", "/tmp", "/home", str(INNER_HOME))
    plain = plain and not any(path.is_relative_to(place) for place in reserved)
    inside = any(end.is_relative_to(place) for place in (INNER_WORKSPACE, INNER_TMP))
    if not plain or not inside or ".." in end.parts or "\0" in target:
        raise SandboxError(
            f"link {link!r} to {target!r} cannot be made, choose one such as '/app' to '/workspace/app'."
        )


def _check_read_only(host: Path, inner: str) -> None:
    if not host.exists():
        raise SandboxError(f"read-only path {str(host)!r} does not exist.")
    path = PurePosixPath(inner)
    plain = path.is_absolute() and ".." not in path.parts and str(path) == inner and "\0" not in inner
    if not plain or inner == "/" or any(path.is_relative_to(reserved) for reserved in _RESERVED):
        raise SandboxError(
            f"read-only inner path {inner!r} cannot be used, choose a plain one such as '/opt/data'."
        )
