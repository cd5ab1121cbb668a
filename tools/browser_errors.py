"""What the `browser` tool says of Playwright's and Chromium's errors: what is wrong, and how to mend it."""

from __future__ import annotations

import re

from pilotfish.tools.browser_args import BrowserArgs
from pilotfish.tools.words import short

SILENT = (
    "the page did not answer in time, it may hang, be busy or wait for an answer on the screen; use navigate "
    "or close_tab to leave it"
)

# What Chromium says when there is no way to a host.
_NO_WAY = (
    "ERR_NAME_NOT_RESOLVED",
    "ERR_INTERNET_DISCONNECTED",
    "ERR_ADDRESS_UNREACHABLE",
    "ERR_NETWORK_ACCESS_DENIED",
    "ERR_NETWORK_CHANGED",
    "ERR_PROXY_CONNECTION_FAILED",
    "ERR_TUNNEL_CONNECTION_FAILED",
)
_MENDS = {
    "ERR_CONNECTION_REFUSED": "nothing answers there; start the server first",
    "ERR_FILE_NOT_FOUND": "there is no such file in the sandbox; the workspace is file:///workspace/",
    "ERR_UNSAFE_PORT": "browsers refuse this port; serve on another, such as 8000",
    "ERR_EMPTY_RESPONSE": "the server hung up without an answer",
    "ERR_TOO_MANY_REDIRECTS": "the server sends from one address to the next without end",
    "ERR_INVALID_URL": "correct the address",
}

# What Playwright writes down while it waits for an element, and what to make of it.
_REASONS = (
    (
        r"<.{1,80}?> .*intercepts pointer events",
        "something else lies over it; close or scroll that away first",
    ),
    (r"element is not visible", "it cannot be seen now"),
    (r"element is not enabled", "it is disabled"),
    (r"element is not stable", "it moves"),
    (r"element is outside of the viewport", "it lies outside of the window"),
    (r"did not find some options", "it has no such option; use read to see its options"),
    (r"not an <input>", "it is of another kind; use read to see what each element is"),
    (r"not a <select>", "it is no list of options; use click"),
    (r"not an? HTMLInputElement|is not an? .*file", "it takes no files; use read to find the file element"),
)


def sentence(error: Exception, args: BrowserArgs) -> str:
    """An error of Playwright's in words that say what to do."""
    text = str(error)
    code = re.search(r"net::(ERR_\w+)", text)
    if code is not None and args.url is not None:
        if code[1] in _NO_WAY:
            return (
                f"{short(args.url, 200)} cannot be reached ({code[1]}): the sandbox has no way to that host "
                "unless the user allows it with --allow-host; servers inside (http://localhost:PORT) and "
                "file:///workspace/ work"
            )
        mend = _MENDS.get(code[1], "check the address")
        return f"{short(args.url, 200)} did not open ({code[1]}): {mend}"
    for pattern, meaning in _REASONS:
        if re.search(pattern, text, re.IGNORECASE):
            return f"e{args.ref} could not be used: {meaning}"
    if re.search(r"Timeout \d+ms exceeded", text):
        return SILENT
    line = re.sub(r"^\w+\.\w+: ", "", text.strip().partition("\n")[0])
    return f"{args.action} failed ({short(line, 200)[1:-1]}); use read to see the page as it is"
