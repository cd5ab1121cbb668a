"""`Sandbox`: one isolated machine for one task, from start to the last process gone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pilotfish.sandbox.as_user import is_real_root, user_for
from pilotfish.sandbox.bounds import Bounds
from pilotfish.sandbox.browser import Browser
from pilotfish.sandbox.browser_driver import find_driver
from pilotfish.sandbox.browser_look import (
    CHROMIUM_FLAGS,
    CHROMIUM_FLAGS_PLACE,
    CHROMIUM_POLICY,
    CHROMIUM_POLICY_PLACES,
)
from pilotfish.sandbox.bwrap import FONTS_FILE, Mounts
from pilotfish.sandbox.cgroup import ControlGroup, folders_of
from pilotfish.sandbox.cgroup import make as make_group
from pilotfish.sandbox.differences import Diff
from pilotfish.sandbox.display import INNER_OPENBOX_CONFIG, OPENBOX_CONFIG, Display, start_display
from pilotfish.sandbox.errors import SandboxError, SandboxUnavailable
from pilotfish.sandbox.files import Files
from pilotfish.sandbox.framebuffer import Framebuffer
from pilotfish.sandbox.gateway import Gateway
from pilotfish.sandbox.hostdir import HostFolder
from pilotfish.sandbox.janitor import Janitor
from pilotfish.sandbox.launch import starter
from pilotfish.sandbox.levels import meaning
from pilotfish.sandbox.link import Link
from pilotfish.sandbox.network import PROXY_URL, NetworkLog
from pilotfish.sandbox.pieces import check_apart, find_chromium, need, need_all
from pilotfish.sandbox.process import Process, start_process
from pilotfish.sandbox.records import Snapshot
from pilotfish.sandbox.shell import Shell
from pilotfish.sandbox.snapshots import Restored, Snapshots
from pilotfish.sandbox.spec import INNER_PATH, Limits, SandboxSpec
from pilotfish.sandbox.supervisor import Supervisor
from pilotfish.sandbox.vitals import Vitals

T = TypeVar("T")

BOX_VARIABLE = "PILOTFISH_BOX"
_FORCE_SECONDS = 5.0
_BROWSER_SECONDS = 5.0
_OWN_PROCESSES = 16  # what the sandbox itself needs besides the programs

_ENV: Mapping[str, str] = {
    "PATH": INNER_PATH,
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "FONTCONFIG_FILE": FONTS_FILE,
    "TERM": "xterm-256color",
    # GTK programs would each start a message bus of their own; nothing here needs one.
    "DBUS_SESSION_BUS_ADDRESS": "disabled:",
    "NO_AT_BRIDGE": "1",
    "GSETTINGS_BACKEND": "memory",
    # Input methods would change what a key gives: GTK's takes U+FF20 for the Compose key, Xlib's writes two
    # letters for one.
    "GTK_IM_MODULE": "gtk-im-context-none",
    "XCOMPOSEFILE": "/dev/null",
}


# Some programs read one spelling, some the other.
_PROXY_ENV = dict.fromkeys(
    ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), PROXY_URL
) | dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")


class Sandbox:
    """An isolated machine: `files`, `shell`, `display`, `browser`, programs, snapshots.

    It belongs to the event loop and the thread that opened it, and ends with them. It never runs anything on
    the host because a piece is missing: that raises `SandboxUnavailable`, one sentence with what is missing
    and the command that brings it.
    """

    def __init__(self, spec: SandboxSpec, folder: HostFolder, workspace: Path) -> None:
        self.spec = spec
        self.id = folder.id
        self.workspace = workspace
        self._starter = starter(spec, folder, workspace)
        self.places = self._starter.places
        self.files = Files(workspace, self.places.workspace)
        self.network_log = NetworkLog()
        self._folder = folder
        self._snapshots = Snapshots(workspace, spec.snapshots or folder.folder("snapshots"))
        self._display: Display | None = None
        self._framebuffer: Framebuffer | None = None
        self._browser: Browser | None = None
        self._supervisor = Supervisor(spec.level, without_level_3=not spec.desktop)
        self._vitals = Vitals()
        self._shell: Shell | None = None
        self._gateway: Gateway | None = None
        self._janitor: Janitor | None = None
        self._group: ControlGroup | None = None
        self._bounds = Bounds(spec.limits, spec.level, self.places, None)
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
        """`async with Sandbox.open(spec) as box`: a ready sandbox, closed at the end however that comes."""
        box = await cls.start(spec)
        try:
            yield box
        finally:
            await box.close()

    @classmethod
    async def start(cls, spec: SandboxSpec | None = None) -> Sandbox:
        """A ready sandbox that the caller must `close`."""
        spec = spec or SandboxSpec()
        need_all(spec)
        try:
            folder = HostFolder()
        except OSError as error:
            raise _no_room(error) from error
        try:
            workspace = folder.folder("workspace") if spec.workspace is None else spec.workspace.resolve()
            if spec.level == 3:
                check_apart(need("bwrap", "to isolate the sandbox", "bubblewrap"), workspace)
            box = cls(spec, folder, workspace)
        except OSError as error:
            folder.remove()
            raise _no_room(error) from error
        except BaseException:
            folder.remove()
            raise
        try:
            await box._start()
        except OSError as error:
            await box.close()
            raise _no_room(error) from error
        except BaseException:
            await box.close()
            raise
        return box

    @property
    def display(self) -> Display:
        """The X display; a sandbox without a desktop has none."""
        if self._display is None:
            raise SandboxError("this sandbox has no display, open it with desktop=True.")
        return self._display

    @property
    def framebuffer(self) -> Framebuffer:
        """The display's picture, read without an X client."""
        if self._framebuffer is None:
            raise SandboxError("this sandbox has no display, open it with desktop=True.")
        return self._framebuffer

    def camera(self, display: str) -> Framebuffer | None:
        """The framebuffer if `display` is this sandbox's; another display has none that can be read here."""
        return self._framebuffer if self._display is not None and self._display.name == display else None

    @property
    def shell(self) -> Shell:
        if self._shell is None:
            raise SandboxError("the sandbox is not running, open a new one.")
        return self._shell

    @property
    def browser(self) -> Browser:
        """The Chromium of this sandbox; it starts at its first page."""
        if self._browser is None:
            raise SandboxError("this sandbox has no display for a browser, open it with desktop=True.")
        return self._browser

    @property
    def protection(self) -> str:
        """What stands around it, in a sentence to be shown with whatever is shown of a run."""
        level = meaning(self.spec.level)
        return f"{level}; {self.spec.network}" if self.spec.network.allow else level

    @property
    def bounds(self) -> str:
        """Who counts memory."""
        return str(self._bounds)

    async def limits_hit(self) -> list[str]:
        """A sentence on each limit that was reached and that nobody has been told of yet."""
        return await self._bounds.hit(0, "")

    @property
    def is_open(self) -> bool:
        """Whether programs can run in it now."""
        return self._link is not None and self._link.is_open

    @property
    def trouble(self) -> str | None:
        """What makes it useless, in a sentence: a part that has ended or was frozen. None while all is well.

        It is known within 2 seconds. What still runs goes on until the sandbox is closed.
        """
        return self._vitals.trouble or (None if self._link is None or self.is_open else self._link.reason)

    @property
    def env(self) -> dict[str, str]:
        """The environment of every program inside. Nothing of the host's own environment is in it."""
        env = {**_ENV, BOX_VARIABLE: self.id, "HOME": str(self.places.home)}
        env |= {"TMPDIR": str(self.places.tmp), "XDG_RUNTIME_DIR": str(self.places.runtime)}
        if self.spec.level == 2:
            env["GIT_CONFIG_NOSYSTEM"] = "1"  # git gives up where it may not look for the machine's settings
        if self._display is not None:
            env["DISPLAY"] = self._display.name
        if self._gateway is not None:
            env |= _PROXY_ENV
        return env | dict(self.spec.env)

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: int | bytes | None = None,
        capture: bool = True,
        fds: Mapping[int, int] | None = None,
        own_sandbox: bool = False,
        vital: str | None = None,
        keep: bool = False,
    ) -> Process:
        """Start a program inside and return when it runs (not when it ends).

        env is added to the sandbox's own; cwd is a path inside, /workspace by default; stdin is a descriptor
        or bytes (nothing by default); capture=False discards the output; fds hands over more descriptors,
        {number inside: descriptor here}; own_sandbox lets it make the namespaces that Chromium's own sandbox
        needs; vital: what it is, if the sandbox is useless without it (see `trouble`); keep: spare it where
        memory runs out, as what is vital is, and see when a signal holds it (`Process.is_stopped`). Raises
        `SandboxError` when it cannot be started.
        """
        process = await start_process(
            self._running(),
            list(argv),
            env=self.env | dict(env or {}),
            cwd=cwd or str(self.places.workspace),
            limits=_rlimits(self.spec.limits),
            stdin=stdin,
            capture=capture,
            fds=fds,
            confine=not own_sandbox,
            keep=keep or vital is not None,
        )
        if vital is not None:
            self._vitals.add(vital, process)
        return process

    async def snapshot(self, label: str = "", *, needed: Collection[str] = ()) -> str:
        """Keep the workspace's files as they are now; returns an id. Only what changed is read.

        needed: snapshots that are not to be dropped for it.
        """
        return await _on_files(lambda goes_on: self._snapshots.take(label, goes_on, needed=needed))

    async def restore(self, snapshot: str) -> Restored:
        """Give the workspace the files that it had at `snapshot`.

        Programs go on running; what they have open, or write meanwhile, is theirs.
        """
        return await _on_files(lambda goes_on: self._snapshots.restore(snapshot, goes_on))

    async def diff(self, before: str, after: str | None = None, *, text: bool = False) -> Diff:
        """What changed from one snapshot to another, or to now; `text` adds the lines."""
        return await _on_files(lambda goes_on: self._snapshots.diff(before, after, text=text))

    def find_snapshot(self, snapshot: str) -> Snapshot:
        """What there is to say of one."""
        return self._snapshots.find(snapshot)

    async def snapshots(self) -> list[Snapshot]:
        """All that there are, oldest first."""
        return await _on_files(lambda goes_on: self._snapshots.all())

    async def close(self) -> None:
        """End every program, remove the display and the private folder.

        Safe to call twice, and when cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    @property
    def _link(self) -> Link | None:
        return self._supervisor.link

    def _running(self) -> Link:
        if self._link is None:
            raise SandboxError("the sandbox is not running, open a new one.")
        if not self._link.is_open:
            raise SandboxError(self._link.reason)
        return self._link

    async def _start(self) -> None:
        made: dict[str, str] = {}
        sockets = screen = chromium = driver = None
        if self.spec.desktop:
            number = self._folder.claim_display()
            self._display = Display(f":{number}", self.spec.width, self.spec.height)
            sockets, screen = self._folder.folder("x11"), self._folder.folder("screen")
            made = dict.fromkeys(CHROMIUM_POLICY_PLACES, json.dumps(CHROMIUM_POLICY))
            made |= {INNER_OPENBOX_CONFIG: OPENBOX_CONFIG, CHROMIUM_FLAGS_PLACE: CHROMIUM_FLAGS}
            with contextlib.suppress(SandboxUnavailable):  # said when a page is opened
                driver, chromium = find_driver(), find_chromium()
        name = f"pilotfish-{self.id}"
        self._folder.note_groups(folders_of(name))  # first, for we may be killed at any moment
        self._group = make_group(
            name, self.spec.limits.processes + _OWN_PROCESSES, self.spec.limits.memory_bytes
        )
        self._bounds = Bounds(self.spec.limits, self.spec.level, self.places, self._group)
        groups = self._group.folders if self._group else ()
        if self.spec.network.allow:
            user = user_for(self.id) if is_real_root() else None
            self._gateway = await Gateway.start(
                self.spec.network, self._folder.folder("network"), user, self.network_log
            )
            self._vitals.add_outside("the network's proxy", self._gateway.proxy)
        display = self._display.number if self._display else None
        self._janitor = await Janitor.hire(self._folder.path, display, groups, self.spec.level == 3)
        network = self._gateway.socket if self._gateway else None
        mounts = Mounts(
            self.workspace,
            sockets,
            screen,
            chromium,
            self.spec.read_only,
            made,
            network,
            driver,
            self.spec.links,
        )
        supervisor = self._supervisor
        await supervisor.start(lambda *fds: self._starter.launch(mounts, *fds), self._group, self._janitor)
        self._vitals.watch_guest(self._running(), supervisor.inner_pid or supervisor.outer_pid)
        if self._gateway is not None:
            await self._gateway.start_relay(self)
        limits, workspace = _rlimits(self.spec.limits), str(self.places.workspace)
        # Who may open terminals at level 2 could open those of the user's own programs too.
        self._shell = Shell(
            self._running(), self.env, limits, workspace, self.spec.level == 2, self._bounds.hit
        )
        self._bounds.watch(self._running())
        if self._display is not None and sockets is not None and screen is not None:
            self._browser = browser = Browser(self, chromium, self._folder.folder("browser"))
            self._vitals.browser_driver = lambda: browser.driver_pid
            server = await start_display(self, self._display, sockets)
            self._framebuffer = Framebuffer(
                screen, self.spec.width, self.spec.height, lambda: self.is_open and server.is_running
            )

    async def _close(self) -> None:
        """Every step is taken even when another fails; the stack runs them from the last to the first."""
        async with contextlib.AsyncExitStack() as steps:
            if self._janitor is not None:
                steps.push_async_callback(self._janitor.dismiss)
            steps.push_async_callback(asyncio.to_thread, self._remove)
            if self._gateway is not None:
                steps.push_async_callback(_within, _FORCE_SECONDS, self._gateway.close)
            steps.callback(self.files.close)
            if self._browser is not None:
                steps.push_async_callback(_within, _BROWSER_SECONDS, self._browser.close)
            steps.push_async_callback(self._supervisor.end)
            steps.callback(self._vitals.close)

    def _remove(self) -> None:
        try:
            if self._group is not None:
                self._group.remove()
        finally:
            self._folder.remove()


def _no_room(error: OSError) -> SandboxError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return SandboxError(
            f"no more files can be opened for a sandbox ({error.strerror}): close other sandboxes, or raise "
            "the limit with `ulimit -n 4096`."
        )
    return SandboxError(
        f"the sandbox could not write its own files in {tempfile.gettempdir()!r} ({error.strerror}), free "
        "some space there or set TMPDIR to another folder."
    )


async def _within(seconds: float, step: Callable[[], Awaitable[object]]) -> None:
    """Take a step of closing, but go on without it after so many seconds."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(step(), seconds)


def _rlimits(limits: Limits) -> dict[str, int]:
    """Limits as the guest sets them, by the names of Python's `resource` module."""
    return {
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_DATA": limits.data_bytes,
        # No better place in the queue than others, even where the user has a right to one.
        "RLIMIT_NICE": 0,
        "RLIMIT_RTPRIO": 0,
        # 1, not 0: neither writes a file, but 0 would still feed a core_pattern that is a program.
        "RLIMIT_CORE": 1,
    }


async def _on_files(work: Callable[[Callable[[], None]], T]) -> T:
    """Run file work in a thread. When cancelled, the `goes_on` that it is given raises."""
    stopped = threading.Event()

    def goes_on() -> None:
        if stopped.is_set():
            raise SandboxError("it was interrupted.")

    return await _in_thread(lambda: work(goes_on), stopped.set)


async def _in_thread(work: Callable[[], T], on_cancel: Callable[[], object] | None = None) -> T:
    """Run file work in a thread; when cancelled, still wait for it, so that it never goes on unseen."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody is left to be told
        raise
