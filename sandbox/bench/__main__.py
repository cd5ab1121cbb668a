"""`python -m pilotfish.sandbox.bench [--only ready,shell,...] [--pages N] [--json]`.

Prints what docs/sandbox.md quotes. The load average stands at the beginning and the end: on a busy machine
the numbers say little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict

from pilotfish.sandbox.bench.desktops import desktops, pages
from pilotfish.sandbox.bench.files import files
from pilotfish.sandbox.bench.ready import ready, shell
from pilotfish.sandbox.bench.rows import Row, table
from pilotfish.sandbox.bench.screen import screen
from pilotfish.sandbox.busy import warn_when_busy


async def measure(groups: Mapping[str, Callable[[], AsyncIterator[Row]]], quiet: bool) -> list[Row]:
    """All rows of these groups."""
    rows = []
    for name, group in groups.items():
        if not quiet:
            print(f"{name} ...", file=sys.stderr)
        rows += [row async for row in group()]
    return rows


def main() -> None:
    """Measure and print."""
    groups: dict[str, Callable[[], AsyncIterator[Row]]] = {
        "ready": ready,
        "shell": shell,
        "screen": screen,
        "files": files,
        "pages": lambda: pages(max(options.pages, 10)),
        "desktops": desktops,
    }
    parser = argparse.ArgumentParser(
        prog="python -m pilotfish.sandbox.bench", description="Measure what a sandbox costs on this machine."
    )
    parser.add_argument("--only", help=f"some of {', '.join(groups)}, with commas between them")
    parser.add_argument("--pages", type=int, default=100, help="how many pages to load in one browser")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    warn_when_busy()
    wanted = options.only.split(",") if options.only else list(groups)
    for name in wanted:
        if name not in groups:
            parser.error(f"--only {name!r} is not there, choose from {', '.join(groups)}")
    before = os.getloadavg()[0]
    rows = asyncio.run(measure({name: groups[name] for name in wanted}, options.json))
    load = f"{before:.2f} before, {os.getloadavg()[0]:.2f} after"
    if options.json:
        said = [asdict(row) | {"verdict": row.verdict} for row in rows]
        print(json.dumps({"load average": load, "processors": os.cpu_count(), "rows": said}))
    else:
        print(table(rows))
        who = "root" if os.geteuid() == 0 else "a user"
        print(f"\nload average {load}, on {os.cpu_count()} processors, as {who}")


if __name__ == "__main__":
    main()
