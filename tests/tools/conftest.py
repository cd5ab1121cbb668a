"""A real X display per test session, a window that records what reaches it, and the computer tool on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from Xlib import X
from Xlib.display import Display

from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.tools.base import Screen, ToolContext, ToolResult, validate
from pilotfish.tools.computer import ComputerTool

from .desk import Desk, serve
from .editor import Editor

WIDTH, HEIGHT = 800, 600


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """The name of a display that nobody else uses."""
    read, write = os.pipe()
    argv = ["Xvfb", "-displayfd", str(write), "-screen", "0", f"{WIDTH}x{HEIGHT}x24"]
    server = subprocess.Popen(
        [*argv, "-nolisten", "tcp", "-noreset", "-ac"], pass_fds=[write], stderr=subprocess.DEVNULL
    )
    os.close(write)
    with os.fdopen(read) as number:
        name = f":{number.readline().strip()}"
    yield name
    server.terminate()
    server.wait()


@dataclass(frozen=True)
class Input:
    """One event that reached the window: kind is press, release, key, keyup or motion.

    code is a button number or the symbol of the key in the first group; x, y are display pixels.
    """

    kind: str
    code: int
    x: int
    y: int
    state: int


class Recorder:
    """A window over the whole display that has the focus and records pointer and key events."""

    def __init__(self, name: str) -> None:
        self.display = Display(name)
        root = self.display.screen().root
        mask = X.ButtonPressMask | X.ButtonReleaseMask | X.KeyPressMask | X.KeyReleaseMask
        self.window = root.create_window(
            0,
            0,
            WIDTH,
            HEIGHT,
            0,
            X.CopyFromParent,
            event_mask=mask | X.PointerMotionMask,
            override_redirect=True,
            background_pixel=0x204080,
        )
        self.window.map()
        self.window.set_input_focus(X.RevertToParent, X.CurrentTime)
        self.events()

    def events(self) -> list[Input]:
        """What came since the last call."""
        self.display.sync()
        kinds = {
            X.ButtonPress: "press",
            X.ButtonRelease: "release",
            X.KeyPress: "key",
            X.KeyRelease: "keyup",
            X.MotionNotify: "motion",
        }
        found = []
        while self.display.pending_events():
            event = self.display.next_event()
            if event.type == X.MappingNotify:
                self.display.refresh_keyboard_mapping(event)
            if event.type in kinds:
                is_key = event.type in (X.KeyPress, X.KeyRelease)
                code = 0
                if event.type != X.MotionNotify:
                    code = self.display.keycode_to_keysym(event.detail, 0) if is_key else event.detail
                found.append(Input(kinds[event.type], code, event.root_x, event.root_y, event.state))
        return found

    def button_events(self) -> list[tuple[str, int]]:
        """Button presses and releases since the last call, as (kind, number)."""
        return [(event.kind, event.code) for event in self.events() if event.kind in ("press", "release")]

    def key_events(self) -> list[tuple[str, int]]:
        """Key presses and releases since the last call, as (kind, symbol)."""
        return [(event.kind, event.code) for event in self.events() if event.kind in ("key", "keyup")]

    def is_anything_down(self) -> bool:
        pointer = self.window.query_pointer()
        return any(self.display.query_keymap()) or bool(pointer.mask & 0x1F00)

    def close_window(self) -> None:
        """Make room for another program; the connection stays."""
        self.window.destroy()
        self.display.sync()

    def close(self) -> None:
        self.display.close()


@pytest.fixture
def recorder(display: str) -> Iterator[Recorder]:
    window = Recorder(display)
    yield window
    window.close()


@pytest.fixture
def screen(display: str) -> Screen:
    return Screen(display, 0, 0, WIDTH, HEIGHT)


@pytest_asyncio.fixture(loop_scope="function")
async def tool() -> AsyncIterator[ComputerTool]:
    computer = ComputerTool()
    yield computer
    await computer.close()


Act = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def act(tool: ComputerTool, screen: Screen) -> Act:
    """Validate and run one action on the display, as the agent does; anything but success fails the test."""

    async def run(action: str, *, on: Screen = screen, **arguments: object) -> ToolResult:
        args = validate(tool, {"action": action, **arguments})
        assert not isinstance(args, ToolResult), args
        return await tool.run(args, ToolContext(screen=on))

    return run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box() -> AsyncIterator[Sandbox]:
    """A sandbox without a display, shared by the tests of one file."""
    async with Sandbox.open(SandboxSpec(desktop=False)) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk() -> AsyncIterator[Desk]:
    """A desktop with a site and a browser, shared by the tests of one file."""
    async with Sandbox.open(SandboxSpec(width=900, height=700)) as box:
        await serve(box)
        opened = Desk(box)
        yield opened
        await opened.tool.close()
        await opened.computer.close()


@pytest.fixture
def edit(box: Sandbox) -> Editor:
    """The edit tool on an empty workspace."""
    for path in sorted(box.workspace.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    return Editor(box)
