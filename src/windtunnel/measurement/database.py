"""One SQLite file of ours: a rollback journal with full sync, so that a kill or a full disk loses nothing; every trouble is one clear error."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from windtunnel.errors import StoreError


class Database:
    """A file with the tables of `schema`, which `application` marks as ours; `what` names it to the user. Every write is one transaction."""

    def __init__(self, path: Path, schema: str, *, what: str, application: int, version: int) -> None:
        self.path, self.what = path, what
        with self._told("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = DELETE")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._prepare(schema, application, version)

    def close(self) -> None:
        self._db.close()

    def _prepare(self, schema: str, application: int, version: int) -> None:
        """Make the tables of a new file; refuse one that a later program wrote, or another program altogether."""
        found, owner = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")
        )
        if found > version:
            raise StoreError(
                f"The store {self.path} was written by a newer windtunnel (its version is {found}, this program knows {version}).",
                hint="Update windtunnel, or use another store with --store FILE or WINDTUNNEL_STORE.",
            )
        if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] and owner != application:
            raise StoreError(
                f"{self.path} is a database of another program, not {self.what}.",
                hint="Name another file with --store FILE or WINDTUNNEL_STORE.",
            )
        if found:
            return
        self._db.execute("BEGIN IMMEDIATE")
        if (
            self._db.execute("PRAGMA user_version").fetchone()[0] == 0
        ):  # another process may have been quicker
            for statement in schema.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id = {application}")
            self._db.execute(f"PRAGMA user_version = {version}")
        self._db.execute("COMMIT")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._told("written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _told(self, verb: str) -> Iterator[None]:
        """Any trouble with file or database as one clear error."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            known = isinstance(error, sqlite3.OperationalError)
            hint = "Free some space or mend its rights, or use another" if known else "Use another file"
            raise StoreError(
                f"The store {self.path} cannot be {verb}: {error}.",
                hint=f"What it held before is still there. {hint} with --store FILE.",
            ) from error
        except OSError as error:
            raise StoreError(
                f"The store {self.path} cannot be {verb}: {error}.",
                hint="Mend its rights, or use another with --store FILE.",
            ) from error
