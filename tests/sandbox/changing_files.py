"""Run as a user without root's powers by `test_levels.py`: what tools do to modes and times of files by name.

Through links and not, relative to folders, in whole trees.
"""

from __future__ import annotations

import asyncio

from pilotfish.sandbox import Sandbox, SandboxSpec

COMMANDS = r"""
set -u; day() { date -u -d "@$(stat -c %Y "$1")" "+$2 %F"; }
mkdir -p d/e && echo 1 > d/e/f && ln -s d/e/f l && ln -s nowhere dangling
chmod 700 l && stat -c "link %a" d/e/f
cd d && chmod g+r e/f && stat -c "relative %a" e/f && cd ..
touch -d 2001-02-03T04:05:06Z d/e/f && date -u -r l "+time %F"
touch -h -d 2002-02-03T04:05:06Z l && day l "of the link" && day d/e/f kept
python3 -c 'import shutil; shutil.copytree("d", "copy")' && stat -c "copied %a" copy/e/f
tar cf t.tar d && mkdir o && tar xpf t.tar -C o && stat -c "unpacked %a" o/d/e/f
install -m 711 d/e/f installed && stat -c "installed %a" installed
python3 -c 'import os; os.chmod("e/f", 0o600, dir_fd=os.open("d", os.O_RDONLY))'
stat -c "below a folder %a" d/e/f
chmod 600 dangling 2> errors; grep -c dangling errors
chmod 4755 installed 2>&1 | grep -o "Operation not permitted"
"""


async def main() -> None:
    async with Sandbox.open(SandboxSpec(desktop=False, level=2)) as box:
        print((await box.shell.run(COMMANDS, timeout_s=60)).output, end="")


asyncio.run(main())
