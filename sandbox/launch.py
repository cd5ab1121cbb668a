"""The command that starts the guest of a sandbox, at each level, and the descriptors that go with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from pilotfish.sandbox import landlock, seccomp
from pilotfish.sandbox.as_user import Shares, bwrap_as, is_real_root, user_for
from pilotfish.sandbox.bwrap import ETC, GUEST_SCRIPT, Mounts, made_files, sandbox_argv
from pilotfish.sandbox.hostdir import HostFolder
from pilotfish.sandbox.levels import check_level_2
from pilotfish.sandbox.pieces import find_python, script_argv
from pilotfish.sandbox.process import bytes_fd
from pilotfish.sandbox.spec import Places, SandboxSpec


@dataclass
class Launch:
    """What to execute, with which descriptors; `close` them once it runs. held: those it does not inherit."""

    argv: list[str]
    fds: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def close(self) -> None:
        for fds in (self.fds, self.held):
            while fds:
                os.close(fds.pop())


class Starter(Protocol):
    """One way to start a guest."""

    places: Places

    def launch(self, mounts: Mounts, control_fd: int, status_fd: int) -> Launch: ...


def starter(spec: SandboxSpec, folder: HostFolder, workspace: Path) -> Starter:
    """The way of the level that was asked for. Raises `SandboxUnavailable` when this machine has it not."""
    if spec.level == 3:
        return _InNamespaces(spec, folder)
    if spec.level == 2:
        check_level_2()
        return _Apart(spec, folder, workspace)
    return _Open(folder, workspace)


class _InNamespaces:
    """Level 3: bubblewrap, a base filter for everything, a strict one for all but Chromium."""

    def __init__(self, spec: SandboxSpec, folder: HostFolder) -> None:
        self.places = Places()
        self._spec = spec
        self._folder = folder

    def launch(self, mounts: Mounts, control_fd: int, status_fd: int) -> Launch:
        launch = Launch([])
        try:
            launch.fds.append(base := bytes_fd(seccomp.build("base")))
            launch.fds.append(strict := bytes_fd(seccomp.build("strict")))
            made = {}
            for inner, text in made_files(mounts).items():
                made[inner] = bytes_fd(text.encode())
                launch.fds.append(made[inner])
            argv = sandbox_argv(self._spec.limits, mounts, made, control_fd, strict)
            argv[1:1] = ["--json-status-fd", str(status_fd), "--seccomp", str(base)]
            if is_real_root():
                argv, mounted = bwrap_as(user_for(self._folder.id), argv)
                launch.held.append(mounted)
            launch.argv = argv
        except BaseException:
            launch.close()
            raise
        return launch


# What programs may read at level 2 besides the lists of level 3, and the devices they may use.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC_TOO = ("passwd", "group", "hosts", "nsswitch.conf", "host.conf")
_READ = ("/proc", "/sys/devices/system/cpu")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


class _Apart:
    """Level 2: Landlock and the filter `apart` around each program, on the host's own files.

    Started by root, it runs as a user of its own, who is shown the workspace and three private folders.
    """

    def __init__(self, spec: SandboxSpec, folder: HostFolder, workspace: Path) -> None:
        self._folder = folder
        self._shares = Shares() if is_real_root() else None
        self._own = [workspace, *(folder.folder(name) for name in ("home", "tmp", "run"))]
        self.places = Places(*(PurePosixPath(self._shown(path, True)) for path in self._own))
        code = GUEST_SCRIPT.parents[1]
        self._guest = f"{self._shown(code, False)}/{GUEST_SCRIPT.relative_to(code)}"
        python, self._prefix = find_python()
        if self._prefix is not None:
            python = f"{self._shown(self._prefix, False)}/{Path(python).relative_to(self._prefix)}"
        self._python = python

    def _shown(self, path: Path, writable: bool) -> str:
        return self._shares.add(str(path), writable) if self._shares else str(path)

    def launch(self, mounts: Mounts, control_fd: int, status_fd: int) -> Launch:
        launch = Launch([], [bytes_fd(seccomp.build("apart", own_user=self._shares is not None))])
        try:
            launch.fds.append(landlock.ruleset(self._rules()))
            argv = script_argv(self._python, self._guest, *map(str, (control_fd, *launch.fds)))
            if self._shares is None:
                argv += [str(path.resolve()) for path in self._own]
            else:
                argv, mounted = self._shares.command(user_for(self._folder.id), argv)
                launch.held.append(mounted)
            launch.argv = argv
        except BaseException:
            launch.close()
            raise
        return launch

    def _rules(self) -> Iterable[tuple[Path, landlock.Access]]:
        for path in self._own:
            yield path, "own"
        for name in _SYSTEM:
            yield Path(name), "run"
        if self._prefix is not None:
            yield self._prefix, "run"
        for name in (*ETC, *_ETC_TOO):
            yield Path("/etc", name), "read"
        for name in _READ:
            yield Path(name), "read"
        for name in _DEVICES:
            yield Path("/dev", name), "use"


class _Open:
    """Level 0: nothing. Programs are ended with the sandbox, and that is all."""

    def __init__(self, folder: HostFolder, workspace: Path) -> None:
        paths = [workspace, *(folder.folder(name) for name in ("home", "tmp", "run"))]
        self.places = Places(*map(PurePosixPath, paths))

    def launch(self, mounts: Mounts, control_fd: int, status_fd: int) -> Launch:
        return Launch(script_argv(find_python()[0], str(GUEST_SCRIPT), str(control_fd)))
