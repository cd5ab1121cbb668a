"""An isolated machine for one task: files, shell, display, browser.

Each name is loaded when first used, since some need Playwright or numpy and many callers neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilotfish.sandbox.box import Sandbox
    from pilotfish.sandbox.browser import PAGE_ERRORS, Browser, BrowserPage, go
    from pilotfish.sandbox.browser_downloads import Download
    from pilotfish.sandbox.browser_reader import PageText, page_element, read_page
    from pilotfish.sandbox.differences import Change, Diff
    from pilotfish.sandbox.display import Display
    from pilotfish.sandbox.errors import SandboxError, SandboxPathError, SandboxUnavailable
    from pilotfish.sandbox.files import FileEntry, Files
    from pilotfish.sandbox.host import HostDesktop
    from pilotfish.sandbox.network import Attempt, Network, NetworkLog
    from pilotfish.sandbox.pieces import Piece, check, try_out
    from pilotfish.sandbox.process import Process
    from pilotfish.sandbox.records import Snapshot
    from pilotfish.sandbox.shell import Shell, ShellResult
    from pilotfish.sandbox.snapshots import Restored, Snapshots
    from pilotfish.sandbox.spec import INNER_PATH, Limits, SandboxSpec
    from pilotfish.sandbox.workspace import check_workspace

_HOMES = {
    "box": ("Sandbox",),
    "browser": ("PAGE_ERRORS", "Browser", "BrowserPage", "go"),
    "browser_downloads": ("Download",),
    "browser_reader": ("PageText", "page_element", "read_page"),
    "differences": ("Change", "Diff"),
    "display": ("Display",),
    "errors": ("SandboxError", "SandboxPathError", "SandboxUnavailable"),
    "files": ("FileEntry", "Files"),
    "host": ("HostDesktop",),
    "network": ("Attempt", "Network", "NetworkLog"),
    "pieces": ("Piece", "check", "try_out"),
    "process": ("Process",),
    "shell": ("Shell", "ShellResult"),
    "records": ("Snapshot",),
    "snapshots": ("Restored", "Snapshots"),
    "spec": ("INNER_PATH", "Limits", "SandboxSpec"),
    "workspace": ("check_workspace",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "INNER_PATH",
    "PAGE_ERRORS",
    "Attempt",
    "Browser",
    "BrowserPage",
    "Change",
    "Diff",
    "Display",
    "Download",
    "FileEntry",
    "Files",
    "HostDesktop",
    "Limits",
    "Network",
    "NetworkLog",
    "PageText",
    "Piece",
    "Process",
    "Restored",
    "Sandbox",
    "SandboxError",
    "SandboxPathError",
    "SandboxSpec",
    "SandboxUnavailable",
    "Shell",
    "ShellResult",
    "Snapshot",
    "Snapshots",
    "check",
    "check_workspace",
    "go",
    "page_element",
    "read_page",
    "try_out",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
