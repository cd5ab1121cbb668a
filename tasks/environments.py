"""The environments of task files: a web page, a desktop, a shell, a folder of code."""

from __future__ import annotations

import asyncio
import mimetypes
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from playwright.async_api import Page, Route

from pilotfish.sandbox import PAGE_ERRORS, Sandbox, SandboxError, SandboxSpec
from pilotfish.tasks.clean import run_clean
from pilotfish.tasks.edits.environment import Edits
from pilotfish.tasks.environment import End, Environment, Grade, StartError, first_line
from pilotfish.tasks.environment_fields import (
    CodeEnvironment,
    DesktopEnvironment,
    EditsEnvironment,
    HarborEnvironment,
    HumanevalEnvironment,
    MiniwobEnvironment,
    RepositoryEnvironment,
    ScreenSize,
    SwebenchEnvironment,
    WebEnvironment,
)
from pilotfish.tasks.format import Server, Task
from pilotfish.tasks.graders import grade
from pilotfish.tasks.harbor import Harbor
from pilotfish.tasks.humaneval import Humaneval
from pilotfish.tasks.miniwob import Miniwob, pages_folder
from pilotfish.tasks.repositories import Repository, repository_trouble
from pilotfish.tasks.swebench import Swebench, swebench_trouble
from pilotfish.tasks.windows import let_go, settle, wait_for_windows, window_count
from pilotfish.tools.grid import Screen

WEB_SCREEN = ScreenSize(width=336, height=420, scale=2)
DESKTOP_SCREEN = ScreenSize(width=1280, height=800)
_ORIGIN = "http://task.test"
_COMMAND_S = 60.0
_WINDOW_S = 15.0
_SERVER_S = 15.0
_LISTENING = "until (: < /dev/tcp/127.0.0.1/$1) 2>/dev/null; do sleep 0.02; done"


def environment_for(task: Task) -> Environment:
    """The environment that plays this task; a fresh one for each episode."""
    match task.environment:
        case MiniwobEnvironment():
            return Miniwob(task.environment)
        case HumanevalEnvironment():
            return Humaneval(task, task.environment)
        case EditsEnvironment():
            return Edits(task.name, task.environment)
        case HarborEnvironment():
            return Harbor(task, task.environment)
        case RepositoryEnvironment():
            return Repository(task, task.environment)
        case SwebenchEnvironment():
            return Swebench(task, task.environment)
        case WebEnvironment():
            return WebPage(task)
        case DesktopEnvironment():
            return Desktop(task)
        case _:
            return Workspace(task)


def skip_reason(task: Task) -> str | None:
    """Why this machine cannot play the task, as one sentence; None if it can."""
    if isinstance(task.environment, MiniwobEnvironment):
        try:
            pages_folder()
        except SandboxError as error:
            return str(error)
    if isinstance(task.environment, SwebenchEnvironment):
        return swebench_trouble(task.environment.model_dump_json())
    if isinstance(task.environment, HarborEnvironment):
        return task.environment.refused or None
    if isinstance(task.environment, RepositoryEnvironment):
        return repository_trouble(task.name, task.environment)
    missing = sorted({line[0] for line in task.setup.launch if shutil.which(line[0]) is None})
    if missing:
        return f"{task.name} needs {', '.join(missing)}: apt-get install {' '.join(missing)}"
    return None


class Workspace:
    """A workspace with the task's files, and no display. The other environments add to it."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def sandbox_spec(self) -> SandboxSpec:
        return SandboxSpec(desktop=False)

    def screen(self, box: Sandbox) -> Screen | None:
        return None

    async def start(self, box: Sandbox) -> str:
        files = _files(self._task)
        try:
            for file in files:
                box.files.write_bytes(file.name, file.data)
        except (SandboxError, OSError) as error:
            raise StartError(
                f"{self._task.name}: a file of the set-up cannot be written ({error})"
            ) from error
        programs = [shlex.quote(f"./{file.name}") for file in files if file.executable]
        if programs:
            await self._prepare(box, f"chmod +x {' '.join(programs)}")
        for command in self._task.setup.commands:
            await self._prepare(box, command)
        for server in self._task.setup.serve:
            await self._serve(box, server)
        return self._task.instruction.strip()

    async def _prepare(self, box: Sandbox, command: str) -> None:
        exit_code, stdout, stderr = await run_clean(box, command, _COMMAND_S)
        if exit_code != 0:
            end = f"took over {_COMMAND_S:g} s" if exit_code is None else f"ended with status {exit_code}"
            said = (stderr or stdout).strip()[-200:]
            raise StartError(f"{self._task.name}: the command {command[:60]!r} {end}, saying {said!r}.")

    async def _serve(self, box: Sandbox, server: Server) -> None:
        """Start a server and wait until it takes connections."""
        name, port = self._task.name, server.port
        try:
            program = await box.run(server.run)
            look = await box.run(["bash", "-c", _LISTENING, "look", str(port)])
        except SandboxError as error:
            raise StartError(f"{name}: {server.run[0]} cannot be started ({error})") from error
        waits = [asyncio.ensure_future(look.wait(_SERVER_S)), asyncio.ensure_future(program.wait(_SERVER_S))]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        listens = look.returncode == 0 and program.is_running
        await look.kill()
        await asyncio.gather(*waits[:1], return_exceptions=True)
        waits[1].cancel()
        await asyncio.gather(*waits[1:], return_exceptions=True)
        if not listens:
            said = program.output.strip()[-200:]
            raise StartError(f"{name}: {server.run[0]} does not listen on port {port}, saying {said!r}.")

    async def finished(self, box: Sandbox) -> bool:
        return False

    async def settle_programs(self, box: Sandbox) -> None:
        """Have nothing that the model left running change the result while it is judged."""
        await box.shell.end_all()

    async def grade(self, box: Sandbox, end: End) -> Grade:
        await self.settle_programs(box)
        return await grade(self._task.graders, box, end)


class Desktop(Workspace):
    """A display with programs on it that work in the workspace."""

    def _size(self) -> ScreenSize:
        return self._task.screen or DESKTOP_SCREEN

    def sandbox_spec(self) -> SandboxSpec:
        size = self._size()
        return SandboxSpec(width=size.width, height=size.height, browser="browser" in self._task.tools)

    def screen(self, box: Sandbox) -> Screen | None:
        return Screen(box.display.name, 0, 0, box.display.width, box.display.height)

    async def start(self, box: Sandbox) -> str:
        instruction = await super().start(box)
        for line in self._task.setup.launch:
            await self._launch(box, line)
        screen = self.screen(box)
        assert screen is not None
        await settle(screen)
        return instruction

    async def settle_programs(self, box: Sandbox) -> None:
        """What the model started may have windows, which are part of the result, so it only stops."""
        await box.shell.freeze_all()

    async def _launch(self, box: Sandbox, line: Sequence[str]) -> None:
        """Start a program and wait for its window, so that windows open in the task's order."""
        try:
            windows = window_count(box.display.name)
            program = await box.run(line)
        except SandboxError as error:
            raise StartError(f"{self._task.name}: {line[0]} cannot be started ({error})") from error

        def failed() -> bool:
            return program.returncode not in (None, 0)

        if not await wait_for_windows(box.display.name, windows + 1, _WINDOW_S, failed):
            said = program.output.strip()[-200:]
            raise StartError(f"{self._task.name}: {line[0]} showed no window, saying {said!r}.")


class WebPage(Desktop):
    """One page over the whole display.

    The page's files never enter the sandbox: its requests are answered from here, from the folder of the
    page, the task file itself excepted.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        assert isinstance(task.environment, WebEnvironment)
        self._file = (task.folder / task.environment.page).resolve()
        self.page: Page | None = None
        """The open page, for graders only."""

    def _size(self) -> ScreenSize:
        return self._task.screen or WEB_SCREEN

    def sandbox_spec(self) -> SandboxSpec:
        size = self._size()
        return SandboxSpec(width=size.width, height=size.height, browser=True)

    async def start(self, box: Sandbox) -> str:
        instruction = await super().start(box)
        try:
            let_go(box.display.name)
            self.page = (await box.browser.open("about:blank", device_scale_factor=self._size().scale)).page
            await self.page.context.unroute_all()
            await self.page.context.route("**/*", self._answer)
            await self.page.goto(f"{_ORIGIN}/{self._file.name}")
        except (*PAGE_ERRORS, SandboxError) as error:
            raise StartError(f"{self._task.name}: the page cannot be opened ({first_line(error)})") from error
        screen = self.screen(box)
        assert screen is not None
        await settle(screen)
        return instruction

    async def _answer(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        file = (self._file.parent / unquote(url.path).lstrip("/")).resolve()
        inside = f"{url.scheme}://{url.netloc}" == _ORIGIN and file.is_relative_to(self._file.parent)
        if not inside or not file.is_file() or self._task.is_own_file(file):
            await route.fulfill(status=404, body="")
            return
        await route.fulfill(body=file.read_bytes(), content_type=mimetypes.guess_type(file.name)[0])

    async def grade(self, box: Sandbox, end: End) -> Grade:
        await box.browser.dismiss_dialogs()
        await self.settle_programs(box)
        return await grade(self._task.graders, box, end, self.page)


@dataclass(frozen=True)
class _File:
    name: str
    data: bytes
    executable: bool = False


def _files(task: Task) -> list[_File]:
    """What the workspace starts with: the folder of a code task, and then the files of the set-up."""
    files: list[_File] = []
    if isinstance(task.environment, CodeEnvironment) and task.environment.folder is not None:
        files = _tree(task.folder / task.environment.folder)
    return files + [_File(name, text.encode()) for name, text in task.setup.files.items()]


def _tree(folder: Path) -> list[_File]:
    return [
        _File(str(path.relative_to(folder)), path.read_bytes(), os.access(path, os.X_OK))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
