"""Checksums of the rows of a store, and counts of its rows, to detect damage.

Triggers write the checksum of each row that is added or changed, so no statement can omit it. The checksum
covers all columns with their types and the row's own number, so a row in the place of another is detected
too. Lost rows are detected by the counts of their table.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FUNCTION = "windtunnel_checksum"
COLUMN = "checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTable:
    """A table whose rows have checksums: the name of its rows in messages, its key and all its columns."""

    title: str
    key: tuple[str, ...]
    columns: tuple[str, ...]


TABLES: Mapping[str, CheckedTable] = {
    "environment": CheckedTable(title="environment", key=("id",), columns=("id", "facts")),
    "cell": CheckedTable(
        title="cell",
        key=("id",),
        columns=(
            *("id", "kind", "key", "created", "task", "level", "environment", "state", "error", "finished"),
            *("summary", "result"),
        ),
    ),
    "place": CheckedTable(
        title="place of a cell",
        key=("study", "figure", "line", "cell"),
        columns=("study", "figure", "line", "cell"),
    ),
    "process": CheckedTable(
        title="process", key=("id",), columns=("id", "cell", "number", "state", "error", "report")
    ),
    "sample": CheckedTable(
        title="samples", key=("process", "phase"), columns=("process", "phase", "steps", "seconds")
    ),
    "forecast": CheckedTable(
        title="forecast",
        key=("task", "machine", "program"),
        columns=("task", "machine", "program", "data"),
    ),
    "meta": CheckedTable(title="note", key=("name",), columns=("name", "value")),
}


def install(db: sqlite3.Connection) -> None:
    """Register the checksum function with a connection."""
    db.create_function(_FUNCTION, -1, _checksum, deterministic=True)


def _checksum(types: str, *values: bytes) -> str:
    """A hash of values with their types and lengths."""
    head = f"{types} {list(map(len, values))} ".encode()
    return hashlib.blake2b(head + b"".join(values), digest_size=8).hexdigest()


def expression(table: str, row: str = "") -> str:
    """The checksum of a row in SQL. Texts are hashed as bytes, which need not be valid text."""
    row = row or table
    names = [f"{row}.{name}" for name in TABLES[table].columns]
    types = " || ' ' || ".join(f"typeof({name})" for name in names)
    values = ", ".join(f"coalesce(CAST({name} AS BLOB), X'')" for name in names)
    return f"{_FUNCTION}({types}, {values})"


def is_whole(table: str, row: str = "") -> str:
    """SQL for whether the checksum of a row is correct."""
    return f"({expression(table, row)} IS {row or table}.{COLUMN})"


def triggers() -> Iterator[str]:
    """Statements that make the triggers of all tables."""
    for name, table in TABLES.items():
        same = " AND ".join(f"{key} = NEW.{key}" for key in table.key)
        seal = f"UPDATE {name} SET {COLUMN} = {expression(name, 'NEW')} WHERE {same};"
        columns = ", ".join(table.columns)
        counted = [f"'{name}'", *(["'place of ' || {row}.study"] if name == "place" else [])]
        added = "".join(
            f"INSERT INTO tally VALUES ({what.format(row='NEW')}, 1) "
            "ON CONFLICT (name) DO UPDATE SET rows = rows + 1; "
            for what in counted
        )
        removed = "".join(
            f"UPDATE tally SET rows = rows - 1 WHERE name = {what.format(row='OLD')}; " for what in counted
        )
        yield f"CREATE TRIGGER {name}_added AFTER INSERT ON {name} BEGIN {seal} {added}END"
        yield f"CREATE TRIGGER {name}_changed AFTER UPDATE OF {columns} ON {name} BEGIN {seal} END"
        yield f"CREATE TRIGGER {name}_removed AFTER DELETE ON {name} BEGIN {removed}END"


def seal_all(db: sqlite3.Connection) -> None:
    """Write the checksums and counts of rows that are older than the triggers."""
    db.execute("DELETE FROM tally")
    for name in TABLES:
        db.execute(f"UPDATE {name} SET {COLUMN} = {expression(name)}")
        db.execute("INSERT INTO tally SELECT ?, count(*) FROM " + name, (name,))
    db.execute("INSERT INTO tally SELECT 'place of ' || study, count(*) FROM place GROUP BY study")


def count(db: sqlite3.Connection, name: str) -> int:
    """The number of rows of a table by its counter: rows added minus rows removed."""
    row = db.execute("SELECT rows FROM tally WHERE name = ?", (name,)).fetchone()
    return int(row[0]) if row else 0
