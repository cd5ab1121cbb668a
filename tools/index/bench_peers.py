"""What the bench compares the index with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

AIDER = """
import json, sys, time
from pathlib import Path
from aider.io import InputOutput
from aider.repomap import RepoMap
class Model:
    def token_count(self, text):
        return (len(text.encode("utf-8", "replace")) + 3) // 4
root, listing, tokens = sys.argv[1:]
files = Path(listing).read_text().splitlines()
started = time.monotonic()
maps = RepoMap(map_tokens=int(tokens), root=root, main_model=Model(), io=InputOutput(pretty=False, yes=True),
    map_mul_no_files=1)
text = maps.get_repo_map(set(), files) or ""
print(json.dumps({"seconds": time.monotonic() - started, "tokens": Model().token_count(text)}))
"""
"""Run by a Python that has aider: its map of the files listed. Its cache lies in the folder itself."""

AIDER_CACHE = ".aider.tags.cache.*"


def is_universal_ctags() -> bool:
    """Whether the ctags on the PATH is universal-ctags."""
    program = shutil.which("ctags")
    if program is None:
        return False
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return "Universal Ctags" in said


def ctags_command(listing: Path, output: Path) -> list[str]:
    """Tags of the files listed, without the user's settings; all kinds, with lines and scopes."""
    return ["ctags", "--options=NONE", "--fields=+nS", "-L", str(listing), "-f", str(output)]
