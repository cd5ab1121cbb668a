"""The process that reads and parses files: `python -m pilotfish.tools.index.worker FOLDER`, started by
`Pool`.

It takes lists of byte strings from its standard input (see `frames.py`) and answers each in order by one on
its standard output, after a first one that says it is ready. A file can take it down or keep it busy for
ever; who started it kills it then and goes on with another.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import re
import resource
import signal
import sys
import time
from array import array

from pilotfish.tools.index.facts import EMPTY, PackedTags, pack
from pilotfish.tools.index.frames import Frames, packed
from pilotfish.tools.index.languages import LANGUAGES, language_of
from pilotfish.tools.index.paths import read_beneath
from pilotfish.tools.index.rules import PARSE_BYTES, TEXT_BYTES, left_out_by_content
from pilotfish.tools.index.tags import tags_of
from pilotfish.tools.index.words import Counting
from pilotfish.tools.textfile import NotText, TextFile

MEMORY_BYTES = 1_000_000_000
"""The address space of one worker."""
_RACY_NS = 100_000_000
_LINE_CHARACTERS = 400
_PR_SET_PDEATHSIG = 1


def facts_of(root: bytes, path: bytes, known: bytes) -> tuple[dict[str, object], PackedTags]:
    """What there is to say about a file, see `FileFacts`; the state is `same` where its digest is `known`."""
    before = time.time_ns()
    try:
        data, state = read_beneath(root, path, TEXT_BYTES + 1)
    except OSError as error:
        return {"state": "unreadable", "note": error.strerror or "cannot be opened", "digest": ""}, EMPTY
    digest = hashlib.blake2b(data, digest_size=16).digest()
    facts: dict[str, object] = {
        "size": state.st_size,
        "mtime_ns": state.st_mtime_ns,
        "ctime_ns": state.st_ctime_ns,
        "racy": max(state.st_mtime_ns, state.st_ctime_ns) > before - _RACY_NS,
        "digest": digest.hex(),
    }
    if digest == known:
        return facts | {"state": "same"}, EMPTY
    if len(data) > TEXT_BYTES:
        return facts | {"state": "too large"}, EMPTY
    language = language_of(os.fsdecode(path), data[:256])
    if why := left_out_by_content(data, language in LANGUAGES):
        return facts | {"state": why}, EMPTY
    try:
        text, note = utf8_of(data)
    except NotText:
        return facts | {"state": "binary"}, EMPTY
    facts |= {"lines": text.count(b"\n") + (not text.endswith(b"\n") and text != b""), "note": note}
    if language is None:
        return facts | {"state": "text"}, EMPTY
    facts["language"] = language
    if len(text) > PARSE_BYTES:
        return facts | {"state": "text", "note": f"has {len(data)} bytes, too many to be parsed"}, EMPTY
    return facts | {"state": "parsed"}, pack(tags_of(text, language))


def facts_answer(root: bytes, path: bytes, known: bytes) -> list[bytes]:
    """The same as it travels."""
    facts, tags = facts_of(root, path, known)
    fields = (tags.definitions, tags.imports, tags.defined, tags.used, tags.counts, tags.places)
    return [json.dumps(facts).encode(), *fields]


def utf8_of(data: bytes) -> tuple[bytes, str]:
    """Text in any encoding as UTF-8, and a note if it was in another. Raises NotText."""
    if data.isascii():
        return data, ""
    if not data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")) and b"\0" not in data:
        try:
            data.decode()
            return data, ""
        except UnicodeDecodeError:
            pass
    file = TextFile.decode(data)
    note = "" if file.encoding == "utf-8" else f"is read as {file.encoding}"
    return file.text.encode("utf-8", "replace"), note


class _Search:
    """One search: for a text or a regular expression."""

    def __init__(self, settings: dict[str, object]) -> None:
        flags = re.MULTILINE | (re.IGNORECASE if settings["ignore_case"] else 0)
        pattern = str(settings["pattern"])
        self._pattern = re.compile(pattern if settings["regex"] else re.escape(pattern), flags)
        self._plain = None if settings["regex"] or settings["ignore_case"] else pattern.encode()
        self._limit = int(str(settings["limit"]))

    def hits(self, root: bytes, path: bytes) -> tuple[list[tuple[int, str]], int]:
        """The first lines that match, as (number, text), and how many match in all."""
        try:
            data, _ = read_beneath(root, path, TEXT_BYTES)
            if self._plain is not None and data.isascii() and self._plain not in data:
                return [], 0
            text = utf8_of(data)[0].decode()
        except (OSError, NotText):
            return [], 0
        found: list[tuple[int, str]] = []
        count, line, seen = 0, 1, 0
        end_of_last = -1
        for match in self._pattern.finditer(text):
            if match.start() <= end_of_last:
                continue  # a further match in a line that counts already
            start = text.rfind("\n", 0, match.start()) + 1
            end_of_last = text.find("\n", match.start())
            if end_of_last < 0:
                end_of_last = len(text)
            if start == end_of_last == len(text) and text.endswith("\n"):
                break  # behind the last line's end there is no line
            count += 1
            if len(found) < self._limit:
                line += text.count("\n", seen, start)
                seen = start
                shown = text[start:end_of_last].rstrip("\r")
                if len(shown) > _LINE_CHARACTERS:
                    at = max(0, match.start() - start - 40)
                    shown = ("…" if at else "") + shown[at : at + _LINE_CHARACTERS] + "…"
                found.append((line, shown))
        return found, count


def _counted(counting: Counting, root: bytes, path: bytes) -> list[bytes]:
    """How many names a file has, and the counts of the words; none where it is no text."""
    try:
        size, counts = counting.counts(utf8_of(read_beneath(root, path, TEXT_BYTES)[0])[0])
    except (OSError, NotText):
        size, counts = counting.counts(b"")
    return [b"%d" % size, array("I", counts).tobytes()]


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started this
    gc.disable()  # syntax trees are many small objects, and none of them is in a cycle
    root = os.fsencode(sys.argv[1])
    answers = os.dup(1)
    os.dup2(2, 1)
    frames = Frames()
    search: _Search | None = None
    counting: Counting | None = None
    _write(answers, packed([b"ready"]))
    while data := os.read(0, 1 << 16):
        for operation, *parts in frames.add(data):
            if operation == b"facts":
                known, path = parts
                answer = facts_answer(root, path, known)
            elif operation == b"words":
                counting = Counting(parts)
                continue
            elif operation == b"count":
                assert counting is not None
                answer = _counted(counting, root, parts[0])
            elif operation == b"pattern":
                search = _Search(json.loads(parts[0]))
                continue
            else:
                assert search is not None
                answer = [json.dumps(search.hits(root, parts[0])).encode()]
            _write(answers, packed(answer))


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main()
