"""One SQLite file of windtunnel's: rollback journal and full sync, so that a kill or a full disk loses
nothing."""

from __future__ import annotations

import contextlib
import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from windtunnel import folders, sealed
from windtunnel.errors import StoreError
from windtunnel.ownership import temporary_folder

_OTHER_STORE = "use another with --store FILE."
Migration = Callable[[sqlite3.Connection], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Tables of a store. SQLite's `application` number marks the file as windtunnel's, `version` counts
    changes.

    `migrations` convert older files in place, by their application number and version. `prepare` registers
    with a connection the functions that triggers call.
    """

    tables: tuple[str, ...]
    triggers: tuple[str, ...]
    prepare: Migration
    application: int
    version: int
    migrations: Mapping[tuple[int, int], Migration]

    def create(self, db: sqlite3.Connection) -> None:
        self.prepare(db)
        for statement in (*self.tables, *self.triggers):
            db.execute(statement)

    def stamp(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA application_id = {self.application}")
        db.execute(f"PRAGMA user_version = {self.version}")


def identity(db: sqlite3.Connection) -> tuple[int, int]:
    """Application number and version of a file."""
    application, version = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version")
    )
    return application, version


def has_checksums(db: sqlite3.Connection) -> bool:
    """Whether a file has the table of counts, which came with the checksums."""
    return bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = 'tally'").fetchone())


class Database:
    """An open file with the tables of a schema. Every write is one transaction; every failure raises one
    StoreError."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path, self._schema = path, schema
        with self._clear_errors("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                self._make()
            self._db = self._connect(path)
            self._prepare()
            self._db.execute("PRAGMA foreign_keys = ON")

    def _connect(self, path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(path, timeout=30, isolation_level=None)
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA synchronous = FULL")
        self._schema.prepare(db)
        return db

    def _make(self) -> None:
        """Create a new store atomically, so that an empty file is always one that lost its data."""
        with temporary_folder(self.path.parent, "store") as folder:
            new = folder / self.path.name
            with contextlib.closing(self._connect(new)) as db:
                db.execute("BEGIN IMMEDIATE")
                self._schema.create(db)
                self._schema.stamp(db)
                db.execute("COMMIT")
            try:
                os.link(new, self.path)
            except FileExistsError:  # another process was faster
                pass
            except OSError:  # a disk without links
                if not self.path.exists():
                    os.replace(new, self.path)

    def close(self) -> None:
        self._db.close()

    def _prepare(self) -> None:
        """Convert an old file; refuse a newer, an empty or another program's file."""
        if not self._needs_work():
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            converted = self._needs_work()  # another process may have been faster
            if converted:
                self._refuse_downgraded()
                self._schema.migrations[identity(self._db)](self._db)
                self._schema.stamp(self._db)
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

        if converted:
            sealed.warn(
                f"The store {self.path} is of an earlier version and had no checksums: no one can tell "
                "whether it changed. It was converted, and its rows have checksums now."
            )

    def _refuse_downgraded(self) -> None:
        """Refuse a store that has checksums, but says that it is of a version without them."""
        if has_checksums(self._db):
            raise StoreError(
                f"The store {self.path} is damaged: it says that it is of version {identity(self._db)[1]}, "
                f"but it has the tables of version {self._schema.version}.",
                hint=what_to_do(self.path),
            )

    def _needs_work(self) -> bool:
        application, version = identity(self._db)
        if version > self._schema.version:
            raise StoreError(
                f"The store {self.path} was written by a newer windtunnel (its version is {version}, "
                f"this program knows {self._schema.version}).",
                hint="Update windtunnel, or use another store with --store FILE or WINDTUNNEL_STORE.",
            )
        known = {(self._schema.application, self._schema.version), *self._schema.migrations}
        filled = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not filled:
            refuse_empty(self.path)
        if (application, version) not in known:
            raise StoreError(
                f"{self.path} is a database of another program, not a store of windtunnel.",
                hint="Name another file with --store FILE or WINDTUNNEL_STORE.",
            )
        return (application, version) != (self._schema.application, self._schema.version)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._clear_errors("written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _clear_errors(self, verb: str) -> Iterator[None]:
        """Raise any error of the file or the database as a StoreError."""
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise StoreError(
                f"The store {self.path} cannot be {verb}: {error}.", hint=self._hint(error)
            ) from error
        except OSError as error:
            raise StoreError(
                f"The store {self.path} cannot be {verb}: {error}.",
                hint=f"Correct its permissions, or {_OTHER_STORE}",
            ) from error

    def _hint(self, error: Exception) -> str:
        """What to do after an error of SQLite: those of damage are DatabaseError itself, or about text."""
        if isinstance(error, sqlite3.OperationalError) and "decode" not in str(error):
            return (
                "What it held before is still there. Free some space or correct its permissions, or "
                f"{_OTHER_STORE}"
            )
        return what_to_do(self.path)


def what_to_do(path: Path) -> str:
    """What to do about a damaged store, as commands that name it."""
    check, mend = (f"windtunnel store {word}{store_option(path)}" for word in ("check", "repair"))
    return f"See all damage:      {check}\n    Keep what is whole:  {mend}"


def store_option(path: Path) -> str:
    """The option that names this store to a command; empty for the default store."""
    return "" if path == folders.store_file() else f" --store {shlex.quote(str(path))}"


def refuse_empty(path: Path) -> NoReturn:
    raise StoreError(
        f"The store {path} is empty: it has {path.stat().st_size} bytes and no table. What it held is gone.",
        hint="Restore a copy of it, or remove the file to begin a new store.",
    )
