"""The `browser` tool: pages as text, their elements by reference, tabs, downloads and uploads."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
from pathlib import PurePosixPath

from playwright.async_api import FilePayload, Locator

from pilotfish.sandbox import PAGE_ERRORS, Download, Sandbox, SandboxError, go, page_element
from pilotfish.sandbox.browser_downloads import FOLDER, Downloads
from pilotfish.tools.base import ToolContext, ToolResult
from pilotfish.tools.browser_args import WAIT_S, BrowserArgs
from pilotfish.tools.browser_errors import SILENT, sentence
from pilotfish.tools.browser_tabs import DialogOpened, Tabs, Trouble, described
from pilotfish.tools.words import short

READ_CHARACTERS = 12_000
"""How much of a page one `read` gives."""
UPLOAD_BYTES = 32 << 20
"""How much one `upload` takes."""
_LOAD_S, _ACT_S, _STARTED_S, _SPARE_S = 30.0, 5.0, 0.1, 25.0
_LOADING = ("navigate", "reload", "back", "forward")
_SHOWN_DOWNLOADS, _TOLD_DOWNLOADS = 20, 5


class BrowserTool:
    """Acts on the sandbox's Chromium, the one on its display; started by the first call that needs it.

    Whatever the page does, a call ends within `limit_s`, and a minute more where it starts the browser.
    """

    name = "browser"
    description = "Use the web browser: read pages as text, act on their elements, move files."
    Args = BrowserArgs

    def __init__(self) -> None:
        self._tabs: Tabs | None = None

    async def run(self, args: BrowserArgs, context: ToolContext) -> ToolResult:
        """Do one action; what the page, the browser or the sandbox refuses is a result."""
        if context.box is None:
            return ToolResult(False, "browser: there is no sandbox here; use the other tools.")
        try:
            tabs = self._tabs_of(context.box)
            await tabs.look()
            saved = tabs.browser.downloads.begun
            ok, text = await _bounded(args, tabs)
            if tabs.browser.is_running:
                await tabs.look()
        except SandboxError as error:
            return ToolResult(False, f"browser: {error}")
        except PAGE_ERRORS:
            return ToolResult(False, "browser: the browser ended meanwhile; repeat the call.")
        news = tabs.news() + _saving(tabs.browser.downloads, saved)
        if (dialog := tabs.dialog()) is not None and ok:
            news.append(described(dialog))
        return ToolResult(ok, "\n".join([text, *(f"[{line}]" for line in news)]))

    async def close(self) -> None:
        """Forget the tabs; the browser belongs to the sandbox."""
        if self._tabs is not None:
            self._tabs.stop()
            self._tabs = None

    def _tabs_of(self, box: Sandbox) -> Tabs:
        if self._tabs is None or self._tabs.box is not box:
            self._tabs = Tabs(box)
        return self._tabs


def limit_s(args: BrowserArgs) -> float:
    """How long a call may take, in seconds, when the browser runs."""
    if args.action in ("wait", "downloads"):
        return (WAIT_S if args.timeout is None else args.timeout) + _SPARE_S
    return _SPARE_S + (_LOAD_S if args.action in (*_LOADING, "open_tab") else 0)


async def _bounded(args: BrowserArgs, tabs: Tabs) -> tuple[bool, str]:
    limit = limit_s(args)
    try:
        async with asyncio.timeout(limit):
            return await _guarded(args, tabs)
    except TimeoutError:
        await tabs.browser.restart()  # what holds it is no page alone
        return (
            False,
            f"browser: {args.action} had not ended after {limit:g} s; the browser was ended, use navigate.",
        )


async def _guarded(args: BrowserArgs, tabs: Tabs) -> tuple[bool, str]:
    """Do one action; whether it worked, and what there is to say."""
    try:
        done = await _act(args, tabs)
        tabs.silent = None
        return True, done
    except DialogOpened:
        dialog = tabs.dialog()
        if args.action in ("read", "wait") and dialog is not None:
            return False, f"browser: {described(dialog)}."
        return True, "ok"
    except Trouble as error:
        return False, f"browser: {error}."
    except TimeoutError:
        if args.action in _LOADING:
            if tabs.current is not None:
                await tabs.replace(tabs.current)
            return False, (
                f"browser: the page did not load within {_LOAD_S:g} s and its tab was replaced; try another "
                "address."
            )
        tabs.silent = tabs.current
        return False, f"browser: {SILENT}."
    except PAGE_ERRORS as error:
        if not tabs.browser.is_running or "has been closed" in str(error):
            return False, "browser: the browser or its tab ended meanwhile; repeat the call."
        if tabs.current is not None and "crash" in str(error):
            tabs.crashed.add(tabs.current)
            return False, "browser: the page has crashed; use navigate, which opens another tab in its place."
        said = sentence(error, args)
        tabs.silent = tabs.current if said == SILENT else None
        return False, f"browser: {said}."


async def _act(args: BrowserArgs, tabs: Tabs) -> str:
    match args.action:
        case "navigate" | "reload" | "back" | "forward":
            return await _navigate(args, tabs)
        case "read":
            return await _read(args, tabs)
        case "click" | "fill" | "select" | "upload":
            return await _use(args, tabs)
        case "wait":
            return await _wait(args, tabs)
        case "accept_dialog" | "dismiss_dialog":
            return await _answer(args, tabs)
        case "downloads":
            return await _downloads(args, tabs)
        case "tabs":
            return "\n".join(await tabs.list())
        case "open_tab":
            if tabs.is_full:
                raise Trouble("too many tabs are open; close some with close_tab")
            tabs.current = await asyncio.wait_for(tabs.browser.new_tab(), _ACT_S)
            await tabs.look()
            if args.url is not None:
                return await _navigate(args, tabs)
            return f"ok; {await tabs.describe(tabs.current)}"
        case "switch_tab":
            tabs.current = tabs.by_number(args.tab or 0)
            await tabs.bounded(tabs.current.bring_to_front())
            return f"ok; {await tabs.describe(tabs.current)}"
        case "close_tab":
            page = tabs.page_to_close(args.tab)
            await tabs.close(page)
            return "ok\n" + "\n".join(await tabs.list())


async def _navigate(args: BrowserArgs, tabs: Tabs) -> str:
    page = await tabs.page_to_leave()
    limit_ms = _LOAD_S * 1000 - 1000
    if args.action == "reload":
        going = page.reload(timeout=limit_ms, wait_until="domcontentloaded")
    elif args.action == "back":
        going = page.go_back(timeout=limit_ms, wait_until="domcontentloaded")
    elif args.action == "forward":
        going = page.go_forward(timeout=limit_ms, wait_until="domcontentloaded")
    else:
        going = go(page, args.url or "", limit_ms, "domcontentloaded")
    before, begun = page.url, tabs.browser.downloads.begun
    try:
        response = await tabs.bounded(going, _LOAD_S)
    except PAGE_ERRORS as error:
        if "Download is starting" in str(error):
            await _begun_since(tabs.browser.downloads, begun)
            return "ok; the address is a file, which is saved"
        if "Timeout" in str(error):
            raise TimeoutError from None
        raise
    if response is None and args.action in ("back", "forward") and page.url == before:
        raise Trouble(f"there is no page to go {args.action} to in this tab")
    said = ""
    if response is not None and response.status >= 400:
        said = f" (HTTP {response.status})"
    return f"ok; {await tabs.describe(page)}{said}{await _still_loading(tabs)}"


async def _still_loading(tabs: Tabs) -> str:
    """Wait for the pictures and scripts of a page too, but not for long."""
    page = await tabs.page()
    try:
        await page.wait_for_load_state("load", timeout=_ACT_S * 1000)
    except PAGE_ERRORS:
        return "; still loading"
    return ""


async def _read(args: BrowserArgs, tabs: Tabs) -> str:
    page = await tabs.page()
    found = await tabs.read()
    lines = [await tabs.describe(page)]
    if found.is_pdf:
        lines.append("[a PDF, which only shows on the screen; for its text get the file and use a program]")
    part = _part(found.text, args.offset)
    end = args.offset + len(part)
    if args.offset and not part:
        raise Trouble(f"`offset` is {args.offset}, but the page has only {len(found.text)} characters")
    if args.offset:
        lines.append(f"[{args.offset} characters before]")
        if part and found.text[args.offset - 1] != "\n":
            part = "…" + part  # the middle of a line must not look like the start of one
    lines.append(part or "[the page shows no text]")
    if end < len(found.text):
        lines.append(f"[{len(found.text) - end} characters more; read with offset {end}]")
    if found.rest:
        lines.append(
            f"[the page is too long to be read to its end; at most {found.rest} characters are missing]"
        )
    if found.frames:
        lines.append(f"[{found.frames} frames of the page were not read]")
    if found.hidden:
        lines.append(f"[{found.hidden} pieces of text that a person cannot see are left out]")
    return "\n".join(lines)


def _part(text: str, start: int) -> str:
    """What one call gives of a page: whole lines, if they are not very long."""
    part = text[start : start + READ_CHARACTERS]
    line_end = part.rfind("\n") + 1
    return part[:line_end] if start + len(part) < len(text) and line_end > READ_CHARACTERS // 2 else part


async def _use(args: BrowserArgs, tabs: Tabs) -> str:
    page = await tabs.page()
    ref = args.ref or 0
    target = page_element(tabs.frame_of(ref), ref)
    if await tabs.bounded(target.count()) == 0:
        raise Trouble(f"element e{ref} is gone from the page; use read to see what is there now")
    before = page.url
    await tabs.bounded(_do(args, target, tabs.box))
    await asyncio.sleep(_STARTED_S)  # what a click sets off has begun by then
    loading = await _still_loading(tabs) if tabs.dialog() is None else ""
    return "ok" if page.url == before else f"ok; {await tabs.describe(page)}{loading}"


async def _do(args: BrowserArgs, target: Locator, box: Sandbox) -> None:
    limit_ms = _ACT_S * 1000
    match args.action:
        case "click":
            await target.click(timeout=limit_ms)
        case "fill":
            await target.fill(args.text or "", timeout=limit_ms)
            if args.submit:
                await target.press("Enter", timeout=limit_ms)
        case "select":
            await target.select_option(label=args.text, timeout=limit_ms)
        case _:
            await target.set_input_files(_payloads(args.files or [], box), timeout=limit_ms)


def _payloads(names: list[str], box: Sandbox) -> list[FilePayload]:
    """Files of the workspace, read without leaving it."""
    files: list[FilePayload] = []
    room = UPLOAD_BYTES
    for name in names:
        data = box.files.read_bytes(name, room)
        room -= len(data)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        files.append({"name": PurePosixPath(name).name, "mimeType": kind, "buffer": data})
    return files


async def _wait(args: BrowserArgs, tabs: Tabs) -> str:
    """Wait for text, or for the page to have loaded; a time without either just passes."""
    limit_s = WAIT_S if args.timeout is None else args.timeout
    page = await tabs.page()
    if args.text is None:
        if args.timeout is not None:
            await asyncio.sleep(limit_s)
            return "ok"
        return f"ok; {await tabs.describe(page)}{await _still_loading(tabs)}"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    wanted = _words(args.text)
    while wanted not in _words((await tabs.read()).text):
        if loop.time() >= deadline:
            raise Trouble(
                f"{short(args.text)} did not come within {limit_s:g} s; use read to see what is there"
            )
        await asyncio.sleep(0.2)
    return "ok"


def _words(text: str) -> str:
    """Text to be compared: the reader gives some brackets of a page as round ones."""
    return " ".join(text.replace("[", "(").split())


async def _answer(args: BrowserArgs, tabs: Tabs) -> str:
    dialog = tabs.dialog()
    if dialog is None:
        raise Trouble("no dialog is open in this tab; use tabs to see the others")
    if args.action == "accept_dialog":
        answering = dialog.accept(args.text) if dialog.type == "prompt" else dialog.accept()
    else:
        answering = dialog.dismiss()
    tabs.browser.dialogs.remove(dialog)
    await tabs.bounded(answering)
    await asyncio.sleep(_STARTED_S)
    return "ok"


async def _begun_since(downloads: Downloads, begun: int) -> None:
    """Wait until more than `begun` downloads have begun; those before may change meanwhile."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ACT_S):
            while downloads.begun <= begun:
                downloads.changed.clear()
                await downloads.changed.wait()


async def _downloads(args: BrowserArgs, tabs: Tabs) -> str:
    """What was saved, newest last; with a timeout, wait for what is under way."""
    downloads = tabs.browser.downloads
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (args.timeout or 0)
    while any(one.state == "running" for one in downloads.all) and loop.time() < deadline:
        downloads.changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(downloads.changed.wait(), deadline - loop.time())
    found = downloads.all[-_SHOWN_DOWNLOADS:]
    if not found:
        return "no downloads"
    return "\n".join(_download(one) for one in found)


def _saving(downloads: Downloads, begun: int) -> list[str]:
    """What is to be told of downloads that began since there were `begun`."""
    fresh = downloads.since(begun)[-_TOLD_DOWNLOADS:]
    more = downloads.begun - begun - len(fresh)
    news = [f"saving {short(one.name)}: see downloads" for one in fresh]
    return [*([f"saving {more} files, and"] if more else []), *news]


def _download(one: Download) -> str:
    size = f"{one.received} bytes" + (f" of {one.total}" if one.state == "running" and one.total else "")
    if one.state == "running" and 0 < one.total <= one.received:
        size += "; if it stays so, the browser asks on the screen whether to keep it"
    return f"{one.state}: {FOLDER}/{short(one.name, 200)[1:-1]}, {size}"
