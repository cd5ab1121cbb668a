"""Whether an edit has broken the syntax of a file, by tree-sitter.

`python -m pilotfish.tools.syntax LANGUAGE SIZE` reads the text before (SIZE bytes) and after from its input
and prints, as JSON, the lines with faults of both. It is a process of its own because a text can keep a
parser busy for ever or take it down.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

from pilotfish.tools.index.languages import LANGUAGES, language_of

MAX_BYTES = 500_000
SECONDS = 10.0
_MEMORY_BYTES = 2_000_000_000
_FAULTS = 1_000


def syntax_note(path: str, before: str | None, after: str, *, here: bool = False) -> str:
    """What to add to the result of an edit: '' unless it brought faults that were not there before.

    here: parse in this process, which is quicker, and only for texts that are trusted.
    """
    data = after.encode("utf-8", "replace")
    language = language_of(path, data[:256])
    if language not in LANGUAGES or len(data) > MAX_BYTES:
        return ""
    old = (before or "").encode("utf-8", "replace")
    if here:
        was, found = _faults(old, language), _faults(data, language)
    else:
        try:
            was, found = _faults_apart(old, data, language)
        except (subprocess.SubprocessError, ValueError):
            return ""
    if len(found) <= len(was):
        return ""
    lines = ", ".join(str(line) for line in found[:3])
    return f"; but that is not {language} any more, from line {lines} on: look at it and mend it"


def _faults_apart(old: bytes, new: bytes, language: str) -> tuple[list[int], list[int]]:
    done = subprocess.run(
        [sys.executable, "-m", __name__, language, str(len(old))],
        input=old + new,
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    was, found = json.loads(done.stdout)
    return was, found


def _faults(source: bytes, language: str) -> list[int]:
    """The lines, from 1, of what a parser could not make sense of."""
    from tree_sitter import Parser
    from tree_sitter_language_pack import get_language

    grammar = get_language(LANGUAGES[language].grammar)  # type: ignore[arg-type]
    nodes = [Parser(grammar).parse(source).root_node]
    found: list[int] = []
    while nodes and len(found) < _FAULTS:
        node = nodes.pop()
        if node.is_error or node.is_missing:
            found.append(node.start_point[0] + 1)
        elif node.has_error:
            nodes += node.children
    return sorted(found)


def main() -> None:
    """Parse both texts."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    language, size = sys.argv[1], int(sys.argv[2])
    data = sys.stdin.buffer.read()
    print(json.dumps([_faults(data[:size], language), _faults(data[size:], language)]))


if __name__ == "__main__":
    main()
