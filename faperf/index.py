"""A derived index of the run files, in SQLite: which there are, and the timings in them by version.

It is never trusted over the files, and may be deleted at any time. A directory that is not as it was is listed again, a file
that is not as it was is read again, and a database that is missing, damaged or of another layout is made anew. Where it
cannot be written it is kept in memory. Which runs there are is told by the names of files, so nothing is read for that;
timings are read from the files once and stand here as they stand there.
"""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from faperf import record
from faperf.record import Run, Timing

T = TypeVar("T")

LAYOUT = 3
"""Raised with every change of the tables below."""
DOUBTFUL_NS = 2_000_000_000
"""What changed so shortly before it was looked at may change again without a new time stamp: it is looked at again."""
WAIT_S = 5.0
"""How long another process that writes is waited for; then this one goes on in memory."""
UNSEEN = (-1, -1, -1)

TABLES = """
CREATE TABLE directories (path TEXT PRIMARY KEY, inode INT, modified INT, changed INT, looked_through INT);
CREATE TABLE files (
    id INTEGER PRIMARY KEY, directory TEXT, name TEXT, commit12 TEXT, run_id TEXT,
    stamp INT, UNIQUE (directory, name)
);
CREATE INDEX files_by_commit ON files (commit12);
CREATE INDEX files_by_run ON files (run_id);
CREATE INDEX files_unread ON files (id) WHERE stamp IS NULL;
CREATE TABLE timings (file INT, version TEXT, target TEXT, workload TEXT, timing BLOB);
CREATE INDEX timings_by_version ON timings (version, target, workload);
CREATE INDEX timings_by_file ON timings (file);
CREATE TABLE answers (key TEXT PRIMARY KEY, answer BLOB);
"""


class RunFile(NamedTuple):
    """A finished run on disk. What its name tells is enough to find it: no file is read for that."""

    directory: str
    name: str
    commit12: str
    run_id: str

    @property
    def path(self) -> Path:
        return Path(self.directory, self.name)

    @property
    def dirty(self) -> bool:
        return self.name.startswith(f"{self.commit12}-dirty-")

    @classmethod
    def parse(cls, path: Path) -> RunFile | None:
        named = _named(path.name)
        return cls(str(path.parent), path.name, *named) if named else None


class StoredTiming(NamedTuple):
    """A timing, the file in which it stands, and whose it is there."""

    file: RunFile
    version: str
    target: str
    timing: Timing


class Contents(NamedTuple):
    """What was read of a run file. `sound`: every line of it."""

    records: list[record.Record]
    sound: bool


class Index:
    """The run files below `roots` (`<root>/<class>/*.jsonl`). `file` is where the database lies or is made."""

    def __init__(self, file: Path, roots: Sequence[Path], read: Callable[[Path], Contents]) -> None:
        self._file = file
        self._roots = roots
        self._read = read
        self._database: sqlite3.Connection | None = None

    # ── questions ──

    def commits(self) -> set[str]:
        """The first twelve digits of every commit that has a run."""
        found = self._ask(lambda db: db.execute("SELECT DISTINCT commit12 FROM files").fetchall(), self._list)
        return {commit12 for (commit12,) in found}

    def files(self, *, commit12: str | None = None, run_id: str | None = None) -> list[RunFile]:
        """The run files, oldest first: all, those of a commit, or those of a run."""
        wanted = {"commit12": commit12, "run_id": run_id}
        found = self._ask(lambda db: _select(db, "FROM files", wanted, "run_id"), self._list)
        return list(map(RunFile._make, found))

    def timings(self, version: str | None = None, target: str | None = None) -> list[StoredTiming]:
        """The timings in finished runs, oldest first: all, those of a version, those of a version for a target."""
        wanted, table = (
            {"version": version, "target": target},
            ", version, target, timing FROM timings JOIN files ON file = id",
        )

        def take_in(db: sqlite3.Connection) -> None:
            if version is None or not self._as_it_was(db, version):
                self._take_in(db)

        found = self._ask(lambda db: _select(db, table, wanted, "run_id, timings.rowid"), self._list, take_in)
        stored = []
        for *file, of, at, line in found:
            timing = record.decode(line)
            assert isinstance(timing, Timing)
            stored.append(StoredTiming(RunFile(*file), of, at, timing))
        return stored

    # ── what is worked out from them ──

    def remembered(self, key: str) -> bytes | None:
        """What was worked out before from what `key` tells."""
        row = self._ask(lambda db: db.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone())
        return row[0] if row else None

    def remember(self, key: str, answer: bytes) -> None:
        self._ask(lambda db: db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, answer)))

    # ── keeping up with the files ──

    def _list(self, db: sqlite3.Connection) -> None:
        """Bring the names up to date: those of each directory that is not as it was when it was listed."""
        known = {path: state for path, *state in db.execute("SELECT path, inode, modified, changed FROM directories")}
        there = {}
        for root in self._roots:
            with suppress(FileNotFoundError), os.scandir(root) as entries:
                there.update({entry.path: entry.stat() for entry in entries if entry.is_dir()})
        changed = [
            path
            for path, stat in there.items()
            if known.get(path) != [stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns] or UNSEEN[0] in known[path]
        ]
        gone = set(known) - set(there)
        if not changed and not gone:
            return
        with _writing(db):
            for path in gone:
                _forget(
                    db, path, [name for (name,) in db.execute("SELECT name FROM files WHERE directory = ?", (path,))]
                )
                db.execute("DELETE FROM directories WHERE path = ?", (path,))
            for path in changed:
                try:  # the state before the names: what comes meanwhile makes it another
                    stat = os.stat(path)
                    names = {name: named for name in os.listdir(path) if (named := _named(name))}
                except FileNotFoundError:
                    continue
                old = {name for (name,) in db.execute("SELECT name FROM files WHERE directory = ?", (path,))}
                _forget(db, path, old - set(names))
                rows = [(path, name, *named) for name, named in names.items() if name not in old]
                db.executemany("INSERT INTO files (directory, name, commit12, run_id) VALUES (?, ?, ?, ?)", rows)
                state = (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
                seen = state if _settled(stat) else UNSEEN
                db.execute("INSERT OR REPLACE INTO directories VALUES (?, ?, ?, ?, FALSE)", (path, *seen))

    def _as_it_was(self, db: sqlite3.Connection, version: str) -> bool:
        """Whether the timings of a version stand here as in the files: every name was looked through, nothing is unread, and the
        files that hold the version are as they were when they were read. Others are not looked at, which takes a second for a
        hundred thousand: whoever writes a version's first timing into a file of another by hand is heard with the next run.
        """
        doubts = "SELECT * FROM directories WHERE NOT looked_through", "SELECT * FROM files WHERE stamp IS NULL"
        if any(db.execute(doubt).fetchone() for doubt in doubts):
            return False
        own = "SELECT DISTINCT directory, name, stamp FROM timings JOIN files ON file = id WHERE version = ?"
        known = db.execute(own, (version,)).fetchall()
        with suppress(FileNotFoundError):
            return bool(known) and all(_stamp(os.stat(f"{folder}/{name}")) == stamp for folder, name, stamp in known)
        return False

    def _take_in(self, db: sqlite3.Connection) -> None:
        """Bring the timings up to date: those of each file that is not as it was when it was read."""
        stale: list[tuple[str, str, int | None]] = []
        for (directory,) in db.execute("SELECT DISTINCT directory FROM files").fetchall():
            known = dict(db.execute("SELECT name, stamp FROM files WHERE directory = ?", (directory,)))
            with suppress(FileNotFoundError), os.scandir(directory) as entries:
                for entry in entries:
                    stat = entry.stat()
                    stamp = _stamp(stat)
                    if known.get(entry.name, stamp) != stamp:
                        stale.append((directory, entry.name, stamp if _settled(stat) else None))
        if not stale and not db.execute("SELECT * FROM directories WHERE NOT looked_through").fetchone():
            return
        with _writing(db):
            db.execute("UPDATE directories SET looked_through = TRUE WHERE inode != ?", UNSEEN[:1])
            for directory, name, seen in stale:
                place = "SELECT id FROM files WHERE directory = ? AND name = ?"
                (number,) = db.execute(place, (directory, name)).fetchone()
                contents = self._read(Path(directory, name))
                db.execute("DELETE FROM timings WHERE file = ?", (number,))
                rows = [
                    (number, v, t, found.workload, record.encode(found)) for v, t, found in _owned(contents.records)
                ]
                db.executemany("INSERT INTO timings VALUES (?, ?, ?, ?, ?)", rows)
                # A damaged file is read anew each time, so that each time it is complained of.
                db.execute("UPDATE files SET stamp = ? WHERE id = ?", (seen if contents.sound else None, number))

    # ── the database ──

    def _ask(
        self, question: Callable[[sqlite3.Connection], T], *preparations: Callable[[sqlite3.Connection], None]
    ) -> T:
        """A question's answer after `preparations`; from a new database where this one is damaged, from one in memory where it
        cannot be written or is held by another process.
        """
        way = self._open
        while True:
            try:
                db = self._database = self._database or way()
                for prepare in preparations:
                    prepare(db)
                return question(db)
            except sqlite3.Error as error:
                self._close()
                if way == self._empty:
                    raise
                damaged = way == self._open and not isinstance(error, sqlite3.OperationalError)
                way = self._anew if damaged else self._empty if way == self._copy else self._copy

    def _open(self) -> sqlite3.Connection:
        db = self._connect(str(self._file))
        if _layout(db) == 0:
            _create(db)
        elif _layout(db) != _LAYOUT_HERE:
            raise sqlite3.DatabaseError("another layout")
        return db

    def _anew(self) -> sqlite3.Connection:
        """A new file, which takes the old one's place at once: others may be reading that."""
        new = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        try:
            new.unlink(missing_ok=True)
            with closing(sqlite3.connect(new, isolation_level=None)) as db:
                _create(db)
            for journal in (f"{self._file}-journal", f"{self._file}-wal"):
                Path(journal).unlink(missing_ok=True)
            os.replace(new, self._file)
        except OSError as error:
            raise sqlite3.OperationalError(str(error)) from error
        return self._connect(str(self._file))

    def _copy(self) -> sqlite3.Connection:
        """In memory, what the file has."""
        db = self._connect(":memory:")
        with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True, timeout=WAIT_S)) as disk:
            disk.backup(db, progress=_once)
        if _layout(db) != _LAYOUT_HERE:
            raise sqlite3.DatabaseError("another layout")
        return db

    def _empty(self) -> sqlite3.Connection:
        db = self._connect(":memory:")
        _create(db)
        return db

    def _connect(self, where: str) -> sqlite3.Connection:
        db = sqlite3.connect(where, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, db.close)
        return db

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


_LAYOUT_HERE = 1_000 * LAYOUT + record.SCHEMA


def _layout(db: sqlite3.Connection) -> int:
    (layout,) = db.execute("PRAGMA user_version").fetchone()
    return int(layout)


def _create(db: sqlite3.Connection) -> None:
    with _writing(db):
        if _layout(db) == 0:  # nobody else was faster
            for statement in TABLES.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {_LAYOUT_HERE}")


def _select(db: sqlite3.Connection, table: str, wanted: dict[str, str | None], order: str) -> list[tuple[Any, ...]]:
    """Rows that begin with the fields of a RunFile, of those that have what is `wanted`."""
    conditions = " AND ".join(f"{column} = :{column}" for column, value in wanted.items() if value is not None)
    where = f"WHERE {conditions}" if conditions else ""
    comma = "" if table.startswith(",") else " "
    query = f"SELECT directory, name, commit12, run_id{comma}{table} {where} ORDER BY {order}"
    return db.execute(query, wanted).fetchall()


def _once(status: int, remaining: int, total: int) -> None:
    """Ends a backup that would wait for another process for ever."""
    if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        raise sqlite3.OperationalError("held by another process")


@contextmanager
def _writing(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _forget(db: sqlite3.Connection, directory: str, names: Sequence[str] | set[str]) -> None:
    for name in names:
        (number,) = db.execute("SELECT id FROM files WHERE directory = ? AND name = ?", (directory, name)).fetchone()
        db.execute("DELETE FROM timings WHERE file = ?", (number,))
        db.execute("DELETE FROM files WHERE id = ?", (number,))


def _named(name: str) -> tuple[str, str] | None:
    """The commit and the run id that a run file's name tells."""
    stem = name.removesuffix(".jsonl")
    commit, *_, run_id = stem.split("-") if stem != name and "-" in stem else ("", "")
    return (commit, run_id) if commit and run_id else None


def _stamp(stat: os.stat_result) -> int:
    """Another one where a file's size or times are others."""
    return hash((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))


def _settled(stat: os.stat_result) -> bool:
    return time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > DOUBTFUL_NS


def _owned(records: Sequence[record.Record]) -> Iterator[tuple[str, str, Timing]]:
    """(version, target, timing) of what a run measured itself: whose a timing is, its run says."""
    runs = [found for found in records if isinstance(found, Run)]
    if not runs:
        return
    owners: dict[tuple[str | None, str | None, str], list[tuple[str, str]]] = {}
    for entry in runs[-1].entries:
        for workload, run_id in entry.measured.items():
            if run_id == runs[-1].id:
                key = (entry.build, entry.launches.get(workload), workload)
                owners.setdefault(key, []).append(entry.place)
    for found in records:
        if isinstance(found, Timing):
            for version, target in owners.get((found.build, found.launch, found.workload), []):
                yield version, target, found
