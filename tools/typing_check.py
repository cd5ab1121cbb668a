"""Types random text into real programs and reads it back: `python -m pilotfish.tools.typing_check`.

Every string goes through the `computer` tool into each program, in a sandbox of its own; what the program
then holds must be equal to the byte. Prints the strings, characters and mismatches of each program, and
characters per second from the first key to the last character read back. xdotool's figures stand beside them
where it is installed. The exit status is 0 only when the computer tool's text was equal everywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.tools.actions import ComputerArgs
from pilotfish.tools.base import Screen, ToolContext
from pilotfish.tools.computer import ComputerTool
from pilotfish.tools.random_text import random_strings

STRINGS = 2000
_TOGETHER = 200
_SECONDS = 20.0
_STILL_SECONDS = 5.0
_WIDTH, _HEIGHT = 800, 600
_UTF8 = {"LANG": "C.UTF-8"}


class Application(Protocol):
    """A program with a place for text that has the keyboard."""

    name: str

    def keeps(self, string: str) -> bool:
        """Whether the program itself leaves this text as it is, however it comes in."""

    async def open(self, desk: Desk) -> None:
        """Start it with an empty text and give it the keyboard."""

    async def read(self, desk: Desk) -> str:
        """What it holds now."""


class Desk:
    """A sandbox with a display, and the computer tool on it."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.computer = ComputerTool()
        self._context = ToolContext(box, Screen(box.display.name, 0, 0, _WIDTH, _HEIGHT))

    async def act(self, action: str, **arguments: object) -> None:
        """One action of the computer tool. Raises RuntimeError with the tool's sentence when it fails."""
        result = await self.computer.run(
            ComputerArgs.model_validate({"action": action, **arguments}), self._context
        )
        if not result.ok:
            raise RuntimeError(result.text)

    async def has_window(self, class_name: str) -> None:
        """Wait until a window of this class has the keyboard."""
        command = "xprop -id $(xprop -root _NET_ACTIVE_WINDOW | sed 's/.*# //') WM_CLASS 2>&1"
        deadline = time.monotonic() + _SECONDS
        while class_name not in (said := (await self.box.shell.run(command)).output).lower():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{class_name} shows no window after {_SECONDS:g} s (xprop: {said})")
            await asyncio.sleep(0.05)


class Terminal:
    """xterm running `cat` into a file. Lines must stay below the terminal's 4,096 bytes."""

    name = "xterm"

    def keeps(self, string: str) -> bool:
        return True

    async def open(self, desk: Desk) -> None:
        argv = ["xterm", "-u8", "-e", "sh", "-c", "stty -ixon -echo; cat > typed-xterm.txt"]
        await desk.box.run(argv, env=_UTF8)
        await desk.has_window("xterm")
        await desk.box.shell.run("until [ -e typed-xterm.txt ]; do sleep 0.02; done", timeout_s=_SECONDS)

    async def read(self, desk: Desk) -> str:
        return desk.box.files.read_bytes("typed-xterm.txt").decode()


class Editor:
    """mousepad, whose file is saved by its key before it is read."""

    name = "mousepad"

    def keeps(self, string: str) -> bool:
        return True

    async def open(self, desk: Desk) -> None:
        desk.box.files.write_text("typed-mousepad.txt", "")
        await desk.box.run(["mousepad", "--disable-server", "typed-mousepad.txt"], env=_UTF8)
        await desk.has_window("mousepad")

    async def read(self, desk: Desk) -> str:
        await desk.act("key", text="ctrl+s")
        await asyncio.sleep(0.1)
        return desk.box.files.read_bytes("typed-mousepad.txt").decode()


# A flag of two regional indicators, and what follows it.
_FLAG = re.compile("(?=[\U0001f1e6-\U0001f1ff]{2}(.))", re.DOTALL)
_JOINING = ("Mn", "Mc", "Me", "Cf", "Sk")  # marks, joiners, skin colours

_PAGE = """<!doctype html><meta charset="utf-8">
<textarea autofocus spellcheck="false" style="position:fixed;inset:0"></textarea><script>
const text = document.querySelector("textarea")
text.addEventListener("keydown", event => {
    if (event.key != "Tab") return
    event.preventDefault()
    text.setRangeText("\\t", text.selectionStart, text.selectionEnd, "end")
})
let lines = ""
text.addEventListener("input", () => {
    if (!text.value.endsWith("\\n")) return
    lines += text.value
    text.value = ""
})</script>"""


PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Waits in a page until it has been painted; one that never was drops input."""


class Page:
    """A text area in Chromium, where the Tab key puts a tab. Each line is put aside when it is complete, as
    Chromium lays the whole text out again at each key.
    """

    name = "Chromium"

    def keeps(self, string: str) -> bool:
        """Chromium 156 misplaces what follows a flag with a mark or joiner, also when Playwright or the page
        itself inserts one character after another.
        """
        return not any(unicodedata.category(after) in _JOINING for after in _FLAG.findall(string))

    async def open(self, desk: Desk) -> None:
        desk.box.files.write_text("page.html", _PAGE)
        self._page = await desk.box.browser.open("page.html")
        await self._page.evaluate(PAINTED)
        await desk.act("left_click", coordinate=[500, 500])

    async def read(self, desk: Desk) -> str:
        return str(await self._page.evaluate("lines + text.value"))


APPLICATIONS: tuple[type[Application], ...] = (Terminal, Editor, Page)


@dataclass(frozen=True)
class Typed:
    """What came of typing into one program. wrong: each string that is not there as it was typed."""

    program: str
    by: str
    strings: int
    characters: int
    wrong: list[str]
    seconds: float

    @property
    def rate(self) -> float:
        """Characters a second."""
        return self.characters / self.seconds

    def __str__(self) -> str:
        return (
            f"{self.program:10} {self.by:10} {self.strings:8} {self.characters:11} {len(self.wrong):11} "
            f"{self.rate:13.0f}"
        )


Typist = Callable[[Desk, str], Awaitable[None]]


async def by_computer(desk: Desk, text: str) -> None:
    """Type by the computer tool."""
    await desk.act("type", text=text)


async def by_xdotool(desk: Desk, text: str) -> None:
    """Type by xdotool, as it comes. Raises RuntimeError when it fails."""
    environment = {"PATH": os.environ["PATH"], "DISPLAY": desk.box.display.name, "LANG": "C.UTF-8"}
    argv = ["xdotool", "type", "--file", "-"]
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.PIPE, env=environment)
    await process.communicate(text.encode())
    if process.returncode:
        raise RuntimeError(f"xdotool ended with {process.returncode}")


async def type_into(
    application: Application, strings: Sequence[str], type_text: Typist = by_computer
) -> Typed:
    """Type every string that the program keeps, each with a newline after it; compare what it then holds."""
    kept = [string for string in strings if application.keeps(string)]
    text = ""
    async with Sandbox.open(SandboxSpec(width=_WIDTH, height=_HEIGHT)) as box:
        desk = Desk(box)
        try:
            await application.open(desk)
            start = time.monotonic()
            for first in range(0, len(kept), _TOGETHER):
                part = "".join(f"{string}\n" for string in kept[first : first + _TOGETHER])
                text += part
                await type_text(desk, part)
            held = await _settled(application, desk, text)
            seconds = time.monotonic() - start
        finally:
            await desk.computer.close()
    wrong = [] if held == text else wrong_strings(kept, held) or ["\n"]
    return Typed(application.name, type_text.__name__[3:], len(kept), len(text), wrong, seconds)


async def _settled(application: Application, desk: Desk, text: str) -> str:
    """What the program holds when it holds `text`, or has not changed for a while."""
    held = await application.read(desk)
    changed = time.monotonic()
    while held != text and time.monotonic() < changed + _STILL_SECONDS:
        await asyncio.sleep(0.05)
        before, held = held, await application.read(desk)
        if held != before:
            changed = time.monotonic()
    return held


def wrong_strings(strings: Sequence[str], held: str) -> list[str]:
    """Those of `strings`, each typed with a newline after it, that `held` does not have in their place."""
    lines, owners = [], []
    for number, string in enumerate(strings):
        own = string.split("\n")
        lines += own
        owners += [number] * len(own)
    matched = set()
    for block in difflib.SequenceMatcher(
        None, lines, held.split("\n")[:-1], autojunk=False
    ).get_matching_blocks():
        matched |= set(range(block.a, block.a + block.size))
    bad = dict.fromkeys(owners[line] for line in range(len(lines)) if line not in matched)
    return [strings[number] for number in bad]


async def check(seed: int, count: int) -> list[Typed]:
    """Type into each program by the computer tool, and a tenth of it by xdotool where that is."""
    strings = random_strings(seed, count)
    found = []
    for program in APPLICATIONS:
        found.append(await type_into(program(), strings))
        print(found[-1], flush=True)
        if shutil.which("xdotool"):
            found.append(await type_into(program(), strings[: count // 10], by_xdotool))
            print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Type random text into real programs and read it back.")
    parser.add_argument("--seed", type=int, default=1, help="another number gives other strings")
    parser.add_argument("--strings", type=int, default=STRINGS, help="how many to type into each program")
    options = parser.parse_args()
    print(f"{'program':10} {'typed by':10}  strings  characters  mismatches    per second")
    found = asyncio.run(check(options.seed, options.strings))
    own = [one for one in found if one.by == "computer"]
    for one in own:
        for string in one.wrong[:20]:
            print(f"{one.program} does not have {string!a}")
    if len(own) == len(found):
        print("xdotool is not installed here")
    sys.exit(any(one.wrong for one in own))


if __name__ == "__main__":
    main()
