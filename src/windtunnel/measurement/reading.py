"""A read-only store: no file is created, converted or changed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from windtunnel.errors import StoreError
from windtunnel.measurement.store import Store


class ReadStore(Store):
    """An existing store, opened so that SQLite itself refuses every write."""

    def _connect(self, path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5, isolation_level=None)
        db.execute("PRAGMA query_only = ON")
        self._schema.prepare(db)
        return db

    def _make(self) -> None:
        raise StoreError(f"There is no store {self.path}.", hint="Measure something first.")

    def _prepare(self) -> None:
        if self._needs_work():
            raise StoreError(
                f"The store {self.path} has an older form.",
                hint="windtunnel study status converts it when it opens it; the page only reads.",
            )

    def _take_over_former(self, former: Path) -> None:
        """A former file stays where it is."""
