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

AIDER_ANSWERS = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from aider.coders.base_coder import Coder
from aider.io import InputOutput
from aider.repomap import RepoMap
root, files, texts, most = json.load(sys.stdin)
maps = RepoMap(root=root, main_model=None, io=InputOutput(pretty=False, yes=True))
maps.TAGS_CACHE = {}
coder = SimpleNamespace(get_all_relative_files=lambda: files, get_addable_relative_files=lambda: files,
    get_inchat_relative_files=list, abs_read_only_fnames=[])
answers = []
for text in texts:
    words = Coder.get_ident_mentions(coder, text)
    named = Coder.get_file_mentions(coder, text) | Coder.get_ident_filename_matches(coder, words)
    tags = maps.get_ranked_tags(set(), [str(Path(root, path)) for path in files], named, words)
    symbols = [(tag.rel_fname, tag.name) for tag in tags if len(tag) > 1]
    answers.append([list(dict.fromkeys(tag[0] for tag in tags))[:most], list(dict.fromkeys(symbols))[:most]])
print(json.dumps(answers))
"""
"""Run by a Python that has aider: for each text the files and symbols that its map would show first, with
what aider's chat takes for mentioned. Reads [folder, paths, texts, how many] and prints [[files, symbols]].
"""

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
