"""A text file in memory that goes back to disk as it was: encoding, byte order mark and line ends.

Texts are searched and replaced with `\\n` line ends; only the part that changes is rewritten, with the line
ends around it, so a file with mixed ends keeps them everywhere else.
"""

from __future__ import annotations

import bisect
import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pilotfish.tools.words import short

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# First bytes that no text has, and those that a text may begin with: these count only where it is no text.
_MAGIC = (
    (b"\x89PNG\r\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive or office document"),
    (b"\x7fELF", "a program"),
    (b"\x1f\x8b", "gzip data"),
    (b"\xfd7zXZ\0", "xz data"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"\0asm", "a WebAssembly module"),
    (b"SQLite format 3\0", "an SQLite database"),
)
_WORDS = (
    (b"GIF8", "a GIF picture"),
    (b"RIFF", "a WebP picture, sound or film"),
    (b"BM", "a BMP picture"),
    (b"BZh", "bzip2 data"),
    (b"OggS", "sound or film"),
    (b"ID3", "sound"),
)
_DECLARED = re.compile(rb"(?:coding[:=]|charset=|encoding=)\s*[\"']?([-\w.]+)")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class NotText(ValueError):
    """The file is not text that can be edited; the message is the end of a sentence that starts with its
    name.
    """


@dataclass(frozen=True)
class TextFile:
    """text: the content without the byte order mark, line ends as on disk. guessed: the encoding is not
    certain.
    """

    text: str
    encoding: str = "utf-8"
    bom: bytes = b""
    guessed: bool = False

    @classmethod
    def decode(cls, data: bytes, encoding: str | None = None) -> TextFile:
        """Read `data`: by its byte order mark, `encoding`, UTF-8, its own declaration, or a Western code
        page.

        Raises NotText for binary data, an unknown encoding, or bytes that `encoding` does not have.
        """
        for bom, name in _BOMS:
            if data.startswith(bom):
                return _decoded(data[len(bom) :], name, bom)
        if encoding is not None:
            return _decoded(data, encoding)
        if data.startswith(tuple(magic for magic, _ in _MAGIC)):
            raise _binary(data, _MAGIC, "")
        if b"\0" in data:
            return _decoded_utf16(data)
        try:
            return cls(data.decode())
        except UnicodeDecodeError:
            return _decoded_legacy(data)

    def encode(self) -> bytes:
        """The bytes of the file. Raises NotText if a character is not in the file's encoding."""
        try:
            return self.bom + self.text.encode(self.encoding)
        except UnicodeEncodeError as error:
            char = self.text[error.start]
            raise NotText(
                f"is in {self.encoding}, which has no {short(char)} (U+{ord(char):04X}); "
                "use other characters or convert the file first"
            ) from None

    @cached_property
    def lf(self) -> str:
        """The text with every `\\r\\n` as `\\n`."""
        return self.text.replace("\r\n", "\n")

    @property
    def line_count(self) -> int:
        return self.lf.count("\n") + (not self.lf.endswith("\n") and self.lf != "")

    @property
    def line_end(self) -> str:
        """The line end that most lines have."""
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf * 2 > self.text.count("\n") else "\n"

    def with_text(self, lf: str) -> TextFile:
        """The same file with another content, given with `\\n` line ends."""
        return TextFile(lf.replace("\n", self.line_end), self.encoding, self.bom, self.guessed)

    def spliced(self, changes: Sequence[tuple[int, int, str]]) -> TextFile:
        """The file with parts replaced: (start, end, new), ordered, as offsets and text of `lf`.

        What is equal at both ends of old and new is not touched.
        """
        pieces, done = [], 0
        for start, end, new in changes:
            start, end, new = _trimmed(self.lf, start, end, new)
            first, last = self._offset(start), self._offset(end)
            if "\n" in new:  # else the line's end, which may be far, does not matter
                new = new.replace("\n", self._line_end_at(first))
            pieces += [self.text[done:first], new]
            done = last
        text = "".join([*pieces, self.text[done:]])
        return TextFile(text, self.encoding, self.bom, self.guessed)

    def line_at(self, offset: int) -> int:
        """The number of the line, from 1, at an offset of `lf`."""
        return self.lf.count("\n", 0, offset) + 1

    @cached_property
    def _crlf_ends(self) -> list[int]:
        """For each `\\r\\n`, where its `\\n` is in `lf`."""
        return [match.start() - index for index, match in enumerate(re.finditer("\r\n", self.text))]

    def _offset(self, offset: int) -> int:
        """An offset of `lf` as one of `text`; that of a line end is before its `\\r`."""
        return offset + bisect.bisect_left(self._crlf_ends, offset)

    def _line_end_at(self, offset: int) -> str:
        """The line end of the line at an offset of `text`; of the last line, that of the line before."""
        at = self.text.find("\n", offset)
        if at < 0:
            at = self.text.rfind("\n", 0, offset)
        return "\r\n" if at > 0 and self.text[at - 1] == "\r" else "\n"


def _binary(data: bytes, kinds: Sequence[tuple[bytes, str]], else_kind: str) -> NotText:
    kind = next((name for magic, name in kinds if data.startswith(magic)), else_kind)
    return NotText(f"is {kind} of {len(data)} bytes, not text; use a program that reads it")


def _trimmed(lf: str, start: int, end: int, new: str) -> tuple[int, int, str]:
    """The same change without what old and new have in common at their ends."""
    old = lf[start:end]
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    return start + head, end - tail, new[head : len(new) - tail]


def _common(one: str, other: str) -> int:
    """How many characters at the start are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _decoded(data: bytes, encoding: str, bom: bytes = b"") -> TextFile:
    """Decode strictly, and only if encoding again gives the same bytes."""
    try:
        text = data.decode(encoding)
        same = text.encode(encoding) == data
    except UnicodeError:
        raise NotText(f"is not {encoding} text; view it without `encoding` or with another one") from None
    except (LookupError, ValueError):  # ValueError: a name with a NUL in it
        raise NotText(f"cannot be read as {encoding!a}, which is no encoding; name one such as gbk") from None
    if not same:
        raise NotText(
            f"would not come back unchanged from {encoding}; convert it to UTF-8 by the shell first"
        )
    return TextFile(text, encoding, bom)


def _decoded_utf16(data: bytes) -> TextFile:
    """Text in UTF-16 without a mark has a zero in nearly every second byte; anything else with zeros is
    binary.
    """
    for name, zeros in (("utf-16-le", data[1::2]), ("utf-16-be", data[::2])):
        if len(data) % 2 == 0 and zeros.count(0) > len(zeros) * 0.4:
            try:
                found = _decoded(data, name)
            except NotText:
                continue
            if not _CONTROLS.search(found.text):
                return found
    raise _binary(data, _WORDS, "binary data")


def _decoded_legacy(data: bytes) -> TextFile:
    """Text that is not Unicode: as it declares itself, else Windows-1252 or Latin-1, which lose nothing."""
    declared = _DECLARED.search(data[:1024])
    for name in ([declared[1].decode()] if declared else []) + ["cp1252", "latin-1"]:
        try:
            found = _decoded(data, name)
        except NotText:
            continue
        if _CONTROLS.search(found.text):
            break
        guessed = declared is None or name != declared[1].decode()
        return TextFile(found.text, found.encoding, b"", guessed)
    raise _binary(data, _WORDS, "binary data")
