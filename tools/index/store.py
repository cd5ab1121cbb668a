"""The index on disk: one SQLite file, made again whenever it cannot be read."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import sqlite3
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pilotfish.tools.index.facts import FileFacts, PackedTags
from pilotfish.tools.index.listing import IndexingError
from pilotfish.tools.index.pool import Cancelled

SCHEMA = 2
"""Goes up whenever what is stored, or what is read from files, changes; an older index is made again."""
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE files (id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, racy INTEGER NOT NULL, digest BLOB NOT NULL,
    state TEXT NOT NULL, language TEXT, lines INTEGER NOT NULL, note TEXT NOT NULL);
CREATE TABLE tags (file INTEGER PRIMARY KEY, definitions BLOB NOT NULL, imports BLOB NOT NULL);
CREATE TABLE defined (file INTEGER PRIMARY KEY, ids BLOB NOT NULL);
CREATE TABLE used (file INTEGER PRIMARY KEY, ids BLOB NOT NULL, counts BLOB NOT NULL);
CREATE TABLE places (file INTEGER PRIMARY KEY, places BLOB NOT NULL);
"""
_PUT = """
INSERT INTO files (path, size, mtime_ns, ctime_ns, racy, digest, state, language, lines, note)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (path) DO UPDATE SET size=excluded.size, mtime_ns=excluded.mtime_ns,
    ctime_ns=excluded.ctime_ns, racy=excluded.racy, digest=excluded.digest, state=excluded.state,
    language=excluded.language, lines=excluded.lines, note=excluded.note
    RETURNING id
"""
_LINKS = """
SELECT path, defined.ids, used.ids, counts, imports FROM files
    JOIN defined ON defined.file=id JOIN used ON used.file=id JOIN tags ON tags.file=id ORDER BY path
"""
_DEFINED = """
SELECT definitions, ids FROM files JOIN tags ON tags.file=id JOIN defined ON defined.file=id WHERE path=?
"""
_DEFINING = """
SELECT path, definitions, ids FROM defined
    JOIN files ON id=defined.file JOIN tags ON tags.file=id WHERE instr(ids, ?) ORDER BY path
"""
_USING = """
SELECT path, ids, counts, places FROM used
    JOIN files ON id=used.file JOIN places ON places.file=id WHERE instr(ids, ?) ORDER BY path
"""
_DUMP = """
SELECT path, size, digest, state, language, lines, note, definitions, imports, defined.ids, used.ids, counts,
    places FROM files LEFT JOIN tags ON tags.file=id LEFT JOIN defined ON defined.file=id
    LEFT JOIN used ON used.file=id LEFT JOIN places ON places.file=id ORDER BY path
"""
_TAG_TABLES = ("tags", "defined", "used", "places")
_BUSY_SECONDS = 30.0
LOCK_SECONDS = 90.0
"""How long another process that updates the index is waited for while it writes nothing."""


class Known(NamedTuple):
    """What tells whether a file is still the one that was read."""

    id: int
    size: int
    mtime_ns: int
    ctime_ns: int
    racy: bool
    digest: bytes
    state: str


def cache_path(root: bytes) -> Path:
    """Where the index of a folder lies by default: in the user's cache, named by the folder's real path."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    cache = Path(base) if base.startswith("/") else Path.home() / ".cache"
    name = hashlib.blake2b(root, digest_size=16).hexdigest()
    return cache / "pilotfish" / "index" / f"{name}.sqlite"


DAMAGE = (sqlite3.DatabaseError, ValueError, LookupError, TypeError)
"""What reading a damaged index may raise: what SQLite does not notice is found by who reads the values."""


def is_of_the_machine(error: Exception) -> bool:
    """Whether an error tells of a full disk, a lock and the like, and not of what the file holds."""
    if not isinstance(error, sqlite3.OperationalError):
        return False
    return not re.match(r"no such |Could not decode |table \S+ has no column", str(error))


class Store:
    """One index file. Any number of processes may read it while one writes."""

    def __init__(self, path: Path, root: bytes) -> None:
        """Open or create the index of the folder `root`. Raises IndexingError where that is impossible."""
        self.path, self._root = path, os.fsdecode(root)
        self.notes: list[str] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = self._opened()
        except (OSError, sqlite3.OperationalError) as error:
            raise IndexingError(
                f"The index {path} cannot be opened ({error}); move away what is there, "
                "or set XDG_CACHE_HOME to another folder."
            ) from None

    def close(self) -> None:
        self._db.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except DAMAGE as error:
            if is_of_the_machine(error):
                raise
        self.notes.append(f"The index {self.path} was damaged or of another version and is made again.")
        with self.writing():
            self._remove()
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute("PRAGMA cache_size=-16384")
            db.execute("BEGIN IMMEDIATE")
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                db.executemany(
                    "INSERT INTO meta VALUES (?, ?)",
                    [("schema", str(SCHEMA)), ("root", json.dumps(self._root))],
                )
            db.execute("COMMIT")
            found = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('schema', 'root')"))
            if found != {"schema": str(SCHEMA), "root": json.dumps(self._root)}:
                raise sqlite3.DatabaseError("another schema or folder")
        except BaseException:
            db.close()
            raise
        return db

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def start_again(self) -> None:
        """Replace a damaged index by an empty one; the caller is `writing`."""
        self._db.close()
        self._remove()
        self._db = self._connect()
        self.notes.append(f"The index {self.path} was damaged and is made again.")

    @contextlib.contextmanager
    def writing(self, cancelled: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Be the only process that updates this index; waits for another as long as it goes on writing.

        Raises Cancelled, and IndexingError where the other one stands still.
        """
        fd = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            seen, since = self._written(), time.monotonic()
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if cancelled():
                        raise Cancelled from None
                if (now := self._written()) != seen:
                    seen, since = now, time.monotonic()
                if time.monotonic() - since > LOCK_SECONDS:
                    holder = os.pread(fd, 20, 0).decode("ascii", "replace") or "unknown"
                    raise IndexingError(
                        f"Process {holder} holds the index {self.path} and has written nothing for "
                        f"{LOCK_SECONDS:g} s; end it, or try again later."
                    )
                time.sleep(0.05)
            with contextlib.suppress(OSError):  # a full disk is told where something is lost by it
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"%d" % os.getpid(), 0)
            yield
        finally:
            os.close(fd)

    def _written(self) -> list[tuple[int, int]]:
        """What tells whether anything was written since."""
        found = []
        for suffix in ("", "-wal"):
            with contextlib.suppress(OSError):
                state = Path(f"{self.path}{suffix}").stat()
                found.append((state.st_size, state.st_mtime_ns))
        return found

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside, or none."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def known(self) -> dict[bytes, Known]:
        """All files by path."""
        rows = self._db.execute("SELECT path, id, size, mtime_ns, ctime_ns, racy, digest, state FROM files")
        return {row[0]: Known._make(row[1:]) for row in rows}

    def put(self, facts: Iterable[FileFacts]) -> None:
        """Add or replace files."""
        for one in facts:
            row = (one.path, one.size, one.mtime_ns, one.ctime_ns, one.racy, one.digest, one.state)
            (number,) = self._db.execute(_PUT, (*row, one.language, one.lines, one.note)).fetchone()
            if one.state == "parsed":
                self._put_tags(number, one.tags)
            else:
                self._drop_tags(number)

    def _put_tags(self, number: int, tags: PackedTags) -> None:
        run = self._db.execute
        run("INSERT OR REPLACE INTO tags VALUES (?, ?, ?)", (number, tags.definitions, tags.imports))
        run("INSERT OR REPLACE INTO defined VALUES (?, ?)", (number, tags.defined))
        run("INSERT OR REPLACE INTO used VALUES (?, ?, ?)", (number, tags.used, tags.counts))
        run("INSERT OR REPLACE INTO places VALUES (?, ?)", (number, tags.places))

    def _drop_tags(self, number: int) -> None:
        for table in _TAG_TABLES:
            self._db.execute(f"DELETE FROM {table} WHERE file=?", (number,))

    def refresh(self, number: int, size: int, mtime_ns: int, ctime_ns: int, racy: bool) -> None:
        """Note new times of a file whose content is the same."""
        self._db.execute(
            "UPDATE files SET size=?, mtime_ns=?, ctime_ns=?, racy=? WHERE id=?",
            (size, mtime_ns, ctime_ns, racy, number),
        )

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget files."""
        for number in numbers:
            self._db.execute("DELETE FROM files WHERE id=?", (number,))
            self._drop_tags(number)

    def meta(self, key: str) -> str | None:
        """One of the values kept beside the files."""
        row = self._db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, key: str, value: str) -> None:
        """Keep a value, if it is another one."""
        if self.meta(key) != value:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def files(self) -> list[FileFacts]:
        """All files without their tags, by path."""
        rows = self._db.execute(
            "SELECT path, size, mtime_ns, ctime_ns, racy, digest, state, language, lines, note FROM files"
            " ORDER BY path"
        )
        return [FileFacts(*row) for row in rows]

    def noted(self) -> list[tuple[bytes, str, str]]:
        """Path, state and note of the files that have a note, by path."""
        return list(self._db.execute("SELECT path, state, note FROM files WHERE note != '' ORDER BY path"))

    def state(self, path: bytes) -> str | None:
        """The state of a file; None where there is none."""
        row = self._db.execute("SELECT state FROM files WHERE path=?", (path,)).fetchone()
        return None if row is None else str(row[0])

    def tags(self, path: bytes) -> tuple[bytes, bytes] | None:
        """A parsed file's definitions and imports, as stored; None for any other."""
        row = self._db.execute(
            "SELECT definitions, imports FROM tags JOIN files ON id=file WHERE path=?", (path,)
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def defined(self, path: bytes) -> tuple[bytes, array[int]]:
        """A parsed file's definitions, as stored, and the ids of their names."""
        row = self._db.execute(_DEFINED, (path,)).fetchone()
        return (b"[]", array("Q")) if row is None else (row[0], array("Q", row[1]))

    def definitions(self) -> int:
        """How many there are."""
        return int(self._db.execute("SELECT coalesce(sum(length(ids)), 0) / 8 FROM defined").fetchone()[0])

    def all_tags(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Path, definitions and imports of every parsed file, by path."""
        return iter(
            self._db.execute(
                "SELECT path, definitions, imports FROM tags JOIN files ON id=file ORDER BY path"
            )
        )

    def links(self) -> Iterator[tuple[bytes, bytes, bytes, bytes, bytes]]:
        """Path, ids defined, ids used, their counts, and imports of every parsed file, by path."""
        return iter(self._db.execute(_LINKS))

    def defining(self, number: int) -> list[tuple[bytes, bytes]]:
        """Path and definitions of the files that define a name, by path."""
        rows = self._db.execute(_DEFINING, (number.to_bytes(8, "little"),))
        return [(path, definitions) for path, definitions, ids in rows if number in array("Q", ids)]

    def using(self, number: int) -> list[tuple[bytes, array[int]]]:
        """Path and places (see `Tags.uses`) of the files that use a name, by path."""
        found = []
        for path, ids, counts, places in self._db.execute(_USING, (number.to_bytes(8, "little"),)):
            numbers = array("Q", ids)
            if number in numbers:
                at = numbers.index(number)
                sizes = array("I", counts)
                start = sum(sizes[:at])
                found.append((path, array("I", places)[start : start + sizes[at]]))
        return found

    def counted(self) -> dict[str, tuple[int, int]]:
        """For each state how many files and lines."""
        rows = self._db.execute("SELECT state, count(*), sum(lines) FROM files GROUP BY state ORDER BY state")
        return {state: (count, lines) for state, count, lines in rows}

    def dump(self) -> list[tuple[object, ...]]:
        """All that is known of the files' contents, in a fixed order: equal for equal folders."""
        return list(self._db.execute(_DUMP))
