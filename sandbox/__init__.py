"""An isolated machine for one task: files, shell, display, browser."""

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
from pilotfish.sandbox.pieces import Piece, check
from pilotfish.sandbox.process import Process
from pilotfish.sandbox.shell import Shell, ShellResult
from pilotfish.sandbox.snapshots import Restored, Snapshot, Snapshots
from pilotfish.sandbox.spec import Limits, SandboxSpec

__all__ = [
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
    "go",
    "page_element",
    "read_page",
]
