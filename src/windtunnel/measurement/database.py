"""One SQLite file of windtunnel's: rollback journal and full sync, so that a kill or a full disk loses
nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import StoreError

_OTHER_STORE = "use another with --store FILE."
Migration = Callable[[sqlite3.Connection], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Tables of a store. SQLite's `application` number marks the file as windtunnel's, `version` counts
    changes.

    `migrations` convert older files in place, by their application number and version.
    """

    tables: str
    application: int
    version: int
    migrations: Mapping[tuple[int, int], Migration]

    def create(self, db: sqlite3.Connection) -> None:
        for statement in self.tables.split(";"):
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


class Database:
    """An open file with the tables of a schema. Every write is one transaction; every trouble one clear
    error."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path, self._schema = path, schema
        with self._clear_errors("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = DELETE")
            self._db.execute("PRAGMA synchronous = FULL")
            self._prepare()
            self._db.execute("PRAGMA foreign_keys = ON")

    def close(self) -> None:
        self._db.close()

    def _prepare(self) -> None:
        """Create the tables of a new file or migrate an old one; refuse a newer or another program's file."""
        if not self._needs_work():
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if self._needs_work():  # another process may have been faster
                migrate = self._schema.migrations.get(identity(self._db), self._schema.create)
                migrate(self._db)
                self._schema.stamp(self._db)
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

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
        if filled and (application, version) not in known:
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
        """Raise any trouble with file or database as a StoreError."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            known = isinstance(error, sqlite3.OperationalError)
            hint = "Free some space or correct its permissions, or " if known else "Please "
            raise StoreError(
                f"The store {self.path} cannot be {verb}: {error}.",
                hint=f"What it held before is still there. {hint}{_OTHER_STORE}",
            ) from error
        except OSError as error:
            raise StoreError(
                f"The store {self.path} cannot be {verb}: {error}.",
                hint=f"Correct its permissions, or {_OTHER_STORE}",
            ) from error
