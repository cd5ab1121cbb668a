"""Answers about names and files out of the store."""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Iterable

from pilotfish.tools.index.facts import SHOWN_STATES, name_id, names_in, unpack_definitions
from pilotfish.tools.index.listing import IndexingError, require_text
from pilotfish.tools.index.paths import given, read_beneath, shown
from pilotfish.tools.index.receivers import Receivers, Whose
from pilotfish.tools.index.results import Found, Piece, Symbol, Use
from pilotfish.tools.index.rules import TEXT_BYTES
from pilotfish.tools.index.store import Store
from pilotfish.tools.index.tags import Definition, enclosing
from pilotfish.tools.textfile import NotText, TextFile
from pilotfish.tools.words import short

_SEPARATORS = re.compile(r"::|->|[.#\\]")
_LINE_CHARACTERS = 300
_PIECE_CHARACTERS = 200_000
_JUDGED_FILES = 2_000
_NEAR = 0.75
_IDENTIFIER = re.compile(r"[^\W\d][\w\-]*")


def _parts(name: str) -> list[str]:
    """`Class` and `method` of `Class.method`. Raises IndexingError where there is nothing to look for."""
    require_text("name", name)
    if not name.strip():
        raise IndexingError("the name is empty; give one such as main or Class.method.")
    return [part for part in _SEPARATORS.split(name.strip()) if part] or [name]


def find(store: Store, name: str, limit: int) -> Found:
    """Definitions by exact name and qualification; if there is none, by a part of the name in any case."""
    parts = _parts(name)
    suffix = "." + ".".join(parts)
    found = [
        symbol(path, one)
        for path, definitions in store.defining(name_id(parts[-1]))
        for one in unpack_definitions(definitions)
        if one.name == parts[-1] and ("." + one.qualified).endswith(suffix)
    ]
    notes = []
    if not found:
        found, so_named = _like(store, parts)
        notes = [f"nothing is defined as {short(name)}; {so_named}"]
    return Found(found[:limit], max(0, len(found) - limit), notes)


def _like(store: Store, parts: list[str]) -> tuple[list[Symbol], str]:
    """Definitions whose name contains the last part in any case, or else is spelt nearly like it; and what
    they are. Only what files with such a name define is unpacked.
    """
    wanted, asked = parts[-1].lower(), ".".join(parts).lower()
    names: dict[str, str] = {}  # each name that is defined, and it in small letters
    containing: list[tuple[float, Symbol]] = []
    for path, definitions, _ in store.all_tags():
        here = names_in(definitions)
        names |= {name: name.lower() for name in here if name not in names}
        if not any(wanted in names[name] for name in here):
            continue
        for one in unpack_definitions(definitions):
            if wanted in (name := one.name.lower()):
                ending = one.qualified.lower()[-len(asked) :] if len(parts) > 1 else name
                unlike = 1 - difflib.SequenceMatcher(None, asked, ending).ratio() if len(parts) > 1 else 0.0
                containing.append((unlike, symbol(path, one)))
    if containing:
        containing.sort(key=lambda one: (one[0], len(one[1].name), one[1].path, one[1].line))
        return [one for _, one in containing], "these contain it"
    ratios = _near_spellings(wanted, set(names.values()))
    near = [
        (1 - ratios[lower], symbol(path, one))
        for name, lower in names.items()
        if lower in ratios
        for path, definitions in store.defining(name_id(name))
        for one in unpack_definitions(definitions)
        if one.name == name
    ]
    near.sort(key=lambda one: (one[0], one[1].path, one[1].line))
    told = list(dict.fromkeys(one.name for _, one in near))[:3]
    if not told:
        return [], "nothing else is named so either"
    return [one for _, one in near], f"did you mean {' or '.join(told)}?"


def _near_spellings(wanted: str, names: Iterable[str]) -> dict[str, float]:
    """Which names are spelt nearly like another, and how nearly, 0 to 1."""
    pairs = {wanted[at : at + 2] for at in range(len(wanted) - 1)}
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    ratios = {}
    for name in names:
        if 3 * sum(pair in name for pair in pairs) < len(pairs):
            continue
        matcher.set_seq1(name)
        if matcher.real_quick_ratio() >= _NEAR and (ratio := matcher.ratio()) >= _NEAR:
            ratios[name] = ratio
    return ratios


def uses(store: Store, root: bytes, name: str, limit: int, *, only_calls: bool) -> Found:
    """Places where the last part of a name is used or called. With a class before it, those that are the
    class's by their receiver come first, and those of other classes are left out (`receivers.py`).
    """
    parts = _parts(name)
    found: list[tuple[bytes, int, bool]] = []
    for path, places in store.using(name_id(parts[-1])):
        lines: dict[int, bool] = {}
        for place in places:
            if place & 1 or not only_calls:
                lines[place >> 1] = lines.get(place >> 1, False) or bool(place & 1)
        found += [(path, line, called) for line, called in lines.items()]
    notes = [] if found else [f"nothing {'calls' if only_calls else 'uses'} {short(parts[-1])}"]
    if len(parts) > 1 and found:
        found, notes = _sorted_out(store, root, parts[-2], parts[-1], found)
    items = list(_described(store, root, found[:limit]))
    return Found(items, max(0, len(found) - limit), notes)


def _sorted_out(
    store: Store, root: bytes, owner: str, name: str, found: list[tuple[bytes, int, bool]]
) -> tuple[list[tuple[bytes, int, bool]], list[str]]:
    """Uses by whose they are, the surest first, without those of others; and a sentence that counts them."""
    owners = {
        one.qualified.split(".")[-2]
        for _, definitions in store.defining(name_id(name))
        for one in unpack_definitions(definitions)
        if one.name == name and "." in one.qualified
    }
    judged: list[tuple[Whose, bytes, int, bool]] = []
    for number, (path, uses_here) in enumerate(itertools.groupby(found, key=lambda use: use[0])):
        here = list(uses_here)
        tags = store.tags(path)
        try:
            text = _text(root, path).lf if number < _JUDGED_FILES else ""
        except IndexingError:
            text = ""
        definitions = unpack_definitions(tags[0]) if tags else []
        bare = path.endswith((b".py", b".pyi"))
        judge = Receivers(owner, name, text, definitions, owners, always_has_one=bare)
        judged += [(judge.whose(line), path, line, called) for _, line, called in here]
    judged.sort(key=lambda one: (-one[0], one[1], one[2]))
    numbers = Counter(one[0] for one in judged)
    sure = numbers[Whose.KNOWN] + numbers[Whose.ALIKE]
    rest = numbers[Whose.NAMED_IN_FILE] + numbers[Whose.UNKNOWN]
    told = f"{sure} of {short(owner)} by what stands before it"
    told += f"; the {rest} after may be another's" if rest else ""
    told += f"; {numbers[Whose.OTHER]} of others left out" if numbers[Whose.OTHER] else ""
    return [one[1:] for one in judged if one[0] is not Whose.OTHER], [told]


def _described(store: Store, root: bytes, places: Iterable[tuple[bytes, int, bool]]) -> Iterable[Use]:
    known: bytes | None = None
    definitions: list[Definition] = []
    lines: list[str] = []
    for path, line, called in places:
        if path != known:
            known, tags = path, store.tags(path)
            definitions = unpack_definitions(tags[0]) if tags else []
            try:
                lines = _text(root, path).lf.split("\n")
            except IndexingError:
                lines = []
        around = enclosing(definitions, line)
        text = lines[line - 1].strip() if line <= len(lines) else ""
        text = text if len(text) <= _LINE_CHARACTERS else text[: _LINE_CHARACTERS - 1] + "…"
        yield Use(shown(path), line, called, around.qualified if around else "", text)


def outline(store: Store, path: bytes) -> Found:
    """The definitions of a file in their order."""
    tags = store.tags(path)
    if tags is not None:
        found = [symbol(path, one) for one in unpack_definitions(tags[0])]
        return Found(found, notes=[] if found else [f"{shown(path)} defines nothing"])
    _require(store, path)
    return Found([], notes=[f"{shown(path)} is in no language that is parsed; read or search it"])


def read(store: Store, root: bytes, path: bytes, first: int, last: int | None, limit: int) -> Piece:
    """Lines of a file that the index shows."""
    _require(store, path)
    file = _text(root, path)
    lines = file.lf.split("\n")
    if lines[-1] == "":
        lines.pop()
    end = min(len(lines), first + limit - 1, last if last is not None else len(lines))
    chosen: list[str] = []
    characters = 0
    for line in lines[first - 1 : end]:
        characters += len(line) + 1
        if chosen and characters > _PIECE_CHARACTERS:
            break
        chosen.append(line)
    return Piece(shown(path), first, first + len(chosen) - 1, len(lines), "\n".join(chosen), file.encoding)


def whole(store: Store, root: bytes, path: bytes) -> str:
    """The text of a file that the index shows, with `\\n` ends."""
    _require(store, path)
    return _text(root, path).lf


def mentioned(store: Store, text: str) -> tuple[list[str], list[str]]:
    """Shown paths and defined names that stand in a text."""
    words = sorted(set(_IDENTIFIER.findall(text)))
    names = [word for word in words if len(word) > 2 and store.defining(name_id(word))]
    files = [
        shown(one.path)
        for one in store.files()
        if one.state in SHOWN_STATES and _stands_in(shown(one.path), text)
    ]
    return files, names


def _stands_in(path: str, text: str) -> bool:
    """Whether a text mentions a file: by its path, or by its name if that has an ending."""
    name = path.rpartition("/")[2]
    if name not in text:
        return False
    bare = rf"|(?<!/){re.escape(name)}" if "." in name else ""
    return re.search(rf"(?<![\w.\-])(?:{re.escape(path)}{bare})(?![\w\-])", text) is not None


def _require(store: Store, path: bytes) -> None:
    """Raise IndexingError for a file that the index does not show."""
    state = store.state(path)
    if state in SHOWN_STATES:
        return
    if state is not None:
        raise IndexingError(f"{shown(path)} is left out of the index ({state}); look at it by other means.")
    paths = [shown(one.path) for one in store.files() if one.state in SHOWN_STATES]
    name = path.rpartition(b"/")[2]
    same = [known for known in paths if given(known).rpartition(b"/")[2] == name]
    hint = f"did you mean {' or '.join(same[:3])}?" if same else _near(shown(path), paths)
    raise IndexingError(f"there is no file {shown(path)} in the index; {hint}")


def _near(path: str, paths: list[str]) -> str:
    near = difflib.get_close_matches(path, paths, n=3, cutoff=0.7)
    return f"did you mean {' or '.join(near)}?" if near else "give its path from the top folder on."


def _text(root: bytes, path: bytes) -> TextFile:
    try:
        data, _ = read_beneath(root, path, TEXT_BYTES)
        return TextFile.decode(data)
    except OSError as error:
        raise IndexingError(f"{shown(path)} is gone or cannot be read ({error.strerror}).") from None
    except NotText as error:
        raise IndexingError(f"{shown(path)} {error}.") from None


def symbol(path: bytes, one: Definition) -> Symbol:
    return Symbol(
        shown(path), one.line, one.end_line, one.kind, one.name, one.qualified, one.signature, one.doc
    )
