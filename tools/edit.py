"""The `edit` tool: looks at files of the workspace and changes text, and nothing else about them.

Encoding, byte order mark, line ends, file mode and whatever is not asked for stay as they are. Text is
matched exactly; a file that changed since the model last saw it is not written. Several edits are made all
or not at all, and every change can be taken back.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
from dataclasses import dataclass
from pathlib import Path

from pilotfish.sandbox import Files, SandboxError, SandboxPathError
from pilotfish.tools import picture
from pilotfish.tools.base import ToolContext, ToolResult
from pilotfish.tools.edit_args import EditArgs, Replacement
from pilotfish.tools.history import History, Step
from pilotfish.tools.nearest import explain_miss
from pilotfish.tools.patching import PatchError, places, read_patch
from pilotfish.tools.syntax import syntax_note
from pilotfish.tools.textfile import NotText, TextFile

MAX_BYTES = 10_000_000
"""The largest file that is read."""
_VIEW_LINES = 2_000
_VIEW_CHARACTERS = 40_000
_LINE_CHARACTERS = 2_000


@dataclass(frozen=True)
class _Seen:
    """What the model last saw of a file: a digest of the bytes, and the encoding it asked for."""

    digest: bytes
    encoding: str | None


class _EditError(Exception):
    """The edit cannot be done; the message is what the model is told."""


class EditTool:
    """Keeps, per sandbox and file, what the model has seen, so that it never changes a file it does not
    know.
    """

    name = "edit"
    description = "View or change a file."
    Args = EditArgs

    def __init__(self, *, trusted: bool = False) -> None:
        """trusted: texts are ours, so they are parsed in this process."""
        self._trusted = trusted
        self._seen: dict[tuple[str, Path], _Seen] = {}
        self._history = History()
        self._lock = asyncio.Lock()  # from reading a file to writing it, one edit at a time

    async def run(self, args: EditArgs, context: ToolContext) -> ToolResult:
        """View or change the file; whatever stands against it is a result and leaves the file as it was."""
        if context.box is None:
            return ToolResult(False, "edit: there is no sandbox here; use the other tools.")
        async with self._lock:
            return await asyncio.to_thread(self.do, args, context.box.files)

    def do(self, args: EditArgs, files: Files) -> ToolResult:
        """The same at once, on these files."""
        try:
            return self._do(args, files)
        except (_EditError, SandboxError) as error:
            return ToolResult(False, f"edit: {error}")

    def rehearsal(self) -> EditTool:
        """One that knows the same, and of whose changes this one learns nothing."""
        other = EditTool(trusted=self._trusted)
        other._seen, other._history = dict(self._seen), self._history.copy()
        return other

    async def close(self) -> None:
        """Forget what was seen and changed."""
        self._seen.clear()
        self._history.clear()

    def _do(self, args: EditArgs, files: Files) -> ToolResult:
        if args.command == "create":
            return ToolResult(True, self._create(args, files))
        if args.command == "undo":
            return ToolResult(True, self._undo(args, files))
        if args.command in ("move", "delete"):
            return ToolResult(True, self._move_or_delete(args, files))
        real = files.resolve(args.path)
        data = _read(files, args.path)
        if args.command == "view" and (seen := picture.decode(data)):
            return ToolResult(True, f"({seen})", image=seen.pixels)
        known = self._seen.get((str(files.root), real))
        encoding = args.encoding or (known.encoding if known else None)
        try:
            file = TextFile.decode(data, encoding)
        except NotText as error:
            raise _EditError(f"{args.path} {error}.") from None
        if args.command == "view":
            text = _view(args, file)
            self._remember(files, real, data, encoding)
            return ToolResult(True, text)
        self._refuse_stale(files, real, data, args.path)
        changed, text = _CHANGES[args.command](args, file)
        note = self._write(files, real, args.path, data, changed, encoding)
        note += syntax_note(args.path, file.lf, changed.lf, here=self._trusted)
        return ToolResult(True, text + note)

    def _create(self, args: EditArgs, files: Files) -> str:
        assert args.new_text is not None
        _refuse_backslashes(files, args.path)
        real = files.resolve(args.path)
        data, encoding = None, args.encoding
        try:
            file = TextFile(args.new_text, args.encoding or "utf-8")
            if files.exists(args.path):
                data = _read(files, args.path)
                known = self._seen.get((str(files.root), real))
                encoding = args.encoding or (known.encoding if known else None)
                old = TextFile.decode(data, encoding)
                if not args.overwrite:
                    size = _count(old.line_count, "line")
                    raise _EditError(f"{args.path} exists with {size}; use `replace`, or set `overwrite`.")
                self._refuse_stale(files, real, data, args.path)
                file = old.with_text(_lf(args.new_text))
        except NotText as error:
            raise _EditError(f"{args.path} {error}.") from None
        note = self._write(files, real, args.path, data, file, encoding)
        note += syntax_note(args.path, None, file.lf, here=self._trusted)
        return f"ok; {_count(file.line_count, 'line')}{note}"

    def _move_or_delete(self, args: EditArgs, files: Files) -> str:
        """Files and links only, and none that is not as it was seen."""
        real = files.resolve(Path(args.path).parent) / Path(args.path).name
        key = (str(files.root), real)
        if key in self._seen:
            self._refuse_stale(files, real, _read(files, args.path), args.path)
        parent, name = Path(args.path).parent, Path(args.path).name
        kind = next((entry.kind for entry in files.list(parent) if entry.name == name), None)
        if kind is None:
            raise _EditError(f"{args.path} does not exist; {_near(files, args.path)}.")
        if kind not in ("file", "link"):
            raise _EditError(
                f"{args.path} is a {kind if kind == 'folder' else 'special file'}; use the shell."
            )
        if args.command == "delete":
            files.remove(args.path)
            self._seen.pop(key, None)
            return "ok; the file is gone"
        assert args.to is not None
        _refuse_backslashes(files, args.to)
        files.move(args.path, args.to)
        if (seen := self._seen.pop(key, None)) is not None:
            self._seen[str(files.root), files.resolve(args.to)] = seen
        return f"ok; it is {args.to} now"

    def _undo(self, args: EditArgs, files: Files) -> str:
        real = files.resolve(args.path)
        step = self._history.last((str(files.root), real))
        if step is None:
            raise _EditError(f"there is no change of {args.path} by this tool to undo; edit it instead.")
        if _digest(_read(files, args.path)) != step.after:
            raise _EditError(
                f"{args.path} has changed on disk since its last edit, so that cannot be undone; "
                "view it, then edit."
            )
        if step.before is None:
            files.remove(real)
            self._seen.pop(step.file, None)
        else:
            files.write_bytes(real, step.before)
            known = self._seen.get(step.file)
            self._remember(files, real, step.before, known.encoding if known else None)
        self._history.remove(step)
        return "ok; the file is gone" if step.before is None else "ok; as before the last edit"

    def _refuse_stale(self, files: Files, real: Path, data: bytes, path: str) -> None:
        seen = self._seen.get((str(files.root), real))
        if seen is not None and seen.digest != _digest(data):
            raise _EditError(f"{path} has changed on disk since you last saw it; view it again, then edit.")

    def _write(
        self,
        files: Files,
        real: Path,
        path: str,
        before: bytes | None,
        file: TextFile,
        encoding: str | None,
    ) -> str:
        """Write a file; returns what else is to be said of it."""
        state = None if before is None else files.state(real)
        if state is not None and not state.mode & 0o222:
            raise _EditError(
                f"{path} is read-only (mode {state.mode:o}); if it is to change, make it writable first, "
                "with `chmod u+w` in the shell."
            )
        if "\0" in file.text:  # it would be read as a binary file from then on
            raise _EditError(f"{path} would hold a null character, which text has none of; leave it out.")
        try:
            data = file.encode()
        except NotText as error:
            raise _EditError(f"{path} {error}.") from None
        except (LookupError, ValueError):  # ValueError: idna and its like, which take no ordinary text
            raise _EditError(
                f"`encoding` is {encoding!r}, which is no encoding; name one such as gbk."
            ) from None
        files.write_bytes(real, data)
        self._history.add(Step((str(files.root), real), before, _digest(data)))
        self._remember(files, real, data, encoding)
        if state is None or state.names < 2:
            return ""
        return f"; {_count(state.names - 1, 'other name')} of the file (hard link) still has the old text"

    def _remember(self, files: Files, real: Path, data: bytes, encoding: str | None) -> None:
        self._seen[str(files.root), real] = _Seen(_digest(data), encoding)


def _read(files: Files, path: str) -> bytes:
    try:
        return files.read_bytes(path, limit=MAX_BYTES)
    except SandboxPathError as error:
        if error.reason == "missing":
            raise _EditError(f"{path} does not exist; {_near(files, path)}.") from None
        raise


def _near(files: Files, path: str) -> str:
    """Names like the one that is missing, or what to do."""
    folder = Path(path).parent
    if (slashed := _slashed(files, path)) is not None and files.exists(slashed):
        return f"did you mean {slashed}"
    try:
        names = [entry.name for entry in files.list(folder) if entry.kind == "file"]
    except SandboxPathError:
        return "use `create` for a new file, or look with the shell"
    near = difflib.get_close_matches(Path(path).name, names, n=3)
    if near:
        return f"did you mean {' or '.join(str(folder / name) for name in near)}?"[:-1]
    return "use `create` for a new file, or look with the shell"


def _slashed(files: Files, path: str) -> str | None:
    """The path that is meant where the folders of one stand between backslashes: one in a folder there is."""
    slashed = path.replace("\\", "/")
    try:
        folder = files.resolve(Path(slashed).parent)
    except SandboxPathError:
        return None
    return slashed if slashed != path and folder != files.root and folder.is_dir() else None


def _refuse_backslashes(files: Files, path: str) -> None:
    """A new name with backslashes is one file's, which is not what a path as Windows writes it means."""
    if (slashed := _slashed(files, path)) is not None and not files.exists(path):
        raise _EditError(f"{path} would be the name of one file here; write {slashed}.")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _view(args: EditArgs, file: TextFile) -> str:
    """Numbered lines, and in a last line what they do not show."""
    total = file.line_count
    first, last = args.lines or (1, -1)
    if first > max(total, 1):
        raise _EditError(f"{args.path} has {_count(total, 'line')}, so there is no line {first}.")
    last = total if last == -1 else min(last, total)
    shown: list[str] = []
    size = 0
    for number, line in enumerate(file.lf.split("\n")[first - 1 : last], first):
        if len(line) > _LINE_CHARACTERS:
            line = f"{line[:_LINE_CHARACTERS]}… ({len(line) - _LINE_CHARACTERS} more characters)"
        size += len(line)
        if len(shown) == _VIEW_LINES or (size > _VIEW_CHARACTERS and shown):
            break
        shown.append(f"{number:>6}\t{line}")
    end = first + len(shown) - 1
    notes = _notes(file)
    if first > 1 or end < total:
        notes.insert(0, f"lines {first} to {end} of {total}")
    if end < last:
        notes.append("view others with `lines`")
    return "\n".join([*shown, *([f"({', '.join(notes)})"] if notes or not shown else [])])


def _notes(file: TextFile) -> list[str]:
    """What is not usual about a file: UTF-8 without a mark, `\\n` and a line end at the end are."""
    notes = ["empty file"] if not file.lf else []
    if file.encoding != "utf-8" or file.bom:
        mark = " with a byte order mark" if file.bom else ""
        notes.append(f"{file.encoding}{mark}{', guessed' if file.guessed else ''}")
    crlf, ends = file.text.count("\r\n"), file.text.count("\n")
    if crlf:
        notes.append("CRLF line ends" if crlf == ends else f"{crlf} of {ends} line ends are CRLF")
    if file.text.startswith("#!") and file.text.partition("\n")[0].endswith("\r"):
        notes.append("Linux cannot run it while its #! line ends with CRLF: `sed -i 's/\\r$//'` in the shell")
    if file.lf and not file.lf.endswith("\n"):
        notes.append("no line end at the end")
    return notes


def _replace(args: EditArgs, file: TextFile) -> tuple[TextFile, str]:
    """All replacements in order, each on what the ones before have made of the file."""
    if args.edits is None:
        return _replace_one(
            args.replacements[0], args.path, file, "`old_text`", args.line, whole_word=args.whole_word
        )
    for number, replacement in enumerate(args.replacements, 1):
        try:
            file, _ = _replace_one(replacement, args.path, file, f"the `old_text` of edit {number}")
        except _EditError as error:
            raise _EditError(f"nothing was changed: {error}") from None
    return file, f"ok; {_count(len(args.edits), 'edit')}"


def _replace_one(
    change: Replacement,
    path: str,
    file: TextFile,
    what: str,
    line: int | None = None,
    *,
    whole_word: bool = False,
) -> tuple[TextFile, str]:
    """line: the only one on which the old text may begin."""
    old, new = _lf(change.old_text), _lf(change.new_text)
    found = _starts(file.lf, old, whole_word=whole_word)
    if not found:
        part = whole_word and old in file.lf
        why = "it is only a part of longer words there" if part else explain_miss(file.lf, old)
        raise _EditError(f"{what} is not in {path}: {why}")
    starts = [start for start in found if line is None or file.line_at(start) == line]
    places = ", ".join(str(file.line_at(start)) for start in (starts or found)[:10])
    places += ", ..." if len(starts or found) > 10 else ""
    if not starts:
        raise _EditError(
            f"{what} is not on line {line} of {path} but at lines {places}; give its line, or none."
        )
    if len(starts) > 1 and not change.replace_all:
        more = "add text around it" if line is not None else "give its `line`, add lines around it"
        raise _EditError(
            f"{what} is {len(starts)} times in {path}, at lines {places}; {more}, or set `replace_all`."
        )
    changed = file.spliced([(start, start + len(old), new) for start in starts])
    return changed, f"ok; {'line' if len(starts) == 1 else f'{len(starts)} places, lines'} {places}"


def _starts(text: str, old: str, *, whole_word: bool) -> list[int]:
    """Where a text is found, without overlaps; whole_word: not where a word goes on before or behind it."""
    starts = []
    at = text.find(old)
    while at >= 0:
        end = at + len(old)
        longer = (_in_word(text[at - 1 : at]) and _in_word(old[0])) or (
            _in_word(old[-1]) and _in_word(text[end : end + 1])
        )
        if not (whole_word and longer):
            starts.append(at)
        at = text.find(old, at + 1 if whole_word and longer else end)
    return starts


def _in_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def _insert(args: EditArgs, file: TextFile) -> tuple[TextFile, str]:
    """After a line; the new text ends its own line, and a file without a line end at its end stays so."""
    assert args.line is not None
    assert args.new_text is not None
    if args.line > file.line_count:
        raise _EditError(
            f"{args.path} has {_count(file.line_count, 'line')}, so nothing can go after line {args.line}."
        )
    new = _lf(args.new_text).removesuffix("\n")
    starts = [0]
    for _ in range(args.line):
        starts.append(file.lf.find("\n", starts[-1]) + 1)
    at = starts[-1]
    if args.line and at == 0:
        at, new = len(file.lf), "\n" + new
    else:
        new += "\n"
    return file.spliced([(at, at, new)]), f"ok; line {args.line + 1}"


def _patch(args: EditArgs, file: TextFile) -> tuple[TextFile, str]:
    """All hunks or none."""
    assert args.patch is not None
    try:
        hunks = read_patch(args.patch)
        changes = places(hunks, file.lf)
    except PatchError as error:
        raise _EditError(f"nothing was changed in {args.path}: {error}.") from None
    return file.spliced(changes), f"ok; {_count(len(hunks), 'hunk')}"


_CHANGES = {"replace": _replace, "insert": _insert, "patch": _patch}
