"""`tokenizer.json` of a checkpoint: text to token ids and back.

M3's markers (`]~b]`, `[e~[`, `]<]minimax[>[`, ...) are added tokens that are not flagged special, so an
ordinary tokenizer turns a user's text that merely spells one into the real thing. Here the two stay apart:
`encode` never produces an added token whatever the text says; `encode_markers` is for text of our own.
Markers are found by their spelling, so any checkpoint of the family works, whatever its ids.
"""

from __future__ import annotations

import codecs
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import tokenizers

from pilotfish.model.protocol import ModelError

TURN_START = "]~b]"
TURN_END = "[e~["
DOCUMENT_START = "]~!b["
NAMESPACE = "]<]minimax[>["
THINK_START = "<mm:think>"
THINK_END = "</mm:think>"
IMAGE = "]<]image[>["
VIDEO = "]<]video[>["
IMAGE_START = "]<]start of image[>["
IMAGE_END = "]<]end of image[>["

_AT_ONCE = 256 * 1024
"""Characters that are encoded in one call; other Python threads go on meanwhile, and others' calls wait."""
_PIECE = 16 * 1024
"""Characters after which a text is cut, so that its pieces are encoded at the same time."""
_CUT = re.compile("\n(?=[A-Za-z])")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = (
    rf"X?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|X?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
)
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CUTTABLE = frozenset(
    (
        # o200k's
        _WORDS.replace("X", r"[^\r\n\p{L}\p{N}]")
        + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}",
        # nano's
        r'</?[A-Za-z_]+(?: name="[A-Za-z_]+")?>| ?[a-z]+(?:_[a-z]+)+|'
        + _WORDS.replace("X", " ")
        + rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}][^\s\p{{L}}\p{{N}}<]*[\r\n/]*|{_SPACE}",
    )
)
"""Patterns of pre-tokens that end at a line's end when a letter follows, and look no further."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


class Tokenizer:
    """Byte-level BPE with added tokens, as loaded from a checkpoint's folder."""

    def __init__(self, description: Mapping[str, Any], *, source: str = "tokenizer.json") -> None:
        """`description` is the parsed `tokenizer.json`; `source` names it in errors."""
        self._source = source
        try:
            self.markers: dict[str, int] = {t["content"]: t["id"] for t in description["added_tokens"]}
            ordinary = dict(description, added_tokens=[], post_processor=None, padding=None, truncation=None)
            vocab: dict[str, int] = description["model"]["vocab"]
            # Some files list added tokens in the vocabulary too, where a whole-word match could reach them.
            ordinary["model"] = dict(
                description["model"], vocab={t: i for t, i in vocab.items() if t not in self.markers}
            )
            self._ordinary = tokenizers.Tokenizer.from_str(json.dumps(ordinary))
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise ModelError(f"{source} is not a tokenizer ({error}); fetch the checkpoint again") from error
        self._cuttable = _is_cuttable(ordinary)
        self._bytes = _token_bytes(vocab, self.markers)
        by_length = sorted(filter(None, self.markers), key=len, reverse=True)
        self._marker_pattern = (
            re.compile("(" + "|".join(map(re.escape, by_length)) + ")") if by_length else None
        )
        self.vocab_size = max(self._bytes, default=-1) + 1
        """One more than the highest id in use."""

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Load a checkpoint folder's `tokenizer.json`; raises `ModelError` when it is missing or broken."""
        path = Path(folder) / "tokenizer.json"
        try:
            description = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or error
            raise ModelError(
                f"cannot read {path} ({reason}); name a folder that holds a checkpoint"
            ) from error
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path} is not valid JSON ({error}); fetch the checkpoint again") from error
        if not isinstance(description, dict):
            raise ModelError(f"{path} holds no JSON object; fetch the checkpoint again")
        return cls(description, source=str(path))

    @functools.cached_property
    def digest(self) -> str:
        """What every id means, as a hash."""
        described = self._ordinary.to_str() + json.dumps(self.markers, sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()

    def id(self, marker: str) -> int:
        """The id of an added token; raises `ModelError` when this tokenizer has none of that spelling."""
        try:
            return self.markers[marker]
        except KeyError:
            raise ModelError(
                f"{self._source} has no token {marker!r}; use a checkpoint of the MiniMax-M3 family"
            ) from None

    @property
    def eos_id(self) -> int:
        """The end of a turn, at which generation stops."""
        return self.id(TURN_END)

    @property
    def bos_id(self) -> int:
        """The begin of a document; every rendered conversation starts with it."""
        return self.id(DOCUMENT_START)

    @property
    def image_id(self) -> int:
        """The placeholder of one merged patch of a picture."""
        return self.id(IMAGE)

    @property
    def video_id(self) -> int:
        """The placeholder of one merged patch of a clip."""
        return self.id(VIDEO)

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text. No text, whatever it spells, yields an added token."""
        (ids,) = self.encode_each([text])
        return ids

    def encode_each(
        self, texts: Iterable[str], look: Callable[[], object] = lambda: None
    ) -> Iterator[list[int]]:
        """`encode` of each text in turn, some hundred thousand characters ahead.

        Long ones are encoded by several threads, and meanwhile other threads of Python go on. look: called in
        between; what it raises ends the work.
        """
        batch: list[tuple[str, bool]] = []  # pieces, and whether each is its text's last
        held, ids = 0, list[int]()
        for text in texts:
            for piece in self._pieces(_without_surrogates(text)):
                batch.append(piece)
                held += len(piece[0])
                if held >= _AT_ONCE:
                    look()
                    for found, is_last in self._encoded(batch):
                        ids += found
                        if is_last:
                            yield ids
                            ids = []
                    batch, held = [], 0
        for found, is_last in self._encoded(batch):
            ids += found
            if is_last:
                yield ids
                ids = []

    def _encoded(self, batch: list[tuple[str, bool]]) -> Iterator[tuple[list[int], bool]]:
        pieces = [piece for piece, _ in batch]
        if sum(map(len, pieces)) > _PIECE:
            encodings = self._ordinary.encode_batch_fast(pieces, add_special_tokens=False)
        else:  # what is short does not wait for the library's threads, which may be busy with what is long
            encodings = [self._ordinary.encode(piece, add_special_tokens=False) for piece in pieces]
        for encoding, (_, is_last) in zip(encodings, batch, strict=True):
            yield encoding.ids, is_last

    def _pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """A text cut where its tokens are the same without the cut, and whether each piece is the last."""
        start = 0
        while self._cuttable and (cut := _CUT.search(text, start + _PIECE)) is not None:
            yield text[start : cut.end()], False
            start = cut.end()
        yield text[start:], True

    def encode_markers(self, text: str) -> list[int]:
        """Ids of trusted text, in which a marker's spelling means the marker."""
        ids: list[int] = []
        for piece in self.split_markers(text):
            ids += [piece] if isinstance(piece, int) else self.encode(piece)
        return ids

    def split_markers(self, text: str) -> list[int | str]:
        """Cut trusted text at its markers (the longest spelling wins): their ids and the text between."""
        if self._marker_pattern is None:
            return [text] if text else []
        pieces = self._marker_pattern.split(text)
        return [self.markers[piece] if n % 2 else piece for n, piece in enumerate(pieces) if piece]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, markers included; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def decoder(self) -> IncrementalDecoder:
        """A decoder that takes one id after another."""
        return IncrementalDecoder(self)

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes one id stands for; an id without a token (a padded vocabulary) is U+FFFD."""
        return self._bytes.get(token_id, _REPLACEMENT)


class IncrementalDecoder:
    """Turns ids into text as they come and never hands out half a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """The text that became certain with this id; may be empty."""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def close(self) -> str:
        """What is left at the end: U+FFFD when a character was cut."""
        return self._utf8.decode(b"", final=True)


def _without_surrogates(text: str) -> str:
    """Lone surrogates have no UTF-8; pairs become the character they spell, the rest U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_cuttable(description: Mapping[str, Any]) -> bool:
    """Whether a tokenizer splits text by one of the `CUTTABLE` patterns and does nothing else before."""
    cut = description.get("pre_tokenizer") or {}
    steps = cut.get("pretokenizers", [cut]) if cut.get("type") == "Sequence" else []
    return (
        description.get("normalizer") is None
        and [step.get("type") for step in steps] == ["Split", "ByteLevel"]
        and steps[0].get("pattern", {}).get("Regex") in CUTTABLE
        and steps[0].get("behavior") == "Isolated"
        and not steps[0].get("invert")
        and not steps[1].get("use_regex", True)
        and not steps[1].get("add_prefix_space", True)
    )


def _token_bytes(vocab: Mapping[str, int], markers: Mapping[str, int]) -> dict[int, bytes]:
    """Bytes per id. Ordinary tokens are spelled in the byte-level alphabet, markers in plain text."""
    byte_of = {character: byte for byte, character in byte_alphabet().items()}
    table = {}
    for token, token_id in vocab.items():
        try:
            table[token_id] = bytes(byte_of[character] for character in token)
        except KeyError:
            table[token_id] = token.encode(errors="replace")
    table.update((token_id, spelling.encode()) for spelling, token_id in markers.items())
    return table


def byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in byte-level BPE (the GPT-2 table).

    Bytes that print in Latin-1 stand for themselves; the others take the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (chr(0x100 + n) for n in range(256))
    return {byte: chr(byte) if byte in printable else next(moved) for byte in range(256)}
