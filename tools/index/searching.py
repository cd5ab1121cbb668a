"""Text and regular expressions in the files themselves, in processes that can be killed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence

from pilotfish.tools.index.listing import IndexingError, require_text
from pilotfish.tools.index.paths import shown
from pilotfish.tools.index.pool import Cancelled, Pool
from pilotfish.tools.index.results import Found, Hit
from pilotfish.tools.words import short

SEARCH_SECONDS = 20.0
"""How long a search may take in all."""
FILE_SECONDS = 2.0
"""How long it may take in one file, which an unlucky regular expression can use up in any."""
_MOST_FAILURES = 3


def search(
    root: bytes,
    paths: Sequence[bytes],
    pattern: str,
    regex: bool,
    ignore_case: bool,
    limit: int,
    seconds: float,
    cancelled: Callable[[], bool],
) -> Found:
    """The first `limit` lines that match, by path. Raises IndexingError for a wrong pattern."""
    if not pattern:
        raise IndexingError("the pattern is empty; give a text to look for.")
    require_text("pattern", pattern)
    if regex:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise IndexingError(f"{short(pattern)} is no regular expression ({error}); mend it.") from None
    ends = time.monotonic() + seconds
    settings = {"pattern": pattern, "regex": regex, "ignore_case": ignore_case, "limit": limit}
    found: dict[bytes, tuple[list[list[object]], int]] = {}
    failed: dict[bytes, str] = {}
    late = False

    def stop() -> bool:
        nonlocal late
        late = late or time.monotonic() > ends or len(failed) >= _MOST_FAILURES
        return late or cancelled()

    requests = ([b"search", path] for path in paths)
    first = [b"pattern", json.dumps(settings).encode()]
    done = 0
    try:
        with Pool(root, None if len(paths) > 200 else 1, first=first, file_seconds=FILE_SECONDS) as pool:
            for request, answer in pool.answers(requests, stop) if paths else ():
                done += 1
                if isinstance(answer, str):
                    failed[request[1]] = answer
                else:
                    hits, count = json.loads(answer[0])
                    if count:
                        found[request[1]] = hits, count
    except Cancelled:
        if not late:
            raise
    notes = []
    for why in sorted(set(failed.values())):
        names = ", ".join(shown(path) for path in sorted(failed) if failed[path] == why)
        notes.append(f"the search {why} in {names}; write the pattern more simply")
    if late and done < len(paths):
        notes.append(f"stopped after {done} of {len(paths)} files; search more narrowly")
    return _first(found, limit, notes)


def _first(found: dict[bytes, tuple[list[list[object]], int]], limit: int, notes: list[str]) -> Found:
    items: list[Hit] = []
    for path in sorted(found):
        items += [Hit(shown(path), int(str(line)), str(text)) for line, text in found[path][0]]
    count = sum(number for _, number in found.values())
    return Found(
        items[:limit], count - min(limit, len(items)), notes if items or notes else ["nothing matches"]
    )
