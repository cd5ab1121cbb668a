"""What the reader says of a page stands in brackets: no text of the page may look like that."""

from __future__ import annotations

import re
import unicodedata

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""What stands for our own brackets in the text of `browser_reader.js`."""

# Where a bracket of the page would be taken for one of ours: before what looks like the number of an element,
# before the first words of our other lines, and before two words at the start of a line.
_NUMBER = re.compile(r"e[\W_]*[0-9]")
_WORDS = re.compile(
    r"(end of )?frame|the (page|browser)|a (dialog|new tab|pdf)|saving|[0-9]+ (char|piece|frame)"
)
_START = re.compile(r"\w+\s+\w")
_BRACKETS = re.compile(r"[\[\uff3b\u2045\u27e6\u301a]")
_LOOK_ALIKES = str.maketrans("еєҽεᴇⅇℯ℮éèêë", "e" * 12)
_NEAR = 40


def plain(text: str) -> str:
    """The text of a page with our own brackets, and with round ones where the page has some like ours."""
    lines = [_plain_line(line) for line in text.split("\n")]
    return "\n".join(lines).replace(OPEN, "[").replace(CLOSE, "]")


def shown_url(url: str, limit: int = 200) -> str:
    """An address without what could end the line or the brackets that it stands in."""
    return re.sub(r"[\s\[\]\x00-\x1f\u007f-\u009f\u2028\u2029]", lambda one: _escaped(one[0]), url[:limit])


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "replace"))


def _plain_line(line: str) -> str:
    def mended(found: re.Match[str]) -> str:
        after = _folded(line[found.end() : found.end() + _NEAR])
        is_first = not re.search(r"\w", line[: found.start()])
        words = re.sub(r"^[\W_]+", "", after)
        like_ours = _NUMBER.match(words) or _WORDS.match(words) or (is_first and _START.match(after.lstrip()))
        return "(" if like_ours else found[0]

    return _BRACKETS.sub(mended, line)


def _folded(text: str) -> str:
    """As a reader takes it: without marks, in one script and case."""
    text = unicodedata.normalize("NFKD", text).casefold().translate(_LOOK_ALIKES)
    text = "".join(one for one in text if not unicodedata.category(one).startswith(("M", "C")))
    digits = "".join(str(unicodedata.digit(one, one)) for one in text)
    return re.sub(r"\s+", " ", digits)
