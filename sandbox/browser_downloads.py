"""What the browser saves: into the workspace, named by Chromium's own rules, and no more than a bound."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, Literal

from playwright.async_api import BrowserContext, CDPSession
from playwright.async_api import Error as PlaywrightError

from pilotfish.sandbox.spec import INNER_WORKSPACE

FOLDER = INNER_WORKSPACE / "Downloads"
"""Where downloads lie."""
MAX_BYTES = 1 << 30
"""A download that grows beyond this is cancelled."""
_KEPT, _NAME, _URL = 200, 255, 2000


@dataclass
class Download:
    """One file that the browser saves. name: what it is called in `FOLDER`; total: 0 when nobody says."""

    name: str
    url: str
    received: int = 0
    total: int = 0
    state: Literal["running", "done", "cancelled", "too large"] = "running"


class Downloads:
    """Hears of downloads, newest last. What is heard comes from inside and is only ever shown."""

    def __init__(self) -> None:
        self._found: dict[str, Download] = {}
        self._session: CDPSession | None = None
        self._cancelling: set[asyncio.Task[Any]] = set()
        self.begun = 0
        """How many have begun ever."""
        self.changed = asyncio.Event()
        """Set when there is news; who waits clears it first."""

    @property
    def all(self) -> list[Download]:
        """The newest that are known; of those before, only `begun` tells."""
        return list(self._found.values())

    def since(self, begun: int) -> list[Download]:
        """Those that have begun since `begun` was this number, as far as they are known."""
        fresh = min(self.begun - begun, len(self._found))
        return self.all[len(self._found) - fresh :]

    async def watch(self, context: BrowserContext) -> None:
        """Have a browser save what it downloads, and tell."""
        for download in self._found.values():
            if download.state == "running":
                download.state = "cancelled"  # with the browser before this one
        browser = context.browser
        session = await (
            context.new_cdp_session(context.pages[0])
            if browser is None
            else browser.new_browser_cdp_session()
        )
        self._session = session
        session.on("Browser.downloadWillBegin", self._begun)
        session.on("Browser.downloadProgress", self._moved)
        # As a browser does by itself: names that are taken get a number. The folder is set by policy.
        await session.send("Browser.setDownloadBehavior", {"behavior": "default", "eventsEnabled": True})

    def _begun(self, event: dict[str, Any]) -> None:
        guid, name, url = (str(event.get(key, "")) for key in ("guid", "suggestedFilename", "url"))
        self._found[guid] = Download(name[:_NAME], url[:_URL])
        self.begun += 1
        while len(self._found) > _KEPT:
            self._forget_one()
        self.changed.set()

    def _forget_one(self) -> None:
        """The oldest that has ended; the oldest of all is cancelled first, since nobody would watch it."""
        ended = (guid for guid, download in self._found.items() if download.state != "running")
        oldest = next(iter(self._found))
        guid = next(ended, oldest)
        if self._found.pop(guid).state == "running":
            self._cancel(guid)

    def _moved(self, event: dict[str, Any]) -> None:
        guid = str(event.get("guid", ""))
        download = self._found.get(guid)
        if download is None or download.state != "running":
            return
        download.received, download.total = _count(event, "receivedBytes"), _count(event, "totalBytes")
        match event.get("state"):
            case "completed":
                download.state = "done"
            case "canceled":
                download.state = "cancelled"
            case _ if max(download.received, download.total) > MAX_BYTES:
                download.state = "too large"
                self._cancel(guid)
        path = event.get("filePath")
        if isinstance(path, str) and path:
            # Chromium numbers a name that is taken.
            download.name = path.rpartition("/")[2][:_NAME]
        self.changed.set()

    def _cancel(self, guid: str) -> None:
        async def cancel() -> None:
            with contextlib.suppress(PlaywrightError):
                if self._session is not None:
                    await self._session.send("Browser.cancelDownload", {"guid": guid})

        task = asyncio.ensure_future(cancel())
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)


def _count(event: dict[str, Any], name: str) -> int:
    value = event.get(name, 0)
    return int(value) if isinstance(value, int | float) and 0 <= value < 1 << 53 else 0
